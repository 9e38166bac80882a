// SPDX-License-Identifier: Apache-2.0
#include "experts/resident_file.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>

namespace neotier::experts {

namespace {

class ResidentFile final : public engine::File {
 public:
  explicit ResidentFile(std::vector<ResidentRange> files) : files_(std::move(files)) {}
  uint64_t bytes() const override {
    uint64_t sum = 0;
    for (const ResidentRange& f : files_) sum += f.bytes;
    return sum;
  }
  const char* method() const override { return "copies of host memory"; }
  bool register_buffers(std::span<const iovec>) override { return true; }
  void start(engine::Io& io) override {
    const std::lock_guard lock(mutex_);
    queue_.push_back(&io);
  }
  void wait(std::vector<engine::Io*>& completed, bool block) override {
    std::unique_lock lock(mutex_);
    if (block) changed_.wait(lock, [this] { return woken_ || !queue_.empty(); });
    woken_ = false;
    if (queue_.empty()) return;
    // One at a time: what is waited for is known to be there as soon as it is.
    engine::Io* const io = queue_.front();
    queue_.pop_front();
    lock.unlock();
    copy(*io);
    completed.push_back(io);
  }
  void wake() override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    changed_.notify_one();
  }

 private:
  void copy(engine::Io& io) const {
    if (io.op != engine::IoOp::kRead || io.iovs != 1) {
      io.result = -EINVAL;
      return;
    }
    const ResidentRange& file = files_[io.file_index];
    const uint64_t bytes = std::min<uint64_t>(io.iov->iov_len, file.bytes - std::min(file.bytes, io.offset));
    std::memcpy(io.iov->iov_base, file.data + io.offset, bytes);
    io.result = static_cast<int64_t>(bytes);
  }
  const std::vector<ResidentRange> files_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<engine::Io*> queue_;
  bool woken_ = false;
};

}  // namespace

std::unique_ptr<engine::File> resident_file(std::vector<ResidentRange> files) {
  return std::make_unique<ResidentFile>(std::move(files));
}

}  // namespace neotier::experts

// SPDX-License-Identifier: Apache-2.0
#include "experts/staged_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "engine/tiers/cuda/cuda_tier.h"
#include "experts/layout.h"

namespace neotier::experts {

namespace {

class StagedFile final : public engine::File {
 public:
  StagedFile(std::unique_ptr<engine::File> file, std::shared_ptr<engine::Tier> tier, std::vector<StagedPlace> places,
             uint64_t piece_bytes, uint32_t pieces, std::byte* memory)
      : file_(std::move(file)),
        tier_(std::move(tier)),
        places_(std::move(places)),
        memory_(memory, piece_bytes * pieces),
        piece_bytes_(piece_bytes),
        method_(std::string(file_->method()) + ", staged for " + tier_->info().name) {
    std::ranges::sort(places_, {}, &StagedPlace::address);
    std::vector<iovec> buffers;
    for (uint32_t i = 0; i < pieces; i++) buffers.push_back({memory + i * piece_bytes, piece_bytes});
    const bool registered = file_->register_buffers(buffers);
    engine::cuda_register_host(*tier_, memory_);
    for (uint32_t i = 0; i < pieces; i++) {
      Stage& stage = *stages_.emplace_back(std::make_unique<Stage>());
      stage.memory = memory + i * piece_bytes;
      stage.buffer = registered ? static_cast<int>(i) : -1;
      stage.iov = &stage.vector;
      stage.iovs = 1;
      stage.transfer.op = engine::Op::kWrite;
      stage.transfer.pieces = {&stage.piece, 1};
      stage.transfer.done = [this, &stage](engine::Transfer&, const engine::Status& status) { written(stage, status); };
      free_.push_back(&stage);
    }
  }
  ~StagedFile() override {
    // The last written() may still be in its wake().
    { const std::lock_guard lock(mutex_); }
    engine::cuda_unregister_host(*tier_, memory_);
    file_.reset();
    std::free(memory_.data());
  }

  uint64_t bytes() const override { return file_->bytes(); }
  const char* method() const override { return method_.c_str(); }
  // It is the staging buffers that are registered.
  bool register_buffers(std::span<const iovec>) override { return false; }
  void start(engine::Io& io) override {
    if (!place_of(io)) {
      refused_.push_back(&io);
      return file_->wake();
    }
    waiting_.push_back(&io);
    read();
  }
  void wait(std::vector<engine::Io*>& completed, bool block) override {
    const size_t before = completed.size();
    for (engine::Io* io : std::exchange(refused_, {})) {
      io->result = -EINVAL;
      completed.push_back(io);
    }
    write();
    collect(completed);
    // Where the tier's queue is full of others' transfers nothing here would end the wait.
    const bool stuck = !to_write_.empty() && writing_ == 0;
    read_.clear();
    file_->wait(read_, block && completed.size() == before && !stuck);
    for (engine::Io* io : read_) {
      auto& stage = *static_cast<Stage*>(io);
      if (stage.result > 0)
        to_write_.push_back(&stage);
      else
        end(stage, stage.result, completed);
    }
    write();
    collect(completed);
    read();
  }
  void wake() override { file_->wake(); }

 private:
  struct Stage : engine::Io {
    std::byte* memory = nullptr;
    iovec vector{};
    engine::Io* outer = nullptr;
    engine::Transfer transfer;
    engine::Piece piece;
    engine::Status status;
  };

  void end(Stage& stage, int64_t result, std::vector<engine::Io*>& completed) {
    stage.outer->result = result;
    completed.push_back(stage.outer);
    free_.push_back(&stage);
  }

  void read() {
    while (!waiting_.empty() && !free_.empty()) {
      engine::Io& io = *waiting_.front();
      waiting_.pop_front();
      Stage& stage = *free_.back();
      free_.pop_back();
      stage.outer = &io;
      stage.offset = io.offset;
      stage.file_index = io.file_index;
      stage.vector = {stage.memory, io.iov->iov_len};
      const StagedPlace& place = *place_of(io);
      stage.transfer.extent = place.extent;
      stage.transfer.offset = static_cast<uint64_t>(static_cast<std::byte*>(io.iov->iov_base) - place.address);
      file_->start(stage);
    }
  }

  // Where the read is to end. NULL: there is no such place, or it is no read that can be staged.
  const StagedPlace* place_of(const engine::Io& io) const {
    if (io.op != engine::IoOp::kRead || io.iovs != 1 || io.iov->iov_len > piece_bytes_) return nullptr;
    auto* const to = static_cast<std::byte*>(io.iov->iov_base);
    const auto after = std::ranges::upper_bound(places_, to, {}, &StagedPlace::address);
    if (after == places_.begin()) return nullptr;
    const StagedPlace& place = *(after - 1);
    const auto offset = static_cast<uint64_t>(to - place.address);
    return offset <= place.bytes && io.iov->iov_len <= place.bytes - offset ? &place : nullptr;
  }

  void write() {
    while (!to_write_.empty()) {
      Stage& stage = *to_write_.front();
      stage.piece = {stage.memory, static_cast<uint64_t>(stage.result)};
      writing_++;
      engine::Transfer* const transfer = &stage.transfer;
      if (tier_->submit({&transfer, 1}) == 0) {
        writing_--;
        return;
      }
      to_write_.pop_front();
    }
  }

  // By a thread of the tier's.
  void written(Stage& stage, const engine::Status& status) {
    const std::lock_guard lock(mutex_);
    stage.status = status;
    written_.push_back(&stage);
    // With the lock held: once it is free this file may be gone.
    file_->wake();
  }

  void collect(std::vector<engine::Io*>& completed) {
    const std::lock_guard lock(mutex_);
    for (Stage* stage : written_) {
      const engine::Status& status = stage->status;
      writing_--;
      end(*stage, status.is_ok() ? stage->result : status.code() == engine::Code::kGone ? -ENODEV : -EIO, completed);
    }
    written_.clear();
  }

  std::unique_ptr<engine::File> file_;
  const std::shared_ptr<engine::Tier> tier_;
  std::vector<StagedPlace> places_;  // by address
  const std::span<std::byte> memory_;
  const uint64_t piece_bytes_;
  const std::string method_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<Stage*> free_;
  std::deque<engine::Io*> waiting_;  // for a staging buffer
  std::vector<engine::Io*> refused_;
  std::vector<engine::Io*> read_;
  std::deque<Stage*> to_write_;
  uint32_t writing_ = 0;  // transfers at the tier, or in written_
  std::mutex mutex_;
  std::vector<Stage*> written_;  // guarded by mutex_
};

}  // namespace

std::unique_ptr<engine::File> staged_file(std::unique_ptr<engine::File> file, std::shared_ptr<engine::Tier> tier,
                                          std::vector<StagedPlace> places, uint64_t piece_bytes, uint32_t pieces) {
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kIoBlock, piece_bytes * pieces));
  if (!memory) return nullptr;
  return std::make_unique<StagedFile>(std::move(file), std::move(tier), std::move(places), piece_bytes, pieces, memory);
}

}  // namespace neotier::experts

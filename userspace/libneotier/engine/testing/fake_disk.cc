// SPDX-License-Identifier: Apache-2.0
#include "engine/testing/fake_disk.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>

namespace neotier::engine::ssd {

namespace {
constexpr uint64_t kSector = 512;  // written as a whole or not at all
}

class FakeDisk::OpenFile : public File {
 public:
  OpenFile(FakeDisk& disk, std::vector<std::shared_ptr<Image>> images, bool locks)
      : disk_(disk), images_(std::move(images)), locks_(locks) {
    disk_.open_.push_back(this);
    images_[0]->locked |= locks_;
  }
  ~OpenFile() override {
    const std::lock_guard lock(disk_.mutex_);
    std::erase(disk_.open_, this);
    if (locks_) images_[0]->locked = false;
  }
  uint64_t bytes() const override {
    const std::lock_guard lock(disk_.mutex_);
    uint64_t sum = 0;
    for (const auto& image : images_) sum += image->now.size();
    return sum;
  }
  const char* method() const override { return "memory (a test's)"; }
  bool register_buffers(std::span<const iovec>) override { return true; }
  void start(Io& io) override {
    const std::lock_guard lock(disk_.mutex_);
    queue_.push_back(&io);
  }
  void wait(std::vector<Io*>& completed, bool block) override {
    std::unique_lock lock(disk_.mutex_);
    const auto is_held = [this](const Io* io) { return disk_.held_ && (disk_.reads_held_ || io->op != IoOp::kRead); };
    const auto count_free = [&] { return queue_.size() - std::ranges::count_if(queue_, is_held); };
    if (block) changed_.wait(lock, [&] { return woken_ || count_free() > 0; });
    woken_ = false;
    // Some of them, in any order.
    std::shuffle(queue_.begin(), queue_.end(), disk_.random_);
    std::stable_partition(queue_.begin(), queue_.end(), is_held);
    const size_t free = count_free();
    const size_t left = free == 0 ? queue_.size() : queue_.size() - 1 - disk_.random_() % free;
    while (queue_.size() > left) {
      Io* const io = queue_.back();
      queue_.pop_back();
      disk_.execute(*images_[io->file_index], *io);
      completed.push_back(io);
    }
  }
  void wake() override {
    {
      const std::lock_guard lock(disk_.mutex_);
      woken_ = true;
    }
    changed_.notify_all();
  }
  // With the disk's lock.
  void notify() { changed_.notify_all(); }
  Image& image(const Io& io) { return *images_[io.file_index]; }
  const std::vector<Io*>& queue() const { return queue_; }

 private:
  FakeDisk& disk_;
  const std::vector<std::shared_ptr<Image>> images_;
  const bool locks_;
  std::condition_variable changed_;
  std::vector<Io*> queue_;
  bool woken_ = false;
};

FakeDisk::FakeDisk(uint64_t seed) : random_(seed) {}
FakeDisk::~FakeDisk() = default;

bool FakeDisk::exists(const std::string& path) {
  const std::lock_guard lock(mutex_);
  return images_.contains(path);
}

Result<std::unique_ptr<File>> FakeDisk::open(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (lost_ || !powered_) return Status(Code::kIo, path + ": no such device");
  const auto at = images_.find(path);
  if (at == images_.end()) return Status(Code::kNotFound, path + ": no such file");
  if (at->second->locked) return Status(Code::kBusy, path + ": in use by another process");
  return std::unique_ptr<File>(std::make_unique<OpenFile>(*this, std::vector{at->second}, true));
}

Result<std::unique_ptr<File>> FakeDisk::open_to_read(std::span<const std::string> paths) {
  const std::lock_guard lock(mutex_);
  if (lost_ || !powered_) return Status(Code::kIo, paths[0] + ": no such device");
  std::vector<std::shared_ptr<Image>> images;
  for (const std::string& path : paths) {
    const auto at = images_.find(path);
    if (at == images_.end()) return Status(Code::kNotFound, path + ": no such file");
    images.push_back(at->second);
  }
  return std::unique_ptr<File>(std::make_unique<OpenFile>(*this, std::move(images), false));
}

Result<std::unique_ptr<File>> FakeDisk::create(const std::string& path, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (lost_ || !powered_) return Status(Code::kIo, path + ": no such device");
  // As the machine's own files do: nothing but what an interrupted create() left is replaced.
  if (const auto at = images_.find(path); at != images_.end()) {
    const std::vector<std::byte>& now = at->second->now;
    if (std::any_of(now.begin(), now.begin() + static_cast<ptrdiff_t>(std::min<size_t>(now.size(), 4096)),
                    [](std::byte b) { return b != std::byte{}; }))
      return Status(Code::kExists, path + ": is there already");
  }
  auto image = std::make_shared<Image>();
  image->now.resize(bytes);
  image->durable.resize(bytes);
  images_[path] = image;
  return std::unique_ptr<File>(std::make_unique<OpenFile>(*this, std::vector{image}, true));
}

Status FakeDisk::rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  if (!powered_) return {Code::kIo, from + ": no power"};
  images_[to] = images_[from];
  images_.erase(from);
  return Status::ok();
}

void FakeDisk::note_write(Image& image, const Io& io, uint64_t bytes) {
  Write write{io.offset, {}};
  for (uint32_t i = 0; i < io.iovs && write.bytes.size() < bytes; i++) {
    const auto* const data = static_cast<const std::byte*>(io.iov[i].iov_base);
    const uint64_t count = std::min<uint64_t>(io.iov[i].iov_len, bytes - write.bytes.size());
    write.bytes.insert(write.bytes.end(), data, data + count);
  }
  std::copy(write.bytes.begin(), write.bytes.end(), image.now.begin() + static_cast<ptrdiff_t>(io.offset));
  image.unsynced.push_back(std::move(write));
}

void FakeDisk::execute(Image& image, Io& io) {
  if (!powered_ || lost_) {
    io.result = -ENODEV;
    return;
  }
  if (crash_in_ > 0 && --crash_in_ == 0) {
    if (io.op == IoOp::kWrite) note_write(image, io, UINT64_MAX);
    power_off();
    io.result = -ENODEV;
    return;
  }
  if (unsigned& failures = failures_[static_cast<size_t>(io.op)]; failures > 0) {
    failures--;
    io.result = -error_;
    return;
  }
  if (io.op == IoOp::kRead && std::uniform_real_distribution<>()(random_) < read_failures_) {
    io.result = -error_;
    return;
  }
  if (io.op == IoOp::kSync) {
    for (const Write& write : image.unsynced)
      std::copy(write.bytes.begin(), write.bytes.end(), image.durable.begin() + static_cast<ptrdiff_t>(write.offset));
    image.unsynced.clear();
    syncs_++;
    io.result = 0;
    return;
  }
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < io.iovs; i++) bytes += io.iov[i].iov_len;
  if (io.offset >= image.now.size()) {
    io.result = 0;
    return;
  }
  bytes = std::min<uint64_t>(bytes, image.now.size() - io.offset);
  if (unsigned& shortened = shortened_[static_cast<size_t>(io.op)]; shortened > 0 && bytes > kSector) {
    shortened--;
    bytes = kSector * (1 + random_() % (bytes / kSector - 1));
  }
  io.result = static_cast<int64_t>(bytes);
  if (io.op == IoOp::kWrite) return note_write(image, io, bytes);
  uint64_t at = io.offset;
  for (uint32_t i = 0; i < io.iovs && bytes > 0; i++) {
    const uint64_t count = std::min<uint64_t>(io.iov[i].iov_len, bytes);
    std::memcpy(io.iov[i].iov_base, image.now.data() + at, count);
    at += count;
    bytes -= count;
  }
}

void FakeDisk::hold(bool reads) {
  const std::lock_guard lock(mutex_);
  held_ = true;
  reads_held_ = reads;
}

void FakeDisk::release() {
  const std::lock_guard lock(mutex_);
  held_ = false;
  for (OpenFile* file : open_) file->notify();
}

void FakeDisk::fail(IoOp op, unsigned count, int error) {
  const std::lock_guard lock(mutex_);
  failures_[static_cast<size_t>(op)] = count;
  error_ = error;
}

void FakeDisk::fail_reads(double chance, int error) {
  const std::lock_guard lock(mutex_);
  read_failures_ = chance;
  error_ = error;
}

void FakeDisk::put(const std::string& path, std::vector<std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  auto image = std::make_shared<Image>();
  image->now = image->durable = std::move(bytes);
  images_[path] = std::move(image);
}

void FakeDisk::shorten(IoOp op, unsigned count) {
  const std::lock_guard lock(mutex_);
  shortened_[static_cast<size_t>(op)] = count;
}

void FakeDisk::lose() {
  const std::lock_guard lock(mutex_);
  lost_ = true;
  held_ = false;
  for (OpenFile* file : open_) file->notify();
}

void FakeDisk::mend() {
  const std::lock_guard lock(mutex_);
  lost_ = false;
}

void FakeDisk::power_off() {
  powered_ = false;
  held_ = false;
  for (OpenFile* file : open_) {
    // What was under way may have reached the medium.
    for (const Io* io : file->queue())
      if (io->op == IoOp::kWrite && random_() % 2) note_write(file->image(*io), *io, UINT64_MAX);
    file->notify();
  }
}

void FakeDisk::crash() {
  const std::lock_guard lock(mutex_);
  power_off();
}

void FakeDisk::crash_after(uint64_t accesses) {
  const std::lock_guard lock(mutex_);
  crash_in_ = accesses;
}

void FakeDisk::power_on() {
  const std::lock_guard lock(mutex_);
  crash_in_ = 0;
  powered_ = true;
  for (auto& [path, image] : images_) {
    std::shuffle(image->unsynced.begin(), image->unsynced.end(), random_);
    for (const Write& write : image->unsynced) {
      const uint64_t fate = random_() % 3;
      if (fate == 0) continue;
      for (uint64_t at = 0; at < write.bytes.size(); at += kSector)
        if (fate == 1 || random_() % 2)
          std::copy_n(write.bytes.begin() + static_cast<ptrdiff_t>(at),
                      std::min<uint64_t>(kSector, write.bytes.size() - at),
                      image->durable.begin() + static_cast<ptrdiff_t>(write.offset + at));
    }
    image->unsynced.clear();
    image->now = image->durable;
  }
}

bool FakeDisk::powered() {
  const std::lock_guard lock(mutex_);
  return powered_;
}

void FakeDisk::corrupt(const std::string& path, uint64_t offset) {
  const std::lock_guard lock(mutex_);
  Image& image = *images_.at(path);
  image.now[offset] ^= std::byte{0x10};
  image.durable[offset] ^= std::byte{0x10};
}

void FakeDisk::truncate(const std::string& path, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  Image& image = *images_.at(path);
  image.now.resize(bytes);
  image.durable.resize(bytes);
}

uint64_t FakeDisk::syncs() {
  const std::lock_guard lock(mutex_);
  return syncs_;
}

}  // namespace neotier::engine::ssd

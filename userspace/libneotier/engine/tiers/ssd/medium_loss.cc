// SPDX-License-Identifier: Apache-2.0
// When the medium fails: what that means for the transfer, when the tier goes out of service, and how it comes back.
#include <xxhash.h>

#include <condition_variable>
#include <cstring>
#include <mutex>

#include "engine/tiers/ssd/store.h"
#include "engine/tiers/ssd/superblock.h"

namespace neotier::engine {

using ssd::Access;
using ssd::kBlock;
using ssd::Place;
using ssd::Record;

namespace {

// After the medium is lost, until it is back: nothing but waiting.
class NoFile : public File {
 public:
  uint64_t bytes() const override { return 0; }
  const char* method() const override { return "none"; }
  bool register_buffers(std::span<const iovec>) override { return false; }
  void start(Io& io) override {
    io.result = -ENODEV;
    ended_.push_back(&io);
  }
  void wait(std::vector<Io*>& completed, bool block) override {
    std::unique_lock lock(mutex_);
    if (block && ended_.empty()) changed_.wait(lock, [this] { return woken_; });
    woken_ = false;
    completed.insert(completed.end(), ended_.begin(), ended_.end());
    ended_.clear();
  }
  void wake() override {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    changed_.notify_one();
  }

 private:
  std::vector<Io*> ended_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false;
};

}  // namespace

Status SsdTier::Store::failure(int64_t result, const char* doing) {
  constexpr unsigned kInARow = 32;
  count_.errors++;
  std::string what;
  try {
    what = info_.name + ": " + options_.path + ": " + doing + " failed: " + std::strerror(static_cast<int>(-result));
  } catch (const std::bad_alloc&) {
    // The code says the most of it.
  }
  const bool lost = result == -ENXIO || result == -ENODEV || result == -ENOMEDIUM || result == -EBADF ||
                    result == -ESHUTDOWN || result == -EROFS || result == -EREMOTEIO;
  if (lost || ++failures_in_a_row_ >= kInARow) lose(what);
  return {lost ? Code::kGone : result == -ENOSPC ? Code::kFull : Code::kIo, std::move(what)};
}

Status SsdTier::Store::gone_status() const {
  const std::lock_guard lock(mutex_);
  return status_of(Code::kGone, [this] { return gone_why_ + "; out of service until it comes back"; });
}

void SsdTier::Store::lose(const std::string& why) {
  moving_.clear();
  const std::lock_guard lock(mutex_);
  if (!gone_) {
    try {
      gone_why_ = why;
    } catch (const std::bad_alloc&) {
      gone_why_.clear();
    }
  }
  gone_ = true;
}

Status SsdTier::Store::try_come_back() {
  victim_.reset();
  // Closed first: it holds the lock on the file.
  reset_file(std::make_unique<NoFile>());
  Result<std::unique_ptr<File>> file = file_system_->open(options_.path);
  if (!file) return {Code::kGone, file.status().what()};
  uint32_t version = 0;
  Result<ssd::Geometry> geometry = ssd::read_superblock(**file, options_.path, version);
  if (!geometry) return {Code::kGone, geometry.status().what()};
  if (geometry->file_id != geometry_.file_id)
    return {Code::kGone, options_.path + ": another tier's file lies there now"};
  reset_file(std::move(*file));
  if (Status written = rewrite_pending(); !written) return {Code::kGone, written.what()};
  failures_in_a_row_ = 0;
  gone_ = false;
  return Status::ok();
}

// What was acknowledged as written and not as durable may have been in the medium's own cache: it is written again, in
// its place, so that a later flush speaks the truth about it. What cannot be read any more is lost.
Status SsdTier::Store::rewrite_pending() {
  std::vector<Moving> pending;
  journal_.for_each_pending([&](const Record& record, const std::byte* places) {
    if (record.type != Record::kWrite) return;
    for (uint32_t i = 0; i < record.count; i++) {
      Place place;
      std::memcpy(&place, places + i * sizeof place, sizeof place);
      pending.push_back({record.slot, record.generation, record.first + i, place});
    }
  });
  std::byte* const memory = moves_[0].memory;
  for (const Moving& chunk : pending) {
    Record record;
    {
      const std::lock_guard lock(mutex_);
      auto* const entry = table_.find(chunk.slot, chunk.generation);
      if (entry == nullptr || entry->places()[chunk.chunk] != chunk.from) continue;
      record = record_of(chunk.slot, chunk.chunk, 1);
    }
    const uint64_t bytes = uint64_t{ssd::chunk_blocks(record.bytes, chunk.chunk)} * kBlock;
    Access access;
    access.prepare(IoOp::kRead, uint64_t{chunk.from.number()} * kBlock, memory, bytes, registered(memory, bytes));
    const int64_t failed = ssd::run_now(*file_, std::span(&access, 1));
    if (failed == 0 && static_cast<uint32_t>(XXH3_64bits(memory, bytes)) == chunk.from.sum) {
      access.prepare(IoOp::kWrite, uint64_t{chunk.from.number()} * kBlock, memory, bytes, registered(memory, bytes));
      if (const int64_t unwritten = ssd::run_now(*file_, std::span(&access, 1)); unwritten < 0)
        return ssd::io_error(unwritten, options_.path);
      continue;
    }
    // Never whole, so that no recovery names it; reads find the checksum wrong.
    Place lost = chunk.from;
    lost.block |= Place::kHoles;
    {
      const std::lock_guard lock(mutex_);
      table_.find(chunk.slot, chunk.generation)->places()[chunk.chunk] = lost;
    }
    journal_.note(record, &lost);
  }
  return Status::ok();
}

}  // namespace neotier::engine

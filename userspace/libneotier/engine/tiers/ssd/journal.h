// SPDX-License-Identifier: Apache-2.0
// Where the tier's index is kept: a log of records in two areas of the file. A commit makes the data of completed
// writes durable first (fdatasync) and only then writes the records that name them (frames, fdatasync): so a record
// that is read back names bytes that are there. When an area is full the whole index goes to the other one as a
// checkpoint, which counts once its last frame does. Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/io/file.h"
#include "engine/tiers/ssd/access.h"
#include "engine/tiers/ssd/format.h"
#include "util/random_number.h"

namespace neotier::engine::ssd {

class Journal {
 public:
  // Appends whole records of the index to `to`, up to `limit` bytes; false when there are no more. `begin`: from the
  // start.
  using Index = std::function<bool(std::vector<std::byte>& to, size_t limit, bool begin)>;
  using Apply = std::function<void(const Record&, const std::byte* places)>;
  static constexpr size_t kMemoryBytes = 4 * kFrameBytes;

  // `memory`: kMemoryBytes, aligned.
  Journal(const Geometry& geometry, std::byte* memory, Index index);

  // An empty journal in a new file, durable: before there is a superblock that says so.
  Status format(File& file);
  // Reads back; calls `apply` in order. kCorrupt where no complete checkpoint is left.
  Status load(File& file, const Apply& apply);

  // Throws std::bad_alloc where there is no memory for it, unless make_room() was called for as many bytes.
  void note(const Record& record, const Place* places) { append_record(pending_, record, places); }
  // Throws std::bad_alloc.
  void make_room(size_t bytes) {
    const size_t wanted = pending_.size() + bytes;
    if (pending_.capacity() < wanted) pending_.reserve(std::max(wanted, 2 * pending_.capacity()));
  }
  // Noted, and not in a commit that is under way.
  size_t pending_bytes() const { return pending_.size() + (committing() ? 0 : batch_.size()); }
  bool committing() const { return phase_ != Phase::kIdle; }
  // The number of the last commit that was started. finished(): of the last that succeeded.
  uint64_t started() const { return started_; }
  uint64_t finished() const { return finished_; }
  uint64_t checkpoints() const { return checkpoints_; }

  // All that was noted becomes durable. Needs !committing(). Throws std::bad_alloc, and nothing was begun then.
  void commit(File& file);
  // An access of the journal's has ended. True when the commit has, with result().
  bool ended(File& file, Access& access);
  // 0, or the -errno that made the commit fail; its records are kept for the next.
  int64_t result() const { return result_; }
  bool sync_failed() const { return sync_failed_; }
  // Of records that are not durable.
  void for_each_pending(const Apply& apply) const;

 private:
  enum class Phase : uint8_t { kIdle, kIndex, kData, kFrames, kEnd, kSync };
  struct Cursor {
    unsigned area = 0;
    uint64_t epoch = 0, sequence = 0, previous = 0, used = 0;
  };
  static constexpr size_t kBuffers = kMemoryBytes / kFrameBytes;

  uint64_t area_offset(unsigned area) const { return geometry_.journal_offset + area * geometry_.journal_area_bytes; }
  FrameHeader expected(const Cursor& cursor) const;
  bool fits(size_t bytes) const;
  void enter(File& file, Phase phase);
  void sync(File& file);
  void write_frames(File& file);
  bool next_payload(std::vector<std::byte>& payload, uint32_t& flags);
  Result<bool> load_area(File& file, unsigned area, uint64_t epoch, const Apply* apply);

  const Geometry geometry_;
  std::byte* const memory_;
  const Index index_;
  const uint64_t session_ = random_number();

  std::vector<std::byte> pending_, batch_;
  size_t batch_at_ = 0;
  Cursor durable_, working_;
  uint64_t last_epoch_ = 0;
  uint64_t started_ = 0, finished_ = 0, checkpoints_ = 0;
  Phase phase_ = Phase::kIdle;
  bool checkpoint_ = false, begin_ = false, exhausted_ = false, sync_failed_ = false;
  int64_t result_ = 0;
  unsigned under_way_ = 0;
  std::vector<std::byte> payload_;
  std::array<Access, kBuffers> frames_;
  std::array<bool, kBuffers> busy_{};
  Access sync_;
};

}  // namespace neotier::engine::ssd

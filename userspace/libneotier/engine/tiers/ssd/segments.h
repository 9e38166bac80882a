// SPDX-License-Identifier: Apache-2.0
// Which blocks of the log are taken. A segment is free, open (being filled), closed, or dying: nothing of it is wanted
// any more, but a crash could still bring back an extent that lies in it. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/tiers/ssd/format.h"

namespace neotier::engine::ssd {

class Segments {
 public:
  enum Head : uint8_t { kUser, kCleaner };

  explicit Segments(const Geometry& geometry);

  // Whether `blocks` in chunks can be placed. The user's head leaves the last two segments to the cleaner.
  bool room(Head head, uint64_t blocks) const;
  // Contiguous blocks for a chunk of `slot`; needs room(). They count as wanted and as being written, until written().
  // Throws std::bad_alloc, and has placed nothing then; nothing else here needs memory.
  uint32_t place(Head head, uint32_t count, uint32_t slot);
  void written(uint32_t block) { of(block).writing--; }
  // No longer wanted. `commits_started`: of the journal; those that start later do not name the blocks any more.
  void vacate(uint32_t block, uint32_t count, uint64_t commits_started);
  // While a read is under way its segment is not used again.
  void pin(uint32_t block) { of(block).pins++; }
  void unpin(uint32_t block) { of(block).pins--; }
  // Dying segments that no crash can bring back any more, now that commit number `finished` is durable.
  void release(uint64_t finished);

  // The closed segment with the fewest wanted blocks, if cleaning it gains something.
  std::optional<uint32_t> victim() const;
  // Slots whose chunks were placed in it; some have moved since.
  const std::vector<uint32_t>& slots_in(uint32_t segment) const { return all_[segment].slots; }
  // It cannot be read: never a victim again.
  void set_bad(uint32_t segment) { all_[segment].bad = true; }
  uint32_t wanted(uint32_t segment) const { return all_[segment].wanted; }

  // Recovery: blocks that an extent has; then settle().
  void claim(uint32_t block, uint32_t count, uint32_t slot);
  void settle();

  size_t free_count() const { return free_.size(); }
  size_t dying_count() const { return dying_.size(); }
  bool low() const { return free_.size() < low_; }

 private:
  enum class State : uint8_t { kFree, kOpen, kClosed, kDying };
  struct Segment {
    uint32_t wanted = 0;   // blocks
    uint32_t pins = 0;     // reads under way
    uint32_t writing = 0;  // chunks placed, their write not ended
    State state = State::kFree;
    bool bad = false;
    uint64_t died = 0;
    std::vector<uint32_t> slots;
  };
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kReserve = 2;
  Segment& of(uint32_t block) { return all_[geometry_.segment_of(block)]; }
  void close(uint32_t segment, uint64_t commits_started);

  const Geometry geometry_;
  std::vector<Segment> all_;
  std::vector<uint32_t> free_, dying_;
  struct Open {
    uint32_t segment = kNone;
    uint32_t next = 0;  // block within it
  } open_[2];
  size_t low_;
  uint64_t commits_started_ = 0;  // as last told
};

}  // namespace neotier::engine::ssd

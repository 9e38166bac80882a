// SPDX-License-Identifier: Apache-2.0
// Getting room back: what is still wanted of the emptiest segment is copied to the cleaner's own head of the log, and
// after the next commit the segment is free. Readers do not notice: they hold the segments they read from.
#include <algorithm>

#include "engine/tiers/ssd/store.h"

namespace neotier::engine {

using ssd::Access;
using ssd::kBlock;
using ssd::Place;

bool SsdTier::Store::find_victim() {
  victim_ = segments_.victim();
  victim_failed_ = false;
  if (!victim_) return false;
  try {
    return list_victim();
  } catch (const std::bad_alloc&) {
    moving_.clear();
    victim_.reset();
    return false;
  }
}

bool SsdTier::Store::list_victim() {
  std::vector<uint32_t> slots = segments_.slots_in(*victim_);
  std::sort(slots.begin(), slots.end());
  slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
  const std::lock_guard lock(mutex_);
  for (const uint32_t slot : slots) {
    auto& entry = table_.at(slot);
    for (uint32_t chunk = 0; entry.bytes != 0 && chunk < entry.chunks(); chunk++) {
      const Place place = entry.places()[chunk];
      if (place.block != 0 && geometry_.segment_of(place.number()) == *victim_)
        moving_.push_back({slot, entry.generation, chunk, place});
    }
  }
  return true;
}

void SsdTier::Store::clean() {
  if (gone_) return;
  if (moving_.empty() && moves_under_way_ == 0) {
    if (victim_ && victim_failed_) segments_.set_bad(*victim_);
    victim_.reset();
    // What was cleaned before is free after a commit; two segments a commit.
    if (!want_room() || segments_.dying_count() >= 2 || segments_.free_count() == 0 || !find_victim()) return;
  }
  for (Move& move : moves_) {
    while (!move.active && !moving_.empty()) {
      const Moving next = moving_.back();
      {
        const std::lock_guard lock(mutex_);
        auto* const entry = table_.find(next.slot, next.generation);
        move.count = entry ? ssd::chunk_blocks(entry->bytes, next.chunk) : 0;
        if (entry && entry->places()[next.chunk] != next.from) move.count = 0;
      }
      if (move.count == 0) {  // overwritten or freed meanwhile
        moving_.pop_back();
        continue;
      }
      if (!segments_.room(ssd::Segments::kCleaner, move.count)) return;
      try {
        move.to = {segments_.place(ssd::Segments::kCleaner, move.count, next.slot) | (next.from.block & Place::kHoles),
                   next.from.sum};
      } catch (const std::bad_alloc&) {
        return;  // at the next turn
      }
      moving_.pop_back();
      move.active = true;
      move.slot = next.slot;
      move.generation = next.generation;
      move.chunk = next.chunk;
      move.from = next.from;
      segments_.pin(move.from.number());
      moves_under_way_++;
      move.owner = Access::Owner::kCleaner;
      move.prepare(IoOp::kRead, uint64_t{move.from.number()} * kBlock, move.memory, uint64_t{move.count} * kBlock,
                   registered(move.memory, uint64_t{move.count} * kBlock));
      start(move);
    }
  }
}

void SsdTier::Store::move_ended(Move& move) {
  if (move.result >= 0 && move.op == IoOp::kRead) {
    // Not verified: what is rotten moves with the checksum that tells.
    move.prepare(IoOp::kWrite, uint64_t{move.to.number()} * kBlock, move.memory, uint64_t{move.count} * kBlock,
                 registered(move.memory, uint64_t{move.count} * kBlock));
    return start(move);
  }
  segments_.unpin(move.from.number());
  segments_.written(move.to.number());
  move.active = false;
  moves_under_way_--;
  bool moved = false, noted = true;
  ssd::Record record;
  try {
    journal_.make_room(sizeof record + sizeof move.to);
  } catch (const std::bad_alloc&) {
    noted = false;
  }
  if (move.result < 0) {
    victim_failed_ = true;
    // For its count of failures; nobody waits for a move.
    static_cast<void>(failure(move.result, "moving a chunk"));
  } else if (noted) {
    count_.bytes_cleaned += move.total;
    const std::lock_guard lock(mutex_);
    auto* const entry = table_.find(move.slot, move.generation);
    if (entry != nullptr && entry->places()[move.chunk] == move.from) {
      moved = true;
      entry->places()[move.chunk] = move.to;
      record = record_of(move.slot, move.chunk, 1);
    }
  }
  if (moved) journal_.note(record, &move.to);
  segments_.vacate((moved ? move.from : move.to).number(), move.count, journal_.started());
}

}  // namespace neotier::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/ssd/extent_table.h"

namespace neotier::engine::ssd {

ExtentTable::~ExtentTable() {
  for (uint32_t slot = 0; slot < used_slots_; slot++)
    if (at(slot).bytes != 0 && at(slot).chunks() > 1) delete[] at(slot).many;
}

void ExtentTable::grow(uint32_t slots) {
  while (pages_.size() * kPage < slots) pages_.push_back(std::make_unique<Entry[]>(kPage));
  used_slots_ = std::max(used_slots_, slots);
}

void ExtentTable::fill(Entry& entry, const Key& key, uint32_t bytes) {
  entry.key = key;
  entry.bytes = bytes;
  entry.one = {};
  if (entry.chunks() > 1) entry.many = new Place[entry.chunks()]{};
  extents_++;
  used_blocks_ += blocks_of(bytes);
}

uint32_t ExtentTable::add(const Key& key, uint32_t bytes) {
  uint32_t slot = used_slots_;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else if (slot >= max_) {
    return UINT32_MAX;
  } else {
    grow(slot + 1);
  }
  Entry& entry = at(slot);
  // kNoExtent is the last slot of the last generation.
  if (++last_generation_ == UINT32_MAX) last_generation_ = 0;
  entry.generation = last_generation_;
  fill(entry, key, bytes);
  return slot;
}

void ExtentTable::set(uint32_t slot, uint32_t generation, const Key& key, uint32_t bytes) {
  grow(slot + 1);
  if (at(slot).bytes != 0) remove(slot);
  at(slot).generation = generation;
  fill(at(slot), key, bytes);
}

void ExtentTable::remove(uint32_t slot) {
  Entry& entry = at(slot);
  extents_--;
  used_blocks_ -= blocks_of(entry.bytes);
  if (entry.chunks() > 1) delete[] entry.many;
  entry.bytes = 0;
  free_.push_back(slot);
}

void ExtentTable::fill_free_list() {
  free_.clear();
  for (uint32_t slot = used_slots_; slot-- > 0;)
    if (at(slot).bytes == 0) free_.push_back(slot);
}

}  // namespace neotier::engine::ssd

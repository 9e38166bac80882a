// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/ssd/extent_table.h"

#include <algorithm>

namespace neotier::engine::ssd {

ExtentTable::~ExtentTable() {
  for (uint32_t slot = 0; slot < used_slots_; slot++)
    if (at(slot).bytes != 0 && at(slot).chunks() > 1) delete[] at(slot).many;
}

void ExtentTable::grow(uint32_t slots) {
  while (pages_.size() * kPage < slots) pages_.push_back(std::make_unique<Entry[]>(kPage));
  while (notes_.size() * kPage < slots) notes_.push_back(std::make_unique<Note[]>(kPage));
  // What remove() will want.
  if (free_.capacity() < slots) free_.reserve(std::max<size_t>(slots, 2 * free_.capacity()));
}

void ExtentTable::fill(uint32_t slot, uint32_t generation, const Key& key, uint32_t bytes) {
  Entry& entry = at(slot);
  const uint32_t chunks = chunks_of(bytes);
  Place* const many = chunks > 1 ? new Place[chunks]{} : nullptr;
  entry.key = key;
  entry.bytes = bytes;
  entry.generation = generation;
  entry.one = {};
  if (many) entry.many = many;
  note(slot) = 0;
  used_slots_ = std::max(used_slots_, slot + 1);
  extents_++;
  used_blocks_ += blocks_of(bytes);
}

uint32_t ExtentTable::add(const Key& key, uint32_t bytes) {
  const bool again = !free_.empty();
  const uint32_t slot = again ? free_.back() : used_slots_;
  if (slot >= max_) return UINT32_MAX;
  // kNoExtent is the last slot of the last generation.
  const uint32_t generation = last_generation_ + 1 == UINT32_MAX ? 0 : last_generation_ + 1;
  if (!again) grow(slot + 1);
  fill(slot, generation, key, bytes);
  if (again) free_.pop_back();
  last_generation_ = generation;
  return slot;
}

void ExtentTable::set(uint32_t slot, uint32_t generation, const Key& key, uint32_t bytes) {
  grow(slot + 1);
  if (at(slot).bytes != 0) remove(slot);
  fill(slot, generation, key, bytes);
}

std::unique_ptr<Place[]> ExtentTable::take(uint32_t slot) {
  Entry& entry = at(slot);
  extents_--;
  used_blocks_ -= blocks_of(entry.bytes);
  std::unique_ptr<Place[]> places(entry.chunks() > 1 ? entry.many : nullptr);
  entry.bytes = 0;
  free_.push_back(slot);
  return places;
}

void ExtentTable::fill_free_list() {
  free_.clear();
  for (uint32_t slot = used_slots_; slot-- > 0;)
    if (at(slot).bytes == 0) free_.push_back(slot);
}

}  // namespace neotier::engine::ssd

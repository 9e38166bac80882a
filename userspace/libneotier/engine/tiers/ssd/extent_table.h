// SPDX-License-Identifier: Apache-2.0
// What the tier knows of each extent: 36 bytes, and 8 for each chunk where there are several. Not thread-safe. Where
// memory is out, add() throws and has changed nothing; remove() needs none.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/tiers/ssd/format.h"

namespace neotier::engine::ssd {

class ExtentTable {
 public:
  struct Entry {
    Key key;
    uint32_t bytes = 0;       // 0: free
    uint32_t generation = 0;  // in order of allocation, over all extents
    union {
      Place one;
      Place* many;
    };
    Entry() : one{} {}
    uint32_t chunks() const { return chunks_of(bytes); }
    Place* places() { return chunks() > 1 ? many : &one; }
  };
  static_assert(sizeof(Entry) == 32);

  explicit ExtentTable(uint64_t max_extents) : max_(max_extents) {}
  ~ExtentTable();
  ExtentTable(const ExtentTable&) = delete;
  ExtentTable& operator=(const ExtentTable&) = delete;

  // The slot, or UINT32_MAX where all are taken.
  uint32_t add(const Key& key, uint32_t bytes);
  // Makes slot `slot` as a record says; recovery only. fill_free_list() follows once.
  void set(uint32_t slot, uint32_t generation, const Key& key, uint32_t bytes);
  // Beside the entries, whose 32 bytes are full. 0 in a new one.
  Note& note(uint32_t slot) { return notes_[slot / kPage][slot % kPage]; }
  void remove(uint32_t slot) { (void)take(slot); }
  // The same, handing out the places, where there are several.
  std::unique_ptr<Place[]> take(uint32_t slot);
  void fill_free_list();
  // A generation that a record names, with its extent or without.
  void seen(uint32_t generation) {
    if (static_cast<int32_t>(generation - last_generation_) > 0) last_generation_ = generation;
  }
  // How many extents were allocated after one of that generation; it wraps after four billion.
  uint32_t age(uint32_t generation) const { return last_generation_ - generation; }

  uint32_t slots() const { return used_slots_; }
  uint64_t extents() const { return extents_; }
  uint64_t used_blocks() const { return used_blocks_; }
  Entry& at(uint32_t slot) { return pages_[slot / kPage][slot % kPage]; }
  // NULL unless the extent of that generation is there.
  Entry* find(uint32_t slot, uint32_t generation) {
    if (slot >= used_slots_) return nullptr;
    Entry& entry = at(slot);
    return entry.bytes != 0 && entry.generation == generation ? &entry : nullptr;
  }
  static Extent name(uint32_t slot, uint32_t generation) { return uint64_t{generation} << 32 | slot; }
  Entry* find(Extent extent) { return find(static_cast<uint32_t>(extent), static_cast<uint32_t>(extent >> 32)); }

 private:
  static constexpr uint32_t kPage = 4096;
  void grow(uint32_t slots);
  void fill(uint32_t slot, uint32_t generation, const Key& key, uint32_t bytes);

  const uint64_t max_;
  std::vector<std::unique_ptr<Entry[]>> pages_;
  std::vector<std::unique_ptr<Note[]>> notes_;
  std::vector<uint32_t> free_;
  uint32_t used_slots_ = 0, last_generation_ = 0;
  uint64_t extents_ = 0, used_blocks_ = 0;
};

}  // namespace neotier::engine::ssd

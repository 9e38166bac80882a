// SPDX-License-Identifier: Apache-2.0
// Room in one range of memory, without the fragmentation that ends a long-running cache.
//
// Objects up to 256 KiB come from slabs of 1 MiB, each cut into slots of one size class, four classes a doubling (at
// most 20 % lost inside a slot); a slab that has emptied serves any class again, and the fullest slab of a class is
// filled first, so that others empty. Larger objects take runs of 64 KiB pages, best fit, joined with their neighbours
// when freed.
//
// An extent is its offset and its size in one number, so the arena keeps nothing per object but a bit.
//
// Memory of its own: allocate() takes what free() will want as well, and where there is none it throws std::bad_alloc
// and has changed nothing. free() needs none: whoever frees could do nothing about it.
//
// Thread safety: all calls from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "engine/tier.h"

namespace neotier::engine {

class Arena {
 public:
  static constexpr uint64_t kSlotUnit = 512;  // offsets in 32 bits of these: 2 TiB a tier
  static constexpr uint64_t kPage = 64 << 10;
  static constexpr uint64_t kSlab = 1 << 20;
  static constexpr uint64_t kLargestSlot = 256 << 10;

  // capacity: rounded down to whole pages; at most 2 TiB.
  explicit Arena(uint64_t capacity_bytes);

  uint64_t capacity_bytes() const { return capacity_; }
  TierUsage usage() const;
  // kNoExtent where there is no room. bytes: 1 .. 2^32 - 1.
  Extent allocate(uint64_t bytes);
  // False: no extent of this arena; nothing was done.
  bool free(Extent extent);
  // Whether allocate() gave it out and free() has not taken it back.
  bool holds(Extent extent) const;

  static uint64_t offset_of(Extent extent) { return (extent >> 32) * kSlotUnit; }
  static uint64_t bytes_of(Extent extent) { return extent & UINT32_MAX; }
  // What an object of this size takes.
  static uint64_t room_of(uint64_t bytes);

 private:
  using Runs = std::map<uint64_t, uint64_t>;
  using Sizes = std::set<std::pair<uint64_t, uint64_t>>;
  using Open = std::set<std::pair<uint32_t, uint32_t>>;
  // To put one free run into both lists.
  struct Nodes {
    Runs::node_type run;
    Sizes::node_type size;
  };
  struct Slab {
    uint64_t page = 0;  // its first
    uint8_t size_class = 0;
    uint32_t slots = 0, used = 0;
    uint32_t hint = 0;           // no free slot in words before this
    std::vector<uint64_t> free;  // a bit a slot
    Open::node_type node;        // its place in `open_`, while it is full
  };
  struct Location {
    uint32_t slab = 0;  // number + 1; 0: no such extent
    uint32_t slot = 0;
  };
  Location locate(Extent extent) const;
  Extent allocate_slot(uint64_t bytes);
  uint64_t take_run(uint64_t pages);  // offset in pages; UINT64_MAX
  void give_run(uint64_t page, uint64_t pages);
  static Nodes make_nodes();
  void insert_run(Nodes nodes, uint64_t page, uint64_t pages);
  bool slab_is_free(const Slab& slab, uint32_t slot) const { return slab.free[slot / 64] >> (slot % 64) & 1; }

  uint64_t capacity_;
  mutable std::mutex mutex_;
  Runs runs_;                  // free: first page -> pages
  Sizes by_size_;              // the same: (pages, first page)
  std::vector<Nodes> spares_;  // one for each run that is taken
  std::vector<Slab> slabs_;
  std::vector<uint32_t> unused_slabs_;
  std::vector<uint32_t> slab_of_page_;            // number + 1; 0: in none
  std::unordered_map<uint64_t, uint64_t> large_;  // first page -> bytes
  // Slabs with room, per class: (slots free, number), so that the fullest comes first.
  std::vector<Open> open_;
  uint64_t used_ = 0, extents_ = 0;
};

}  // namespace neotier::engine

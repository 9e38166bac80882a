// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// A data TLB of two levels, the caches of the upper page-table levels, and the walk of an x86-64 page table of four
// levels. Not thread-safe.
//
// Invariant: an entry that is here is one that the guest's tables had when it was filled; whoever uses the TLB drops
// entries where the guest tells its processor to. Entries are true LRU within their set. There are no address-space
// identifiers: the emulated processor has none.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "hil/model/params.h"

namespace neotier::hil {

enum PageSize : int { kPage4K = 0, kPage2M = 1, kPage1G = 2, kPageSizes = 3 };
constexpr std::array<int, kPageSizes> kPageShift = {12, 21, 30};

// The guest's physical memory, as its page tables are read. An address that is none is not read: false.
class PhysicalMemory {
 public:
  virtual ~PhysicalMemory() = default;
  virtual bool read(uint64_t pa, uint64_t& value) const = 0;
};

struct Translation {
  bool present = false, global = false;
  PageSize size = kPage4K;
  uint64_t pa = 0;                    // of the address asked for
  std::array<uint64_t, 4> entries{};  // physical addresses of the entries that were read, the root's first
  int nr_entries = 0;
};

// By the tables at `root` (the value of CR3).
inline Translation walk_tables(const PhysicalMemory& memory, uint64_t root, uint64_t va) {
  constexpr uint64_t kAddress = 0x000f'ffff'ffff'f000u;
  constexpr uint64_t kPresent = 1, kLarge = 0x80, kGlobal = 0x100;
  Translation t;
  uint64_t table = root & kAddress;
  for (int level = 3; level >= 0; --level) {
    const uint64_t at = table + ((va >> (12 + 9 * level)) & 511) * 8;
    uint64_t entry = 0;
    t.entries[static_cast<size_t>(t.nr_entries++)] = at;
    if (!memory.read(at, entry) || !(entry & kPresent)) return t;
    if (level == 0 || (level <= kPage1G && (entry & kLarge))) {
      const uint64_t offset = (uint64_t{1} << (12 + 9 * level)) - 1;
      t.present = true;
      t.global = entry & kGlobal;
      t.size = static_cast<PageSize>(level);
      t.pa = (entry & kAddress & ~offset) | (va & offset);
      return t;
    }
    table = entry & kAddress;
  }
  return t;
}

class Tlb {
 public:
  enum class Level { kFirst, kSecond, kNone };

  explicit Tlb(const Params& p)
      : first_{Entries(p.tlb_4k, 4), Entries(p.tlb_2m, 4), Entries(4, 4)},
        second_(p.tlb_l2, 12),
        second_1g_(16, 4),
        pde_(32, 4),
        pdpte_(4, 4) {}

  // Most accesses are to the page of the one before, or to the last page of their set.
  bool hit(uint64_t va) {
    const uint64_t page = va >> 12;
    if (page == last_page_) return true;
    const int size = size_hint_[va >> 21 & (kHints - 1)];
    if (!first_[static_cast<size_t>(size)].is_first(va >> kPageShift[static_cast<size_t>(size)], size)) return false;
    last_page_ = page;
    return true;
  }

  // Where hit() has found nothing. kNone: the caller walks the tables and calls fill().
  Level find(uint64_t va) {
    for (int size = 0; size < kPageSizes; ++size) {
      if (first_[static_cast<size_t>(size)].touch(va >> kPageShift[static_cast<size_t>(size)], size)) {
        remember(va, size);
        return Level::kFirst;
      }
    }
    for (int size = 0; size < kPageSizes; ++size) {
      const uint64_t page = va >> kPageShift[static_cast<size_t>(size)];
      Entries& second = size == kPage1G ? second_1g_ : second_;
      if (!second.touch(page, size)) continue;
      first_[static_cast<size_t>(size)].insert(page, size, second.is_first_global(page));
      remember(va, size);
      return Level::kSecond;
    }
    return Level::kNone;
  }

  // Entries of the walk that the upper levels' caches spare, counted from the root; fills those caches.
  int spared(uint64_t va, const Translation& t) {
    int spared = 0;
    if (t.size != kPage1G) {
      const uint64_t p = va >> kPageShift[kPage1G];
      if (pdpte_.touch(p, 0))
        spared = 2;
      else
        pdpte_.insert(p, 0, false);
    }
    if (t.size == kPage4K) {
      const uint64_t d = va >> kPageShift[kPage2M];
      if (pde_.touch(d, 0))
        spared = 3;
      else
        pde_.insert(d, 0, false);
    }
    return spared;
  }

  void fill(uint64_t va, const Translation& t) {
    const uint64_t page = va >> kPageShift[static_cast<size_t>(t.size)];
    first_[static_cast<size_t>(t.size)].insert(page, t.size, t.global);
    (t.size == kPage1G ? second_1g_ : second_).insert(page, t.size, t.global);
    remember(va, t.size);
  }

  // A new root: all but global entries; `all`: these too.
  void flush(bool all) {
    for (Entries& entries : first_) entries.flush(all);
    second_.flush(all);
    second_1g_.flush(all);
    forget_upper();
  }

  // One page, of whatever size, global or not; and all of the upper levels' caches.
  void invalidate(uint64_t va) {
    for (int size = 0; size < kPageSizes; ++size) {
      const uint64_t page = va >> kPageShift[static_cast<size_t>(size)];
      first_[static_cast<size_t>(size)].drop(page, size);
      (size == kPage1G ? second_1g_ : second_).drop(page, size);
    }
    forget_upper();
  }

 private:
  class Entries {
   public:
    Entries(uint64_t entries, uint64_t ways) : ways_(ways), sets_(entries / ways), entries_(entries) {}
    bool is_first(uint64_t page, int size) const { return (*set_of(page) & ~kGlobal) == key_of(page, size); }
    bool is_first_global(uint64_t page) const { return *set_of(page) & kGlobal; }
    bool touch(uint64_t page, int size) {
      uint64_t* set = set_of(page);
      const uint64_t key = key_of(page, size);
      for (uint64_t way = 0; way < ways_; ++way) {
        if ((set[way] & ~kGlobal) != key) continue;
        std::rotate(set, set + way, set + way + 1);
        return true;
      }
      return false;
    }
    void insert(uint64_t page, int size, bool global) {
      uint64_t* set = set_of(page);
      std::copy_backward(set, set + ways_ - 1, set + ways_);
      set[0] = key_of(page, size) | (global ? kGlobal : 0);
    }
    void drop(uint64_t page, int size) {
      uint64_t* set = set_of(page);
      for (uint64_t way = 0; way < ways_; ++way) {
        if ((set[way] & ~kGlobal) == key_of(page, size)) set[way] = 0;
      }
    }
    void flush(bool all) {
      for (uint64_t& entry : entries_) {
        if (all || !(entry & kGlobal)) entry = 0;
      }
    }

   private:
    static constexpr uint64_t kValid = 1, kGlobal = 2;
    static uint64_t key_of(uint64_t page, int size) { return page << 4 | static_cast<uint64_t>(size) << 2 | kValid; }
    uint64_t* set_of(uint64_t page) { return entries_.data() + (page & (sets_ - 1)) * ways_; }
    const uint64_t* set_of(uint64_t page) const { return entries_.data() + (page & (sets_ - 1)) * ways_; }
    uint64_t ways_, sets_;
    std::vector<uint64_t> entries_;
  };

  void remember(uint64_t va, int size) {
    last_page_ = va >> 12;
    size_hint_[va >> 21 & (kHints - 1)] = static_cast<uint8_t>(size);
  }
  void forget_upper() {
    pde_.flush(true);
    pdpte_.flush(true);
    last_page_ = UINT64_MAX;
  }

  static constexpr size_t kHints = 4096;
  std::array<Entries, kPageSizes> first_;
  Entries second_, second_1g_;
  Entries pde_, pdpte_;
  uint64_t last_page_ = UINT64_MAX;
  std::array<uint8_t, kHints> size_hint_{};  // of the page that was last found in such a 2 MiB: where to look first
};

}  // namespace neotier::hil

// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// Set-associative write-back, write-allocate cache of 64-byte lines with true LRU. Not thread-safe.
#pragma once

#include <emmintrin.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>

namespace neotier::hil {

// What a line carries besides its address.
enum LineFlags : uint32_t {
  kLineDirty = 2,
  kLineNear = 4,  // lives in the slow tier, but is charged as if in the fast one (the bound `ideal`)
};

class Cache {
 public:
  struct Evicted {
    bool valid = false;
    uint64_t line = 0;
    uint32_t flags = 0;
  };

  // `ways` a multiple of 4; bytes / (64 x ways) a power of two. Lines are below 2^34 (40 bits of address).
  Cache(uint64_t bytes, uint32_t ways)
      : ways_(ways), set_mask_(bytes / (64 * ways) - 1), set_bits_(std::popcount(set_mask_)) {
    const size_t words = (set_mask_ + 1) * ways_;
    entries_.reset(static_cast<uint32_t*>(std::aligned_alloc(64, (words * 4 + 63) / 64 * 64)));
    std::memset(entries_.get(), 0, words * 4);
  }

  // Asks the host for the line's set, which touch() and insert() will need.
  void prefetch(uint64_t line) { __builtin_prefetch(set_of(line), 1); }

  // If `line` is present: makes it most recent, adds `flags` to it and returns true.
  bool touch(uint64_t line, uint32_t flags) {
    uint32_t* set = set_of(line);
    const uint32_t key = key_of(line);
    // Most accesses repeat the last line of their set.
    if ((set[0] & ~kFlags) == key) {
      set[0] |= flags;
      return true;
    }
    const int way = find(set, key);
    if (way < 0) return false;
    const uint32_t entry = set[way] | flags;
    std::memmove(set + 1, set, static_cast<size_t>(way) * 4);
    set[0] = entry;
    return true;
  }

  // Inserts an absent line as most recent; returns what it displaced.
  Evicted insert(uint64_t line, uint32_t flags) {
    uint32_t* set = set_of(line);
    const uint32_t last = set[ways_ - 1];
    std::memmove(set + 1, set, (ways_ - 1) * 4);
    set[0] = key_of(line) | flags;
    if (!(last & kValid)) return {};
    return {true, (uint64_t{last} >> 3 << set_bits_) | (line & set_mask_), last & kFlags};
  }

  // Flags of a line that touch() has just found.
  uint32_t flags_of_touched(uint64_t line) { return set_of(line)[0] & kFlags; }

 private:
  static constexpr uint32_t kValid = 1;
  static constexpr uint32_t kFlags = kLineDirty | kLineNear;

  struct Free {
    void operator()(uint32_t* p) const { std::free(p); }
  };

  uint32_t* set_of(uint64_t line) { return entries_.get() + (line & set_mask_) * ways_; }
  uint32_t key_of(uint64_t line) const { return static_cast<uint32_t>(line >> set_bits_) << 3 | kValid; }

  int find(const uint32_t* set, uint32_t key) const {
    const __m128i want = _mm_set1_epi32(static_cast<int>(key));
    const __m128i mask = _mm_set1_epi32(static_cast<int>(~kFlags));
    for (uint32_t w = 0; w < ways_; w += 4) {
      const __m128i have = _mm_load_si128(reinterpret_cast<const __m128i*>(set + w));
      const int match = _mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(_mm_and_si128(have, mask), want)));
      if (match) return static_cast<int>(w) + std::countr_zero(static_cast<unsigned>(match));
    }
    return -1;
  }

  uint32_t ways_;
  uint64_t set_mask_;
  int set_bits_;
  std::unique_ptr<uint32_t[], Free> entries_;
};

}  // namespace neotier::hil

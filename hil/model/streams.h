// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// What a core knows of the order of misses: which lines a prefetcher has asked for before they are needed, and which
// loads cannot be sent before another one has come back. Neither is thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace neotier::hil {

// A stride prefetcher. It follows misses of the first level page by page of 4 KiB, 32 pages at a time: two equal
// distances in a row, of at most 2 KiB, make a stream, and the lines that follow at that distance have been prefetched.
// A stream ends with its page, since the prefetcher knows physical addresses only.
class StreamDetector {
 public:
  struct Stream {
    uint64_t page = UINT64_MAX;
    uint64_t used_ps = 0;  // when its last line was needed
    int16_t line = 0;      // in the page
    int16_t stride = 0;
    uint8_t equal = 0;  // distances in a row that were `stride`
    bool prefetched() const { return equal > kConfirm; }
  };

  // A miss of `line`, a physical address / 64. Of the stream that it belongs to, valid until the next call.
  Stream& miss(uint64_t line) {
    Stream& stream = find(line >> 6);
    const auto at = static_cast<int16_t>(line & 63);
    const int distance = at - stream.line;
    if (distance == 0) return stream;
    if (distance == stream.stride) {
      if (stream.equal <= kConfirm) ++stream.equal;
    } else {
      stream.equal = std::abs(distance) <= kMostLines ? 1 : 0;
      stream.stride = static_cast<int16_t>(distance);
    }
    stream.line = at;
    return stream;
  }

 private:
  static constexpr int kConfirm = 2, kMostLines = 32;
  static constexpr size_t kSets = 8, kWays = 4;

  // Most recent first.
  Stream& find(uint64_t page) {
    auto& set = sets_[page % kSets];
    size_t way = 0;
    while (way + 1 < kWays && set[way].page != page) ++way;
    Stream found = set[way];
    if (found.page != page) found = Stream{.page = page, .line = kNowhere};
    for (; way > 0; --way) set[way] = set[way - 1];
    set[0] = found;
    return set[0];
  }
  static constexpr int16_t kNowhere = -1000;  // further from any line than a stride may be

  std::array<std::array<Stream, kWays>, kSets> sets_{};
};

// Which load's address another load's result was. The values of loads that missed are kept; a load to such a value, or
// up to a page behind it, follows a pointer. A load that follows itself by an index is known by its own last addresses
// and values: their differences have a whole quotient, twice in a row. A dependence through other arithmetic, or
// through values that did not come from a miss, is not seen: such loads count as independent.
class Dependence {
 public:
  // The moment at which the address `va` of the load at `pc` was known, ps; 0: nothing is known to hold it up.
  uint64_t known_ps(uint64_t pc, uint64_t va) {
    uint64_t known = 0;
    for (const Value& value : values_) {
      if (va - value.value < kReach && value.value >= kReach && value.done_ps > known) known = value.done_ps;
    }
    Load& load = loads_[index(pc)];
    if (load.pc == pc) {
      const auto step = static_cast<int64_t>(load.value - load.value_before);
      const auto distance = static_cast<int64_t>(va - load.va);
      const bool follows = step != 0 && step != INT64_MIN && step != -1 && distance % step == 0 &&
                           distance / step >= 1 && distance / step <= kMostScale;
      if (follows && load.followed && load.done_ps > known) known = load.done_ps;
      load.followed = follows;
    }
    return known;
  }

  // The load at `pc` of `va`, a miss or of a line that has just missed, gave `value`; its line came at `done_ps`.
  void loaded(uint64_t pc, uint64_t va, uint64_t value, uint64_t done_ps) {
    values_[next_++ % values_.size()] = {value, done_ps};
    Load& load = loads_[index(pc)];
    if (load.pc != pc) load = {.pc = pc};
    load.value_before = load.value;
    load.value = value;
    load.va = va;
    load.done_ps = done_ps;
  }

 private:
  static constexpr uint64_t kReach = 4096;
  static constexpr int64_t kMostScale = 4096;
  struct Value {
    uint64_t value = 0, done_ps = 0;
  };
  struct Load {
    uint64_t pc = 0, va = 0, value = 0, value_before = 0, done_ps = 0;
    bool followed = false;
  };
  static size_t index(uint64_t pc) { return (pc ^ pc >> 8) & 255; }

  std::array<Value, 16> values_{};
  std::array<Load, 256> loads_{};
  size_t next_ = 0;
};

}  // namespace neotier::hil

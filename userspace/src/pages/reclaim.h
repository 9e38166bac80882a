// SPDX-License-Identifier: Apache-2.0
// Which pages of the DRAM the kernel would demote: a model of Linux' multi-generational LRU (mm/vmscan.c of 6.12:
// should_run_aging, inc_max_seq, evict_folios). Pages are in generations, oldest first; aging opens a new one and
// brings into it all whose Accessed bit is set; eviction takes from the oldest, and gives those that were accessed
// since a second chance. Deterministic. Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "pages/recording.h"

namespace neotier::pages {

class Reclaim {
 public:
  explicit Reclaim(size_t pages) : links_(pages) {}

  // Into the youngest generation; the page is in none.
  void add(uint32_t page) {
    push(page, youngest_);
    links_[page].accessed = false;
    ++nr_;
  }
  void remove(uint32_t page) {
    if (links_[page].generation == kNone) return;
    unlink(page);
    --nr_;
  }
  bool has(uint32_t page) const { return links_[page].generation != kNone; }
  void accessed(uint32_t page) { links_[page].accessed = true; }
  uint64_t size() const { return nr_; }

  // Nothing is taken from the two youngest generations; there are no others.
  bool exhausted() {
    drop_empty();
    return youngest_ - oldest_ < kMinGenerations;
  }
  // Whether the oldest generations have too little left, so that aging comes before more is taken.
  bool low_on_cold() {
    if (exhausted()) return true;
    if (youngest_ - oldest_ > kMinGenerations) return false;
    return of(youngest_).nr * kMinGenerations > nr_ || of(oldest_).nr * (kMinGenerations + 2) < nr_;
  }
  // Opens a generation, and brings into it what was accessed. Up to kGenerations of them are there at a time.
  // Returns how many were accessed.
  uint64_t age() {
    ++youngest_;
    uint64_t young = 0;
    for (uint32_t page = 0; page < links_.size(); ++page) young += rejuvenate(page);
    return young;
  }
  // Looks at the page that is oldest. It was accessed: it has a second chance, and kNoPage is returned. Otherwise it is
  // taken out. Not where exhausted().
  uint32_t look() {
    const uint32_t page = of(oldest_).first;
    if (!links_[page].accessed) {
      remove(page);
      return page;
    }
    rejuvenate(page);
    return kNoPage;
  }

 private:
  static constexpr uint64_t kGenerations = 4, kMinGenerations = 2;
  static constexpr uint8_t kNone = 0xff;

  struct Link {
    uint32_t next = kNoPage, previous = kNoPage;
    uint8_t generation = kNone;  // modulo kGenerations
    bool accessed = false;
  };
  struct List {
    uint32_t first = kNoPage, last = kNoPage;
    uint64_t nr = 0;
  };

  void push(uint32_t page, uint64_t sequence) {
    const auto generation = static_cast<uint8_t>(sequence % kGenerations);
    List& list = lists_[generation];
    Link& link = links_[page];
    link.generation = generation;
    link.next = kNoPage;
    link.previous = list.last;
    (list.last == kNoPage ? list.first : links_[list.last].next) = page;
    list.last = page;
    ++list.nr;
  }
  void unlink(uint32_t page) {
    Link& link = links_[page];
    List& list = lists_[link.generation];
    (link.previous == kNoPage ? list.first : links_[link.previous].next) = link.next;
    (link.next == kNoPage ? list.last : links_[link.next].previous) = link.previous;
    link.generation = kNone;
    --list.nr;
  }

  // If it was accessed.
  bool rejuvenate(uint32_t page) {
    Link& link = links_[page];
    if (link.generation == kNone || !link.accessed) return false;
    link.accessed = false;
    unlink(page);
    push(page, youngest_);
    return true;
  }
  void drop_empty() {
    while (youngest_ - oldest_ >= kMinGenerations && of(oldest_).first == kNoPage) ++oldest_;
  }
  List& of(uint64_t sequence) { return lists_[sequence % kGenerations]; }

  std::vector<Link> links_;
  std::array<List, kGenerations> lists_{};
  uint64_t oldest_ = 0, youngest_ = 1, nr_ = 0;
};

}  // namespace neotier::pages

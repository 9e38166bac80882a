// SPDX-License-Identifier: Apache-2.0
// Which pages of the DRAM the kernel would demote: a model of Linux' multi-generational LRU. Pages are in generations,
// oldest first; aging opens a new one and brings into it all whose Accessed bit is set; eviction takes from the oldest,
// and gives those that were accessed since a second chance. Deterministic. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "pages/recording.h"

namespace neotier::pages {

class Reclaim {
 public:
  explicit Reclaim(size_t pages) : links_(pages) {
    for (auto& list : lists_) list = {kNoPage, kNoPage};
  }

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

  // Takes out the page to demote. `looked` counts pages looked at, `walked` those whose Accessed bits aging read.
  // kNoPage: it has aged, which is as much as one turn of kswapd's does (what the program uses shows only while it
  // runs); or, where `walked` is as before, all have just been accessed, or there are none.
  uint32_t evict(uint64_t& looked, uint64_t& walked) {
    for (uint64_t chances = 2 * nr_ + kGenerations; chances != 0; --chances) {
      if (youngest_ - oldest_ + 1 < kMinGenerations + 1) {
        walked += age();
        if (walked != 0) return kNoPage;
      }
      const uint32_t page = lists_[oldest_ % kGenerations].first;
      if (page == kNoPage) {
        if (oldest_ == youngest_) return kNoPage;
        ++oldest_;
        continue;
      }
      ++looked;
      if (links_[page].accessed) {
        links_[page].accessed = false;
        unlink(page);
        push(page, youngest_);
        continue;
      }
      remove(page);
      return page;
    }
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
    uint32_t first, last;
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
  }
  void unlink(uint32_t page) {
    Link& link = links_[page];
    List& list = lists_[link.generation];
    (link.previous == kNoPage ? list.first : links_[link.previous].next) = link.next;
    (link.next == kNoPage ? list.last : links_[link.next].previous) = link.previous;
    link.generation = kNone;
  }

  uint64_t age() {
    ++youngest_;
    const auto young = static_cast<uint8_t>(youngest_ % kGenerations);
    for (uint32_t page = 0; page < links_.size(); ++page) {
      Link& link = links_[page];
      if (link.generation == kNone || !link.accessed) continue;
      link.accessed = false;
      if (link.generation == young) continue;
      unlink(page);
      push(page, youngest_);
    }
    return nr_;
  }

  std::vector<Link> links_;
  std::array<List, kGenerations> lists_{};
  uint64_t oldest_ = 0, youngest_ = 1, nr_ = 0;
};

}  // namespace neotier::pages

// SPDX-License-Identifier: Apache-2.0
// Which pages of the DRAM the kernel would demote: a model of Linux' multi-generational LRU (mm/vmscan.c of 6.12:
// should_run_aging, walk_mm, lru_gen_look_around, sort_folio, evict_folios). Pages are in generations, oldest first.
// Aging walks page tables: what was accessed belongs to the youngest from then on. Then it opens a new one, so that a
// page that is in use has to be accessed again before the next aging. Eviction takes from the oldest list. A page there
// that belongs elsewhere is moved there; one that was accessed since has a second chance, its neighbours with it; any
// other leaves. Pages whose numbers are near each other are taken for neighbours: a recording numbers pages in the
// order in which they come. Deterministic. Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "replay/pages/recording.h"

namespace neotier::pages {

class Reclaim {
 public:
  // That a page table maps.
  static constexpr uint32_t kTablePages = 512;

  // Entries of page tables that were looked at.
  struct Entries {
    uint64_t all = 0;
    uint64_t accessed = 0;  // of these
    uint64_t young = 0;     // of those, in DRAM: they have become young
  };
  // What becomes of a page that eviction has taken.
  enum class Fate {
    kLeaves,
    kInUse,  // it was accessed; its neighbours were looked at as well
    kTold,   // it is in use, as its neighbours' entries have told
    kGone,   // it was freed meanwhile
  };
  struct Judgement {
    Fate fate;
    Entries neighbours;
  };

  explicit Reclaim(size_t pages)
      : links_(pages),
        accessed_(pages),
        mapped_in_(pages / kTablePages + 1),
        walk_(mapped_in_.size(), true),
        walk_next_(walk_.size()) {}

  // A program's page tables have the page, whatever the tier.
  void map(uint32_t page) {
    links_[page].mapped = true;
    ++mapped_in_[page / kTablePages];
  }
  void unmap(uint32_t page) {
    links_[page].mapped = false;
    --mapped_in_[page / kTablePages];
  }

  // Into the youngest generation; the page is in none. The entry of a page that is new was made by an access; that of
  // one that is moved keeps its Accessed bit.
  void add(uint32_t page) {
    Link& link = links_[page];
    link.generation = of(youngest_);
    accessed_[page] = 1;
    ++lists_[link.generation].nr;
    ++nr_;
    enlist(page);
  }
  void remove(uint32_t page) {
    if (!has(page)) return;
    Link& link = links_[page];
    if (link.list == kTaken) {
      link.list = kNone;
    } else {
      delist(page);
    }
    drop(link);
  }
  bool has(uint32_t page) const { return links_[page].generation != kNone; }
  void accessed(uint32_t page) { accessed_[page] = 1; }
  bool is_accessed(uint32_t page) const { return accessed_[page] != 0; }
  void clear_accessed(uint32_t page) { accessed_[page] = 0; }
  bool mapped(uint32_t page) const { return links_[page].mapped; }
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
    return lists_[of(youngest_)].nr * kMinGenerations > nr_ || lists_[of(oldest_)].nr * (kMinGenerations + 2) < nr_;
  }
  // What was accessed becomes young, and another generation is opened. Up to kGenerations of them are there at a time.
  // A table of few young pages is left out of the next walk.
  Entries age() {
    Entries entries;
    while (!age_on(entries)) {
    }
    return entries;
  }
  // As far as the next table. Adds to `entries`; whether aging is done.
  bool age_on(Entries& entries) {
    while (table_ < walk_.size() && !walk_[table_]) ++table_;
    if (table_ < walk_.size()) {
      const uint64_t young = rejuvenate(table_ * kTablePages, kTablePages, entries);
      walk_next_[table_] = worth_a_walk(mapped_in_[table_], young);
      ++table_;
      return false;
    }
    table_ = 0;
    ++youngest_;
    std::swap(walk_, walk_next_);
    std::fill(walk_next_.begin(), walk_next_.end(), false);
    return true;
  }
  // Takes the page that is oldest out of its list; not where exhausted(). kNoPage: it belonged to another one, where it
  // is now.
  uint32_t take() {
    const uint32_t page = lists_[of(oldest_)].first;
    Link& link = links_[page];
    delist(page);
    if (link.generation != link.list) {
      enlist(page);
      return kNoPage;
    }
    link.list = kTaken;
    link.told = false;
    return page;
  }
  // Of a page that was taken. All but one that leaves, or is gone, are in a list again.
  Judgement judge(uint32_t page) {
    Link& link = links_[page];
    if (link.list != kTaken) return {Fate::kGone, {}};
    if (!link.told && !is_accessed(page)) {
      link.list = kNone;
      drop(link);
      return {Fate::kLeaves, {}};
    }
    Judgement judgement{Fate::kTold, {}};
    if (!link.told) {
      judgement.fate = Fate::kInUse;
      const uint32_t table = page / kTablePages, at = page % kTablePages;
      const uint32_t first = std::clamp(at, kNeighbours / 2, kTablePages - kNeighbours / 2) - kNeighbours / 2;
      const uint64_t young = rejuvenate(table * kTablePages + first, kNeighbours, judgement.neighbours);
      if (worth_a_walk(kNeighbours, young)) walk_[table] = true;
    }
    enlist(page);
    return judgement;
  }

 private:
  static constexpr uint64_t kGenerations = 4, kMinGenerations = 2;
  static constexpr uint8_t kNone = 0xff, kTaken = 0xfe;
  static constexpr uint32_t kNeighbours = 64;
  // Entries of a table in a line of a cache.
  static constexpr uint64_t kLineEntries = 8;

  struct Link {
    uint32_t next = kNoPage, previous = kNoPage;
    uint8_t generation = kNone;  // that the page belongs to, modulo kGenerations
    uint8_t list = kNone;        // that it is found in
    bool mapped = false;
    bool told = false;  // it was found accessed after it had been taken
  };
  struct List {
    uint32_t first = kNoPage, last = kNoPage;
    uint64_t nr = 0;  // of pages that belong to it
  };

  static bool worth_a_walk(uint64_t entries, uint64_t young) { return young * kLineEntries >= entries; }

  void enlist(uint32_t page) {
    Link& link = links_[page];
    List& list = lists_[link.generation];
    link.list = link.generation;
    link.next = kNoPage;
    link.previous = list.last;
    (list.last == kNoPage ? list.first : links_[list.last].next) = page;
    list.last = page;
  }
  void delist(uint32_t page) {
    Link& link = links_[page];
    List& list = lists_[link.list];
    (link.previous == kNoPage ? list.first : links_[link.previous].next) = link.next;
    (link.next == kNoPage ? list.last : links_[link.next].previous) = link.previous;
  }
  void drop(Link& link) {
    --lists_[link.generation].nr;
    link.generation = kNone;
    --nr_;
  }

  // Those of `pages` pages from `first` on that were accessed; returns how many. They stay where they are found.
  uint64_t rejuvenate(uint32_t first, uint32_t pages, Entries& entries) {
    const uint32_t end = std::min(first + pages, static_cast<uint32_t>(links_.size()));
    const uint8_t youngest = of(youngest_);
    uint64_t young = 0;
    for (uint32_t page = first; page < end; ++page) {
      Link& link = links_[page];
      entries.all += link.mapped;
      if (!is_accessed(page)) continue;
      entries.accessed += link.mapped;
      if (link.generation == kNone) continue;
      clear_accessed(page);
      --lists_[link.generation].nr;
      ++lists_[youngest].nr;
      link.generation = youngest;
      link.told = true;
      ++young;
    }
    entries.young += young;
    return young;
  }
  void drop_empty() {
    while (youngest_ - oldest_ >= kMinGenerations && lists_[of(oldest_)].first == kNoPage) ++oldest_;
  }
  static uint8_t of(uint64_t sequence) { return static_cast<uint8_t>(sequence % kGenerations); }

  std::vector<Link> links_;
  std::vector<uint8_t> accessed_;  // by themselves, as each line that is fetched sets one
  std::array<List, kGenerations> lists_{};
  uint64_t oldest_ = 0, youngest_ = 1, nr_ = 0;
  // Of each table: pages that it maps, and whether the next walk, and the one after it, go there.
  std::vector<uint32_t> mapped_in_;
  std::vector<bool> walk_, walk_next_;
  uint32_t table_ = 0;  // that aging goes on with
};

}  // namespace neotier::pages

// SPDX-License-Identifier: Apache-2.0
// Room by exchange in a replay: which pages of the DRAM are not in use, by their Accessed bits, or, of page cache that
// nobody maps, by its use. The decisions are the module's own (promotion/age.h); the walk is kmod/age.c's, over the
// replay's page tables. Pages whose numbers are near each other are taken for neighbours in a table, as in reclaim.h.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "promotion/age.h"
#include "replay/pages/memory.h"

namespace neotier::pages {

class Exchange {
 public:
  explicit Exchange(Memory& memory);
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Looks at pages if so many victims more are wanted. Returns whether it did; time has passed then. group_done: called
  // after each group, where the kernel lets others run.
  bool look(uint64_t wanted, uint64_t least_ns, uint64_t after_ns, const std::function<void()>& group_done);
  uint64_t looks() const { return looks_; }  // entries of page tables, so far

  uint32_t victims() const { return neotier_ages_victims(&ages_); }
  // A page that is a victim no more from then on; kNoPage: there is none.
  uint32_t victim();
  // A page that has just been promoted: for after_ns, as a look is told, it is a victim only when it is old.
  void came(uint32_t page) { neotier_ages_came(&ages_, memory_.frame_of(page), memory_.guest_ns()); }
  // So many made room; of many not one was a victim any more.
  void done(uint32_t demoted, bool stale);

 private:
  void look_at(uint32_t frame, neotier_age_look look);
  void look_at_table(uint32_t page, neotier_age_look look);
  void look_at_cached(uint32_t page, neotier_age_look look);
  // What a look finds of a page. Whoever arms clears it.
  bool see_accessed(uint32_t page, neotier_age_look look);
  uint32_t group(uint32_t first, uint32_t end, neotier_age_look look);

  Memory& memory_;
  std::vector<uint8_t> frames_;
  std::vector<uint32_t> idle_, old_;
  std::vector<neotier_age_came> came_;
  neotier_ages ages_{};
  neotier_age_pace pace_{};
  uint32_t entries_ = 0;  // of the group
  uint64_t looks_ = 0;
};

}  // namespace neotier::pages

// SPDX-License-Identifier: Apache-2.0
// How much kswapd looks at before it sleeps again: balance_pgdat, set_initial_priority and try_to_shrink_lruvec of the
// kernel's mm/vmscan.c (6.12). A round looks at 1 / 2^priority of the pages. Where it brought too little, the next
// one's priority is one lower. Not thread-safe.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace neotier::pages {

class Rounds {
 public:
  // Begins a round where there is none: of `pages` pages, for `wanted` free ones (1 or more). False: it gives up, and
  // sleeps.
  bool go_on(uint64_t pages, uint64_t wanted) {
    if (left_ != 0) return true;
    if (priority_ == 0) {
      const auto first = static_cast<int>(std::bit_width(pages)) - 1 - static_cast<int>(std::bit_width(wanted - 1));
      priority_ = static_cast<unsigned>(std::clamp(first, kDefaultPriority / 2, kDefaultPriority));
    } else if ((looked_ < wanted || demoted_ == 0) && --priority_ == 0) {
      return false;
    }
    left_ = pages >> priority_;
    looked_ = demoted_ = 0;
    return true;
  }
  // Pages are taken 64 at a time.
  bool begins_batch() const { return looked_ % kBatch == 0; }
  uint64_t left() const { return left_; }
  void look() {
    --left_;
    ++looked_;
  }
  void demote() { ++demoted_; }
  void end_round() { left_ = 0; }
  void sleep() { *this = {}; }

 private:
  static constexpr int kDefaultPriority = 12;
  static constexpr uint64_t kBatch = 64;

  unsigned priority_ = 0;  // 0: asleep
  uint64_t left_ = 0, looked_ = 0, demoted_ = 0;
};

}  // namespace neotier::pages

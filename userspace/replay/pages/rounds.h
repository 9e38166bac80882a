// SPDX-License-Identifier: Apache-2.0
// How much kswapd looks at before it sleeps again: balance_pgdat, set_initial_priority, try_to_shrink_lruvec and
// scan_folios of the kernel's mm/vmscan.c (6.12). A round looks at 1 / 2^priority of the pages, in whole batches. Where
// it took too few, the next one's priority is one lower. Not thread-safe.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace neotier::pages {

class Rounds {
 public:
  bool under_way() const { return under_way_; }
  // Begins a round: of `pages` pages, for `wanted` free ones (1 or more). False: it gives up, and sleeps.
  bool begin(uint64_t pages, uint64_t wanted) {
    if (priority_ == 0) {
      const auto first = static_cast<int>(std::bit_width(pages)) - 1 - static_cast<int>(std::bit_width(wanted - 1));
      priority_ = static_cast<unsigned>(std::clamp(first, kDefaultPriority / 2, kDefaultPriority));
    } else if ((taken_ < wanted || demoted_ == 0) && --priority_ == 0) {
      return false;
    }
    under_way_ = true;
    share_ = pages >> priority_;
    looked_ = taken_ = demoted_ = 0;
    return true;
  }
  // Between batches: whether the round has had its share.
  bool has_had_its_share() const { return looked_ >= share_; }
  uint64_t demoted() const { return demoted_; }
  // A page was looked at, and taken unless it belonged to another list. False: the batch is full, of 64 pages that were
  // taken, or of 4096 that were looked at.
  bool look(bool takes) {
    ++looked_;
    ++batch_looked_;
    taken_ += takes;
    batch_taken_ += takes;
    if (batch_taken_ < kBatch && batch_looked_ < kMostLooks) return true;
    end_batch();
    return false;
  }
  void end_batch() { batch_looked_ = batch_taken_ = 0; }
  void demote() { ++demoted_; }
  void end_round() { under_way_ = false; }
  void sleep() { *this = {}; }

 private:
  static constexpr int kDefaultPriority = 12;
  static constexpr uint64_t kBatch = 64, kMostLooks = 4096;

  unsigned priority_ = 0;  // 0: asleep
  bool under_way_ = false;
  uint64_t share_ = 0, looked_ = 0, taken_ = 0, demoted_ = 0;  // of the round
  uint64_t batch_looked_ = 0, batch_taken_ = 0;
};

}  // namespace neotier::pages

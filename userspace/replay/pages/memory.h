// SPDX-License-Identifier: Apache-2.0
// Where each page of a replay lies, what a line from there costs, and how much memory is free. Arithmetic of time is
// that of hil/model/hierarchy.h. Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "replay/pages/reclaim.h"
#include "replay/pages/recording.h"
#include "replay/pages/rounds.h"

namespace neotier::pages {

struct Params;
struct Result;

// What a piece of the kernel's work costs: instructions, and lines that it fetches, in hundredths.
struct KernelPrice {
  uint64_t instructions = 0, dram_percent = 0, cxl_percent = 0;
};

// Division by a number that stays the same, which takes a third of the time. Exact where dividend x divisor is less
// than 2^64 (T. Granlund and P. Montgomery, "Division by invariant integers using multiplication", 1994).
class Divisor {
 public:
  explicit Divisor(uint64_t divisor) : one_(divisor == 1), inverse_(one_ ? 0 : UINT64_MAX / divisor + 1) {}
  uint64_t divide(uint64_t dividend) const {
    __extension__ using Wide = unsigned __int128;
    return one_ ? dividend : static_cast<uint64_t>(Wide{dividend} * inverse_ >> 64);
  }

 private:
  bool one_;
  uint64_t inverse_;
};

enum class Placement {
  kRecorded,    // where the recorded run had it
  kAllDram,     // as the name says
  kFirstTouch,  // DRAM while there is free memory above the low watermark, as the kernel allocates
};

class Memory {
 public:
  Memory(const Recording& recording, const Params& params, Placement placement);

  // A line of the page is fetched, or written back. Which of the two, and which tier, a CPU cannot guess: so there are
  // few branches.
  template <bool kTracked>
  void line_of(uint32_t page, bool is_write) {
    const unsigned tier = tier_of(page);
    if constexpr (kTracked) {
      if (!is_write) reclaim_.accessed(page);
      request(slot_[page] * 2 + is_write, tier == 1);
    }
    line(tier, is_write);
    if constexpr (kTracked) {
      if (evicted_percent_ >= 100 && !is_write) [[unlikely]]
        fetch_again(tier, slot_[page]);
    }
  }
  void accessed(uint32_t page) { reclaim_.accessed(page); }
  void come(uint32_t page);
  void leave(uint32_t page);

  void pass(uint64_t instructions, uint64_t base_ps) {
    instructions_ += instructions;
    now_ps_ += base_ps;
  }
  uint64_t guest_ns() const { return modelled_clock_ ? now_ps_ / 1000 : instructions_ << shift_; }
  uint64_t now_ps() const { return now_ps_; }

  // What the kernel does beside the program.
  void spend_instructions(uint64_t n) {
    instructions_ += n;
    now_ps_ += n * base_ps_;
    kernel_ps_ += n * base_ps_;
  }
  void spend(const KernelPrice& price, uint64_t times = 1);
  void spend_reads(uint64_t n) {
    now_ps_ += n * mmio_read_ps_;
    kernel_ps_ += n * mmio_read_ps_;
  }

  // Requests to the CXL memory since they were cleared: slot x 2, plus 1 for a write.
  std::span<const uint32_t> requests() const { return {requests_.data(), nr_requests_}; }
  void clear_requests() { nr_requests_ = 0; }

  uint32_t slots() const { return static_cast<uint32_t>(page_of_.size()); }
  // Of a page of the device.
  uint32_t slot_of(uint32_t page) const { return slot_[page]; }
  // kNoPage: free.
  uint32_t page_of(uint32_t slot) const { return slot < page_of_.size() ? page_of_[slot] : kNoPage; }
  // Whether the module moves such pages: a program's own; where page_cache is set those of files and of shared memory,
  // but for programs' code.
  bool moves(uint32_t page) const {
    const Page& of = recording_.pages[page];
    return of.movable || (page_cache_ && of.evictable && !of.code);
  }
  // Page cache, or shared memory, that no program maps.
  bool cached(uint32_t page) const { return recording_.pages[page].cached; }
  uint32_t owner(uint32_t page) const { return recording_.pages[page].owner; }

  // Free pages of the DRAM and of the CXL memory; signed, because a recording does not tell all that is freed.
  int64_t dram_free() const { return dram_free_; }
  int64_t cxl_free() const { return cxl_free_; }
  int64_t low() const { return low_; }
  void take_dram(int64_t pages) { dram_free_ -= pages; }
  uint64_t dram_pages() const { return dram_pages_; }

  // Frames of the DRAM, as exchange sees them. kNoPage: free, or not a program's.
  uint32_t page_in(uint32_t frame) const { return frame < page_in_.size() ? page_in_[frame] : kNoPage; }
  // kNoFrame: not in DRAM.
  static constexpr uint32_t kNoFrame = UINT32_MAX;
  uint32_t frame_of(uint32_t page) const { return frame_[page]; }
  // Of a page: whether a program's tables have it, its Accessed bit (of one that is cached: whether system calls have
  // used it), and what else is in its table.
  bool mapped(uint32_t page) const { return reclaim_.mapped(page); }
  bool is_accessed(uint32_t page) const { return reclaim_.is_accessed(page); }
  void clear_accessed(uint32_t page) { reclaim_.clear_accessed(page); }
  struct Table {
    uint32_t first, end;
  };
  Table table_of(uint32_t page) const {
    const uint32_t first = page / Reclaim::kTablePages * Reclaim::kTablePages;
    return {first, std::min(first + Reclaim::kTablePages, static_cast<uint32_t>(slot_.size()))};
  }
  // What exchange has looked at in a table: entries, of these in DRAM, and of those with a bit that was cleared.
  struct Looked {
    uint64_t all = 0, dram = 0, cleared = 0;
  };
  void spend_look(const Looked& looked);
  void spend_look_at_cached();
  // Copies a page of DRAM into CXL memory, as the module does.
  void demote(uint32_t page);

  // Copies a page that is in a slot into a page of DRAM that the caller has accounted for. The page is young.
  void promote(uint32_t page);
  // Whether the page in a slot was demoted into it in this horizon of the module's ledger or the last one.
  bool demoted_lately(uint32_t slot) const { return demoted_in_[slot] != 0 && horizon_ - demoted_in_[slot] <= 1; }
  void next_horizon() { ++horizon_; }
  // What kswapd wants. It rests where `balanced` pages are free when a round has ended. A round goes on until it has
  // had its share, has demoted `wanted`, or `safe` are free.
  struct Goal {
    int64_t balanced = 0, safe = 0;
    uint64_t wanted = 0;
  };
  // What kswapd does in one turn, which ends then. Returns whether it needs another turn.
  bool reclaim(const Goal& goal, uint64_t until_ns);

  void finish(Result& result) const;

 private:
  static constexpr uint32_t kNoSlot = UINT32_MAX, kInDram = UINT32_MAX - 1;

  // 0: DRAM, 1: CXL memory.
  unsigned tier_of(uint32_t page) {
    if (slot_[page] == kNoSlot) [[unlikely]]
      place(page);
    return slot_[page] != kInDram;
  }
  // Whether it is looked at in page tables while it is there. Without page_cache a program's own pages alone are.
  bool in_tables(uint32_t page) const { return moves(page) && !cached(page); }
  void place(uint32_t page);
  void into_dram(uint32_t page);
  void into_cxl(uint32_t page);
  void out_of_dram(uint32_t page);
  // What entries cost.
  void look_at(const Reclaim::Entries& entries);
  // False: there is nothing to take.
  bool take_batch();
  void evict(uint32_t page);
  void leave_dram(uint32_t page, uint64_t instructions);
  // What it costs to move a page that leaves the slot, or comes into it.
  void move(bool up, uint32_t slot, uint64_t instructions);
  // A line that the kernel fetches takes the place of the program's.
  void kernel_line(unsigned tier);
  // What it evicted is fetched again as what the program fetches now is: nobody knows what it was.
  void fetch_again(unsigned tier, uint32_t slot) {
    evicted_percent_ -= 100;
    request(slot * 2, tier == 1);
    line(tier, false);
  }

  uint64_t occupy(unsigned tier) {
    const uint64_t start = std::max(now_ps_, free_at_ps_[tier]);
    free_at_ps_[tier] = start + service_ps_[tier];
    return start - now_ps_;
  }
  // A write-back stalls nobody.
  void line(unsigned tier, bool is_write) {
    const uint64_t wait = occupy(tier);
    uint64_t stall = wait == 0 ? stall_of_[tier] : mlp_.divide(latency_ps_[tier] + wait);
    stall = is_write ? 0 : stall;
    fills_[tier] += !is_write;
    stall_ps_[tier] += stall;
    now_ps_ += stall;
  }
  // Written in any case, and kept where it `counts`.
  void request(uint32_t request, bool counts) {
    if (nr_requests_ == requests_.size()) [[unlikely]]
      requests_.resize(2 * requests_.size());
    requests_[nr_requests_] = request;
    nr_requests_ += counts;
  }

  const Recording& recording_;
  Placement placement_;
  uint64_t base_ps_, mmio_read_ps_;
  bool modelled_clock_;
  unsigned shift_;
  Divisor mlp_;
  std::array<uint64_t, 2> latency_ps_, service_ps_, stall_of_, free_at_ps_{}, fills_{}, stall_ps_{};
  uint64_t now_ps_ = 0, instructions_ = 0, kernel_ps_ = 0, demoted_ = 0;
  std::vector<uint32_t> slot_;        // of each page
  std::vector<uint32_t> page_of_;     // of each slot
  std::vector<uint32_t> demoted_in_;  // of each slot: the horizon; 0: its page was not demoted
  uint32_t horizon_ = 1;
  std::vector<uint32_t> frame_;        // of each page
  std::vector<uint32_t> page_in_;      // each frame
  std::vector<uint32_t> free_frames_;  // the one that was freed last is the first to be used
  std::vector<uint32_t> free_slots_;
  uint32_t next_slot_ = 0;
  std::vector<uint32_t> requests_ = std::vector<uint32_t>(4096);  // the first nr_requests_
  size_t nr_requests_ = 0;
  int64_t dram_free_, cxl_free_, low_;
  const uint64_t evict_percent_, promote_instructions_, demote_instructions_;
  const bool large_llc_, page_cache_;
  uint64_t dram_pages_ = 0;
  Reclaim reclaim_;
  Rounds rounds_;
  bool aging_ = false;           // kswapd is walking page tables
  std::vector<uint32_t> taken_;  // by kswapd, the next one last
  // Hundredths of a line: that the kernel has still to fetch, and that the program has to fetch again.
  std::array<uint64_t, 2> kernel_percent_{};
  uint64_t evicted_percent_ = 0;
};

}  // namespace neotier::pages

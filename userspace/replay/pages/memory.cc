// SPDX-License-Identifier: Apache-2.0
#include "replay/pages/memory.h"

#include "replay/pages/replay.h"

namespace neotier::pages {

using trace::Field;

namespace {
// Prices of the kernel's work, each the mean of seven runs of four programs: docs/decisions/0042-prices-of-kswapd.md.
// Of an entry of a page table; more for one that was accessed, and for one whose page, in DRAM, becomes young.
constexpr KernelPrice kEntry{.instructions = 78, .dram_percent = 6, .cxl_percent = 5},
    kAccessedEntry{.instructions = 36}, kYoung{.instructions = 94, .dram_percent = 90};
// Eviction: a page found where it does not belong, one that is taken, one whose entry is looked for, one that is kept.
constexpr KernelPrice kSort{.instructions = 149, .dram_percent = 62, .cxl_percent = 2},
    kTake{.instructions = 506, .dram_percent = 62, .cxl_percent = 2},
    kFindEntry{.instructions = 860, .dram_percent = 250, .cxl_percent = 70}, kKeep{.instructions = 340};

// Exchange, of an entry of a page in DRAM: the byte of its frame.
constexpr KernelPrice kAged{.instructions = 30, .dram_percent = 40};

// Of a page that is moved 64 lines are cleared where it goes, then as many are read and written. These are fetched: a
// page that was freed lately is in part still in the last cache. And what the rest costs, and what else the kernel
// fetches. Measured with last caches of 8 and of 2 MiB; others are taken for the one or the other.
struct MovePrice {
  uint64_t dram_lines, cxl_lines, cached_ps, other_dram_percent, other_cxl_percent;
};
constexpr uint64_t kLargeLlcKib = 4096;
constexpr MovePrice kPromoteLarge{24, 51, 330'000, 600, 550}, kPromoteSmall{50, 57, 265'000, 1200, 1050};
constexpr MovePrice kDemoteLarge{64, 32, 290'000, 100, 100}, kDemoteSmall{64, 56, 170'000, 100, 100};
}  // namespace

Memory::Memory(const Recording& recording, const Params& params, Placement placement)
    : recording_(recording),
      placement_(placement),
      base_ps_(recording.field(Field::kBasePs)),
      mmio_read_ps_(recording.field(Field::kMmioReadPs)),
      modelled_clock_(recording.field(Field::kModelledClock) != 0),
      shift_(static_cast<unsigned>(recording.field(Field::kShift))),
      mlp_(std::max<uint64_t>(1, recording.field(Field::kMlp))),
      latency_ps_{recording.field(Field::kDramLatencyPs), recording.field(Field::kCxlLatencyPs)},
      service_ps_{recording.field(Field::kDramServicePs), recording.field(Field::kCxlServicePs)},
      stall_of_{mlp_.divide(latency_ps_[0]), mlp_.divide(latency_ps_[1])},
      slot_(recording.pages.size(), kNoSlot),
      page_of_(recording.field(Field::kCxlBytes) >> 12, kNoPage),
      demoted_in_(page_of_.size(), 0),
      frame_(recording.pages.size(), kNoFrame),
      dram_free_(static_cast<int64_t>(recording.field(Field::kDramFreePages))),
      cxl_free_(static_cast<int64_t>(recording.field(Field::kCxlFreePages))),
      low_(static_cast<int64_t>(params.low_pages)),
      evict_percent_(params.evict_percent),
      promote_instructions_(params.promote_instructions),
      demote_instructions_(params.demote_instructions),
      large_llc_(params.llc_kib >= kLargeLlcKib),
      page_cache_(params.page_cache != 0),
      dram_pages_(recording.field(Field::kDramPresentPages)),
      reclaim_(recording.pages.size()) {}

void Memory::into_dram(uint32_t page) {
  slot_[page] = kInDram;
  if (free_frames_.empty()) {
    frame_[page] = static_cast<uint32_t>(page_in_.size());
    page_in_.push_back(page);
  } else {
    frame_[page] = free_frames_.back();
    free_frames_.pop_back();
    page_in_[frame_[page]] = page;
  }
  if (recording_.pages[page].evictable) reclaim_.add(page);
}

void Memory::out_of_dram(uint32_t page) {
  page_in_[frame_[page]] = kNoPage;
  free_frames_.push_back(frame_[page]);
  frame_[page] = kNoFrame;
}

void Memory::into_cxl(uint32_t page) {
  uint32_t slot;
  if (!free_slots_.empty()) {
    slot = free_slots_.back();
    free_slots_.pop_back();
  } else if (next_slot_ < page_of_.size()) {
    slot = next_slot_++;
  } else {
    // More pages than the recorded machine had, because a recording does not tell all that is freed: one more.
    slot = next_slot_++;
    page_of_.push_back(kNoPage);
    demoted_in_.push_back(0);
  }
  demoted_in_[slot] = 0;
  slot_[page] = slot;
  page_of_[slot] = page;
}

void Memory::leave(uint32_t page) {
  if (slot_[page] == kNoSlot) return;
  if (in_tables(page)) reclaim_.unmap(page);
  if (slot_[page] == kInDram) {
    reclaim_.remove(page);
    out_of_dram(page);
    ++dram_free_;
  } else {
    page_of_[slot_[page]] = kNoPage;
    free_slots_.push_back(slot_[page]);
    ++cxl_free_;
  }
  slot_[page] = kNoSlot;
}

void Memory::place(uint32_t page) {
  const Page& recorded = recording_.pages[page];
  if (in_tables(page)) reclaim_.map(page);
  const bool counted = recorded.fresh;  // what was there before the region began is not in the free pages
  bool cxl = recorded.cxl;
  if (placement_ == Placement::kAllDram) cxl = false;
  if (placement_ == Placement::kFirstTouch && counted) cxl = dram_free_ <= low_;
  (cxl ? cxl_free_ : dram_free_) -= counted;
  cxl ? into_cxl(page) : into_dram(page);
}

void Memory::come(uint32_t page) {
  const uint32_t old = recording_.pages[page].replaces;
  if (old != kNoPage) leave(old);
  if (slot_[page] == kNoSlot) place(page);
}

void Memory::kernel_line(unsigned tier) {
  const uint64_t before = now_ps_;
  line(tier, false);
  kernel_ps_ += now_ps_ - before;
  evicted_percent_ += evict_percent_;
}

void Memory::move(bool up, uint32_t slot, uint64_t instructions) {
  const MovePrice& price = large_llc_ ? up ? kPromoteLarge : kDemoteLarge : up ? kPromoteSmall : kDemoteSmall;
  for (uint64_t i = 0; i < price.dram_lines; ++i) kernel_line(0);
  for (uint64_t i = 0; i < price.cxl_lines; ++i) {
    kernel_line(1);
    request(slot * 2, true);
  }
  now_ps_ += price.cached_ps;
  kernel_ps_ += price.cached_ps;
  spend({instructions, price.other_dram_percent, price.other_cxl_percent});
}

void Memory::spend(const KernelPrice& price, uint64_t times) {
  spend_instructions(price.instructions * times);
  const std::array<uint64_t, 2> percent = {price.dram_percent, price.cxl_percent};
  for (unsigned tier = 0; tier < 2; ++tier) {
    for (kernel_percent_[tier] += percent[tier] * times; kernel_percent_[tier] >= 100; kernel_percent_[tier] -= 100) {
      kernel_line(tier);
    }
  }
}

void Memory::promote(uint32_t page) {
  const uint32_t slot = slot_[page];
  move(true, slot, promote_instructions_);
  page_of_[slot] = kNoPage;
  free_slots_.push_back(slot);
  ++cxl_free_;
  into_dram(page);
}

void Memory::look_at(const Reclaim::Entries& entries) {
  spend(kEntry, entries.all);
  spend(kAccessedEntry, entries.accessed);
  spend(kYoung, entries.young);
}

bool Memory::reclaim(const Goal& goal, uint64_t until_ns) {
  for (;;) {
    if (guest_ns() >= until_ns) return true;
    if (aging_) {
      Reclaim::Entries entries;
      aging_ = !reclaim_.age_on(entries);
      look_at(entries);
      if (!aging_) rounds_.end_round();
      continue;
    }
    if (!taken_.empty()) {
      const uint32_t page = taken_.back();
      taken_.pop_back();
      evict(page);
      continue;
    }
    if (!rounds_.under_way()) {
      if (dram_free_ >= goal.balanced) break;
      if (!rounds_.begin(reclaim_.size(), goal.wanted)) return false;
    }
    const bool ends = rounds_.has_had_its_share() || rounds_.demoted() >= goal.wanted || dram_free_ >= goal.safe;
    if (!ends && reclaim_.low_on_cold()) {
      aging_ = true;
    } else if (ends || !take_batch()) {
      rounds_.end_round();
    }
  }
  rounds_.sleep();
  return false;
}

void Memory::leave_dram(uint32_t page, uint64_t instructions) {
  out_of_dram(page);
  into_cxl(page);
  --cxl_free_;
  ++dram_free_;
  ++demoted_;
  move(false, slot_[page], instructions);
  demoted_in_[slot_[page]] = horizon_;
}

// Both ways go by the same functions of the kernel.
void Memory::demote(uint32_t page) {
  reclaim_.remove(page);
  leave_dram(page, promote_instructions_);
}

void Memory::spend_look(const Looked& looked) {
  spend(kFindEntry);
  spend(kEntry, looked.all);
  spend(kAged, looked.dram);
  spend(kYoung, looked.cleared);
}

// No table, but the page's own struct page, as where eviction finds a page that does not belong there.
void Memory::spend_look_at_cached() {
  spend(kSort);
  spend(kAged);
}

bool Memory::take_batch() {
  uint64_t looked = 0;
  for (bool more = true; more && !reclaim_.exhausted(); ++looked) {
    const uint32_t page = reclaim_.take();
    more = rounds_.look(page != kNoPage);
    page == kNoPage ? spend(kSort) : taken_.push_back(page);
  }
  rounds_.end_batch();
  std::reverse(taken_.begin(), taken_.end());
  return looked != 0;
}

void Memory::evict(uint32_t page) {
  const Reclaim::Judgement judgement = reclaim_.judge(page);
  spend(kTake);
  switch (judgement.fate) {
    case Reclaim::Fate::kGone:
      break;
    case Reclaim::Fate::kTold:
      spend(kKeep);
      break;
    case Reclaim::Fate::kInUse:
      spend(kFindEntry);
      look_at(judgement.neighbours);
      spend(kKeep);
      break;
    case Reclaim::Fate::kLeaves:
      spend(kFindEntry);
      rounds_.demote();
      leave_dram(page, demote_instructions_);
      break;
  }
}

void Memory::finish(Result& result) const {
  result.modelled_ns = now_ps_ / 1000;
  result.kernel_ns = kernel_ps_ / 1000;
  result.demoted = demoted_;
  for (unsigned tier = 0; tier < 2; ++tier) {
    result.fills[tier] = fills_[tier];
    result.stall_ns[tier] = stall_ps_[tier] / 1000;
  }
}

}  // namespace neotier::pages

// SPDX-License-Identifier: Apache-2.0
#include "pages/memory.h"

#include "pages/replay.h"

namespace neotier::pages {

using trace::Field;

namespace {
constexpr uint64_t kLinesPerPage = 64;
}  // namespace

Memory::Memory(const Recording& recording, const Params& params, Placement placement)
    : recording_(recording),
      placement_(placement),
      base_ps_(recording.field(Field::kBasePs)),
      mmio_read_ps_(recording.field(Field::kMmioReadPs)),
      mlp_(std::max<uint64_t>(1, recording.field(Field::kMlp))),
      latency_ps_{recording.field(Field::kDramLatencyPs), recording.field(Field::kCxlLatencyPs)},
      service_ps_{recording.field(Field::kDramServicePs), recording.field(Field::kCxlServicePs)},
      stall_of_{latency_ps_[0] / mlp_, latency_ps_[1] / mlp_},
      slot_(recording.pages.size(), kNoSlot),
      page_of_(recording.field(Field::kCxlBytes) >> 12, kNoPage),
      dram_free_(static_cast<int64_t>(recording.field(Field::kDramFreePages))),
      cxl_free_(static_cast<int64_t>(recording.field(Field::kCxlFreePages))),
      low_(static_cast<int64_t>(params.low_pages)),
      dram_pages_(recording.field(Field::kDramPresentPages)),
      reclaim_(recording.pages.size()) {}

void Memory::into_dram(uint32_t page) {
  slot_[page] = kInDram;
  if (recording_.pages[page].evictable) reclaim_.add(page);
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
  }
  slot_[page] = slot;
  page_of_[slot] = page;
}

void Memory::leave(uint32_t page) {
  if (slot_[page] == kNoSlot) return;
  mapped_ -= recording_.pages[page].movable;
  if (slot_[page] == kInDram) {
    reclaim_.remove(page);
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
  mapped_ += recorded.movable;
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

void Memory::copy(unsigned from, unsigned to, uint32_t slot) {
  const uint64_t before = now_ps_;
  for (uint64_t i = 0; i < kLinesPerPage; ++i) {
    line(from);
    line(to);
    requests_.push_back(slot * 2);
  }
  kernel_ps_ += now_ps_ - before;
}

void Memory::promote(uint32_t page) {
  const uint32_t slot = slot_[page];
  copy(1, 0, slot);
  page_of_[slot] = kNoPage;
  free_slots_.push_back(slot);
  ++cxl_free_;
  into_dram(page);
}

bool Memory::reclaim_until(int64_t free, uint64_t demote_instructions, uint64_t instructions) {
  // Eviction, of a page looked at, and of one that is kept, whose neighbours are looked at as well; aging, of a page
  // that a program maps, and of one that was accessed.
  constexpr uint64_t kLookInstructions = 170, kKeepInstructions = 4000, kWalkInstructions = 29,
                     kYoungInstructions = 190;
  const uint64_t end = instructions_ + instructions;
  while (dram_free_ < free) {
    if (instructions_ >= end) return true;
    if (!rounds_.go_on(reclaim_.size(), static_cast<uint64_t>(std::max<int64_t>(1, free)))) return false;
    if (rounds_.begins_batch() && reclaim_.low_on_cold()) {
      const uint64_t young = reclaim_.age();
      rounds_.end_round();
      spend_instructions(mapped_ * kWalkInstructions + young * kYoungInstructions);
      continue;
    }
    if (rounds_.left() == 0 || reclaim_.exhausted()) {
      rounds_.end_round();
      continue;
    }
    rounds_.look();
    const uint32_t page = reclaim_.look();
    spend_instructions(kLookInstructions);
    if (page == kNoPage) {
      spend_instructions(kKeepInstructions);
      continue;
    }
    rounds_.demote();
    into_cxl(page);
    --cxl_free_;
    ++dram_free_;
    ++demoted_;
    copy(0, 1, slot_[page]);
    spend_instructions(demote_instructions);
  }
  rounds_.sleep();
  return false;
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

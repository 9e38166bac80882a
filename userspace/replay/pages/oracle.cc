// SPDX-License-Identifier: Apache-2.0
#include "replay/pages/oracle.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "replay/pages/memory.h"

namespace neotier::pages {

namespace {

using trace::Field;

constexpr uint64_t kEpochPs = 50'000'000'000;

// Counts as the emulator's plugin counts them, of a recording that is followed as `none`.
class Counter {
 public:
  Counter(const Recording& recording, const Params& params)
      : recording_(recording),
        memory_(recording, params, Placement::kRecorded),
        counts_of_(recording.pages.size(), SIZE_MAX),
        gone_(recording.pages.size(), false) {
    found_.header.epoch_ps = kEpochPs;
    for (const Page& page : recording.pages) {
      neotier_page found{};
      found.kind = page.movable ? NEOTIER_PAGE_ANONYMOUS : page.evictable ? NEOTIER_PAGE_FILE : NEOTIER_PAGE_KERNEL;
      found.cxl = page.cxl;
      found.locked = !page.evictable;
      found.seen = 1;
      found_.pages.push_back(found);
    }
  }

  hil::PageCounts count() {
    const auto& steps = recording_.steps;
    for (size_t i = 0; i < steps.size(); ++i) {
      const uint32_t page = steps[i] >> kStepBits;
      switch (static_cast<Step>(steps[i] & ((1u << kStepBits) - 1))) {
        case Step::kFill:
          fill(page);
          break;
        case Step::kWriteback:
          memory_.line_of<false>(page, true);
          break;
        case Step::kAccessed:
          break;
        case Step::kNew:
          memory_.come(page);
          found_.pages[page].birth = epoch();
          go(recording_.pages[page].replaces);
          break;
        case Step::kGone:
          memory_.leave(page);
          go(page);
          break;
        case Step::kTime:
          memory_.pass(steps[i + 1], steps[i + 2]);
          i += 2;
          break;
      }
    }
    found_.header.nr_epochs = epoch() + 1;
    for (size_t i = 0; i < gone_.size(); ++i) {
      if (!gone_[i]) found_.pages[i].last = epoch();
    }
    return std::move(found_);
  }

  uint64_t modelled_ns() const { return memory_.now_ps() / 1000; }

 private:
  uint32_t epoch() const { return static_cast<uint32_t>(memory_.now_ps() / kEpochPs); }

  void fill(uint32_t page) {
    const uint64_t before = memory_.now_ps();
    memory_.line_of<false>(page, false);
    size_t& at = counts_of_[page];
    if (at == SIZE_MAX || found_.counts[at].epoch != epoch()) {
      at = found_.counts.size();
      found_.counts.push_back({page, epoch(), 0, 0, 0});
    }
    ++found_.counts[at].fills;
    found_.counts[at].stall_ps += memory_.now_ps() - before;
  }

  // It was last seen at the end of the epoch before.
  void go(uint32_t number) {
    if (number == kNoPage || gone_[number]) return;
    gone_[number] = true;
    neotier_page& page = found_.pages[number];
    page.seen = epoch() > page.birth;
    page.last = page.seen ? epoch() - 1 : page.birth;
  }

  const Recording& recording_;
  Memory memory_;
  hil::PageCounts found_;
  std::vector<size_t> counts_of_;  // of each page: its newest
  std::vector<bool> gone_;
};

}  // namespace

hil::Oracle solve_oracle(const Recording& recording, const Params& params) {
  Counter counter(recording, params);
  const hil::PageCounts found = counter.count();
  hil::OracleOptions options{};
  options.params.dram_ns = std::max<uint64_t>(1, recording.field(Field::kDramLatencyPs) / 1000);
  options.params.cxl_ns = recording.field(Field::kCxlLatencyPs) / 1000;
  options.params.mlp = std::max<uint64_t>(1, recording.field(Field::kMlp));
  options.promote_ns = params.promote_instructions * recording.field(Field::kBasePs) / 1000;
  options.demote_ns = params.demote_instructions * recording.field(Field::kBasePs) / 1000;
  options.modelled_ns = counter.modelled_ns();
  return hil::solve_oracle(found, options);
}

}  // namespace neotier::pages

// SPDX-License-Identifier: Apache-2.0
#include "pages/oracle.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "pages/memory.h"

namespace neotier::pages {

namespace {

using trace::Field;

constexpr uint64_t kEpochPs = 50'000'000'000, kMostEpochs = 128, kLines = 64;

enum class Life : uint8_t {
  kLasts,  // until the recording ends
  kEnded,
  kBrief,  // came and went within an epoch: what an epoch shows could not have placed it
};

// Follows a recording as `none`; a page's gains are those of its fills.
class Counter {
 public:
  Counter(const Recording& recording, const Params& params, uint64_t modelled_ns)
      : recording_(recording),
        memory_(recording, params, Placement::kRecorded),
        epoch_ps_(std::max(kEpochPs, modelled_ns * 1000 / kMostEpochs + 1)),
        pages_(recording.pages.size()),
        life_(recording.pages.size(), Life::kLasts) {
    const auto dram = static_cast<double>(recording.field(Field::kDramLatencyPs));
    const auto cxl = static_cast<double>(recording.field(Field::kCxlLatencyPs));
    // What a fill cost here says what it would have cost there: both are the latency of the tier, overlapped alike.
    if (dram > 0) gain_[0] = std::max(0.0, cxl - dram) / dram;
    if (cxl > 0) gain_[1] = std::max(0.0, cxl - dram) / cxl;
  }

  hil::OracleCase count() {
    for (size_t page = 0; page < pages_.size(); ++page) pages_[page].in_dram = !recording_.pages[page].cxl;
    const auto& steps = recording_.steps;
    for (size_t i = 0; i < steps.size(); ++i) {
      const uint32_t page = steps[i] >> kStepBits;
      switch (static_cast<Step>(steps[i] & ((1u << kStepBits) - 1))) {
        case Step::kFill:
          fill(page);
          break;
        case Step::kWriteback:
          memory_.write_back<false>(page);
          break;
        case Step::kAccessed:
          break;
        case Step::kNew:
          come(page);
          break;
        case Step::kGone:
          memory_.leave(page);
          end(page, epoch());
          break;
        case Step::kTime:
          memory_.pass(steps[i + 1], steps[i + 2]);
          i += 2;
          break;
      }
    }
    return result();
  }

  uint64_t epoch_ns() const { return epoch_ps_ / 1000; }

 private:
  uint32_t epoch() const { return static_cast<uint32_t>(memory_.now_ps() / epoch_ps_); }

  void fill(uint32_t page) {
    const uint64_t before = memory_.now_ps();
    memory_.fill<false>(page);
    const auto stall = static_cast<double>(memory_.now_ps() - before);
    const auto ps = std::llround(stall * gain_[pages_[page].in_dram ? 0 : 1]);
    if (ps > 0) add(pages_[page], epoch(), ps);
  }

  static void add(hil::OraclePage& page, uint32_t epoch, int64_t ps) {
    if (!page.gains.empty() && page.gains.back().epoch >= epoch)
      page.gains.back().ps += ps;
    else
      page.gains.push_back({epoch, ps});
  }

  void come(uint32_t page) {
    memory_.come(page);
    pages_[page].birth = epoch();
    const uint32_t old = recording_.pages[page].replaces;
    if (old != kNoPage && life_[old] == Life::kLasts) end(old, epoch());
  }

  // Pages that go within an epoch lived until the end of the one before, so that two that share a frame do not count as
  // two at a time.
  void end(uint32_t number, uint32_t now) {
    hil::OraclePage& page = pages_[number];
    life_[number] = now > page.birth ? Life::kEnded : Life::kBrief;
    page.last = now > page.birth ? now - 1 : now;
    if (page.gains.empty() || page.gains.back().epoch <= page.last) return;
    const int64_t late = page.gains.back().ps;
    page.gains.pop_back();
    add(page, page.last, late);
  }

  hil::OracleCase result() {
    hil::OracleCase c;
    const uint32_t now = epoch();
    c.epochs = now + 1;
    std::vector<int64_t> change(c.epochs + 1, 0);
    for (size_t i = 0; i < pages_.size(); ++i) {
      hil::OraclePage& page = pages_[i];
      if (!recording_.pages[i].movable || life_[i] == Life::kBrief) continue;
      if (life_[i] == Life::kLasts) page.last = now;
      if (page.in_dram) {
        ++change[page.birth];
        --change[page.last + 1];
      }
      c.pages.push_back(std::move(page));
    }
    int64_t held = 0;
    for (const int64_t by : change) c.capacity = std::max(c.capacity, static_cast<uint64_t>(held += by));
    return c;
  }

  const Recording& recording_;
  Memory memory_;
  const uint64_t epoch_ps_;
  double gain_[2] = {0, 0};  // of {dram, cxl}: ps of difference for each ps of stall
  std::vector<hil::OraclePage> pages_;
  std::vector<Life> life_;
};

}  // namespace

hil::Oracle solve_oracle(const Recording& recording, const Params& params) {
  Job none;
  none.policy = "none";
  none.params = params;
  hil::Oracle oracle;
  oracle.modelled_ns = replay(recording, none).modelled_ns;
  Counter counter(recording, params, oracle.modelled_ns);
  const hil::OracleCase found = counter.count();
  // Each line is read from one tier and, as stores allocate, filled from the other.
  const uint64_t copy_ps = kLines * (recording.field(Field::kDramLatencyPs) + recording.field(Field::kCxlLatencyPs)) /
                           std::max<uint64_t>(1, recording.field(Field::kMlp));
  const uint64_t base_ps = recording.field(Field::kBasePs);
  const hil::MoveCost cost = {static_cast<int64_t>(copy_ps + params.promote_instructions * base_ps),
                              static_cast<int64_t>(copy_ps + params.demote_instructions * base_ps)};
  oracle.epoch_ns = counter.epoch_ns();
  oracle.epochs = found.epochs;
  oracle.pages = found.pages.size();
  oracle.capacity = found.capacity;
  oracle.move_ns = static_cast<uint64_t>(cost.promote_ps) / 1000;
  oracle.fixed = hil::best_static(found);
  oracle.dynamic = hil::best_dynamic(found);
  oracle.costed = oracle.reached = hil::best_costed(found, cost);
  return oracle;
}

}  // namespace neotier::pages

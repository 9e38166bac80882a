// SPDX-License-Identifier: Apache-2.0
#include "replay/pages/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <stdexcept>

#include "replay/pages/driver.h"
#include "replay/pages/law.h"
#include "replay/pages/memory.h"

namespace neotier::pages {

namespace {

using trace::Field;

constexpr uint64_t kTickNs = 100'000;

enum class Kind { kRecorded, kAllDram, kLaw, kPlacebo };

Kind kind_of_policy(const std::string& name) {
  if (name == "none") return Kind::kRecorded;
  if (name == "all-dram") return Kind::kAllDram;
  if (name == "neotier") return Kind::kLaw;
  if (name == "placebo") return Kind::kPlacebo;
  std::string known;
  for (const PolicyInfo& policy : policies()) known += (known.empty() ? "" : ", ") + std::string(policy.name);
  throw std::runtime_error(fmt::format("--policy '{}': expected {}", name, known));
}

Kind kind_of(const Job& job) {
  const Kind kind = kind_of_policy(job.policy);
  if (kind != Kind::kPlacebo && job.tenants > 1)
    throw std::runtime_error(fmt::format("--policy '{}': in an extended memory nothing is moved: placebo", job.policy));
  return kind;
}

static_assert(step_of(Step::kFill, 0) == 0 && step_of(Step::kWriteback, 0) == 1);
bool is_line(uint32_t step) { return (step & ((1u << kStepBits) - 1)) <= 1; }

// Walks through a recording once. `kTracked`: a driver looks at what the device counts, and lets the program go on in
// the middle of its own work.
template <bool kTracked>
class Walk final : public Program {
 public:
  Walk(const Recording& recording, Memory& memory, Driver* driver)
      : steps_(recording.steps), memory_(memory), driver_(driver) {}

  void run_until(uint64_t guest_ns) override {
    // A driver that is woken may walk on.
    for (size_t i = next_; i < steps_.size() && (!kTracked || memory_.guest_ns() < guest_ns); i = next_) {
      for (; i < steps_.size() && is_line(steps_[i]); ++i) {
        memory_.line_of<kTracked>(steps_[i] >> kStepBits, steps_[i] & 1);
      }
      next_ = i + 1;
      if (i == steps_.size()) break;
      const uint32_t page = steps_[i] >> kStepBits;
      switch (static_cast<Step>(steps_[i] & ((1u << kStepBits) - 1))) {
        case Step::kFill:
        case Step::kWriteback:
          break;
        case Step::kAccessed:
          memory_.accessed(page);
          break;
        case Step::kNew:
          memory_.come(page);
          break;
        case Step::kGone:
          memory_.leave(page);
          break;
        case Step::kTime:
          next_ = i + 3;
          memory_.pass(steps_[i + 1], steps_[i + 2]);
          if constexpr (kTracked) {
            for (; memory_.guest_ns() >= next_tick_; next_tick_ += kTickNs) driver_->tick();
            if (memory_.guest_ns() >= driver_->wakes_at()) driver_->wake();
          }
          break;
      }
    }
  }

 private:
  const std::vector<uint32_t>& steps_;
  Memory& memory_;
  Driver* driver_;
  size_t next_ = 0;
  uint64_t next_tick_ = kTickNs;
};

// A line that is evicted is wanted once more as often as one of those that reach the last cache is found there.
uint64_t evict_percent(const Recording& recording) {
  const uint64_t fills = recording.fills[0] + recording.fills[1], asked = recording.field(Field::kEndL2Misses);
  return asked <= fills ? 0 : (asked - fills) * 100 / asked;
}

}  // namespace

const std::vector<ParamInfo>& param_table() {
  static const std::vector<ParamInfo> kTable = {
      {"promote_instructions", &Params::promote_instructions, 0, 10'000'000, "kernel: of a promoted page"},
      {"demote_instructions", &Params::demote_instructions, 0, 10'000'000, "kernel: of a demoted page"},
      {"report_instructions", &Params::report_instructions, 0, 10'000'000, "kernel: of a report that is read"},
      {"wake_instructions", &Params::wake_instructions, 0, 10'000'000, "kernel: of the driver's thread waking"},
      {"decide_instructions", &Params::decide_instructions, 0, 10'000'000, "kernel: of a decision"},
      {"evict_percent", &Params::evict_percent, 0, 100, "kernel: lines the program fetches again for 100 of its own"},
      {"llc_kib", &Params::llc_kib, 1, 1ull << 20, "machine: the last cache, KiB"},
      {"wake_reads", &Params::wake_reads, 0, 10'000, "uncached reads of the device when the thread wakes"},
      {"decide_reads", &Params::decide_reads, 0, 10'000, "uncached reads of the device for a decision"},
      {"low_pages", &Params::low_pages, 0, 1ull << 32, "DRAM: free pages at which new memory goes elsewhere"},
      {"gap_pages", &Params::gap_pages, 0, 1ull << 32, "DRAM: from the low to the high watermark"},
      {"high_pages", &Params::high_pages, 1, 1ull << 32, "DRAM: what kswapd wants to free in a round"},
      {"quota_mb_per_s", &Params::quota_mb_per_s, 0, 1 << 20, "module: MiB/s"},
      {"period_us", &Params::period_us, 100, 60'000'000, "module: us"},
      {"decide_interval_ms", &Params::decide_interval_ms, 1, 60'000, "module: ms"},
      {"reserve_pages", &Params::reserve_pages, 0, 1 << 20, "module: pages"},
      {"headroom_pages", &Params::headroom_pages, 0, INT32_MAX, "module: pages"},
      {"batch", &Params::batch, 1, 512, "module: pages"},
      {"exchange", &Params::exchange, 0, 1, "module: 1: room is made by exchange, 0: by kswapd"},
      {"page_cache", &Params::page_cache, 0, 1, "module: 1: pages of files and of shared memory move, too"},
      {"confirm_epochs", &Params::confirm_epochs, 1, 8, "module: epochs"},
      {"loss_ppm", &Params::loss_ppm, 0, 1'000'000, "module: of the time, that may be lost; 1000000: no bound"},
      {"loss_base_ms", &Params::loss_base_ms, 0, 10'000, "module: ms that may be lost besides"},
      {"epoch_us", &Params::epoch_us, 100, 4'095'000, "device: us, whole hundreds"},
      {"threshold", &Params::threshold, 1, 65535, "device: what the law starts from"},
      {"saved_ns", &Params::saved_ns, 1, 100'000, "law payback: ns"},
      {"payback_ms", &Params::payback_ms, 1, 60'000, "law payback: ms"},
  };
  return kTable;
}

void set_param(Params& params, std::string_view setting) {
  const size_t equals = setting.find('=');
  const std::string_view name = setting.substr(0, equals);
  for (const ParamInfo& info : param_table()) {
    if (info.name != name) continue;
    const std::string_view text = equals == std::string_view::npos ? "" : setting.substr(equals + 1);
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < info.min || value > info.max) {
      throw std::runtime_error(
          fmt::format("--param '{}': expected a whole number from {} to {}", setting, info.min, info.max));
    }
    params.*info.field = value;
    return;
  }
  throw std::runtime_error(fmt::format("--param '{}': no such parameter; --help lists them", setting));
}

const std::vector<PolicyInfo>& policies() {
  static const std::vector<PolicyInfo> kPolicies = {
      {"none", "each page where the recorded run had it"},
      {"all-dram", "all pages in DRAM"},
      {"neotier", "neotier.ko's own decisions; --param exchange=0: room by kswapd"},
      {"placebo", "as neotier, but nothing is moved"},
  };
  return kPolicies;
}

void check(const Job& job) {
  kind_of(job);
  find_law(job.law);
  make_tracker(job.tracker, TrackerOptions{.slots = 1});
}

// As the kernel computes them (mm/page_alloc.c, __setup_per_zone_wmarks and setup_per_zone_lowmem_reserve): of the
// zones of node 0 together, what they keep for others included in the low one.
Params on_machine(const Params& params, const Recording& recording) {
  constexpr uint64_t kKeepShare = 256, kLeastShare = 4, kScaleOne = 10'000, kLeastReclaim = 32;
  uint64_t zones[] = {recording.field(Field::kManagedDma), recording.field(Field::kManagedDma32),
                      recording.field(Field::kManagedNormal)};
  // Where kswapd makes room `neotier hil` gives it these watermarks; exchange needs no setting.
  constexpr uint64_t kStockScale = 10;
  const uint64_t scale = params.exchange != 0 ? kStockScale : recording.field(Field::kTieringWatermarkScale);
  uint64_t above = zones[0] + zones[1] + zones[2], low = 0, gap = 0, high = 0;
  const uint64_t all = std::max<uint64_t>(1, above + recording.field(Field::kManagedCxl));
  for (const uint64_t pages : zones) {
    const uint64_t min = recording.field(Field::kMinFreeKib) / 4 * pages / all;
    const uint64_t step = std::max(min / kLeastShare, pages * scale / kScaleOne);
    above -= pages;
    low += min + step + above / kKeepShare;
    gap += step;
    if (pages != 0) high += std::max(min + 2 * step, kLeastReclaim);
  }
  Params on = params;
  const auto fill = [](uint64_t& to, uint64_t value) {
    if (to == kOfMachine) to = value;
  };
  fill(on.low_pages, low);
  fill(on.gap_pages, gap);
  fill(on.high_pages, std::max<uint64_t>(1, high));
  fill(on.reserve_pages, recording.field(Field::kReservePages));
  fill(on.evict_percent, evict_percent(recording));
  constexpr uint64_t kOlderLlcKib = 8192;  // the default; an older recording does not tell
  fill(on.llc_kib, recording.field(Field::kLlcKib) != 0 ? recording.field(Field::kLlcKib) : kOlderLlcKib);
  fill(on.batch, std::clamp<uint64_t>(recording.field(Field::kBatchPages), 1, 512));
  return on;
}

Result replay(const Recording& recording, const Job& asked) {
  Job job = asked;
  job.params = on_machine(asked.params, recording);
  const Kind kind = kind_of(job);
  const bool law = kind == Kind::kLaw || kind == Kind::kPlacebo;
  Memory memory(recording, job.params,
                law                      ? Placement::kFirstTouch
                : kind == Kind::kAllDram ? Placement::kAllDram
                                         : Placement::kRecorded);
  std::optional<Driver> driver;
  if (law) {
    driver.emplace(recording, memory, job, kind == Kind::kPlacebo);
    Walk<true> walk(recording, memory, &*driver);
    driver->set_program(walk);
    walk.run_until(UINT64_MAX);
  } else {
    Walk<false>(recording, memory, nullptr).run_until(UINT64_MAX);
  }
  Result result = driver ? driver->result() : Result{};
  memory.finish(result);
  result.guest_ns = memory.guest_ns();
  result.params = job.params;
  return result;
}

nlohmann::ordered_json to_json(const Job& job, const Result& r) {
  nlohmann::ordered_json params;
  for (const ParamInfo& info : param_table()) params[std::string(info.name)] = r.params.*info.field;
  return {{"policy", job.policy},
          {"law", job.law},
          {"tracker", job.tracker},
          {"modelled_ns", r.modelled_ns},
          {"guest_ns", r.guest_ns},
          {"kernel_ns", r.kernel_ns},
          {"llc_misses", {{"dram", r.fills[0]}, {"cxl", r.fills[1]}}},
          {"stall_ns", {{"dram", r.stall_ns[0]}, {"cxl", r.stall_ns[1]}}},
          {"promoted_pages", r.promoted},
          {"demoted_pages", r.demoted},
          {"promote_ns", r.promote_ns},
          {"ping_pong", r.ping_pong},
          {"exchange",
           {{"demoted_pages", r.exchanged},
            {"demote_ns", r.demote_ns},
            {"age_ns", r.age_ns},
            {"age_looks", r.age_looks},
            {"regrets", r.regrets},
            {"short_stays", r.short_stays}}},
          {"control", r.control},
          {"thread_ns", r.thread_ns},
          {"moves_ns", r.moves_ns},
          {"kswapd_ns", r.kswapd_ns},
          {"ledger", {{"won_ns", r.won_ns}, {"regret_ns", r.regret_ns}, {"spent_ns", r.spent_ns}, {"stops", r.stops}}},
          {"reports", r.reports},
          {"discarded", r.discarded},
          {"unconfirmed", r.unconfirmed},
          {"room_waits", r.room_waits},
          {"room_holds", r.room_holds},
          {"dry_run_pages", r.tried_dry},
          {"decisions", r.decisions},
          {"threshold", r.threshold},
          {"epochs", r.epochs},
          {"lost", r.lost},
          {"params", params}};
}

}  // namespace neotier::pages

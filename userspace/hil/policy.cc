// SPDX-License-Identifier: Apache-2.0
#include "hil/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>

namespace neotier::hil {

namespace {

// What administrators of tiered memory set. Scale: the distance between the watermarks at which kswapd starts and stops
// to demote, in 1/10000 of a node's memory; raised from the kernel's own, so that promotion does not wait for each page
// (NeoMem's artifact: 200 for its PTE scan). Boost: with demotion on, kswapd answers fragmentation by demoting
// (docs/decisions/0013).
constexpr uint64_t kStockWatermarkScale = 10, kTieringWatermarkScale = 100;
constexpr std::string_view kTieringBoost = "vm.watermark_boost_factor=0";

// Of the DRAM that a program can have: what stays free for those that cannot wait, the module's reserve, its batch.
// The kernel's minimum grows with the square root of memory: 1 % of a small machine, under .1 % of a server.
constexpr uint64_t kMinimumShare = 400, kReserveShare = 100, kBatchShare = 1024;
// And of each CPU's list of free pages, which no watermark counts as free. The kernel lets all CPUs' together grow to
// an eighth of a zone; a machine of one CPU would have that on one list, a server has it on dozens.
constexpr uint64_t kPerCpuShare = 256;
// The module's own values, which suit a server; no machine gets more.
constexpr uint64_t kMostReservePages = 1024, kMostBatch = 64;
constexpr uint64_t kLeastBatch = 16;
constexpr uint64_t kPageBytes = 4096;
// Of the module: a loss_ppm that bounds nothing.
constexpr uint64_t kNoBound = 1'000'000;

constexpr std::array<Policy, 12> kPolicies = {{
    {.name = "all-dram", .text = "reference: a machine with more DRAM, as much as both tiers", .all_dram = true},
    {.name = "all-cxl",
     .text = "reference: all memory of the program in a CXL device as large as both tiers",
     .all_cxl = true,
     .mempolicy = "bind 1"},
    {.name = "none", .text = "first touch, no migration"},
    {.name = "interleave",
     .text = "pages of the program in turn on both tiers, no migration",
     .mempolicy = "interleave"},
    {.name = "numab",
     .text = "Linux NUMA balancing tiering mode and demotion, stock settings",
     .numa_balancing = 2,
     .demotion = true},
    {.name = "numab-fast",
     .text = "the same with scan delay, period and hot threshold scaled to the memory size",
     .numa_balancing = 2,
     .demotion = true,
     .fast_scan = true,
     .tuned_reclaim = true},
    {.name = "damon",
     .text = "DAMON: pages accessed in 5 % of samples go up, idle regions go down, and kernel demotion",
     .demotion = true,
     .tuned_reclaim = true,
     .damon = true},
    {.name = "pebs",
     .text = "one in 199 LLC misses sampled, MEMTIS's histogram decides; promoted by neotier.ko, kernel demotion",
     .module = true,
     .source = "pebs"},
    {.name = "ptescan",
     .text = "page table Accessed bits, scanned at an interval; promoted by neotier.ko, kernel demotion",
     .module = true,
     .source = "ptescan"},
    {.name = "neotier", .text = "NeoProf and neotier.ko, as shipped on a stock kernel", .module = true},
    {.name = "placebo",
     .text = "the same without its moves (dry_run): what driver and device do by themselves",
     .module = true,
     .dry_run = true},
    {.name = "ideal", .text = "reference: `none` with the marked hot set charged DRAM latency", .ideal = true},
}};

// A stock kernel's scan delay and longest period suit a server of about this size, where a pass over memory at 256 MiB
// a second takes two minutes; here they shrink with the memory. The shortest period and the hot threshold do not shrink
// as far: the best of four settings tried on GUPS (docs/decisions/0004).
constexpr uint64_t kReferenceBytes = 32ull << 30;

// Aggregations of 100 ms without an access after which a region is cold. HMSDK's 30 s suit a server; see decision 0006.
constexpr int kDamonColdAggregations = 10;

}  // namespace

std::string_view to_string(Thp thp) {
  switch (thp) {
    case Thp::kNever:
      return "never";
    case Thp::kMadvise:
      return "madvise";
    case Thp::kAlways:
      return "always";
  }
  return "";
}

// On the command line rather than by sysfs later: a kernel that boots with huge pages on raises its free memory
// watermarks for good, to a share of a small machine's DRAM that no server has.
std::string kernel_arguments(Thp thp) { return fmt::format("transparent_hugepage={}", to_string(thp)); }

std::span<const Policy> policies() { return kPolicies; }

const Policy& find_policy(std::string_view name) {
  for (const Policy& policy : kPolicies) {
    if (policy.name == name) return policy;
  }
  std::string known;
  for (const Policy& policy : kPolicies) known += fmt::format("{}{}", known.empty() ? "" : ", ", policy.name);
  throw std::runtime_error(fmt::format("unknown policy '{}'; known: {}", name, known));
}

namespace {

// A file system of settings, written in order.
class Settings {
 public:
  explicit Settings(std::vector<std::string>& lines, std::string directory)
      : lines_(lines), directory_(std::move(directory)) {}
  template <typename T>
  void set(std::string_view file, const T& value) const {
    lines_.push_back(fmt::format("late {}/{} {}", directory_, file, value));
  }
  Settings in(std::string_view directory) const {
    return Settings(lines_, fmt::format("{}/{}", directory_, directory));
  }

 private:
  std::vector<std::string>& lines_;
  std::string directory_;
};

// One kdamond that watches a node's physical memory and applies one scheme to it, as `damo` sets up its memory tiering
// (its default intervals and region counts; access rate, quota and filter of its mem_tier.sh). What Linux 6.12 has not
// (intervals and quotas that tune themselves) is left out; an action may follow each aggregation, since a second's
// pause is long here (docs/decisions/0006).
void add_kdamond(const Settings& kdamond, const std::vector<MemoryRange>& ranges, std::string_view action, int target,
                 bool hot) {
  kdamond.set("contexts/nr_contexts", 1);
  const Settings context = kdamond.in("contexts/0");
  context.set("operations", "paddr");
  const Settings intervals = context.in("monitoring_attrs/intervals");
  intervals.set("sample_us", 5000);
  intervals.set("aggr_us", 100000);
  intervals.set("update_us", 1000000);
  context.set("monitoring_attrs/nr_regions/min", 10);
  context.set("monitoring_attrs/nr_regions/max", 1000);
  context.set("targets/nr_targets", 1);
  context.set("targets/0/regions/nr_regions", ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    context.set(fmt::format("targets/0/regions/{}/start", i), ranges[i].base);
    context.set(fmt::format("targets/0/regions/{}/end", i), ranges[i].base + ranges[i].size);
  }
  context.set("schemes/nr_schemes", 1);
  const Settings scheme = context.in("schemes/0");
  scheme.set("action", action);
  scheme.set("target_nid", target);
  scheme.set("apply_interval_us", 0);
  const Settings pattern = scheme.in("access_pattern");
  pattern.set("sz/min", 4096);
  pattern.set("sz/max", "18446744073709551615");
  pattern.set("nr_accesses/min", hot ? 1 : 0);
  pattern.set("nr_accesses/max", hot ? 20 : 0);
  pattern.set("age/min", hot ? 0 : kDamonColdAggregations);
  pattern.set("age/max", "4294967295");
  scheme.set("quotas/bytes", 200ull << 20);
  scheme.set("quotas/reset_interval_ms", 1000);
  // Pages that were not accessed since the last look stay out of a promotion, and those that were out of a demotion.
  scheme.set("filters/nr_filters", 1);
  scheme.set("filters/0/type", "young");
  scheme.set("filters/0/matching", hot ? "N" : "Y");
}

void add_damon(std::vector<std::string>& lines, const PolicyMachine& machine) {
  const Settings kdamonds(lines, "/sys/kernel/mm/damon/admin/kdamonds");
  kdamonds.set("nr_kdamonds", 2);
  add_kdamond(kdamonds.in("0"), machine.node[1], "migrate_hot", 0, true);
  add_kdamond(kdamonds.in("1"), machine.node[0], "migrate_cold", 1, false);
  kdamonds.set("0/state", "on");
  kdamonds.set("1/state", "on");
  // The kernel counts what DAMON moves in no line of /proc/vmstat of its own.
  for (const auto& [name, index] : {std::pair{"damon_hot", 0}, {"damon_cold", 1}}) {
    const std::string at = fmt::format("/sys/kernel/mm/damon/admin/kdamonds/{}", index);
    lines.push_back(fmt::format("ask {}/state update_schemes_stats", at));
    lines.push_back(fmt::format("stats {} {}/contexts/0/schemes/0/stats", name, at));
  }
}

void add_watermarks(std::vector<std::string>& lines, const Policy& policy, const MemorySettings& memory) {
  lines.push_back(sysctl_setting(fmt::format("vm.min_free_kbytes={}", memory.min_free_kib)));
  lines.push_back(sysctl_setting(
      fmt::format("vm.watermark_scale_factor={}", policy.tuned_reclaim ? memory.tiering_scale : memory.scale)));
  lines.push_back(sysctl_setting(fmt::format("vm.percpu_pagelist_high_fraction={}", memory.per_cpu_fraction)));
  // Whether a pass comes hangs on a few free pages in a machine so small, and its moves then take the program's only
  // processor.
  lines.push_back(sysctl_setting("vm.compaction_proactiveness=0"));
  if (policy.tuned_reclaim) lines.push_back(sysctl_setting(std::string(kTieringBoost)));
}

// The module makes room itself, and needs no setting for that. Pages that another source names are for kswapd to make
// room for: without the device nobody sees what an exchange costs.
constexpr std::string_view kRoomByKswapd = "room=kswapd";

std::string_view room_of(const Policy& policy, const std::vector<std::string>& knobs) {
  const auto last =
      std::find_if(knobs.rbegin(), knobs.rend(), [](const auto& knob) { return knob.starts_with("room="); });
  if (last != knobs.rend()) return *last;
  return policy.source.empty() ? "room=exchange" : kRoomByKswapd;
}

Policy with_knobs(Policy policy, const std::vector<std::string>& knobs) {
  if (policy.module) policy.demotion = policy.tuned_reclaim = room_of(policy, knobs) == kRoomByKswapd;
  return policy;
}

}  // namespace

// The kernel takes its watermarks from all memory of a node, of which a program here gets the smaller part: kernel and
// initramfs have, and the guest's init takes away, what on a server would be a few per cent. So shares of the node
// become shares of what the program can have, for every policy.
MemorySettings memory_settings(const PolicyMachine& machine) {
  uint64_t node_bytes[2] = {0, 0};
  for (int node = 0; node < 2; ++node) {
    for (const MemoryRange& range : machine.node[node]) node_bytes[node] += range.size;
  }
  const uint64_t usable = std::min(machine.dram_bytes, node_bytes[0]);
  const uint64_t pages = machine.dram_bytes / kPageBytes;
  const auto scaled = [&](uint64_t scale) {
    return std::max<uint64_t>(1, (scale * usable + node_bytes[0] / 2) / node_bytes[0]);
  };
  return {
      // The kernel divides its minimum among the nodes by their sizes.
      .min_free_kib = usable / kMinimumShare * (node_bytes[0] + node_bytes[1]) / node_bytes[0] / 1024,
      .scale = scaled(kStockWatermarkScale),
      .tiering_scale = scaled(kTieringWatermarkScale),
      .reserve_pages = std::min(pages / kReserveShare, kMostReservePages),
      .batch = std::clamp(pages / kBatchShare, kLeastBatch, kMostBatch),
      .present_pages = node_bytes[0] / kPageBytes,
      .per_cpu_fraction = kPerCpuShare * node_bytes[0] / usable,
  };
}

std::vector<std::string> policy_settings(const Policy& chosen, const PolicyMachine& machine,
                                         const std::vector<std::string>& knobs) {
  const Policy policy = with_knobs(chosen, knobs);
  const Thp thp = machine.thp;
  const uint64_t memory_bytes = machine.memory_bytes;
  std::vector<std::string> lines;
  // Again, because a kernel with less than 512 MiB ignores its command line in this.
  lines.push_back(fmt::format("set /sys/kernel/mm/transparent_hugepage/enabled {}", to_string(thp)));
  lines.push_back(fmt::format("set /sys/kernel/mm/numa/demotion_enabled {}", policy.demotion ? 1 : 0));
  // After huge pages: to allow them raises the kernel's minimum.
  const MemorySettings memory = memory_settings(machine);
  add_watermarks(lines, policy, memory);
  if (policy.fast_scan) {
    const auto scaled = [&](uint64_t stock) { return std::max<uint64_t>(1, stock * memory_bytes / kReferenceBytes); };
    const std::string_view at = "/sys/kernel/debug/sched/numa_balancing";
    lines.push_back(fmt::format("set {}/scan_delay_ms {}", at, scaled(1000)));
    lines.push_back(fmt::format("set {}/scan_period_max_ms {}", at, scaled(60000)));
    lines.push_back(fmt::format("set {}/scan_period_min_ms {}", at, scaled(10 * 1000)));
    lines.push_back(fmt::format("set {}/hot_threshold_ms {}", at, scaled(5 * 1000)));
  }
  lines.push_back(fmt::format("set /proc/sys/kernel/numa_balancing {}", policy.numa_balancing));
  if (policy.module) {
    lines.push_back("module /neotier/neotier.ko");
    const auto late = [&](std::string_view file, uint64_t value) {
      lines.push_back(fmt::format("late /sys/kernel/neotier/{} {}", file, value));
    };
    late("reserve_pages", memory.reserve_pages);
    late("batch", memory.batch);
    if (policy.demotion) lines.push_back("late /sys/kernel/neotier/room kswapd");
    if (policy.dry_run) late("dry_run", 1);
    // Each page that such a source names has already been found hot: it is reported at once and needs no confirmation.
    // And these are others' policies, which know no bound on loss.
    if (!policy.source.empty()) {
      lines.push_back("late /sys/kernel/neotier/policy fixed");
      lines.push_back("late /sys/kernel/neotier/device0/threshold 1");
      lines.push_back("late /sys/kernel/neotier/confirm_epochs 1");
      late("loss_ppm", kNoBound);
    }
    for (const std::string& knob : knobs) {
      const size_t equals = knob.find('=');
      if (equals == std::string::npos || equals == 0 || knob.find("..") != std::string::npos) {
        throw std::runtime_error(fmt::format("--knob '{}': expected KEY=VALUE, a file of /sys/kernel/neotier", knob));
      }
      lines.push_back(fmt::format("late /sys/kernel/neotier/{} {}", knob.substr(0, equals), knob.substr(equals + 1)));
    }
    lines.push_back("late /sys/kernel/neotier/enabled 1");
    lines.push_back("stats neotier /sys/kernel/neotier/stats");
  }
  if (policy.damon) add_damon(lines, machine);
  if (!policy.mempolicy.empty()) lines.push_back(fmt::format("mempolicy {}", policy.mempolicy));
  return lines;
}

std::span<const MoveCounter> promotion_counters(const Policy& policy) {
  static constexpr MoveCounter kModule[] = {{"neotier.promoted"}};
  static constexpr MoveCounter kKernel[] = {{"vmstat.pgpromote_success"},
                                            {.key = "damon_hot.sz_applied", .bytes = true}};
  return policy.module ? std::span<const MoveCounter>(kModule) : kKernel;
}

std::span<const MoveCounter> demotion_counters() {
  static constexpr MoveCounter kCounters[] = {{"vmstat.pgdemote_kswapd"},
                                              {"vmstat.pgdemote_direct"},
                                              {"vmstat.pgdemote_khugepaged"},
                                              {.key = "damon_cold.sz_applied", .bytes = true}};
  return kCounters;
}

std::string sysctl_setting(const std::string& sysctl) {
  const size_t equals = sysctl.find('=');
  if (equals == std::string::npos || equals == 0 || sysctl.find("..") != std::string::npos) {
    throw std::runtime_error(
        fmt::format("--sysctl '{}': expected NAME=VALUE, for example vm.watermark_scale_factor=100", sysctl));
  }
  std::string path = sysctl.substr(0, equals);
  std::replace(path.begin(), path.end(), '.', '/');
  return fmt::format("set /proc/sys/{} {}", path, sysctl.substr(equals + 1));
}

}  // namespace neotier::hil

// SPDX-License-Identifier: Apache-2.0
#include "hil/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>

namespace neotier::hil {

namespace {

// Distance between the watermarks at which kswapd starts and stops to demote, in 1/10000 of a node. Administrators of
// tiered memory raise it from 10, so that promotion does not wait for each page (NeoMem's artifact: 200 for its PTE
// scan).
constexpr int kTieringWatermarkScale = 100;

constexpr std::array<Policy, 6> kPolicies = {{
    {.name = "all-dram", .text = "bound: DRAM as large as both tiers", .all_dram = true},
    {.name = "none", .text = "first touch, no migration"},
    {.name = "numab",
     .text = "Linux NUMA balancing tiering mode and demotion, stock settings",
     .numa_balancing = 2,
     .demotion = true},
    {.name = "numab-fast",
     .text = "the same with scan delay, period and hot threshold scaled to the memory size",
     .numa_balancing = 2,
     .demotion = true,
     .fast_scan = true,
     .watermark_scale_factor = kTieringWatermarkScale},
    {.name = "neotier",
     .text = "NeoProf and neotier.ko, kernel demotion",
     .module = true,
     .demotion = true,
     .watermark_scale_factor = kTieringWatermarkScale},
    {.name = "ideal", .text = "bound: `none` with the marked hot set charged DRAM latency", .ideal = true},
}};

// A stock kernel's scan delay and longest period suit a server of about this size, where a pass over memory at 256 MiB
// a second takes two minutes; here they shrink with the memory. The shortest period and the hot threshold do not shrink
// as far: the best of four settings tried on GUPS (docs/decisions/0004).
constexpr uint64_t kReferenceBytes = 32ull << 30;

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

std::vector<std::string> policy_settings(const Policy& policy, Thp thp, uint64_t memory_bytes,
                                         const std::vector<std::string>& knobs) {
  std::vector<std::string> lines;
  // Again, because a kernel with less than 512 MiB ignores its command line in this.
  lines.push_back(fmt::format("set /sys/kernel/mm/transparent_hugepage/enabled {}", to_string(thp)));
  lines.push_back(fmt::format("set /sys/kernel/mm/numa/demotion_enabled {}", policy.demotion ? 1 : 0));
  if (policy.watermark_scale_factor != 0) {
    lines.push_back(sysctl_setting(fmt::format("vm.watermark_scale_factor={}", policy.watermark_scale_factor)));
  }
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
    for (const std::string& knob : knobs) {
      const size_t equals = knob.find('=');
      if (equals == std::string::npos || equals == 0 || knob.find("..") != std::string::npos) {
        throw std::runtime_error(fmt::format("--knob '{}': expected KEY=VALUE, a file of /sys/kernel/neotier", knob));
      }
      lines.push_back(fmt::format("late /sys/kernel/neotier/{} {}", knob.substr(0, equals), knob.substr(equals + 1)));
    }
    lines.push_back("late /sys/kernel/neotier/enabled 1");
    lines.push_back("stats /sys/kernel/neotier/stats");
  }
  return lines;
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

// SPDX-License-Identifier: Apache-2.0
// The placement policies that a guest can run under: which kernel settings each one is. The only C++ file pair that
// knows the guest's sysfs and procfs paths.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace neotier::hil {

enum class Thp { kNever, kMadvise, kAlways };
std::string_view to_string(Thp thp);

struct Policy {
  std::string_view name;
  std::string_view text;            // one line for people
  bool module = false;              // loads neotier.ko
  bool ideal = false;               // the marked hot set is charged DRAM latency
  bool all_dram = false;            // DRAM as large as both tiers
  bool all_cxl = false;             // CXL memory as large as both tiers
  std::string_view mempolicy = "";  // of the program: nothing, `interleave` or `bind NODE`
  int numa_balancing = 0;
  bool demotion = false;
  bool fast_scan = false;        // numab-fast
  bool tuned_reclaim = false;    // else the kernel's own settings
  bool dry_run = false;          // the module moves nothing
  std::string_view source = "";  // what names hot pages in the device's place: nothing, `pebs` or `ptescan`
  bool damon = false;

  // Whether pages go from one tier to the other while the program runs.
  bool moves() const { return (module && !dry_run) || numa_balancing != 0 || damon; }
};

std::span<const Policy> policies();
// Throws std::runtime_error naming the known ones.
const Policy& find_policy(std::string_view name);

// What every policy has on the kernel's command line.
std::string kernel_arguments(Thp thp);

// A range of the machine's physical memory, bytes.
struct MemoryRange {
  uint64_t base = 0, size = 0;
};

// What a policy's settings depend on besides the policy.
struct PolicyMachine {
  Thp thp = Thp::kNever;
  uint64_t dram_bytes = 0;           // that the program can have
  uint64_t memory_bytes = 0;         // both tiers, as the program sees them
  std::vector<MemoryRange> node[2];  // DRAM, CXL: all there is, some bytes each
};

// What the machine's size makes of the settings of memory.
struct MemorySettings {
  uint64_t min_free_kib = 0;              // sysctl vm.min_free_kbytes
  uint64_t scale = 0, tiering_scale = 0;  // vm.watermark_scale_factor: a stock kernel's; for policies that demote
  uint64_t reserve_pages = 0, batch = 0;  // of the module
  uint64_t present_pages = 0;             // of node 0
  uint64_t per_cpu_fraction = 0;          // vm.percpu_pagelist_high_fraction
};
MemorySettings memory_settings(const PolicyMachine& machine);

// "key value" lines of /neotier.conf that put the policy into force. `knobs` are KEY=VALUE of /sys/kernel/neotier,
// applied only where the module is loaded.
std::vector<std::string> policy_settings(const Policy& policy, const PolicyMachine& machine,
                                         const std::vector<std::string>& knobs);

struct MoveCounter {
  std::string_view key;
  bool bytes = false;  // else pages. Those in bytes are read at the ends of the region alone, not over time
};

// Counters of the guest that add up to the pages promoted and demoted, by whatever mechanism: keys of its report. The
// module's moves are counted by the kernel as well, but later, by some pages for each CPU.
std::span<const MoveCounter> promotion_counters(const Policy& policy);
std::span<const MoveCounter> demotion_counters();

// As policy_settings, for NAME=VALUE of a sysctl, for example vm.swappiness=10.
std::string sysctl_setting(const std::string& sysctl);

}  // namespace neotier::hil

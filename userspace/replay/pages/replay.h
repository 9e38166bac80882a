// SPDX-License-Identifier: Apache-2.0
// Pages of a recording placed by the kernel module's own decisions: policies/ and policies/promotion/, the same objects
// as in neotier.ko. What is not theirs is a model: the tracker (pages/tracker.h), kswapd (pages/reclaim.h and
// pages/rounds.h), the prices of what the kernel does. Two clocks: the guest's, by which the law lives, and modelled
// time, in which the result is.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "neotier_policy.h"
#include "promotion/ledger.h"
#include "replay/pages/audit.h"
#include "replay/pages/recording.h"

namespace neotier::pages {

// In the place of a parameter: what the recorded machine has.
inline constexpr uint64_t kOfMachine = UINT64_MAX;

// Prices and levels of the machine. All whole numbers, so that a replay repeats to the digit.
struct Params {
  // Instructions of the kernel.
  uint64_t promote_instructions = 11000;  // of a page, with its share of the batch
  uint64_t demote_instructions = 7650;    // likewise
  uint64_t report_instructions = 360;     // of a report that is read
  uint64_t wake_instructions = 8000;      // of the driver's thread waking
  uint64_t decide_instructions = 20000;   // of a decision of the policy
  // Of 100 lines that the kernel fetches, so many make the program fetch one again.
  uint64_t evict_percent = kOfMachine;
  uint64_t llc_kib = kOfMachine;  // the last cache
  // Uncached reads.
  uint64_t wake_reads = 1, decide_reads = 14;
  // Free pages of the DRAM: the low watermark, and from it to the high one.
  uint64_t low_pages = kOfMachine, gap_pages = kOfMachine;
  uint64_t high_pages = kOfMachine;  // what kswapd wants to free in a round: the zones' high watermarks
  // Of the module, as its files in /sys/kernel/neotier.
  uint64_t quota_mb_per_s = 1024, period_us = 5000, decide_interval_ms = 100, reserve_pages = kOfMachine,
           batch = kOfMachine, exchange = 1, page_cache = 1, confirm_epochs = 2, headroom_pages = 0, epoch_us = 50000,
           loss_ppm = NEOTIER_LEDGER_LOSS_PPM, loss_base_ms = NEOTIER_LEDGER_BASE_MS;
  // Of the law, as neotier.ko begins with them.
  uint64_t threshold = neotier_policy_default_params.threshold, saved_ns = neotier_policy_default_params.saved_ns,
           payback_ms = neotier_policy_default_params.payback_ms;
};

// With the recorded machine's values in the place of kOfMachine.
Params on_machine(const Params& params, const Recording& recording);

struct ParamInfo {
  std::string_view name;
  uint64_t Params::*field;
  uint64_t min, max;
  std::string_view text;
};
const std::vector<ParamInfo>& param_table();
// "NAME=VALUE". Throws std::runtime_error with one line.
void set_param(Params& params, std::string_view setting);

struct Job {
  std::string policy;              // of policies()
  std::string law = "payback";     // a policy of policies/, where `policy` has one
  std::string tracker = "device";  // as make_tracker()
  // Above 1: the recorded program is one of so many alike, and the device has the memory of all (pages/tenants.h). With
  // the policy placebo alone.
  uint32_t tenants = 1;
  Params params{};
};

struct PolicyInfo {
  std::string_view name, text;
};
const std::vector<PolicyInfo>& policies();

// What a replay with several tenants counts besides, of one device.
struct Extended {
  Audit audit{};
  uint64_t held_back = 0;                  // requests that the link had no room for
  uint64_t lost_ring = 0, lost_units = 0;  // as TrackerState
  uint64_t error_bound = 0;                // requests, of the last epoch
  uint64_t seen_most_ppm = 0;              // of the entries of the module's table of unconfirmed pages, in use at once
  uint64_t table_bytes = 0;                // of the module's tables for this device
};

struct Result {
  uint64_t modelled_ns = 0, guest_ns = 0, kernel_ns = 0;  // kernel: modelled time of moving, reading and deciding
  uint64_t fills[2] = {0, 0};                             // from {dram, cxl}
  uint64_t stall_ns[2] = {0, 0};
  uint64_t promoted = 0, demoted = 0, ping_pong = 0, reports = 0, unconfirmed = 0, room_waits = 0, room_holds = 0,
           decisions = 0, threshold = 0, epochs = 0, lost = 0, tried_dry = 0, discarded = 0, control = 0;
  uint64_t promote_ns = 0;  // modelled, that the module measured for its batches, as stats/promote_ns
  uint64_t thread_ns = 0, moves_ns = 0, kswapd_ns = 0;  // modelled: of the module's thread, of it on moves, of kswapd
  // With exchange, as in the module's stats/; demote_ns and age_ns are part of thread_ns.
  uint64_t exchanged = 0, demote_ns = 0, age_ns = 0, age_looks = 0, regrets = 0, short_stays = 0;
  uint64_t won_ns = 0, regret_ns = 0, spent_ns = 0, stops = 0;  // as the module's ledger has it
  Extended extended{};                                          // where there are several tenants
  Params params{};                                              // on the recorded machine
};

// Throws std::runtime_error with one line for a policy, law or tracker of no known name.
void check(const Job& job);

// Throws as check(). Thread-safe: a recording is only read.
Result replay(const Recording& recording, const Job& job);

nlohmann::ordered_json to_json(const Job& job, const Result& result);

}  // namespace neotier::pages

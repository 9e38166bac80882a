// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// Every parameter of the timing model, with its defaults and where the default comes from. `neotier hil params` prints
// this table; docs/model.md discusses it. One list serves the plugin's arguments, the command's options and the report.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace neotier::hil {

// Versions of the model: each a set of defaults, under which figures of their time repeat. 1: the model without a TLB,
// with one overlap of misses for all. 2: with all parts. Any part of one can be had in the other by its parameters.
constexpr uint32_t kModelVersions = 2;
constexpr uint32_t kDefaultModelVersion = 1;

struct Params {
  uint64_t l1_kib, l1_ways;
  uint64_t l2_kib, l2_ways;
  uint64_t llc_kib, llc_ways;
  uint64_t base_ps;        // per instruction
  uint64_t l2_ns, llc_ns;  // load-to-use
  uint64_t dram_ns, cxl_ns;
  uint64_t dram_mb_s, cxl_mb_s;
  uint64_t mlp;
  uint64_t streams;
  uint64_t rob, fill_buffers, prefetch_lines;
  uint64_t kernel_base_ps;
  uint64_t tlb;
  uint64_t tlb_4k, tlb_2m, tlb_l2, tlb_l2_ps, page_walkers;
  uint64_t shootdown_cpus, shootdown_ns;
  uint64_t mmio_read_ns, mmio_write_ns;
  uint64_t pebs_period, pebs_sample_ns;
  uint64_t ptescan_ms, ptescan_page_ns;
};

struct ParamInfo {
  std::string_view name;
  uint64_t Params::*field;
  std::array<uint64_t, kModelVersions> values;  // defaults, by version
  uint64_t min, max;
  std::string_view unit;
  std::string_view source;
};

// All parameters, in the order of struct Params.
std::span<const ParamInfo> param_table();
// `version`: from 1 to kModelVersions.
Params default_params(uint32_t version = kDefaultModelVersion);
// Sets `name` to `text`. Returns an error in one line, or nothing.
std::optional<std::string> set_param(Params& params, std::string_view name, std::string_view text);
// Checks what single ranges cannot (sets a power of two). Returns an error in one line, or nothing.
std::optional<std::string> check_params(const Params& params);

}  // namespace neotier::hil

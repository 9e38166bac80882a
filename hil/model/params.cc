// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
#include "hil/model/params.h"

#include <array>
#include <bit>
#include <charconv>

namespace neotier::hil {

namespace {

using P = Params;

constexpr std::array<ParamInfo, 20> kTable = {{
    {"l1_kib", &P::l1_kib, 32, 4, 1024, "KiB", "Intel Xeon, Skylake to Cascade Lake: 32 KiB L1D, 8 ways"},
    {"l1_ways", &P::l1_ways, 8, 4, 32, "ways", "as l1_kib"},
    {"l2_kib", &P::l2_kib, 1024, 64, 16384, "KiB", "Intel Xeon, Skylake to Cascade Lake: 1 MiB L2, 16 ways"},
    {"l2_ways", &P::l2_ways, 16, 4, 32, "ways", "as l2_kib"},
    {"llc_kib", &P::llc_kib, 8192, 256, 262144, "KiB",
     "scaled with the machine's memory: one core's share of a server LLC, as in shared memory traces (8 MiB)"},
    {"llc_ways", &P::llc_ways, 16, 4, 32, "ways", "as llc_kib; 11 to 16 ways in server parts"},
    {"base_ps", &P::base_ps, 240, 10, 100000, "ps an instruction",
     "0.5 cycles an instruction at 2.1 GHz, the clock of NeoMem's Xeon 6430 (its artifact's README)"},
    {"l2_ns", &P::l2_ns, 7, 0, 1000, "ns", "14 cycles at 2.1 GHz (Intel optimisation manual, Skylake server)"},
    {"llc_ns", &P::llc_ns, 24, 0, 1000, "ns", "about 50 cycles at 2.1 GHz (Intel optimisation manual, Skylake server)"},
    {"dram_ns", &P::dram_ns, 90, 1, 100000, "ns",
     "local DRAM of a two-socket Xeon, idle; the guest's HMAT says the same"},
    {"cxl_ns", &P::cxl_ns, 250, 1, 100000, "ns",
     "between an ASIC expander (170) and NeoMem's FPGA (430): the middle of the sensitivity row"},
    {"dram_mb_s", &P::dram_mb_s, 100000, 100, 10000000, "MB/s", "four channels of DDR5-4800, about two thirds usable"},
    {"cxl_mb_s", &P::cxl_mb_s, 20000, 100, 10000000, "MB/s", "one CXL 2.0 x8 expander on one DDR5 channel"},
    {"mlp", &P::mlp, 4, 1, 64, "misses overlapped",
     "between pointer chasing (1) and an unrolled gather (10): the middle of the sensitivity row"},
    {"mmio_read_ns", &P::mmio_read_ns, 800, 0, 100000, "ns", "uncached read across PCIe, round trip; not overlapped"},
    {"mmio_write_ns", &P::mmio_write_ns, 50, 0, 100000, "ns", "posted write: what the store buffer holds up"},
    {"pebs_period", &P::pebs_period, 199, 1, 1000000, "LLC misses",
     "policy pebs: MEMTIS samples one in 199 misses at first (its mempolicy defaults)"},
    {"pebs_sample_ns", &P::pebs_sample_ns, 500, 0, 100000, "ns a sample",
     "policy pebs: an assumption, for the record's assist and its handling; MEMTIS keeps the sum under 3 % of a CPU"},
    {"ptescan_ms", &P::ptescan_ms, 100, 1, 60000, "guest ms",
     "policy ptescan: NeoMem's baseline scans every 5 s on a server; shorter here as memory and runs are"},
    {"ptescan_page_ns", &P::ptescan_page_ns, 20, 0, 100000, "ns a page",
     "policy ptescan: an assumption, for reading and clearing an entry and refilling its TLB entry"},
}};

}  // namespace

std::span<const ParamInfo> param_table() { return kTable; }

Params default_params() {
  Params params{};
  for (const ParamInfo& info : param_table()) params.*info.field = info.value;
  return params;
}

std::optional<std::string> set_param(Params& params, std::string_view name, std::string_view text) {
  for (const ParamInfo& info : param_table()) {
    if (info.name != name) continue;
    uint64_t value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < info.min || value > info.max) {
      return "model parameter " + std::string(name) + "='" + std::string(text) + "': expected a whole number from " +
             std::to_string(info.min) + " to " + std::to_string(info.max) + " (" + std::string(info.unit) + ")";
    }
    params.*info.field = value;
    return std::nullopt;
  }
  return "unknown model parameter '" + std::string(name) + "'; `neotier hil params` lists them";
}

std::optional<std::string> check_params(const Params& params) {
  struct Level {
    const char* name;
    uint64_t kib, ways;
  };
  for (const Level& level : {Level{"l1", params.l1_kib, params.l1_ways}, Level{"l2", params.l2_kib, params.l2_ways},
                             Level{"llc", params.llc_kib, params.llc_ways}}) {
    if (level.ways % 4 != 0 || level.kib * 1024 % (64 * level.ways) != 0 ||
        !std::has_single_bit(level.kib * 1024 / (64 * level.ways))) {
      return std::string(level.name) + ": " + std::to_string(level.kib) + " KiB in " + std::to_string(level.ways) +
             " ways: the ways must be a multiple of 4 and the sets a power of two";
    }
  }
  return std::nullopt;
}

}  // namespace neotier::hil

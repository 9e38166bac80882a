// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
#include "hil/model/params.h"

#include <array>
#include <bit>
#include <charconv>

namespace neotier::hil {

namespace {

using P = Params;

using Defaults = std::array<uint64_t, kModelVersions>;
constexpr Defaults both(uint64_t value) { return {value, value}; }
constexpr Defaults by_version(uint64_t one, uint64_t two) { return {one, two}; }

constexpr std::array<ParamInfo, 33> kTable = {{
    {"l1_kib", &P::l1_kib, both(32), 4, 1024, "KiB", "Intel Xeon, Skylake to Cascade Lake: 32 KiB L1D, 8 ways"},
    {"l1_ways", &P::l1_ways, both(8), 4, 32, "ways", "as l1_kib"},
    {"l2_kib", &P::l2_kib, both(1024), 64, 16384, "KiB", "Intel Xeon, Skylake to Cascade Lake: 1 MiB L2, 16 ways"},
    {"l2_ways", &P::l2_ways, both(16), 4, 32, "ways", "as l2_kib"},
    {"llc_kib", &P::llc_kib, both(8192), 256, 262144, "KiB",
     "scaled with the machine's memory: one core's share of a server LLC, as in shared memory traces (8 MiB)"},
    {"llc_ways", &P::llc_ways, both(16), 4, 32, "ways", "as llc_kib; 11 to 16 ways in server parts"},
    {"base_ps", &P::base_ps, both(240), 10, 100000, "ps an instruction",
     "0.5 cycles an instruction at 2.1 GHz, the clock of NeoMem's Xeon 6430 (its artifact's README)"},
    {"l2_ns", &P::l2_ns, both(7), 0, 1000, "ns", "14 cycles at 2.1 GHz (Intel optimisation manual, Skylake server)"},
    {"llc_ns", &P::llc_ns, both(24), 0, 1000, "ns",
     "about 50 cycles at 2.1 GHz (Intel optimisation manual, Skylake server)"},
    {"dram_ns", &P::dram_ns, both(90), 1, 100000, "ns",
     "local DRAM of a two-socket Xeon, idle; the guest's HMAT says the same"},
    {"cxl_ns", &P::cxl_ns, both(250), 1, 100000, "ns",
     "between an ASIC expander (170) and NeoMem's FPGA (430): the middle of the sensitivity row"},
    {"dram_mb_s", &P::dram_mb_s, both(100000), 100, 10000000, "MB/s",
     "four channels of DDR5-4800, about two thirds usable"},
    {"cxl_mb_s", &P::cxl_mb_s, both(20000), 100, 10000000, "MB/s", "one CXL 2.0 x8 expander on one DDR5 channel"},
    {"mlp", &P::mlp, both(4), 1, 64, "misses overlapped",
     "between pointer chasing (1) and an unrolled gather (10): the middle of the sensitivity row"},
    {"streams", &P::streams, by_version(0, 1), 0, 1, "no/yes",
     "overlap and prefetch by what the core sees of each access, in place of mlp for all"},
    {"rob", &P::rob, both(224), 16, 4096, "instructions",
     "reorder buffer, Intel Xeon, Skylake to Cascade Lake: 224 entries (Intel optimisation manual); misses so far "
     "apart overlap"},
    {"fill_buffers", &P::fill_buffers, both(12), 1, 256, "misses",
     "L1D line fill buffers, Skylake: 12 (10 before); as many misses overlap at most"},
    {"prefetch_lines", &P::prefetch_lines, both(20), 1, 256, "lines",
     "the L2 streamer runs up to 20 lines ahead of the load (Intel optimisation manual)"},
    {"kernel_base_ps", &P::kernel_base_ps, by_version(0, 480), 0, 100000, "ps an instruction",
     "of the kernel; 0: base_ps. An assumption: one cycle, since kernel code misses more in I-cache and branches, "
     "unseen here"},
    {"tlb", &P::tlb, by_version(0, 1), 0, 1, "no/yes",
     "TLB misses and page walks by the guest's own tables; machine numa"},
    {"tlb_4k", &P::tlb_4k, both(64), 4, 4096, "entries", "L1 data TLB, Skylake to Cascade Lake: 64 of 4 KiB, 4 ways"},
    {"tlb_2m", &P::tlb_2m, both(32), 4, 4096, "entries", "L1 data TLB, Skylake to Cascade Lake: 32 of 2 MiB, 4 ways"},
    {"tlb_l2", &P::tlb_l2, both(1536), 12, 49152, "entries",
     "L2 TLB, Skylake to Cascade Lake: 1536 of 4 KiB and 2 MiB, 12 ways"},
    {"tlb_l2_ps", &P::tlb_l2_ps, both(3333), 0, 100000, "ps",
     "7 cycles at 2.1 GHz: a hit in the L2 TLB (Intel optimisation manual); a walk adds its reads of the tables"},
    {"page_walkers", &P::page_walkers, both(2), 1, 16, "walks", "Skylake walks two page tables at a time (its manual)"},
    {"shootdown_cpus", &P::shootdown_cpus, both(1), 1, 1024, "processors",
     "on which the program runs: all but the first are interrupted for a batch of TLB flushes; the guest has one"},
    {"shootdown_ns", &P::shootdown_ns, both(500), 0, 100000, "ns a batch",
     "per further processor: LATR (ASPLOS 2018): about 6 us on 16 cores, 80 us on 120"},
    {"mmio_read_ns", &P::mmio_read_ns, both(800), 0, 100000, "ns",
     "uncached read across PCIe, round trip; not overlapped"},
    {"mmio_write_ns", &P::mmio_write_ns, both(50), 0, 100000, "ns", "posted write: what the store buffer holds up"},
    {"pebs_period", &P::pebs_period, both(199), 1, 1000000, "LLC misses",
     "policy pebs: MEMTIS samples one in 199 misses at first (its mempolicy defaults)"},
    {"pebs_sample_ns", &P::pebs_sample_ns, both(500), 0, 100000, "ns a sample",
     "policy pebs: an assumption, for the record's assist and its handling; MEMTIS keeps the sum under 3 % of a CPU"},
    {"ptescan_ms", &P::ptescan_ms, both(100), 1, 60000, "guest ms",
     "policy ptescan: NeoMem's baseline scans every 5 s on a server; shorter here as memory and runs are"},
    {"ptescan_page_ns", &P::ptescan_page_ns, both(20), 0, 100000, "ns a page",
     "policy ptescan: an assumption, for reading and clearing an entry and refilling its TLB entry"},
}};

}  // namespace

std::span<const ParamInfo> param_table() { return kTable; }

Params default_params(uint32_t version) {
  Params params{};
  for (const ParamInfo& info : param_table()) params.*info.field = info.values.at(version - 1);
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
    uint64_t size, ways;
  };
  for (const Level& level : {Level{"l1", params.l1_kib, params.l1_ways}, Level{"l2", params.l2_kib, params.l2_ways},
                             Level{"llc", params.llc_kib, params.llc_ways}}) {
    if (level.ways % 4 != 0 || level.size * 1024 % (64 * level.ways) != 0 ||
        !std::has_single_bit(level.size * 1024 / (64 * level.ways))) {
      return std::string(level.name) + ": " + std::to_string(level.size) + " KiB in " + std::to_string(level.ways) +
             " ways: the ways must be a multiple of 4 and the sets a power of two";
    }
  }
  for (const Level& tlb :
       {Level{"tlb_4k", params.tlb_4k, 4}, Level{"tlb_2m", params.tlb_2m, 4}, Level{"tlb_l2", params.tlb_l2, 12}}) {
    if (tlb.size % tlb.ways != 0 || !std::has_single_bit(tlb.size / tlb.ways)) {
      return std::string(tlb.name) + "=" + std::to_string(tlb.size) + ": expected a power of two times " +
             std::to_string(tlb.ways) + " entries, the ways";
    }
  }
  return std::nullopt;
}

}  // namespace neotier::hil

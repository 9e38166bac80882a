// SPDX-License-Identifier: Apache-2.0
// Several tiers of KV cache below the GPU, and a model of the time to first token. Modelled, not measured: the figures
// below say of what.
//
// Tiers are written through, as LMCache, KVBM and HiCache do by default: each tier sees every request, keeps what its
// policy says, and a block is served by the fastest tier that has it. The model serves one request at a time on an idle
// machine (no queueing, no overlap of loading and computing): TTFT = time to load the leading blocks + prefill of the
// rest. Links work at the same time, so loading takes as long as the slowest of them: latency + bytes / bandwidth. Load
// or recompute is decided by the library (kv/load_plan.h); a block that is present but slower to load than to compute
// is computed again, and counted.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kv/load_plan.h"
#include "replay/kv.h"

namespace neotier::replay {

// Llama-3.1-8B in 16 bits: 32 layers x 8 KV heads x 128 x 2 (K, V) x 2 bytes.
inline constexpr uint64_t kKvBytesPerToken = 128 * 1024;

// Time to prefill `tokens` tokens after `before` tokens of prefix, for the same model: 2 x 8.03e9 FLOP a token for the
// weights, 4 x 32 layers x 4096 a token of context for attention, at 400 TFLOP/s (about 40 % of an H100's dense 16-bit
// peak).
uint64_t prefill_ns(uint64_t before, uint64_t tokens);

struct Tier {
  std::string name;
  uint64_t bytes = 0;
  double gb_s = 0;  // to the GPU, 1e9 bytes/s
  double latency_us = 0;
};

// "dram=64G,cxl=256G,ssd=2T": sizes as in util/size.h, fastest first, names from default_links(). Then
// `links`, "ssd=12:80" (GB/s:us), replaces a link's figures. Throws std::runtime_error with one line.
std::vector<Tier> parse_tiers(const std::string& tiers, const std::string& links);
// Only the latter, of tiers that are known otherwise.
void parse_links(const std::string& links, std::vector<Tier>& tiers);

// What is assumed where --link says nothing.
struct LinkDefault {
  const char* name;
  double gb_s, latency_us;
  const char* source;
};
const std::vector<LinkDefault>& default_links();

// The library's decision on modelled links. tier_of: of each leading block, index of `tiers`. prefill_scale: times
// prefill_ns().
kv::LoadPlan plan_load(const KvRequest& request, uint32_t block_tokens, uint64_t block_bytes,
                       std::span<const uint8_t> tier_of, const std::vector<Tier>& tiers, double prefill_scale = 1);

struct TierResult {
  Tier tier;
  uint64_t capacity_blocks = 0;
  uint64_t hits = 0;           // block references that it was the fastest to have
  uint64_t bytes_loaded = 0;   // to the GPU
  uint64_t bytes_written = 0;  // into it
};

struct TiersResult {
  std::string policy;
  uint64_t requests = 0, block_refs = 0, hits = 0, prefix_hits = 0;
  uint64_t recomputed = 0;  // leading blocks that a tier had and that were computed again because loading is slower
  std::vector<TierResult> tiers;
  double ttft_ms[3] = {};  // p50, p90, p99
  double ttft_mean_ms = 0;
  double ttft_recompute_ms[3] = {};  // the same with no cache at all
  double ttft_load_ms[3] = {};       // the same blocks there, and all leading ones loaded whatever that takes
  double ttft_recompute_mean_ms = 0, ttft_load_mean_ms = 0;
};

// `first`: requests before it fill the caches and are not counted. Throws as replay() does, and if a tier has no room
// for one block.
TiersResult replay_tiers(const KvTrace& trace, const placement::PolicyRef& policy, const std::vector<Tier>& tiers,
                         const KvOptions& options, uint64_t first = 0);

}  // namespace neotier::replay

// SPDX-License-Identifier: Apache-2.0
// Load or recompute: how many of a request's leading blocks are worth loading, so that its first token comes soonest.
// The blocks after those are computed, with all that the request needs besides. The KV store asks it about its own
// links, the replay (replay/tiers.h) about modelled ones.
//
// Model: tiers are read side by side, so loading takes as long as the slowest. Without overlap computing begins when
// all is there. With it the caller computes a layer as soon as that layer is there, and layers come one after the
// other: the end is then what is later of "the first layer came, then all computing" and "all came, then the last
// layer's computing". Work that the processor has before it is done while blocks are on their way.
//
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace neotier::kv {

struct PlanTier {
  double wait_ns = 0;   // until the first byte
  double block_ns = 0;  // each block
};

struct PlanOptions {
  bool overlap = false;           // the caller computes layer by layer while later layers come
  uint64_t compute_queue_ns = 0;  // what its processor has to do before
  uint64_t after_ns = 0;          // computing what comes after the request's blocks: the end of the prompt
};

// Times are from now to the first token, as predicted.
struct LoadPlan {
  size_t found = 0;  // leading blocks that are there
  size_t load = 0;   // of those, to be loaded: from the first one on
  uint64_t load_ns = 0, ttft_ns = 0;
  uint64_t load_all_ns = 0, compute_all_ns = 0;  // what the two simple ways would take; UINT64_MAX: not possible
};

// tier_of: of each leading block, index of `tiers`. rest_ns[k]: computing what is left when k of them are there, for 0
// .. tier_of.size(); UINT64_MAX: one of those cannot be computed. The last must not be UINT64_MAX. layers >= 1. Of
// equal times the one with fewer blocks to load: it leaves the links to others.
LoadPlan plan_load(std::span<const uint8_t> tier_of, std::span<const PlanTier> tiers, std::span<const uint64_t> rest_ns,
                   uint32_t layers, const PlanOptions& options);

}  // namespace neotier::kv

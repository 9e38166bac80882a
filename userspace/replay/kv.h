// SPDX-License-Identifier: Apache-2.0
// Replays a request trace against one KV cache under a placement policy.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "placement/policy.h"
#include "replay/trace.h"

namespace neotier::replay {

struct KvOptions {
  uint64_t capacity_blocks = 0;  // > 0
  uint64_t block_bytes = 0;      // > 0; only policies that weigh size or cost see it
  uint64_t history_blocks = 0;   // evicted blocks whose handles the host keeps; 0: all
  double prefill_scale = 1;      // of tiers alone: times prefill_ns()
  uint64_t seed = 1;
  // A serving engine's rules (placement/slot_cache.h): what a request lacks is stored whole, in the place of as many
  // other blocks, all at once; or, where there are not so many, not at all.
  bool exact = false;
  std::map<std::string, double> params;  // the policy's
  std::function<bool()> cancelled;       // asked once a request; true: std::runtime_error("interrupted")
};

struct KvResult {
  std::string policy;
  uint64_t capacity_blocks = 0;
  uint64_t requests = 0;
  uint64_t block_refs = 0;
  uint64_t hits = 0;         // references to blocks that were present when their request arrived
  uint64_t prefix_hits = 0;  // of those, the leading contiguous ones of each request
  uint64_t inserts = 0, evictions = 0, bypassed = 0;
  size_t state_bytes = 0;  // of the policy
  uint64_t objects = 0;    // handles the state is for
  double cpu_seconds = 0;  // of the replay, without reading the trace

  double hit_rate() const { return block_refs ? static_cast<double>(hits) / static_cast<double>(block_refs) : 0; }
  double prefix_hit_rate() const {
    return block_refs ? static_cast<double>(prefix_hits) / static_cast<double>(block_refs) : 0;
  }
};

// Hits are counted against the state before the request; then its blocks are touched and inserted in order, which may
// evict the request's own. Throws std::runtime_error: a policy refuses, breaks the rules of its ABI (named), or
// cancelled.
KvResult replay(const KvTrace& trace, const placement::PolicyRef& policy, const KvOptions& options);

}  // namespace neotier::replay

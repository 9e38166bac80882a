// SPDX-License-Identifier: Apache-2.0
#include "replay/kv.h"

#include <fmt/format.h>

#include <stdexcept>

#include "replay/cache.h"
#include "util/cpu_clock.h"

namespace neotier::replay {

KvResult replay(const KvTrace& trace, const placement::PolicyRef& policy, const KvOptions& options) {
  if (options.capacity_blocks == 0) throw std::runtime_error("the capacity is 0 blocks; give at least 1");
  const bool oracle = policy->flags & NEOTIER_NEEDS_ORACLE;
  const std::vector<uint64_t> next = oracle ? next_uses(trace) : std::vector<uint64_t>();
  KvCache cache(trace, policy, options);
  KvResult result;
  const double begin = cpu_seconds();
  uint64_t position = 0;
  for (size_t i = 0; i < trace.requests.size(); i++) {
    if (options.cancelled && options.cancelled()) throw std::runtime_error("interrupted");
    const KvRequest& r = trace.requests[i];
    const KvCache::Hits hits = cache.request(r, i, oracle ? next.data() + position : nullptr);
    position += r.blocks;
    result.hits += hits.blocks;
    result.prefix_hits += hits.prefix;
  }
  result.cpu_seconds = cpu_seconds() - begin;
  result.policy = policy->name;
  result.capacity_blocks = options.capacity_blocks;
  result.requests = trace.requests.size();
  result.block_refs = trace.blocks.size();
  result.inserts = cache.inserts();
  result.evictions = cache.evictions();
  result.bypassed = cache.bypassed();
  result.state_bytes = cache.state_bytes();
  result.objects = cache.objects();
  return result;
}

}  // namespace neotier::replay

// SPDX-License-Identifier: Apache-2.0
#include "replay/kv.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "placement/slot_cache.h"
#include "replay/cache.h"
#include "replay/tiers.h"
#include "util/cpu_clock.h"

namespace neotier::replay {

namespace {

KvResult replay_exact(const KvTrace& trace, const placement::PolicyRef& policy, const KvOptions& options) {
  if (policy->flags & NEOTIER_NEEDS_ORACLE)
    throw std::runtime_error(
        fmt::format("{} knows the future, which an engine's rules do not let it act on", policy->name));
  placement::SlotCacheOptions slots;
  slots.capacity = static_cast<uint32_t>(std::min<uint64_t>(options.capacity_blocks, UINT32_MAX));
  slots.history = options.history_blocks ? options.history_blocks : std::max(trace.objects, 1u);
  slots.block_bytes = options.block_bytes ? options.block_bytes : uint64_t{trace.block_tokens} * kKvBytesPerToken;
  slots.seed = options.seed;
  slots.params = options.params;
  placement::SlotCache cache(policy, slots);
  KvResult result;
  std::vector<placement::SlotCache::Key> keys, evicted;
  std::vector<uint64_t> cost_ns;
  for (const KvRequest& r : trace.requests) {
    if (options.cancelled && options.cancelled()) throw std::runtime_error("interrupted");
    keys.assign(r.blocks, {});
    uint32_t prefix = 0, missing = 0;
    for (uint32_t k = 0; k < r.blocks; k++) {
      std::memcpy(keys[k].data(), &trace.blocks[r.first + k], sizeof trace.blocks[0]);
      const bool there = cache.holds(keys[k]);
      prefix += there && prefix == k;
      missing += !there;
      if (cost_ns.size() <= k) cost_ns.push_back(prefill_ns(uint64_t{k} * trace.block_tokens, trace.block_tokens));
    }
    result.hits += cache.request(keys, {r.time_ns, 0, r.category, {cost_ns.data(), r.blocks}});
    result.prefix_hits += prefix;
    const uint32_t room = cache.capacity() - cache.size();
    evicted.clear();
    if (missing > room && !cache.evict(missing - room, keys, evicted)) {
      result.bypassed += missing;
      continue;
    }
    result.evictions += evicted.size();
    for (const auto& key : keys) result.inserts += cache.insert(key);
  }
  result.state_bytes = cache.state_bytes();
  result.objects = slots.capacity + slots.history;
  return result;
}

KvResult replay_free(const KvTrace& trace, const placement::PolicyRef& policy, const KvOptions& options) {
  const bool oracle = policy->flags & NEOTIER_NEEDS_ORACLE;
  const std::vector<uint64_t> next = oracle ? next_uses(trace) : std::vector<uint64_t>();
  KvCache cache(trace, policy, options);
  KvResult result;
  uint64_t position = 0;
  for (size_t i = 0; i < trace.requests.size(); i++) {
    if (options.cancelled && options.cancelled()) throw std::runtime_error("interrupted");
    const KvRequest& r = trace.requests[i];
    const KvCache::Hits hits = cache.request(r, i, oracle ? next.data() + position : nullptr);
    position += r.blocks;
    result.hits += hits.blocks;
    result.prefix_hits += hits.prefix;
  }
  result.inserts = cache.inserts();
  result.evictions = cache.evictions();
  result.bypassed = cache.bypassed();
  result.state_bytes = cache.state_bytes();
  result.objects = cache.objects();
  return result;
}

}  // namespace

KvResult replay(const KvTrace& trace, const placement::PolicyRef& policy, const KvOptions& options) {
  if (options.capacity_blocks == 0) throw std::runtime_error("the capacity is 0 blocks; give at least 1");
  const double begin = cpu_seconds();
  KvResult result = options.exact ? replay_exact(trace, policy, options) : replay_free(trace, policy, options);
  result.cpu_seconds = cpu_seconds() - begin;
  result.policy = policy->name;
  result.capacity_blocks = options.capacity_blocks;
  result.requests = trace.requests.size();
  result.block_refs = trace.blocks.size();
  return result;
}

}  // namespace neotier::replay

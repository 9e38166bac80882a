// SPDX-License-Identifier: Apache-2.0
// neotier_slots.h over placement/slot_cache.h. No exception leaves it.
#include "engine/c_api.h"

#include <chrono>

#include "neotier_slots.h"
#include "placement/slot_cache.h"

using namespace neotier::c_api;
using neotier::placement::SlotCache;

static_assert(sizeof(SlotCache::Key) == sizeof(neotier_object_key));

struct neotier_slots {
  SlotCache cache;
};

namespace {

const SlotCache::Key& slot_key(const neotier_object_key* key) { return *reinterpret_cast<const SlotCache::Key*>(key); }

std::span<const SlotCache::Key> slot_keys(const neotier_object_key* keys, size_t nr) {
  return {reinterpret_cast<const SlotCache::Key*>(keys), nr};
}

}  // namespace

extern "C" {

neotier_slots* neotier_slots_open(const struct neotier_slots_config* config) {
  neotier_slots* opened = nullptr;
  (void)guarded([&] {
    if (!config || config->struct_bytes < offsetof(neotier_slots_config, name))
      return fail(NEOTIER_EINVALID, "config: set struct_bytes to sizeof(struct neotier_slots_config)");
    const neotier_slots_config own = taken(config);
    neotier::placement::SlotCacheOptions options;
    options.capacity = own.capacity;
    options.history = own.history;
    if (own.block_bytes) options.block_bytes = own.block_bytes;
    if (own.seed) options.seed = own.seed;
    const char* name = own.name ? own.name : neotier::placement::kRecommendedKvPolicy;
    const auto policy = neotier::placement::find_policy(name, NEOTIER_KV);
    if (policy->flags & NEOTIER_NEEDS_ORACLE)
      return fail(NEOTIER_EINVALID, std::string("policy '") + name + "' knows the future, which a cache does not");
    opened = new neotier_slots{SlotCache(policy, options)};
    return 0;
  });
  return opened;
}

void neotier_slots_close(neotier_slots* policy) { delete policy; }

int64_t neotier_slots_request(neotier_slots* policy, const struct neotier_object_key* keys, size_t nr,
                              const struct neotier_slots_request_info* info) {
  int64_t hits = 0;
  const int code = guarded([&] {
    const neotier_slots_request_info own = taken(info);
    SlotCache::Request request;
    request.now_ns = own.now_ns;
    if (request.now_ns == 0) {
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      request.now_ns = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
    }
    request.category = own.category;
    request.first_position = own.first_position;
    if (own.cost_ns) request.cost_ns = {own.cost_ns, nr};
    hits = static_cast<int64_t>(policy->cache.request(slot_keys(keys, nr), request));
    return 0;
  });
  return code < 0 ? code : hits;
}

int neotier_slots_insert(neotier_slots* policy, const struct neotier_object_key* key) {
  return guarded([&] {
    if (policy->cache.insert(slot_key(key))) return 0;
    return policy->cache.holds(slot_key(key)) ? fail(NEOTIER_EEXISTS, "the block has a slot already")
                                              : fail(NEOTIER_EFULL, "no slot is left; evict first");
  });
}

int neotier_slots_remove(neotier_slots* policy, const struct neotier_object_key* key) {
  return guarded(
      [&] { return policy->cache.remove(slot_key(key)) ? 0 : fail(NEOTIER_ENOTFOUND, "the block has no slot"); });
}

int neotier_slots_pin(neotier_slots* policy, const struct neotier_object_key* key, uint32_t pinned) {
  return guarded([&] {
    return policy->cache.pin(slot_key(key), pinned != 0) ? 0 : fail(NEOTIER_ENOTFOUND, "the block has no slot");
  });
}

int neotier_slots_evict(neotier_slots* policy, size_t nr, const struct neotier_object_key* spared, size_t nr_spared,
                        struct neotier_object_key* victims) {
  return guarded([&] {
    std::vector<SlotCache::Key> out;
    out.reserve(nr);
    if (!policy->cache.evict(nr, slot_keys(spared, nr_spared), out))
      return fail(NEOTIER_EFULL, "not so many blocks may be evicted");
    if (nr > 0) std::memcpy(victims, out.data(), nr * sizeof *victims);
    return 0;
  });
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
#include "replay/cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "replay/tiers.h"

namespace neotier::replay {

namespace {

uint32_t longest(const KvTrace& trace) {
  uint32_t most = 1;
  for (const KvRequest& r : trace.requests) most = std::max(most, r.blocks);
  return most;
}

uint64_t handles_for(const KvTrace& trace, const KvOptions& options) {
  if (options.history_blocks == 0) return std::max(trace.objects, 1u);
  // A request's blocks that are let pass by need a handle while they are judged.
  return std::min<uint64_t>(std::max(trace.objects, 1u), options.capacity_blocks + options.history_blocks + 1);
}

neotier_placement_config config_for(const KvTrace& trace, const KvOptions& options, const std::vector<uint8_t>& flags) {
  neotier_placement_config config = {};
  config.kind = NEOTIER_KIND_KV;
  config.objects = static_cast<uint32_t>(flags.size());
  config.groups = 1;
  config.batch = 1;
  config.max_event = longest(trace);
  config.capacity = static_cast<uint32_t>(std::min<uint64_t>(options.capacity_blocks, UINT32_MAX - 1));
  config.capacity_bytes = options.capacity_blocks * options.block_bytes;
  config.seed = options.seed;
  config.flags = flags.data();
  return config;
}

}  // namespace

KvCache::KvCache(const KvTrace& trace, const placement::PolicyRef& policy, const KvOptions& options)
    : trace_(trace),
      capacity_(options.capacity_blocks),
      block_bytes_(options.block_bytes ? options.block_bytes : uint64_t{trace.block_tokens} * kKvBytesPerToken),
      all_history_(handles_for(trace, options) == std::max(trace.objects, 1u)),
      flags_(handles_for(trace, options)),
      handle_of_(trace.objects, NEOTIER_NO_OBJECT),
      object_of_(flags_.size()),
      policy_(policy, config_for(trace, options, flags_), options.params) {
  nt_list_init(&history_);
  history_max_ = options.history_blocks;
  if (all_history_) {
    for (uint32_t i = 0; i < trace.objects; i++) handle_of_[i] = object_of_[i] = i;
  } else {
    links_.resize(flags_.size());
    for (uint32_t i = static_cast<uint32_t>(flags_.size()); i-- > 0;) free_.push_back(i);
  }
  const uint32_t most = longest(trace);
  accesses_.resize(most);
  for (uint32_t k = 0; k < most; k++)
    cost_ns_.push_back(prefill_ns(uint64_t{k} * trace.block_tokens, trace.block_tokens));
}

void KvCache::broken(const char* what, uint32_t handle) const {
  throw std::runtime_error(fmt::format("policy {} broke the placement ABI: {} (object {}); the replay is worth nothing",
                                       policy_.policy().name, what, handle));
}

// With a limited history a handle is given for the length of one block's turn, before the list is trimmed.
uint32_t KvCache::take_handle(uint32_t object) {
  uint32_t& handle = handle_of_[object];
  if (handle != NEOTIER_NO_OBJECT) return handle;
  if (free_.empty()) {
    const uint32_t oldest = history_.back;
    nt_list_unlink(&history_, links_.data(), oldest);
    release_handle(oldest);
  }
  handle = free_.back();
  free_.pop_back();
  object_of_[handle] = object;
  nt_list_push_front(&history_, links_.data(), handle);
  return handle;
}

void KvCache::release_handle(uint32_t handle) {
  if (policy_.on_remove(handle, NEOTIER_FORGOTTEN) != NEOTIER_OK) broken("on_remove refused FORGOTTEN", handle);
  handle_of_[object_of_[handle]] = NEOTIER_NO_OBJECT;
  free_.push_back(handle);
}

void KvCache::begin(const KvRequest& r, uint64_t tick, const uint64_t* next_use) {
  event_ = {tick, r.time_ns, NEOTIER_EVENT_DEMAND, 0, r.blocks, r.category, accesses_.data()};
  for (uint32_t k = 0; k < r.blocks; k++) {
    neotier_access& access = accesses_[k];
    access = {};
    // What has no handle yet is named when its turn comes; on_event sees it as an object without history.
    access.object = handle_of_[trace_.blocks[r.first + k]];
    access.position = k;
    access.bytes = block_bytes_;
    access.cost_ns = cost_ns_[k];
    access.next_use = next_use ? next_use[k] : 0;
  }
  if (r.blocks > 0) policy_.on_event(event_);
}

void KvCache::insert(uint32_t index) {
  const uint32_t handle = accesses_[index].object;
  if (!policy_.admit(event_, index)) {
    bypassed_++;
    return;
  }
  while (size_ >= capacity_) {
    uint32_t victim = 0;
    if (policy_.victims(event_, index, 1, &victim) != 1)
      broken("victims() named none though nothing is pinned", handle);
    if (victim >= flags_.size() || flags_[victim] != NEOTIER_RESIDENT)
      broken("victims() named an object that is not resident", victim);
    if (policy_.on_remove(victim, NEOTIER_EVICTED) != NEOTIER_OK) broken("on_remove refused its own victim", victim);
    flags_[victim] = 0;
    size_--;
    evictions_++;
    if (!all_history_) nt_list_push_front(&history_, links_.data(), victim);
  }
  if (policy_.on_insert(event_, index) != NEOTIER_OK) broken("on_insert refused what it admitted", handle);
  flags_[handle] = NEOTIER_RESIDENT;
  size_++;
  inserts_++;
  if (!all_history_) nt_list_unlink(&history_, links_.data(), handle);
}

KvCache::Hits KvCache::request(const KvRequest& r, uint64_t tick, const uint64_t* next_use) {
  const uint32_t* objects = trace_.blocks.data() + r.first;
  Hits hits = {0, 0};
  for (uint32_t k = 0; k < r.blocks; k++) {
    if (!resident(objects[k])) continue;
    hits.prefix += hits.blocks == k;
    hits.blocks++;
  }
  begin(r, tick, next_use);
  for (uint32_t k = 0; k < r.blocks; k++) {
    // Earlier blocks' evictions may have taken this one, and its handle with a limited history.
    accesses_[k].object = all_history_ ? objects[k] : take_handle(objects[k]);
    if (flags_[accesses_[k].object] & NEOTIER_RESIDENT) {
      if (policy_.on_hit(event_, k) != NEOTIER_OK) broken("on_hit refused a resident object", accesses_[k].object);
    } else {
      insert(k);
    }
  }
  return hits;
}

}  // namespace neotier::replay

// SPDX-License-Identifier: Apache-2.0
#include "placement/slot_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace neotier::placement {

namespace {

SlotCacheOptions checked(SlotCacheOptions options) {
  if (options.capacity == 0 || options.capacity > 1u << 30)
    throw std::runtime_error(fmt::format("a cache of {} slots; 1 to {}", options.capacity, 1u << 30));
  if (options.history == 0) options.history = std::max<uint64_t>(uint64_t{4} * options.capacity, 4096);
  // A block that is told of and not stored has a handle, too.
  options.history = std::clamp<uint64_t>(options.history, 1, (1u << 31) - options.capacity);
  return options;
}

}  // namespace

SlotCache::SlotCache(PolicyRef policy, const SlotCacheOptions& options)
    : options_(checked(options)),
      flags_(options_.capacity + options_.history),
      keys_(flags_.size()),
      links_(flags_.size()),
      turn_(flags_.size()),
      policy_(std::move(policy), config(), options_.params) {
  nt_list_init(&history_);
  free_.reserve(flags_.size());
  for (uint32_t i = static_cast<uint32_t>(flags_.size()); i-- > 0;) free_.push_back(i);
}

neotier_placement_config SlotCache::config() const {
  neotier_placement_config config = {};
  config.kind = NEOTIER_KIND_KV;
  config.objects = static_cast<uint32_t>(flags_.size());
  config.groups = 1;
  config.batch = 1;
  config.max_event = kMostBlocks;
  config.capacity = options_.capacity;
  config.capacity_bytes = options_.capacity * options_.block_bytes;
  config.seed = options_.seed;
  config.flags = flags_.data();
  return config;
}

uint32_t SlotCache::find(const Key& key) const {
  const auto found = handle_of_.find(key);
  return found == handle_of_.end() ? NEOTIER_NO_OBJECT : found->second;
}

uint32_t SlotCache::held(const Key& key) const {
  const uint32_t handle = find(key);
  return handle != NEOTIER_NO_OBJECT && flags_[handle] & NEOTIER_RESIDENT ? handle : NEOTIER_NO_OBJECT;
}

bool SlotCache::holds(const Key& key) const { return held(key) != NEOTIER_NO_OBJECT; }

uint32_t SlotCache::take_handle(const Key& key) {
  const uint32_t known = find(key);
  if (known != NEOTIER_NO_OBJECT) return known;
  if (free_.empty()) {
    const uint32_t oldest = history_.back;
    nt_list_unlink(&history_, links_.data(), oldest);
    (void)policy_.on_remove(oldest, NEOTIER_FORGOTTEN);
    handle_of_.erase(keys_[oldest]);
    free_.push_back(oldest);
  }
  const uint32_t handle = free_.back();
  free_.pop_back();
  keys_[handle] = key;
  handle_of_[key] = handle;
  nt_list_push_front(&history_, links_.data(), handle);
  return handle;
}

size_t SlotCache::request(std::span<const Key> keys, const Request& request) {
  size_t hits = 0;
  now_ns_ = std::max(now_ns_, request.now_ns);
  for (size_t first = 0; first < keys.size(); first += kMostBlocks) {
    const auto nr = static_cast<uint32_t>(std::min(kMostBlocks, keys.size() - first));
    accesses_.assign(nr, {});
    for (uint32_t i = 0; i < nr; i++) {
      accesses_[i].object = find(keys[first + i]);
      accesses_[i].position = request.first_position + static_cast<uint32_t>(first) + i;
      accesses_[i].bytes = options_.block_bytes;
      if (!request.cost_ns.empty()) accesses_[i].cost_ns = request.cost_ns[first + i];
    }
    event_ = {tick_++, now_ns_, NEOTIER_EVENT_DEMAND, 0, nr, request.category, accesses_.data()};
    policy_.on_event(event_);
    for (uint32_t i = 0; i < nr; i++) {
      const uint32_t handle = accesses_[i].object = take_handle(keys[first + i]);
      turn_[handle] = i;
      if (flags_[handle] & NEOTIER_RESIDENT) {
        hits++;
        (void)policy_.on_hit(event_, i);
      } else {
        (void)policy_.admit(event_, i);
      }
    }
  }
  return hits;
}

bool SlotCache::insert(const Key& key) {
  if (holds(key) || size_ >= options_.capacity) return false;
  const uint32_t handle = take_handle(key);
  const uint32_t turn = turn_[handle];
  int result = NEOTIER_REFUSED;
  if (turn < event_.nr && accesses_[turn].object == handle) {
    result = policy_.on_insert(event_, turn);
  } else {
    // Another request's event is the last by now: of this one's use the policy has been told.
    neotier_access access = {};
    access.object = handle;
    access.bytes = options_.block_bytes;
    const neotier_event late = {tick_, now_ns_, NEOTIER_EVENT_PREFETCH, 0, 1, 0, &access};
    result = policy_.on_insert(late, 0);
  }
  if (result != NEOTIER_OK) return false;
  flags_[handle] = NEOTIER_RESIDENT;
  nt_list_unlink(&history_, links_.data(), handle);
  size_++;
  return true;
}

void SlotCache::leave(uint32_t handle, neotier_remove_reason reason) {
  pinned_ -= (flags_[handle] & NEOTIER_PINNED) != 0;
  (void)policy_.on_remove(handle, reason);
  flags_[handle] = 0;
  size_--;
  nt_list_push_front(&history_, links_.data(), handle);
}

bool SlotCache::remove(const Key& key) {
  const uint32_t handle = held(key);
  if (handle == NEOTIER_NO_OBJECT) return false;
  leave(handle, NEOTIER_REMOVED);
  return true;
}

bool SlotCache::pin(const Key& key, bool pinned) {
  const uint32_t handle = held(key);
  if (handle == NEOTIER_NO_OBJECT) return false;
  const bool was = (flags_[handle] & NEOTIER_PINNED) != 0;
  if (was != pinned) {
    flags_[handle] ^= NEOTIER_PINNED;
    pinned_ += pinned ? 1 : -1;
  }
  return true;
}

bool SlotCache::evict(size_t nr, std::span<const Key> spared, std::vector<Key>& out) {
  spared_.clear();
  // What must not be named looks pinned to the policy, and so does what it has named already.
  for (const Key& key : spared) {
    const uint32_t handle = held(key);
    if (handle == NEOTIER_NO_OBJECT || flags_[handle] & NEOTIER_PINNED) continue;
    flags_[handle] |= NEOTIER_PINNED;
    spared_.push_back(handle);
  }
  victims_.resize(nr);
  size_t found = 0;
  if (nr <= size_ - pinned_ - spared_.size()) {
    const neotier_access nothing = {NEOTIER_NO_OBJECT, 0, 0, 0, options_.block_bytes, 0, 0, 0, 0};
    const neotier_event none = {tick_, now_ns_, NEOTIER_EVENT_DEMAND, 0, 1, 0, &nothing};
    const neotier_event& event = event_.nr > 0 ? event_ : none;
    while (found < nr) {
      const uint32_t more = policy_.victims(event, 0, static_cast<uint32_t>(nr - found), victims_.data() + found);
      if (more == 0) break;
      for (uint32_t i = 0; i < more; i++) flags_[victims_[found + i]] |= NEOTIER_PINNED;
      found += more;
    }
  }
  for (size_t i = 0; i < found; i++) flags_[victims_[i]] &= static_cast<uint8_t>(~NEOTIER_PINNED);
  for (const uint32_t handle : spared_) flags_[handle] &= static_cast<uint8_t>(~NEOTIER_PINNED);
  if (found < nr) return false;
  for (const uint32_t handle : victims_) {
    out.push_back(keys_[handle]);
    leave(handle, NEOTIER_EVICTED);
  }
  return true;
}

}  // namespace neotier::placement

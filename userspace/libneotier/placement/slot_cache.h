// SPDX-License-Identifier: Apache-2.0
// What a placement policy decides for a host that keeps blocks and their slots itself, and asks only what to evict:
// exactly so many, or nothing; never for the sake of a block that it then does not store. vLLM's CachePolicy is such a
// host. A policy's admit() is told of every miss, as it learns from them, and its answer has no effect.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "list.h"
#include "placement/policy.h"

namespace neotier::placement {

struct SlotCacheOptions {
  uint32_t capacity = 0;     // slots, > 0
  uint64_t history = 0;      // blocks remembered that are not held; 0: four times the capacity, 4096 at least
  uint64_t block_bytes = 1;  // only policies that weigh size see it
  uint64_t seed = 1;
  std::map<std::string, double> params;  // the policy's
};

// Thread safety: one caller at a time.
class SlotCache {
 public:
  using Key = std::array<uint8_t, 16>;
  struct Request {
    uint64_t now_ns = 0;
    uint32_t first_position = 0;          // blocks of the prefix before the first
    uint32_t category = 0;                // kind of request, as the host numbers them; 0: not known
    std::span<const uint64_t> cost_ns{};  // to make each block anew; empty: 0
  };

  // Throws std::runtime_error where the policy refuses.
  SlotCache(PolicyRef policy, const SlotCacheOptions& options);

  // A request uses these blocks, in order. Returns how many are held. One of more than kMostBlocks is told in parts.
  size_t request(std::span<const Key> keys, const Request& request);
  static constexpr size_t kMostBlocks = 65536;

  bool holds(const Key& key) const;
  // false: it is held, or all slots are taken.
  bool insert(const Key& key);
  // Invalid now. false: it is not held.
  bool remove(const Key& key);
  // While pinned it is not evicted. false: it is not held.
  bool pin(const Key& key, bool pinned);
  // Names `nr` blocks that are held, not pinned and not spared, best to evict first; they are held no longer. false:
  // there are not so many, and nothing has changed.
  bool evict(size_t nr, std::span<const Key> spared, std::vector<Key>& out);

  uint32_t size() const { return size_; }
  uint32_t capacity() const { return options_.capacity; }
  size_t state_bytes() const { return policy_.state_bytes(); }

 private:
  struct Hash {
    size_t operator()(const Key& key) const {
      uint64_t word = 0;
      std::memcpy(&word, key.data(), sizeof word);
      return word;
    }
  };

  uint32_t find(const Key& key) const;
  uint32_t held(const Key& key) const;
  uint32_t take_handle(const Key& key);
  void leave(uint32_t handle, neotier_remove_reason reason);
  neotier_placement_config config() const;

  SlotCacheOptions options_;
  std::vector<uint8_t> flags_;  // [handles], as the policy sees them
  std::vector<Key> keys_;       // [handles]
  std::vector<nt_link> links_;  // [handles], of `history_`
  std::vector<uint32_t> turn_;  // [handles]: index in the last event
  nt_list history_{};           // handles of what is not held, the oldest at the back
  std::vector<uint32_t> free_;
  std::unordered_map<Key, uint32_t, Hash> handle_of_;
  uint32_t size_ = 0, pinned_ = 0;
  uint64_t tick_ = 0, now_ns_ = 0;
  std::vector<neotier_access> accesses_;  // of the last event
  neotier_event event_{};
  std::vector<uint32_t> victims_, spared_;  // scratch
  Instance policy_;
};

}  // namespace neotier::placement

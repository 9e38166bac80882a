// SPDX-License-Identifier: Apache-2.0
// One cache of KV blocks under a policy: the host's side of neotier_placement.h for replays.
#pragma once

#include <cstdint>
#include <vector>

#include "list.h"
#include "placement/policy.h"
#include "replay/kv.h"
#include "replay/trace.h"

namespace neotier::replay {

// Thread safety: one caller at a time. Throws std::runtime_error where the policy breaks its ABI's rules.
class KvCache {
 public:
  struct Hits {
    uint32_t blocks, prefix;
  };

  KvCache(const KvTrace& trace, const placement::PolicyRef& policy, const KvOptions& options);

  // A whole request: its hits against the state before it, then its touches and inserts. next_use: of each of its block
  // references, or NULL.
  Hits request(const KvRequest& r, uint64_t tick, const uint64_t* next_use);

  bool resident(uint32_t object) const {
    const uint32_t handle = handle_of_[object];
    return handle != NEOTIER_NO_OBJECT && flags_[handle] & NEOTIER_RESIDENT;
  }

  uint64_t size() const { return size_; }
  uint64_t inserts() const { return inserts_; }
  uint64_t evictions() const { return evictions_; }
  uint64_t bypassed() const { return bypassed_; }
  size_t state_bytes() const { return policy_.state_bytes(); }
  uint64_t objects() const { return flags_.size(); }

 private:
  uint32_t take_handle(uint32_t object);
  void release_handle(uint32_t handle);
  void begin(const KvRequest& r, uint64_t tick, const uint64_t* next_use);
  void insert(uint32_t index);
  [[noreturn]] void broken(const char* what, uint32_t handle) const;

  const KvTrace& trace_;
  uint64_t capacity_;
  uint64_t block_bytes_;
  uint64_t size_ = 0, inserts_ = 0, evictions_ = 0, bypassed_ = 0;
  bool all_history_;                 // handles are the trace's numbers
  std::vector<uint8_t> flags_;       // [handles]
  std::vector<uint32_t> handle_of_;  // [objects]
  std::vector<uint32_t> object_of_;  // [handles]
  std::vector<nt_link> links_;       // [handles]: of `history_`
  nt_list history_;                  // handles without residency, the oldest at the back
  uint64_t history_max_ = 0;
  std::vector<uint32_t> free_;
  std::vector<uint64_t> cost_ns_;  // [position]
  std::vector<neotier_access> accesses_;
  neotier_event event_ = {};
  placement::Instance policy_;
};

}  // namespace neotier::replay

// SPDX-License-Identifier: Apache-2.0
// What is where: the index, and beside it each tier with the placement policy that decides what it keeps. Changed by
// the mover alone; the planner reads it.
//
// Thread safety: none; the engine's lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/events.h"
#include "engine/index.h"
#include "engine/tier.h"
#include "placement/policy.h"

namespace neotier::engine {

// A tier as it is given to the engine, fastest first.
struct TierSetup {
  std::unique_ptr<Tier> tier;
  std::string policy = "lru";  // what it keeps: a placement policy for KV blocks, or a library's path
  std::map<std::string, double> params;
  uint64_t object_bytes = 0;            // typical size, for the policy's idea of capacity; 0: 64 KiB
  bool promote_to = true;               // objects that get hot below may be moved here unasked
  uint64_t background_bytes_per_s = 0;  // cap of prefetch and write-back on its links; 0: by measurement
};

// The policy of a tier. Throws std::runtime_error where there is none of that name, or it knows the future.
placement::PolicyRef tier_policy(const std::string& tier, const std::string& name);

class Catalogue {
 public:
  // Throws std::runtime_error (unknown policy, one that refuses), std::bad_alloc.
  Catalogue(size_t max_objects, std::vector<TierSetup> tiers, uint64_t seed, size_t events = 0);

  TierId tiers() const { return static_cast<TierId>(tiers_.size()); }
  Tier& tier(TierId id) { return *tiers_[id].setup.tier; }
  const Tier& tier(TierId id) const { return *tiers_[id].setup.tier; }
  const TierInfo& info(TierId id) const { return tier(id).info(); }
  const TierSetup& setup(TierId id) const { return tiers_[id].setup; }
  // Objects that have a copy there.
  uint64_t residents(TierId id) const { return tiers_[id].residents; }
  uint64_t resident_bytes(TierId id) const { return tiers_[id].resident_bytes; }
  // By name; kNoTier.
  TierId find_tier(const std::string& name) const;

  ObjectIndex& index() { return index_; }
  const ObjectIndex& index() const { return index_; }
  Record& operator[](Handle handle) { return index_[handle]; }
  const Record& operator[](Handle handle) const { return index_[handle]; }

  // A copy is there and whole. At most two; the third would be the caller's bug.
  void insert_copy(Handle handle, TierId id, Extent extent, uint64_t now_ns, bool prefetch);
  // Returns the extent that is free now.
  Extent drop_copy(Handle handle, TierId id, neotier_remove_reason reason);
  // Used, at copy 0's tier.
  void hit(Handle handle, uint64_t now_ns);
  // No copy is left, its handle will be used again.
  void forget(Handle handle);
  // What the tier would give up for `handle`, best first; none that is pinned or in flight. prefetch: fewer, where all
  // are worth more than what nobody waits for.
  uint32_t victims(TierId id, Handle handle, uint32_t want, Handle* out, uint64_t now_ns, bool prefetch);
  // Whether the tier's policy lets the object in. Policies learn from being asked: once for each arrival.
  bool admits(TierId id, Handle handle, uint64_t now_ns);
  // Policies see pins and flight; call after either changed.
  void pinned_changed(Handle handle);

  // Uses lately, halved each epoch of a second; at most 15. An object unused for 16 epochs may look as it did then.
  uint32_t heat(Handle handle, uint64_t now_ns) const;
  void warm(Handle handle, uint64_t now_ns);

  EventRing& events() { return events_; }

  // Of index and policies, per object, where there are as many as may be.
  double bytes_per_object() const;

 private:
  struct Kept {
    TierSetup setup;
    MappedArray<uint8_t> flags;
    std::unique_ptr<placement::Instance> policy;
    uint64_t tick = 0;
    uint64_t residents = 0, resident_bytes = 0;
  };
  // An event of this object alone at the tier. `access` must outlive it.
  neotier_event event(const Kept& kept, Handle handle, neotier_access& access, uint64_t now_ns, bool prefetch) const;
  // The same, as the next one that the policy is told of.
  neotier_event begin_event(Kept& kept, Handle handle, neotier_access& access, uint64_t now_ns) const;

  ObjectIndex index_;
  std::vector<Kept> tiers_;
  EventRing events_;
};

}  // namespace neotier::engine

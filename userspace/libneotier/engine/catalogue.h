// SPDX-License-Identifier: Apache-2.0
// What is where: the index, and beside it each tier with the placement policy that decides what it keeps. Changed by
// the mover alone, but for what policies are told of; the planner reads it.
//
// What policies see. A demand event is a request with all its uses, in order, told at once: begin(), then use() for
// each, then end(). Every tier's policy sees every event: a hit where it holds the object, a miss (admit) elsewhere.
// So a policy knows the whole traffic and not what a faster tier left of it, and one tier alone sees what
// `neotier kv replay` shows it. What moves between tiers is no use: the policy is told of it by an event of kind
// NEOTIER_EVENT_PREFETCH, and not before.
//
// An object that is gone keeps its handle for a while, so that policies know what comes back: the history. The oldest
// is forgotten when the history is full, or the index is.
//
// Thread safety: none; the engine's lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/events.h"
#include "engine/history.h"
#include "engine/index.h"
#include "engine/tier.h"
#include "placement/policy.h"

namespace neotier::engine {

// A tier as it is given to the engine, fastest first.
struct TierSetup {
  std::unique_ptr<Tier> tier;
  std::string policy = placement::kRecommendedKvPolicy;  // what it keeps: a policy for KV blocks, or a library's path
  placement::PolicyRef own_policy;                       // instead of that one
  std::map<std::string, double> params;
  uint64_t object_bytes = 0;  // typical size, for the policy's idea of capacity; 0: 64 KiB, or what a KV store says
  bool promote_to = true;     // objects that get hot below may be moved here unasked
  uint64_t background_bytes_per_s = 0;  // cap of prefetch and write-back on its links; 0: by measurement
};

// A policy for a tier. Throws std::runtime_error where there is none of that name, or it knows the future.
placement::PolicyRef tier_policy(const std::string& tier, const std::string& name);

class Catalogue {
 public:
  // history: objects without a copy that are remembered; 0: kLeastHistory, or four times those with one if that is
  // more. Throws std::runtime_error (unknown policy, one that refuses), std::bad_alloc.
  Catalogue(size_t max_objects, std::vector<TierSetup> tiers, uint64_t seed, size_t events = 0, size_t history = 0);

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

  // Known objects, those in the history too.
  ObjectIndex& index() { return index_; }
  const ObjectIndex& index() const { return index_; }
  Record& operator[](Handle handle) { return index_[handle]; }
  const Record& operator[](Handle handle) const { return index_[handle]; }
  // The handle of an object that has a copy; kNoHandle.
  Handle find(const Key& key) const;
  size_t objects() const { return index_.size() - history_.size(); }
  size_t remembered() const { return history_.size(); }

  // The key's record; a new one is in the history until it has a place or a copy. kFull.
  Result<Handle> known(const Key& key);
  // Takes it out of the history: somebody is bringing a copy, and forget() follows where none comes of it.
  void claim(Handle handle);
  // Makes room in the index; false where nothing is remembered.
  bool forget_oldest();

  // What follows is told to the policies. `uses` is the caller's until end(); a use of what has no handle yet has
  // NEOTIER_NO_OBJECT there, and has one when its turn comes.
  void begin(std::span<neotier_access> uses, uint32_t category, uint64_t now_ns);
  // Bit i: tier i does not have the object, and would take it in.
  uint32_t use(uint32_t index);
  void end() { telling_ = {}; }
  // The same for one object by itself.
  uint32_t use_alone(Handle handle, uint64_t now_ns);

  // The tier's policy takes in what use() of the event missed; its bytes come later. extent: kNoExtent where its room
  // is still to be found.
  void place(uint32_t index, TierId id, Extent extent);
  // The same for what another tier gave up before its bytes came.
  void place_moved(Handle handle, TierId id, Extent extent, uint64_t now_ns);
  // They do not come. Returns the extent.
  Extent unplace(Handle handle, neotier_remove_reason reason);
  // They came.
  void settle(Handle handle, Extent extent);

  // A copy is there and whole. At most two; the third would be the caller's bug. used: the policy was told of the use
  // that brings it; else it is moved there.
  void insert_copy(Handle handle, TierId id, Extent extent, uint64_t now_ns, bool used);
  // Returns the extent that is free now.
  Extent drop_copy(Handle handle, TierId id, neotier_remove_reason reason);
  // No copy is left: to the history.
  void forget(Handle handle);
  // What the tier would give up for `handle`, best first; none that is pinned or in flight. moved: nobody waits for it,
  // and a policy may keep what is worth more.
  uint32_t victims(TierId id, Handle handle, uint32_t want, Handle* out, uint64_t now_ns, bool moved);
  // Whether the tier's policy wants the object from another tier.
  bool takes(TierId id, Handle handle, uint64_t now_ns);
  // Policies see pins and flight; call after either changed.
  void pinned_changed(Handle handle);
  // Objects are of this size: of tiers whose setup says none, and that hold nothing yet. Throws std::bad_alloc.
  void expect(uint64_t object_bytes);

  // Uses lately, halved each epoch of a second; at most 15. An object unused for 16 epochs may look as it did then.
  uint32_t heat(Handle handle, uint64_t now_ns) const;
  void count_use(Handle handle, uint64_t now_ns);

  EventRing& events() { return events_; }
  const EventRing& events() const { return events_; }

  // Of index and policies, per object, where there are as many as may be.
  double bytes_per_object() const;

  static constexpr size_t kLeastHistory = 65536;

 private:
  struct TierState {
    TierSetup setup;
    uint64_t object_bytes = 0;
    MappedArray<uint8_t> flags;
    std::unique_ptr<placement::Instance> policy;
    uint64_t residents = 0, resident_bytes = 0;
  };
  // The event that is being told.
  struct Telling {
    neotier_event event{};
    std::span<neotier_access> uses;
    uint32_t index = UINT32_MAX;  // whose turn it is
  };
  std::unique_ptr<placement::Instance> make_policy(const TierState& tier) const;
  // An event of this object alone. `access` must outlive it.
  neotier_event alone(Handle handle, neotier_access& access, uint64_t now_ns, neotier_event_kind kind) const;
  void take_place(Handle handle, TierId id, Extent extent);
  void note_copy(TierState& tier, TierId id, Handle handle, Extent extent);
  void trim();
  void drop_oldest();

  uint64_t seed_;
  ObjectIndex index_;
  std::vector<TierState> tiers_;
  ObjectHistory history_{index_};
  size_t history_most_;
  uint64_t next_tick_ = 0;
  Telling telling_;
  EventRing events_;
};

}  // namespace neotier::engine

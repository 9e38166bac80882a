// SPDX-License-Identifier: Apache-2.0
#include "engine/catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace neotier::engine {

namespace {

constexpr uint64_t kHeatEpochNs = 1000000000;
constexpr uint32_t kMostHeat = 15;
constexpr uint64_t kTypicalBytes = 64 << 10;

}  // namespace

placement::PolicyRef tier_policy(const std::string& tier, const std::string& name) {
  placement::PolicyRef policy = placement::find_policy(name, NEOTIER_KV);
  if (policy->flags & NEOTIER_NEEDS_ORACLE)
    throw std::runtime_error(fmt::format("tier {}: policy {} knows the future, which only a replay does", tier, name));
  return policy;
}

Catalogue::Catalogue(size_t max_objects, std::vector<TierSetup> tiers, uint64_t seed, size_t events, size_t history)
    : seed_(seed), index_(max_objects, seed), tiers_(tiers.size()), history_most_(history), events_(events) {
  for (size_t i = 0; i < tiers.size(); i++) {
    TierState& state = tiers_[i];
    state.setup = std::move(tiers[i]);
    if (state.setup.own_policy) state.setup.policy = state.setup.own_policy->name;
    state.object_bytes = state.setup.object_bytes ? state.setup.object_bytes : kTypicalBytes;
    state.flags = MappedArray<uint8_t>(max_objects);
    state.policy = make_policy(state);
  }
}

std::unique_ptr<placement::Instance> Catalogue::make_policy(const TierState& tier) const {
  const size_t objects = index_.max_objects();
  neotier_placement_config config{};
  config.kind = NEOTIER_KIND_KV;
  config.objects = static_cast<uint32_t>(objects);
  config.groups = 1;
  config.batch = 1;
  config.max_event = static_cast<uint32_t>(objects);
  config.capacity_bytes = tier.setup.tier->info().capacity_bytes;
  config.capacity = static_cast<uint32_t>(std::clamp<uint64_t>(config.capacity_bytes / tier.object_bytes, 1, objects));
  config.seed = seed_;
  config.flags = tier.flags.data();
  const placement::PolicyRef policy =
      tier.setup.own_policy ? tier.setup.own_policy : tier_policy(tier.setup.tier->info().name, tier.setup.policy);
  return std::make_unique<placement::Instance>(policy, config, tier.setup.params);
}

TierId Catalogue::find_tier(const std::string& name) const {
  for (size_t i = 0; i < tiers_.size(); i++) {
    if (tiers_[i].setup.tier->info().name == name) return static_cast<TierId>(i);
  }
  return kNoTier;
}

Handle Catalogue::find(const Key& key) const {
  const Handle handle = index_.find(key);
  return handle != kNoHandle && index_[handle].has_copy() ? handle : kNoHandle;
}

Result<Handle> Catalogue::known(const Key& key) {
  if (const Handle handle = index_.find(key); handle != kNoHandle) return handle;
  Result<Handle> fresh = index_.add(key);
  if (!fresh && fresh.status().code() == Code::kFull && forget_oldest()) fresh = index_.add(key);
  if (!fresh) return fresh;
  history_.push(*fresh);
  trim();
  return fresh;
}

void Catalogue::claim(Handle handle) {
  if (history_.has(handle)) history_.erase(handle);
}

void Catalogue::drop_oldest() {
  const Handle oldest = history_.oldest();
  history_.erase(oldest);
  for (TierState& tier : tiers_) {
    (void)tier.policy->on_remove(oldest, NEOTIER_FORGOTTEN);
    tier.flags[oldest] = 0;
  }
  index_.erase(oldest);
}

bool Catalogue::forget_oldest() {
  if (history_.size() == 0) return false;
  drop_oldest();
  return true;
}

void Catalogue::trim() {
  const size_t most = history_most_ ? history_most_ : std::max(kLeastHistory, 4 * objects());
  // Of the one that came last the caller has the handle.
  while (history_.size() > std::max<size_t>(most, 1)) drop_oldest();
}

void Catalogue::begin(std::span<neotier_access> uses, uint32_t category, uint64_t now_ns) {
  telling_.uses = uses;
  telling_.index = UINT32_MAX;
  telling_.event = {};
  telling_.event.tick = next_tick_++;
  telling_.event.now_ns = now_ns;
  telling_.event.kind = NEOTIER_EVENT_DEMAND;
  telling_.event.nr = static_cast<uint32_t>(uses.size());
  telling_.event.category = category;
  telling_.event.access = uses.data();
  for (TierState& tier : tiers_) tier.policy->on_event(telling_.event);
}

uint32_t Catalogue::use(uint32_t index) {
  const Handle handle = telling_.uses[index].object;
  telling_.index = index;
  uint32_t takers = 0;
  for (TierId id = 0; id < tiers(); id++) {
    TierState& tier = tiers_[id];
    if (tier.flags[handle] & NEOTIER_RESIDENT) {
      (void)tier.policy->on_hit(telling_.event, index);
    } else if (tier.policy->admit(telling_.event, index)) {
      takers |= 1u << id;
    }
  }
  return takers;
}

uint32_t Catalogue::use_alone(Handle handle, uint64_t now_ns) {
  neotier_access access;
  (void)alone(handle, access, now_ns, NEOTIER_EVENT_DEMAND);
  begin({&access, 1}, 0, now_ns);
  const uint32_t takers = use(0);
  end();
  return takers;
}

neotier_event Catalogue::alone(Handle handle, neotier_access& access, uint64_t now_ns, neotier_event_kind kind) const {
  access = {};
  access.object = handle;
  access.bytes = std::max<uint32_t>(1, index_[handle].bytes);
  access.cost_ns = decode_cost(index_[handle].recompute);
  neotier_event event{};
  event.tick = next_tick_ > 0 ? next_tick_ - 1 : 0;
  event.now_ns = now_ns;
  event.kind = kind;
  event.nr = 1;
  event.access = &access;
  return event;
}

void Catalogue::place(uint32_t index, TierId id, Extent extent) {
  take_place(telling_.uses[index].object, id, extent);
  (void)tiers_[id].policy->on_insert(telling_.event, index);
}

void Catalogue::place_moved(Handle handle, TierId id, Extent extent, uint64_t now_ns) {
  take_place(handle, id, extent);
  neotier_access access;
  (void)tiers_[id].policy->on_insert(alone(handle, access, now_ns, NEOTIER_EVENT_PREFETCH), 0);
}

void Catalogue::take_place(Handle handle, TierId id, Extent extent) {
  claim(handle);
  Record& record = index_[handle];
  record.place = id;
  record.extent[0] = extent;
  tiers_[id].flags[handle] |= NEOTIER_RESIDENT;
}

Extent Catalogue::unplace(Handle handle, neotier_remove_reason reason) {
  Record& record = index_[handle];
  TierState& tier = tiers_[record.place];
  tier.flags[handle] &= static_cast<uint8_t>(~NEOTIER_RESIDENT);
  (void)tier.policy->on_remove(handle, reason);
  record.place = kNoTier;
  return std::exchange(record.extent[0], kNoExtent);
}

void Catalogue::settle(Handle handle, Extent extent) {
  Record& record = index_[handle];
  const TierId id = std::exchange(record.place, kNoTier);
  record.extent[0] = kNoExtent;
  note_copy(tiers_[id], id, handle, extent);
}

void Catalogue::note_copy(TierState& tier, TierId id, Handle handle, Extent extent) {
  Record& record = index_[handle];
  if (record.has_copy() && record.tier(0) < id) {
    record.extent[1] = extent;
    record.set_tiers(record.tier(0), id);
  } else {
    record.extent[1] = record.extent[0];
    record.extent[0] = extent;
    record.set_tiers(id, record.tier(0));
  }
  tier.residents++;
  tier.resident_bytes += record.bytes;
  tier.flags[handle] |= NEOTIER_RESIDENT;
  events_.push(record.key, EventKind::kCopied, id);
}

void Catalogue::insert_copy(Handle handle, TierId id, Extent extent, uint64_t now_ns, bool used) {
  if (!index_[handle].has_copy()) claim(handle);
  TierState& tier = tiers_[id];
  note_copy(tier, id, handle, extent);
  neotier_access access;
  (void)tier.policy->on_insert(alone(handle, access, now_ns, used ? NEOTIER_EVENT_DEMAND : NEOTIER_EVENT_PREFETCH), 0);
}

Extent Catalogue::drop_copy(Handle handle, TierId id, neotier_remove_reason reason) {
  Record& record = index_[handle];
  const int at = record.tier(0) == id ? 0 : 1;
  const Extent extent = record.extent[at];
  if (at == 0) record.extent[0] = record.extent[1];
  record.extent[1] = kNoExtent;
  record.set_tiers(record.tier(1 - at), kNoTier);
  TierState& tier = tiers_[id];
  tier.residents--;
  tier.resident_bytes -= record.bytes;
  tier.flags[handle] &= static_cast<uint8_t>(~NEOTIER_RESIDENT);
  (void)tier.policy->on_remove(handle, reason);
  events_.push(record.key, EventKind::kLeft, id);
  return extent;
}

void Catalogue::forget(Handle handle) {
  events_.push(index_[handle].key, EventKind::kForgotten, kNoTier);
  if (history_.has(handle)) return;
  for (TierState& tier : tiers_) tier.flags[handle] = 0;
  index_[handle].recovered = 0;
  history_.push(handle);
  trim();
}

uint32_t Catalogue::victims(TierId id, Handle handle, uint32_t want, Handle* out, uint64_t now_ns, bool moved) {
  placement::Instance& policy = *tiers_[id].policy;
  uint32_t found = 0;
  if (!moved && telling_.index < telling_.uses.size() && telling_.uses[telling_.index].object == handle) {
    found = policy.victims(telling_.event, telling_.index, want, out);
  } else {
    neotier_access access;
    found = policy.victims(alone(handle, access, now_ns, moved ? NEOTIER_EVENT_PREFETCH : NEOTIER_EVENT_DEMAND), 0,
                           want, out);
  }
  // Some policies name one at a time, and the same one until it has gone.
  return std::min(found, want);
}

bool Catalogue::takes(TierId id, Handle handle, uint64_t now_ns) {
  neotier_access access;
  return tiers_[id].policy->admit(alone(handle, access, now_ns, NEOTIER_EVENT_PREFETCH), 0);
}

void Catalogue::pinned_changed(Handle handle) {
  const Record& record = index_[handle];
  const bool pinned = record.pins > 0 || record.in_flight;
  const auto mark = [&](TierId id) {
    uint8_t& flags = tiers_[id].flags[handle];
    flags = static_cast<uint8_t>(pinned ? flags | NEOTIER_PINNED : flags & ~NEOTIER_PINNED);
  };
  for (int i = 0; i < 2; i++) {
    if (record.tier(i) != kNoTier) mark(record.tier(i));
  }
  if (record.has_place()) mark(record.place);
}

void Catalogue::expect(uint64_t object_bytes) {
  for (TierState& tier : tiers_) {
    if (tier.setup.object_bytes != 0 || object_bytes == 0) continue;
    tier.setup.object_bytes = tier.object_bytes = object_bytes;
    tier.policy = make_policy(tier);
    for (Handle handle = 0; handle < index_.end(); handle++) {
      neotier_access access;
      if (index_[handle].kind != 0 && (tier.flags[handle] & NEOTIER_RESIDENT))
        (void)tier.policy->on_insert(alone(handle, access, 0, NEOTIER_EVENT_PREFETCH), 0);
    }
  }
}

uint32_t Catalogue::heat(Handle handle, uint64_t now_ns) const {
  const uint8_t heat = index_[handle].heat;
  const uint32_t age = (static_cast<uint32_t>(now_ns / kHeatEpochNs) - (heat >> 4)) & 15;
  return (heat & 15u) >> age;
}

void Catalogue::count_use(Handle handle, uint64_t now_ns) {
  const uint32_t count = std::min(heat(handle, now_ns) + 1, kMostHeat);
  index_[handle].heat = static_cast<uint8_t>((now_ns / kHeatEpochNs & 15) << 4 | count);
}

double Catalogue::bytes_per_object() const {
  double bytes = index_.bytes_per_object();
  for (const TierState& tier : tiers_) {
    bytes += 1 + static_cast<double>(tier.policy->state_bytes()) / static_cast<double>(index_.max_objects());
  }
  return bytes;
}

}  // namespace neotier::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace neotier::engine {

namespace {

constexpr uint64_t kHeatEpochNs = 1000000000;
constexpr uint32_t kMostHeat = 15;

}  // namespace

placement::PolicyRef tier_policy(const std::string& tier, const std::string& name) {
  placement::PolicyRef policy = placement::find_policy(name, NEOTIER_KV);
  if (policy->flags & NEOTIER_NEEDS_ORACLE)
    throw std::runtime_error(fmt::format("tier {}: policy {} knows the future, which only a replay does", tier, name));
  return policy;
}

Catalogue::Catalogue(size_t max_objects, std::vector<TierSetup> tiers, uint64_t seed, size_t events)
    : index_(max_objects, seed), tiers_(tiers.size()), events_(events) {
  for (size_t i = 0; i < tiers.size(); i++) {
    Kept& kept = tiers_[i];
    kept.setup = std::move(tiers[i]);
    kept.flags = MappedArray<uint8_t>(max_objects);
    const uint64_t object = kept.setup.object_bytes ? kept.setup.object_bytes : 64 << 10;
    neotier_placement_config config{};
    config.kind = NEOTIER_KIND_KV;
    config.objects = static_cast<uint32_t>(max_objects);
    config.groups = 1;
    config.batch = 1;
    config.max_event = 1;
    config.capacity_bytes = kept.setup.tier->info().capacity_bytes;
    config.capacity = static_cast<uint32_t>(std::clamp<uint64_t>(config.capacity_bytes / object, 1, max_objects));
    config.seed = seed;
    config.flags = kept.flags.data();
    kept.policy = std::make_unique<placement::Instance>(tier_policy(kept.setup.tier->info().name, kept.setup.policy),
                                                        config, kept.setup.params);
  }
}

TierId Catalogue::find_tier(const std::string& name) const {
  for (size_t i = 0; i < tiers_.size(); i++) {
    if (tiers_[i].setup.tier->info().name == name) return static_cast<TierId>(i);
  }
  return kNoTier;
}

neotier_event Catalogue::event(const Kept& kept, Handle handle, neotier_access& access, uint64_t now_ns,
                               bool prefetch) const {
  const Record& record = index_[handle];
  access = {};
  access.object = handle;
  access.bytes = std::max<uint32_t>(1, record.bytes);
  access.cost_ns = decode_cost(record.recompute);
  neotier_event event{};
  event.tick = kept.tick;
  event.now_ns = now_ns;
  event.kind = prefetch ? NEOTIER_EVENT_PREFETCH : NEOTIER_EVENT_DEMAND;
  event.nr = 1;
  event.access = &access;
  return event;
}

neotier_event Catalogue::begin_event(Kept& kept, Handle handle, neotier_access& access, uint64_t now_ns) const {
  kept.tick++;
  const neotier_event e = event(kept, handle, access, now_ns, false);
  kept.policy->on_event(e);
  return e;
}

void Catalogue::insert_copy(Handle handle, TierId id, Extent extent, uint64_t now_ns, bool prefetch) {
  Record& record = index_[handle];
  const int at = record.has_copy() && record.tier(0) < id ? 1 : 0;
  if (at == 0) {
    record.extent[1] = record.extent[0];
    record.set_tier(1, record.tier(0));
  }
  record.extent[at] = extent;
  record.set_tier(at, id);
  Kept& kept = tiers_[id];
  kept.residents++;
  kept.resident_bytes += record.bytes;
  kept.flags[handle] |= NEOTIER_RESIDENT;
  neotier_access access;
  (void)kept.policy->on_insert(
      prefetch ? event(kept, handle, access, now_ns, true) : begin_event(kept, handle, access, now_ns), 0);
  events_.push(record.key, EventKind::kCopied, id);
}

Extent Catalogue::drop_copy(Handle handle, TierId id, neotier_remove_reason reason) {
  Record& record = index_[handle];
  const int at = record.tier(0) == id ? 0 : 1;
  const Extent extent = record.extent[at];
  if (at == 0) {
    record.extent[0] = record.extent[1];
    record.set_tier(0, record.tier(1));
  }
  record.extent[1] = kNoExtent;
  record.set_tier(1, kNoTier);
  Kept& kept = tiers_[id];
  kept.residents--;
  kept.resident_bytes -= record.bytes;
  kept.flags[handle] &= static_cast<uint8_t>(~NEOTIER_RESIDENT);
  (void)kept.policy->on_remove(handle, reason);
  events_.push(record.key, EventKind::kLeft, id);
  return extent;
}

void Catalogue::hit(Handle handle, uint64_t now_ns) {
  Kept& kept = tiers_[index_[handle].tier(0)];
  neotier_access access;
  (void)kept.policy->on_hit(begin_event(kept, handle, access, now_ns), 0);
}

void Catalogue::forget(Handle handle) {
  for (Kept& kept : tiers_) {
    (void)kept.policy->on_remove(handle, NEOTIER_FORGOTTEN);
    kept.flags[handle] = 0;
  }
  events_.push(index_[handle].key, EventKind::kForgotten, kNoTier);
  index_.erase(handle);
}

uint32_t Catalogue::victims(TierId id, Handle handle, uint32_t want, Handle* out, uint64_t now_ns, bool prefetch) {
  Kept& kept = tiers_[id];
  neotier_access access;
  const neotier_event e = event(kept, handle, access, now_ns, prefetch);
  // Some policies name one at a time, and the same one until it has gone.
  return std::min(kept.policy->victims(e, 0, want, out), want);
}

bool Catalogue::admits(TierId id, Handle handle, uint64_t now_ns) {
  Kept& kept = tiers_[id];
  neotier_access access;
  return kept.policy->admit(begin_event(kept, handle, access, now_ns), 0);
}

void Catalogue::pinned_changed(Handle handle) {
  const Record& record = index_[handle];
  const bool pinned = record.pins > 0 || record.in_flight;
  for (int i = 0; i < 2; i++) {
    if (record.tier(i) == kNoTier) continue;
    uint8_t& flags = tiers_[record.tier(i)].flags[handle];
    flags = static_cast<uint8_t>(pinned ? flags | NEOTIER_PINNED : flags & ~NEOTIER_PINNED);
  }
}

uint32_t Catalogue::heat(Handle handle, uint64_t now_ns) const {
  const uint8_t heat = index_[handle].heat;
  const uint32_t age = (static_cast<uint32_t>(now_ns / kHeatEpochNs) - (heat >> 4)) & 15;
  return (heat & 15u) >> age;
}

void Catalogue::warm(Handle handle, uint64_t now_ns) {
  const uint32_t count = std::min(heat(handle, now_ns) + 1, kMostHeat);
  index_[handle].heat = static_cast<uint8_t>((now_ns / kHeatEpochNs & 15) << 4 | count);
}

double Catalogue::bytes_per_object() const {
  double bytes = index_.bytes_per_object();
  for (const Kept& kept : tiers_) {
    bytes += 1 + static_cast<double>(kept.policy->state_bytes()) / static_cast<double>(index_.max_objects());
  }
  return bytes;
}

}  // namespace neotier::engine

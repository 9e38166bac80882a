// SPDX-License-Identifier: Apache-2.0
#include "engine/planner.h"

#include <algorithm>
#include <cmath>

namespace neotier::engine {

bool Planner::just_moved(Handle handle, uint64_t now_ns) const {
  return static_cast<uint32_t>(now_ns / 1000000) - catalogue_[handle].moved_ms < knobs_.hysteresis_ms;
}

bool Planner::worth_keeping_on(TierId tier, const Record& record) {
  const uint64_t recompute = decode_cost(record.recompute);
  // Without what is queued: by the time that it is loaded that will have gone.
  if (recompute == 0 || links_.at(tier, kHost).predict_ns(record.bytes) < recompute) return true;
  counters_.bypasses++;
  return false;
}

bool Planner::leave(Handle handle, TierId from, uint64_t now_ns, Planned& planned) {
  const Record& record = catalogue_[handle];
  planned = {handle, from, kNoTier, Reason::kDemotion, false};
  for (int i = 0; i < 2; i++) {
    if (record.tier(i) != kNoTier && record.tier(i) != from && usable_[record.tier(i)]) return true;
  }
  // With a copy on a tier that is out of service there is no place for a third one.
  if (record.tier(1) != kNoTier) return record.may_go();
  for (TierId to = static_cast<TierId>(from + 1); to < catalogue_.tiers(); to++) {
    if (!usable_[to] || catalogue_.info(to).capacity_bytes < record.bytes) continue;
    // What is being stored goes where a policy wants it, as it would if this tier had not wanted it first.
    if (record.has_copy() && !worth_keeping_on(to, record)) continue;
    if (!catalogue_.takes(to, handle, now_ns)) continue;
    planned.to = to;
    return true;
  }
  return record.may_go();
}

void Planner::make_room(TierId tier, Handle handle, uint64_t bytes, MoveClass cls, uint64_t now_ns,
                        std::vector<Planned>& plan) {
  Handle named[kBatch];
  const uint64_t residents = std::max<uint64_t>(1, catalogue_.residents(tier));
  const uint64_t typical = std::max<uint64_t>(1, catalogue_.resident_bytes(tier) / residents);
  const uint32_t want = static_cast<uint32_t>(std::clamp<uint64_t>((bytes + typical - 1) / typical, 1, kBatch));
  const bool moved = cls != MoveClass::kDemand;
  uint32_t found = catalogue_.victims(tier, handle, want, named, now_ns, moved);
  uint64_t freed = 0;
  const auto take = [&](bool recent) {
    for (uint32_t i = 0; i < found && freed < bytes; i++) {
      if (named[i] == handle || just_moved(named[i], now_ns) != recent) continue;
      Planned planned;
      if (!leave(named[i], tier, now_ns, planned)) continue;
      if (recent) counters_.hysteresis_overrides++;
      freed += catalogue_[named[i]].bytes;
      plan.push_back(planned);
    }
  };
  take(false);
  if (freed >= bytes || !plan.empty()) return;
  if (cls == MoveClass::kDemand) {
    take(true);
  } else if (found > 0) {
    // Nobody waits: rather the policy's next best than what has just moved.
    found = catalogue_.victims(tier, handle, kBatch, named, now_ns, moved);
    take(false);
    if (plan.empty()) counters_.hysteresis_holds++;
  }
}

void Planner::relieve(TierId tier, uint64_t leaving, uint64_t now_ns, std::vector<Planned>& plan) {
  // Nothing is thrown away before its room is needed: with nowhere to go, all stays.
  if (catalogue_.tiers() == 1) return;
  const double capacity = static_cast<double>(catalogue_.info(tier).capacity_bytes);
  const TierUsage usage = catalogue_.tier(tier).usage();
  const uint64_t used = usage.used_bytes - std::min(usage.used_bytes, leaving);
  if (static_cast<double>(used) <= knobs_.high_watermark * capacity) return;
  const uint64_t excess = used - static_cast<uint64_t>(knobs_.low_watermark * capacity);
  Handle named[kBatch];
  const uint32_t found = catalogue_.victims(tier, 0, kBatch, named, now_ns, false);
  uint64_t freed = 0;
  for (uint32_t i = 0; i < found && freed < excess; i++) {
    if (just_moved(named[i], now_ns)) continue;
    Planned planned;
    if (!leave(named[i], tier, now_ns, planned)) continue;
    const Record& record = catalogue_[named[i]];
    if (planned.to == kNoTier && record.tier(1) == kNoTier) continue;
    freed += record.bytes;
    plan.push_back(planned);
  }
}

void Planner::promote(Handle handle, uint64_t now_ns, std::vector<Planned>& plan) {
  const Record& record = catalogue_[handle];
  if (knobs_.promote_heat == 0 || record.in_flight || record.pins > 0) return;
  const uint32_t heat = catalogue_.heat(handle, now_ns);
  if (heat < knobs_.promote_heat) return;
  for (TierId to = 0; to < record.tier(0); to++) {
    if (!usable_[to] || !catalogue_.setup(to).promote_to || catalogue_.info(to).capacity_bytes < record.bytes) continue;
    // The kernel takes the hot pages there, where they are used in place: a copy would be a second move of the same
    // heat.
    if (catalogue_.info(record.tier(0)).kernel_moves && catalogue_.info(to).kind == TierKind::kDram) continue;
    if (just_moved(handle, now_ns)) {
      counters_.hysteresis_holds++;
      return;
    }
    const TierUsage usage = catalogue_.tier(to).usage();
    if (usage.used_bytes + record.bytes > catalogue_.info(to).capacity_bytes) {
      // Only in exchange for something colder.
      Handle victim = kNoHandle;
      if (catalogue_.victims(to, handle, 1, &victim, now_ns, true) == 0 || catalogue_.heat(victim, now_ns) >= heat)
        continue;
    }
    // A copy on a durable tier stays: leaving again then costs nothing. On a shared one others may find it.
    const TierInfo& at = catalogue_.info(record.tier(0));
    const bool keep = (at.durable || at.shared) && record.tier(1) == kNoTier;
    plan.push_back({handle, record.tier(0), to, Reason::kPromotion, keep});
    return;
  }
}

TierId Planner::first_tier(uint64_t bytes, uint32_t takers) const {
  TierId fallback = kNoTier;
  for (TierId id = 0; id < catalogue_.tiers(); id++) {
    if (!usable_[id] || catalogue_.info(id).capacity_bytes < bytes || !catalogue_.setup(id).promote_to) continue;
    if (takers >> id & 1) return id;
    if (fallback == kNoTier) fallback = id;
  }
  return fallback;
}

// Where none is durable, the first that is shared: what is there outlives this process, and serves others.
TierId Planner::first_durable() const {
  TierId shared = kNoTier;
  for (TierId id = 0; id < catalogue_.tiers(); id++) {
    if (usable_[id] && catalogue_.info(id).durable) return id;
    if (usable_[id] && catalogue_.info(id).shared && shared == kNoTier) shared = id;
  }
  return shared;
}

Decision Planner::decide(Handle handle, TierId to, uint64_t compute_queue_ns, uint64_t cpu_ns) {
  const Record& record = catalogue_[handle];
  Decision d;
  const uint64_t recompute = decode_cost(record.recompute);
  if (recompute > 0) d.recompute_ns = recompute + compute_queue_ns;
  TierId from = kNoTier;
  for (int i = 1; i >= 0; i--) {
    if (record.tier(i) != kNoTier && usable_[record.tier(i)]) from = record.tier(i);
  }
  if (from != kNoTier) {
    d.load_ns = from == to ? 0 : links_.at(from, to).predict_finish_ns(record.bytes);
    if (cpu_ns > 0 && catalogue_.tier(from).map(record.extent[record.tier(0) == from ? 0 : 1])) {
      double fastest = 0;
      for (TierId id = 0; id < catalogue_.tiers(); id++) {
        if (catalogue_.info(id).kind == TierKind::kDram)
          fastest = std::max(fastest, links_.at(id, kHost).bytes_per_s());
      }
      const double here = links_.at(from, kHost).bytes_per_s();
      d.cpu_ns = static_cast<uint64_t>(std::llround(static_cast<double>(cpu_ns) * std::max(1.0, fastest / here)));
    }
  }
  if (d.recompute_ns < d.load_ns && d.recompute_ns <= d.cpu_ns) {
    d.choice = Choice::kRecompute;
    counters_.recommended_recomputes++;
    if (from != kNoTier) counters_.bypasses++;
  } else if (d.cpu_ns < d.load_ns) {
    d.choice = Choice::kComputeOnCpu;
    counters_.recommended_cpu_computes++;
  } else {
    d.choice = Choice::kLoad;
    counters_.recommended_loads++;
  }
  return d;
}

}  // namespace neotier::engine

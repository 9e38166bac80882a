// SPDX-License-Identifier: Apache-2.0
// Requests: what the policies are told of them, and what is stored of them.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <new>

#include "engine/engine.h"

namespace neotier::engine {

namespace {
constexpr size_t kDiskBlock = 4096;
}  // namespace

Result<Arrival> Engine::request(const RequestInfo& info, std::span<const RequestUse> uses) {
  if (uses.empty() || uses.size() > UINT32_MAX || info.bytes == 0)
    return Status(Code::kInvalid, "a request uses one object or more, of one byte or more");
  if (info.kind < ObjectKind::kKv || info.kind > ObjectKind::kPlain)
    return Status(Code::kInvalid, "no such kind of object");
  return without_throwing([&]() -> Result<Arrival> {
    // What may throw comes first: a request is told whole or not at all.
    Arrival arrival;
    arrival.engine_ = this;
    arrival.info_ = info;
    arrival.outcomes_.assign(uses.size(), UseOutcome::kMiss);
    arrival.places_.resize(uses.size());
    std::vector<neotier_access> accesses(uses.size());
    std::vector<Planned> promotions;
    promotions.reserve(uses.size());

    std::lock_guard lock(mutex_);
    const uint64_t now = clock_.now_ns();
    for (size_t i = 0; i < uses.size(); i++) {
      neotier_access& access = accesses[i];
      access = {};
      const Handle handle = catalogue_.index().find(uses[i].key);
      access.object = handle == kNoHandle ? NEOTIER_NO_OBJECT : handle;
      access.position = info.first_position + static_cast<uint32_t>(i);
      access.bytes = info.bytes;
      access.cost_ns = uses[i].cost_ns;
    }
    catalogue_.begin(accesses, info.category, now);
    for (size_t i = 0; i < uses.size(); i++) {
      // What came earlier in the request may have thrown it out, and out of the history.
      const Result<Handle> known = catalogue_.known(uses[i].key);
      if (!known) {
        arrival.outcomes_[i] = UseOutcome::kFull;
        continue;
      }
      const Handle handle = *known;
      accesses[i].object = handle;
      const uint32_t takers = catalogue_.use(static_cast<uint32_t>(i));
      const Record& record = catalogue_[handle];
      if (record.has_copy() || record.has_place() || mover_.busy(handle)) {
        arrival.outcomes_[i] = UseOutcome::kHit;
        counters_.hits++;
        catalogue_.count_use(handle, now);
        if (record.has_copy()) plan_promotion(handle, now, promotions);
        continue;
      }
      counters_.misses++;
      if (!uses[i].at_hand) {
        if (takers == 0) arrival.outcomes_[i] = UseOutcome::kPass;
        continue;
      }
      const Version version{info.bytes, info.kind, uses[i].cost_ns, info.discard || config_.discard};
      arrival.outcomes_[i] = find_place(static_cast<uint32_t>(i), handle, version, takers);
    }
    catalogue_.end();
    for (size_t i = 0; i < uses.size(); i++) {
      if (arrival.outcomes_[i] != UseOutcome::kRoom) continue;
      const Handle handle = accesses[i].object;
      Arrival::Place& place = arrival.places_[i];
      // A block that the request's own later ones threw out again; or that it names twice.
      if (!catalogue_[handle].has_place() || mover_.busy(handle)) {
        arrival.outcomes_[i] = catalogue_[handle].has_place() ? UseOutcome::kHit : UseOutcome::kPass;
        continue;
      }
      if (!mover_.hold(handle)) {
        mover_.drop_place(handle, NEOTIER_REMOVED);
        catalogue_.forget(handle);
        arrival.outcomes_[i] = UseOutcome::kFull;
        continue;
      }
      place.handle = handle;
      place.tier = catalogue_[handle].place;
      place.extent = catalogue_[handle].extent[0];
      place.cost_ns = uses[i].cost_ns;
      place.room = place.extent == kNoExtent ? nullptr : catalogue_.tier(place.tier).map(place.extent);
      if (place.room) mover_.begin_write(place.tier);
    }
    counters_.request_events++;
    mover_.carry_out(promotions, MoveClass::kPrefetch);
    mover_.wake();
    return arrival;
  });
}

UseOutcome Engine::find_place(uint32_t index, Handle handle, const Version& version, uint32_t takers) {
  const bool may_go = version.discard || version.recompute_ns > 0;
  const auto possible = [&](TierId id) {
    return usable_[id] && catalogue_.info(id).capacity_bytes >= version.bytes && catalogue_.setup(id).promote_to;
  };
  for (TierId id = 0; id < catalogue_.tiers(); id++) {
    if (possible(id) && (takers >> id & 1) && mover_.make_place(index, handle, version, id)) return UseOutcome::kRoom;
  }
  for (TierId id = 0; id < catalogue_.tiers() && !may_go; id++) {
    if (possible(id) && !(takers >> id & 1) && mover_.make_place(index, handle, version, id)) return UseOutcome::kRoom;
  }
  if (takers == 0 && may_go) {
    counters_.let_pass++;
    return UseOutcome::kPass;
  }
  counters_.full_refusals++;
  return UseOutcome::kFull;
}

Status Engine::fill(Arrival& arrival, Arrival::Place& place, const std::function<void(std::byte*)>& write) {
  return without_throwing([&]() -> Status {
    if (place.ticket) return finish(place);
    const Arrival::Place taken = place;
    const RequestInfo& info = arrival.info_;
    const Version version{info.bytes, info.kind, taken.cost_ns, info.discard || config_.discard};
    if (taken.room) {
      write(taken.room);
      std::lock_guard lock(mutex_);
      place.handle = kNoHandle;
      mover_.end_write(taken.tier);
      const bool there = usable_[taken.tier];
      if (there) mover_.fill_place(taken.handle, version);
      mover_.let_go(taken.handle);
      if (!there)
        return status_of(Code::kGone,
                         [&] { return "tier " + catalogue_.info(taken.tier).name + " went out of service"; });
      stored(taken.handle);
      return {};
    }
    // Aligned, so that a disk can take it from there.
    const std::unique_ptr<std::byte, decltype(&std::free)> bytes(
        static_cast<std::byte*>(
            std::aligned_alloc(kDiskBlock, (info.bytes + kDiskBlock - 1) / kDiskBlock * kDiskBlock)),
        &std::free);
    if (!bytes) throw std::bad_alloc();
    write(bytes.get());
    start(arrival, place, bytes.get());
    return finish(place);
  });
}

void Engine::start(Arrival& arrival, Arrival::Place& place, const std::byte* bytes) {
  const RequestInfo& info = arrival.info_;
  auto ticket = std::make_shared<Ticket>();
  std::lock_guard lock(mutex_);
  const Version version{info.bytes, info.kind, place.cost_ns, info.discard || config_.discard};
  place.started = std::exchange(place.handle, kNoHandle);
  place.ticket = std::move(ticket);
  mover_.put(place.started, version, place.tier, bytes, place.ticket);
  mover_.step();
}

// Of what was started.
Status Engine::finish(Arrival::Place& place) {
  const TicketRef ticket = std::exchange(place.ticket, nullptr);
  const Handle handle = std::exchange(place.started, kNoHandle);
  if (Status status = await(*ticket); !status) return status;
  std::lock_guard lock(mutex_);
  stored(handle);
  return {};
}

void Engine::stored(Handle handle) {
  counters_.puts++;
  const TierId durable = config_.knobs.write_back ? planner_.first_durable() : kNoTier;
  if (durable != kNoTier && catalogue_[handle].has_copy())
    mover_.move(handle, durable, MoveClass::kWriteBack, Reason::kWriteBack, true, nullptr);
}

void Engine::abandon(Arrival& arrival) {
  std::lock_guard lock(mutex_);
  for (Arrival::Place& place : arrival.places_) {
    const Handle handle = std::exchange(place.handle, kNoHandle);
    if (handle == kNoHandle) continue;
    if (place.room) mover_.end_write(place.tier);
    mover_.let_go(handle);
  }
  mover_.wake();
}

Status Engine::expect(uint64_t object_bytes) {
  return without_throwing([&]() -> Status {
    std::lock_guard lock(mutex_);
    catalogue_.expect(object_bytes);
    return {};
  });
}

Arrival& Arrival::operator=(Arrival&& other) noexcept {
  std::swap(engine_, other.engine_);
  std::swap(info_, other.info_);
  std::swap(outcomes_, other.outcomes_);
  std::swap(places_, other.places_);
  return *this;
}

void Arrival::start(size_t index, const std::byte* bytes) {
  if (index >= places_.size() || places_[index].handle == kNoHandle || places_[index].room) return;
  (void)without_throwing([&]() -> Status {
    engine_->start(*this, places_[index], bytes);
    return {};
  });
}

Arrival::~Arrival() {
  // Nobody reads the caller's memory from here on.
  for (Place& place : places_)
    if (place.ticket) (void)engine_->finish(place);
  if (std::any_of(places_.begin(), places_.end(), [](const Place& p) { return p.handle != kNoHandle; }))
    engine_->abandon(*this);
}

Status Arrival::fill(size_t index, const std::function<void(std::byte* room)>& write) {
  if (index >= places_.size() || (places_[index].handle == kNoHandle && !places_[index].ticket))
    return Status(Code::kInvalid, "no place to fill: see outcomes()");
  return engine_->fill(*this, places_[index], write);
}

}  // namespace neotier::engine

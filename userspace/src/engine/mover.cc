// SPDX-License-Identifier: Apache-2.0
// Jobs: from request to publishing. How chunks get to the tiers is in mover_dispatch.cc.
#include "engine/mover.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/mover_job.h"

namespace neotier::engine {

namespace {

// Rounds of evictions in a row that freed nothing before a job is refused.
constexpr uint32_t kMostStalls = 8;

Status gone(const std::string& tier) {
  return Status(Code::kGone, fmt::format("tier {} is out of service; its objects may come back with it", tier));
}

}  // namespace

Mover::Mover(Catalogue& catalogue, Links& links, Planner& planner, Usable& usable, Counters& counters,
             const Clock& clock, const Knobs& knobs)
    : catalogue_(catalogue),
      links_(links),
      planner_(planner),
      usable_(usable),
      counters_(counters),
      clock_(clock),
      knobs_(knobs) {}

Mover::~Mover() = default;

Mover::Job* Mover::start(Handle handle, TierId from, TierId to, MoveClass cls, const TicketRef& ticket) {
  auto owned = std::make_unique<Job>();
  Job* job = owned.get();
  jobs_.emplace(job, std::move(owned));
  job->handle = handle;
  if (handle != kNoHandle) job->key = catalogue_[handle].key;
  job->from = from;
  job->to = to;
  job->cls = cls;
  if (ticket) {
    ticket->expect();
    job->tickets.push_back(ticket);
  }
  return job;
}

void Mover::move(Handle handle, TierId to, MoveClass cls, Reason reason, bool keep_source, const TicketRef& ticket) {
  Record& record = catalogue_[handle];
  const auto answer = [&](const Status& status) {
    if (!ticket) return;
    ticket->expect();
    ticket->end(status);
  };
  if (!record.has_copy() && !record.in_flight) {
    return answer(Status(Code::kNotFound, "no such object"));
  }
  if (const auto under_way = moving_.find(handle); under_way != moving_.end()) {
    Job* job = under_way->second;
    if (!job || job->to != to || job->kind != JobKind::kMove || job->stale || job->cancelled)
      return answer(Status(Code::kBusy, "the object is on its way elsewhere; wait for that, or cancel it"));
    counters_.joins++;
    if (ticket) {
      ticket->expect();
      job->tickets.push_back(ticket);
    }
    raise(job, cls);
    return;
  }
  for (int i = 0; i < 2; i++) {
    if (record.tier(i) == to) return answer(Status::ok());
  }
  if (record.pins > 0 && !keep_source)
    return answer(Status(Code::kBusy, "the object is pinned; unpin it, or let the lease end"));
  if (!usable_[to]) return answer(gone(catalogue_.info(to).name));
  TierId from = kNoTier;
  for (int i = 1; i >= 0; i--) {
    if (record.tier(i) != kNoTier && usable_[record.tier(i)]) from = record.tier(i);
  }
  if (from == kNoTier) return answer(gone(catalogue_.info(record.tier(0)).name));
  Job* job = start(handle, from, to, cls, ticket);
  job->kind = JobKind::kMove;
  job->reason = reason;
  job->bytes = record.bytes;
  job->keep_source = keep_source;
  job->source = record.extent[record.tier(0) == from ? 0 : 1];
  moving_[handle] = job;
  record.in_flight = 1;
  catalogue_.pinned_changed(handle);
  begin_read(from, job->source);
  // What goes down will leave, whatever it waits for. What comes up waits for what goes down: counted before it has its
  // room, the two would wait for one another.
  if (to > from) count_leaving(job);
  find_room(job);
}

void Mover::put(Handle handle, const Version& version, TierId to, const std::byte* data, const TicketRef& ticket) {
  Record& record = catalogue_[handle];
  Job* job = start(handle, kHost, to, MoveClass::kDemand, ticket);
  job->kind = JobKind::kPut;
  job->version = version;
  job->bytes = version.bytes;
  job->host = const_cast<std::byte*>(data);
  moving_[handle] = job;
  record.in_flight = 1;
  catalogue_.pinned_changed(handle);
  find_room(job);
}

void Mover::put_in_place(Handle handle, const Version& version, TierId to, Extent extent) {
  drop_all(handle, NEOTIER_REMOVED);
  Record& record = catalogue_[handle];
  record.bytes = version.bytes;
  record.kind = static_cast<uint8_t>(version.kind) & 3;
  record.recompute = encode_cost(version.recompute_ns);
  record.recovered = 0;
  catalogue_.insert_copy(handle, to, extent, clock_.now_ns(), false);
  catalogue_.pinned_changed(handle);
}

void Mover::hold(Handle handle) {
  moving_[handle] = nullptr;
  catalogue_[handle].in_flight = 1;
  catalogue_.pinned_changed(handle);
}

void Mover::let_go(Handle handle) {
  moving_.erase(handle);
  catalogue_[handle].in_flight = 0;
  catalogue_.pinned_changed(handle);
  if (!catalogue_[handle].has_copy()) catalogue_.forget(handle);
}

bool Mover::yields_to_pin(Handle handle) const {
  const auto it = moving_.find(handle);
  return it == moving_.end() || (it->second && it->second->kind == JobKind::kMove);
}

Extent Mover::reserve(Handle handle, uint32_t bytes, TierId to) {
  for (int round = 0; round < 2; round++) {
    const Result<Extent> room = catalogue_.tier(to).allocate(catalogue_[handle].key, bytes);
    if (room) return *room;
    if (room.status().code() != Code::kFull) break;
    std::vector<Planned> plan;
    planner_.make_room(to, handle, bytes, MoveClass::kDemand, clock_.now_ns(), plan);
    std::erase_if(plan, [](const Planned& p) { return p.to != kNoTier; });
    if (plan.empty()) break;
    carry_out(plan, MoveClass::kDemand);
  }
  return kNoExtent;
}

void Mover::read(Handle handle, uint64_t offset, std::byte* into, uint64_t bytes, const TicketRef& ticket) {
  const Record& record = catalogue_[handle];
  TierId from = kNoTier;
  for (int i = 1; i >= 0; i--) {
    if (record.tier(i) != kNoTier && usable_[record.tier(i)]) from = record.tier(i);
  }
  if (from == kNoTier) {
    if (ticket) {
      ticket->expect();
      ticket->end(gone(catalogue_.info(record.tier(0)).name));
    }
    return;
  }
  Job* job = start(handle, from, kHost, MoveClass::kDemand, ticket);
  job->kind = JobKind::kRead;
  job->bytes = bytes;
  job->offset = offset;
  job->host = into;
  job->source = record.extent[record.tier(0) == from ? 0 : 1];
  begin_read(from, job->source);
  enqueue(job);
}

void Mover::flush(TierId tier, const TicketRef& ticket) {
  Job* job = start(kNoHandle, tier, tier, MoveClass::kDemand, ticket);
  job->kind = JobKind::kFlush;
  job->bytes = 1;
  enqueue(job);
}

void Mover::end_read(TierId tier, Extent extent) {
  const auto held = readers_.find({tier, extent});
  if (--held->second.count > 0) return;
  const Readers last = held->second;
  readers_.erase(held);
  if (!last.retired) return;
  leaving_bytes_[tier] -= last.bytes;
  give_back(tier, extent);
  if (!rooms_[tier].empty()) wake();
}

void Mover::retire(TierId tier, Extent extent, uint64_t bytes) {
  if (const auto held = readers_.find({tier, extent}); held != readers_.end()) {
    held->second.retired = true;
    held->second.bytes = bytes;
    leaving_bytes_[tier] += bytes;
    return;
  }
  give_back(tier, extent);
}

void Mover::give_back(TierId tier, Extent extent) {
  catalogue_.tier(tier).free(extent);
  freed_[tier]++;
  room_changed_[tier] = true;
}

void Mover::drop_copy(Handle handle, TierId tier, neotier_remove_reason reason) {
  const uint64_t bytes = catalogue_[handle].bytes;
  retire(tier, catalogue_.drop_copy(handle, tier, reason), bytes);
}

void Mover::drop_all(Handle handle, neotier_remove_reason reason) {
  while (catalogue_[handle].has_copy()) drop_copy(handle, catalogue_[handle].tier(0), reason);
}

void Mover::leave_waiting(Job* job) {
  if (!job->waiting) return;
  job->waiting = false;
  waiting_bytes_[job->to] -= job->bytes;
}

void Mover::count_leaving(Job* job) {
  if (job->kind != JobKind::kMove || job->keep_source || job->leaving) return;
  job->leaving = true;
  leaving_bytes_[job->from] += job->bytes;
}

void Mover::find_room(Job* job) {
  if (job->cancelled) return end(job, job->error.is_ok() ? Status(Code::kCancelled, "cancelled") : job->error);
  if (!usable_[job->to]) return end(job, gone(catalogue_.info(job->to).name));
  Tier& tier = catalogue_.tier(job->to);
  const auto full = [&] {
    counters_.full_refusals++;
    end(job, Status(Code::kFull, fmt::format("tier {} has no room for {} bytes and nothing there may leave",
                                             tier.info().name, job->bytes)));
  };
  for (;;) {
    const Result<Extent> room = tier.allocate(job->key, job->bytes);
    if (room) {
      job->destination = *room;
      leave_waiting(job);
      count_leaving(job);
      return enqueue(job);
    }
    if (room.status().code() != Code::kFull) return end(job, room.status());
    if (!job->waiting) {
      job->waiting = true;
      waiting_bytes_[job->to] += job->bytes;
    }
    const uint64_t leaving = leaving_bytes_[job->to];
    if (leaving >= waiting_bytes_[job->to]) break;
    // Something leaves, and nothing has since this job last asked: the same answer would follow, and the victims that
    // could not leave then cannot now.
    if (leaving > 0 && job->asked_at == freed_[job->to]) break;
    job->asked_at = freed_[job->to];
    const uint64_t used = tier.usage().used_bytes;
    job->stalls = used < job->used_before ? 0 : job->stalls + 1;
    job->used_before = used;
    std::vector<Planned> plan;
    if (job->stalls < kMostStalls) {
      planner_.make_room(job->to, job->handle, waiting_bytes_[job->to] - leaving, job->cls, clock_.now_ns(), plan);
    }
    if (plan.empty()) {
      if (leaving > 0) break;
      return full();
    }
    carry_out(plan, job->cls);
    if (std::any_of(plan.begin(), plan.end(), [](const Planned& p) { return p.to != kNoTier; })) break;
  }
  rooms_[job->to].push_back(job);
}

void Mover::carry_out(const std::vector<Planned>& plan, MoveClass cls) {
  for (const Planned& p : plan) {
    Record& record = catalogue_[p.object];
    if (record.in_flight || record.pins > 0) continue;
    if (p.to == kNoTier) {
      if (record.tier(1) != kNoTier) {
        counters_.clean_drops++;
      } else {
        counters_.discards++;
      }
      drop_copy(p.object, p.from, NEOTIER_EVICTED);
      if (!record.has_copy()) catalogue_.forget(p.object);
      continue;
    }
    move(p.object, p.to, cls, p.reason, p.keep_source, nullptr);
  }
}

void Mover::retry_rooms() {
  for (TierId tier = 0; tier < catalogue_.tiers(); tier++) {
    if (!room_changed_[tier]) continue;
    room_changed_[tier] = false;
    std::deque<Job*> waiting;
    waiting.swap(rooms_[tier]);
    std::stable_sort(waiting.begin(), waiting.end(), [](const Job* a, const Job* b) { return a->cls < b->cls; });
    for (Job* job : waiting) find_room(job);
  }
}

Status Mover::publish(Job& job) {
  Record& record = catalogue_[job.handle];
  const uint64_t now = clock_.now_ns();
  if (job.stale) {
    counters_.stale_moves++;
    return Status(Code::kCancelled, "the object changed meanwhile");
  }
  if (!usable_[job.to]) return gone(catalogue_.info(job.to).name);
  if (job.kind == JobKind::kPut) {
    if (record.pins > 0) return Status(Code::kBusy, "the object is pinned; unpin it, or let the lease end");
    put_in_place(job.handle, job.version, job.to, job.destination);
    return Status::ok();
  }
  if (record.pins > 0 && !job.keep_source) {
    counters_.pinned_moves++;
    return Status(Code::kBusy, "the object was pinned while it moved");
  }
  if (!job.keep_source) drop_copy(job.handle, job.from, NEOTIER_REMOVED);
  // A record has room for two copies: the one that was not read from makes way.
  while (record.tier(1) != kNoTier) {
    if (record.pins > 0) return Status(Code::kBusy, "the object is pinned, and has two copies already");
    drop_copy(job.handle, record.tier(record.tier(0) == job.from ? 1 : 0), NEOTIER_REMOVED);
  }
  catalogue_.insert_copy(job.handle, job.to, job.destination, now, job.cls != MoveClass::kDemand);
  record.moved_ms = static_cast<uint32_t>(now / 1000000);
  counters_.moves++;
  counters_.moved_bytes += job.bytes;
  switch (job.reason) {
    case Reason::kAsked:
      counters_.demand_loads++;
      break;
    case Reason::kPrefetch:
      counters_.prefetches++;
      break;
    case Reason::kPromotion:
      counters_.promotions++;
      break;
    case Reason::kDemotion:
      counters_.demotions++;
      break;
    case Reason::kWriteBack:
      counters_.write_backs++;
      break;
  }
  return Status::ok();
}

void Mover::end(Job* job, const Status& given) {
  Status status = given;
  leave_waiting(job);
  if (job->kind == JobKind::kMove || job->kind == JobKind::kPut) {
    if (status.is_ok()) status = publish(*job);
    if (!status.is_ok() && job->destination != kNoExtent) retire(job->to, job->destination, job->bytes);
    Record& record = catalogue_[job->handle];
    moving_.erase(job->handle);
    record.in_flight = 0;
    catalogue_.pinned_changed(job->handle);
    if (job->kind == JobKind::kMove) {
      if (job->leaving) {
        leaving_bytes_[job->from] -= job->bytes;
        freed_[job->from]++;
      }
      room_changed_[job->from] = true;
    }
    // A put that failed leaves no trace of an object that was not there before.
    if (!record.has_copy()) {
      catalogue_.forget(job->handle);
    } else if (!status.is_ok() && status.code() == Code::kFull && job->reason == Reason::kDemotion &&
               record.recompute != 0 && record.pins == 0 && record.tier(1) == kNoTier) {
      // Below there is no room either: what can be made anew goes.
      counters_.discards++;
      drop_copy(job->handle, record.tier(0), NEOTIER_EVICTED);
      catalogue_.forget(job->handle);
    }
  }
  if (job->kind == JobKind::kMove || job->kind == JobKind::kRead) end_read(job->from, job->source);
  switch (status.code()) {
    case Code::kOk:
    case Code::kBusy:
    case Code::kFull:
      break;
    case Code::kCancelled:
      counters_.cancels += job->stale ? 0 : 1;
      break;
    default:
      counters_.failed_moves++;
  }
  for (const TicketRef& ticket : job->tickets) ticket->end(status);
  jobs_.erase(job);
}

void Mover::cancel(const Ticket& ticket) {
  std::vector<Job*> alone;
  for (const auto& [job, owned] : jobs_) {
    const auto it =
        std::find_if(job->tickets.begin(), job->tickets.end(), [&](const TicketRef& t) { return t.get() == &ticket; });
    if (it == job->tickets.end()) continue;
    if (job->tickets.size() > 1) {
      // Others wait for the same move: it goes on without this one.
      const TicketRef mine = *it;
      job->tickets.erase(it);
      counters_.cancels++;
      mine->end(Status(Code::kCancelled, "cancelled"));
    } else {
      alone.push_back(job);
    }
  }
  for (Job* job : alone) cancel_job(job);
}

void Mover::make_stale(Handle handle) {
  const auto it = moving_.find(handle);
  if (it == moving_.end() || !it->second) return;
  it->second->stale = true;
  cancel_job(it->second);
}

void Mover::tier_failed(TierId tier) {
  std::vector<Job*> affected;
  for (const auto& [job, owned] : jobs_) {
    if (job->from == tier || job->to == tier) affected.push_back(job);
  }
  for (Job* job : affected) {
    if (job->error.is_ok()) job->error = gone(catalogue_.info(tier).name);
    cancel_job(job);
  }
}

size_t Mover::queued(MoveClass cls) const {
  return static_cast<size_t>(
      std::count_if(jobs_.begin(), jobs_.end(), [cls](const auto& entry) { return entry.first->cls == cls; }));
}

void Mover::cancel_job(Job* job) {
  job->cancelled = true;
  if (job->kind == JobKind::kPut || job->kind == JobKind::kMove) {
    auto& waiting = rooms_[job->to];
    if (const auto it = std::find(waiting.begin(), waiting.end(), job); it != waiting.end()) {
      waiting.erase(it);
      return end(job, job->error.is_ok() ? Status(Code::kCancelled, "cancelled") : job->error);
    }
  }
  dequeue(job);
  if (job->chunks == 0) return job_progressed(job);
  for (const auto& chunk : chunks_) {
    if (chunk->job == job && chunk->submitted) catalogue_.tier(chunk->at).cancel(chunk->transfer);
  }
}

void Mover::shut_down() {
  std::vector<Job*> all;
  for (const auto& [job, owned] : jobs_) all.push_back(job);
  for (Job* job : all) {
    // Ending one may have ended others (rooms, discards).
    if (jobs_.count(job)) cancel_job(job);
  }
  while (!jobs_.empty()) {
    step();
    if (!jobs_.empty()) wait_ns(1000000);
  }
}

}  // namespace neotier::engine

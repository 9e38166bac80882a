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
  return status_of(Code::kGone,
                   [&] { return fmt::format("tier {} is out of service; its objects may come back with it", tier); });
}

// Held copies that are remembered as lost; of more the next read finds out.
constexpr size_t kMostLost = 4096;

// Beyond what a status keeps without memory.
Status in_the_way(const char* why) {
  return status_of(Code::kBusy, [&] { return std::string(why); });
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
      knobs_(knobs) {
  const auto prepare = [this](TierId from, TierId to) {
    LinkQueue& queue = queues_[{from, to}];
    queue.from = from;
    queue.to = to;
  };
  for (TierId from = 0; from < catalogue_.tiers(); from++) {
    for (TierId to = 0; to < catalogue_.tiers(); to++) prepare(from, to);
    prepare(from, kHost);
    prepare(kHost, from);
  }
}

Mover::~Mover() = default;

Mover::Job* Mover::start(JobKind kind, Handle handle, TierId from, Extent source, TierId to, MoveClass cls,
                         const TicketRef& ticket) {
  const bool places = kind == JobKind::kMove || kind == JobKind::kPut;
  std::unique_ptr<Job> owned;
  try {
    owned = std::make_unique<Job>();
    if (source != kNoExtent) owned->readers = &reading(from, source);
    if (places) moving_[handle] = owned.get();
  } catch (const std::bad_alloc&) {
    if (owned && owned->readers) end_read(*owned->readers, from, source);
    if (ticket) {
      ticket->expect();
      ticket->end(no_memory());
    }
    return nullptr;
  }
  Job* const job = owned.release();
  jobs_.push_back(job);
  by_class_[static_cast<size_t>(cls)]++;
  job->kind = kind;
  job->handle = handle;
  if (handle != kNoHandle) job->key = catalogue_[handle].key;
  job->from = from;
  job->source = source;
  job->to = to;
  job->cls = cls;
  if (from != kHost) uses_[from]++;
  if (to != kHost) uses_[to]++;
  if (places) {
    catalogue_[handle].in_flight = 1;
    catalogue_.pinned_changed(handle);
  }
  if (ticket) (void)join(job, ticket);
  return job;
}

bool Mover::join(Job* job, const TicketRef& ticket) {
  if (Waiter* const last = job->waiters.back(); last && last->ticket == ticket) {
    last->times++;
  } else {
    Waiter* waiter = &job->first_waiter;
    if (waiter->job) waiter = new (std::nothrow) Waiter;
    if (!waiter) return false;
    waiter->job = job;
    waiter->ticket = ticket;
    job->waiters.push_back(waiter);
    ticket->waiting.push_back(waiter);
  }
  ticket->expect();
  return true;
}

void Mover::leave(Waiter* waiter, const Status& status) {
  Job* const job = waiter->job;
  const TicketRef ticket = std::move(waiter->ticket);
  const uint32_t times = waiter->times;
  job->waiters.erase(waiter);
  ticket->waiting.erase(waiter);
  if (waiter == &job->first_waiter) {
    waiter->job = nullptr;
    waiter->times = 1;
  } else {
    delete waiter;
  }
  ticket->end(status, times);
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
      return answer(in_the_way("the object is on its way elsewhere; wait for that, or cancel it"));
    counters_.joins++;
    if (ticket && !join(job, ticket)) return answer(no_memory());
    raise(job, cls);
    return;
  }
  for (int i = 0; i < 2; i++) {
    if (record.tier(i) == to) return answer(Status::ok());
  }
  if (record.pins > 0 && !keep_source)
    return answer(in_the_way("the object is pinned; unpin it, or let the lease end"));
  if (!usable_[to]) return answer(gone(catalogue_.info(to).name));
  TierId from = kNoTier;
  for (int i = 1; i >= 0; i--) {
    if (record.tier(i) != kNoTier && usable_[record.tier(i)]) from = record.tier(i);
  }
  if (from == kNoTier) return answer(gone(catalogue_.info(record.tier(0)).name));
  const Extent source = record.extent[record.tier(0) == from ? 0 : 1];
  Job* job = start(JobKind::kMove, handle, from, source, to, cls, ticket);
  if (!job) return;
  job->reason = reason;
  job->bytes = record.bytes;
  job->keep_source = keep_source;
  // What goes down will leave, whatever it waits for. What comes up waits for what goes down: counted before it has its
  // room, the two would wait for one another.
  if (to > from) count_leaving(job);
  find_room(job);
}

void Mover::put(Handle handle, const Version& version, TierId to, const std::byte* data, const TicketRef& ticket) {
  Job* job = start(JobKind::kPut, handle, kHost, kNoExtent, to, MoveClass::kDemand, ticket);
  if (!job) return let_go(handle);
  job->version = version;
  job->bytes = version.bytes;
  job->host = const_cast<std::byte*>(data);
  if (const Record& record = catalogue_[handle]; record.has_place()) {
    // Its room is there, or is waited for already.
    if (record.extent[0] != kNoExtent) {
      job->destination = record.extent[0];
      return enqueue(job);
    }
    job->waiting = true;
  }
  find_room(job);
}

bool Mover::make_place(uint32_t index, Handle handle, const Version& version, TierId to) {
  Record& record = catalogue_[handle];
  record.bytes = version.bytes;
  record.take_note(version.note());
  record.moved_ms = static_cast<uint32_t>(clock_.now_ns() / 1000000) - knobs_.hysteresis_ms;
  Extent extent = kNoExtent;
  if (!room_for_place(handle, to, extent)) return false;
  catalogue_.place(index, to, extent);
  return true;
}

bool Mover::move_place(Handle handle, TierId to) {
  Extent extent = kNoExtent;
  if (!room_for_place(handle, to, extent)) return false;
  catalogue_.place_moved(handle, to, extent, clock_.now_ns());
  return true;
}

bool Mover::room_for_place(Handle handle, TierId to, Extent& extent) {
  const Record& record = catalogue_[handle];
  uint64_t used_before = UINT64_MAX;
  for (uint32_t stalls = 0; stalls < kMostStalls;) {
    const Result<Extent> room = allocate(to, record.key, record.bytes, record.note());
    if (room) {
      extent = *room;
      return true;
    }
    if (room.status().code() != Code::kFull) return false;
    // Those that wait come first; what leaves is theirs.
    const uint64_t wanted = waiting_bytes_[to] + record.bytes, leaving = leaving_bytes_[to];
    if (leaving >= wanted) break;
    const uint64_t used = catalogue_.tier(to).usage().used_bytes;
    stalls = used < used_before ? 0 : stalls + 1;
    used_before = used;
    const std::vector<Planned> plan = victims_for(to, handle, wanted - leaving, MoveClass::kDemand);
    if (plan.empty()) {
      if (leaving == 0) return false;
      break;
    }
    carry_out(plan, MoveClass::kDemand);
  }
  waiting_bytes_[to] += record.bytes;
  return true;
}

void Mover::fill_place(Handle handle, const Version& version) {
  Record& record = catalogue_[handle];
  record.recovered = 0;
  record.take_note(version.note());
  catalogue_.settle(handle, record.extent[0]);
  catalogue_.pinned_changed(handle);
}

void Mover::drop_place(Handle handle, neotier_remove_reason reason) {
  const TierId at = catalogue_[handle].place;
  const uint64_t bytes = catalogue_[handle].bytes;
  if (const Extent extent = catalogue_.unplace(handle, reason); extent != kNoExtent) {
    retire(at, extent, bytes);
  } else {
    waiting_bytes_[at] -= bytes;
  }
}

void Mover::put_in_place(Handle handle, const Version& version, TierId to, Extent extent) {
  const ObjectIndex::Change change(catalogue_.index());
  drop_all(handle, NEOTIER_REMOVED);
  Record& record = catalogue_[handle];
  record.bytes = version.bytes;
  record.recovered = 0;
  record.take_note(version.note());
  catalogue_.insert_copy(handle, to, extent, clock_.now_ns(), true);
  catalogue_.pinned_changed(handle);
}

bool Mover::hold(Handle handle) {
  try {
    moving_[handle] = nullptr;
  } catch (const std::bad_alloc&) {
    return false;
  }
  catalogue_[handle].in_flight = 1;
  catalogue_.pinned_changed(handle);
  return true;
}

void Mover::let_go(Handle handle) {
  moving_.erase(handle);
  catalogue_[handle].in_flight = 0;
  catalogue_.pinned_changed(handle);
  if (catalogue_[handle].has_place()) drop_place(handle, NEOTIER_REMOVED);
  if (!catalogue_[handle].has_copy()) catalogue_.forget(handle);
}

bool Mover::yields_to_pin(Handle handle) const {
  const auto it = moving_.find(handle);
  return it == moving_.end() || (it->second && it->second->kind == JobKind::kMove);
}

Result<Extent> Mover::allocate(TierId to, const Key& key, uint64_t bytes, Note note) {
  try {
    Result<Extent> room = catalogue_.tier(to).allocate(key, bytes);
    if (room && note != 0) catalogue_.tier(to).describe(*room, note);
    return room;
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
}

Extent Mover::reserve(Handle handle, const Version& version, TierId to) {
  const uint32_t bytes = version.bytes;
  for (int round = 0; round < 2; round++) {
    const Result<Extent> room = allocate(to, catalogue_[handle].key, bytes, version.note());
    if (room) return *room;
    if (room.status().code() != Code::kFull) break;
    std::vector<Planned> plan = victims_for(to, handle, bytes, MoveClass::kDemand);
    std::erase_if(plan, [](const Planned& p) { return p.to != kNoTier; });
    if (plan.empty()) break;
    carry_out(plan, MoveClass::kDemand);
  }
  return kNoExtent;
}

std::vector<Planned> Mover::victims_for(TierId tier, Handle handle, uint64_t bytes, MoveClass cls) {
  std::vector<Planned> plan;
  try {
    planner_.make_room(tier, handle, bytes, cls, clock_.now_ns(), plan);
  } catch (const std::bad_alloc&) {
    plan.clear();
  }
  return plan;
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
  const Extent source = record.extent[record.tier(0) == from ? 0 : 1];
  Job* job = start(JobKind::kRead, handle, from, source, kHost, MoveClass::kDemand, ticket);
  if (!job) return;
  job->bytes = bytes;
  job->offset = offset;
  job->host = into;
  enqueue(job);
}

void Mover::flush(TierId tier, const TicketRef& ticket) {
  Job* job = start(JobKind::kFlush, kNoHandle, tier, kNoExtent, tier, MoveClass::kDemand, ticket);
  if (!job) return;
  job->bytes = 1;
  enqueue(job);
}

Mover::Readers& Mover::reading(TierId tier, Extent extent) {
  Readers& readers = readers_[{tier, extent}];
  readers.count++;
  uses_[tier]++;
  return readers;
}

void Mover::end_read(TierId tier, Extent extent) { end_read(readers_.find({tier, extent})->second, tier, extent); }

void Mover::end_read(Readers& readers, TierId tier, Extent extent) {
  uses_[tier]--;
  if (--readers.count > 0) return;
  const Readers last = readers;
  readers_.erase({tier, extent});
  if (!last.retired) return;
  leaving_bytes_[tier] -= last.bytes;
  free_extent(tier, extent);
  if (!rooms_[tier].empty()) wake();
}

void Mover::retire(TierId tier, Extent extent, uint64_t bytes) {
  if (const auto held = readers_.find({tier, extent}); held != readers_.end()) {
    held->second.retired = true;
    held->second.bytes = bytes;
    leaving_bytes_[tier] += bytes;
    return;
  }
  free_extent(tier, extent);
}

void Mover::free_extent(TierId tier, Extent extent) {
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
    end(job, status_of(Code::kFull, [&] {
          return fmt::format(
              "tier {} has no room for {} bytes and nothing there may leave: put what can be lost with its "
              "recompute_ns, "
              "or to be discarded",
              tier.info().name, job->bytes);
        }));
  };
  for (;;) {
    const Note note = job->kind == JobKind::kPut ? job->version.note() : catalogue_[job->handle].note();
    const Result<Extent> room = allocate(job->to, job->key, job->bytes, note);
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
    if (job->stalls < kMostStalls)
      plan = victims_for(job->to, job->handle, waiting_bytes_[job->to] - leaving, job->cls);
    if (plan.empty()) {
      if (leaving > 0) break;
      return full();
    }
    carry_out(plan, job->cls);
    if (std::any_of(plan.begin(), plan.end(), [](const Planned& p) { return p.to != kNoTier; })) break;
  }
  job->in_room = true;
  rooms_[job->to].push_back(job);
}

void Mover::carry_out(const std::vector<Planned>& plan, MoveClass cls) {
  for (const Planned& p : plan) {
    Record& record = catalogue_[p.object];
    if (record.in_flight || record.pins > 0) continue;
    if (record.has_place()) {
      drop_place(p.object, NEOTIER_EVICTED);
      if (p.to == kNoTier || !move_place(p.object, p.to)) catalogue_.forget(p.object);
      continue;
    }
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
    Queue waiting;
    waiting.take(rooms_[tier]);
    for (const MoveClass cls : {MoveClass::kDemand, MoveClass::kPrefetch, MoveClass::kWriteBack}) {
      for (Job *job = waiting.front(), *next = nullptr; job; job = next) {
        next = Queue::after(job);
        if (job->cls != cls) continue;
        waiting.erase(job);
        job->in_room = false;
        find_room(job);
      }
    }
  }
}

Status Mover::publish(Job& job) {
  Record& record = catalogue_[job.handle];
  const uint64_t now = clock_.now_ns();
  if (job.stale) {
    counters_.stale_moves++;
    return status_of(Code::kCancelled, [] { return std::string("the object changed meanwhile"); });
  }
  if (!usable_[job.to]) return gone(catalogue_.info(job.to).name);
  if (job.kind == JobKind::kPut) {
    if (record.pins > 0) return in_the_way("the object is pinned; unpin it, or let the lease end");
    if (record.has_place()) {
      record.extent[0] = job.destination;
      fill_place(job.handle, job.version);
    } else {
      put_in_place(job.handle, job.version, job.to, job.destination);
    }
    return Status::ok();
  }
  if (record.pins > 0 && !job.keep_source) {
    counters_.pinned_moves++;
    return in_the_way("the object was pinned while it moved");
  }
  const ObjectIndex::Change change(catalogue_.index());
  if (!job.keep_source)
    drop_copy(job.handle, job.from, job.reason == Reason::kDemotion ? NEOTIER_EVICTED : NEOTIER_REMOVED);
  // A record has room for two copies: the one that was not read from makes way.
  while (record.tier(1) != kNoTier) {
    if (record.pins > 0) return in_the_way("the object is pinned, and has two copies already");
    drop_copy(job.handle, record.tier(record.tier(0) == job.from ? 1 : 0), NEOTIER_REMOVED);
  }
  catalogue_.insert_copy(job.handle, job.to, job.destination, now, false);
  // What is known of it may have changed on the way.
  if (const Note note = record.note(); note != 0) catalogue_.tier(job.to).describe(job.destination, note);
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
    Record& record = catalogue_[job->handle];
    if (!status.is_ok() && record.has_place()) {
      // What it waited for is given up already, or is in its destination.
      record.extent[0] = job->destination;
      if (job->destination == kNoExtent) waiting_bytes_[job->to] += job->bytes;
      drop_place(job->handle, NEOTIER_REMOVED);
    } else if (!status.is_ok() && job->destination != kNoExtent) {
      retire(job->to, job->destination, job->bytes);
    }
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
    } else if (!status.is_ok() && status.code() == Code::kFull && job->reason == Reason::kDemotion && record.may_go() &&
               record.pins == 0 && record.tier(1) == kNoTier) {
      // Below there is no room either: what may go does.
      counters_.discards++;
      drop_copy(job->handle, record.tier(0), NEOTIER_EVICTED);
      catalogue_.forget(job->handle);
    }
  }
  if (job->kind == JobKind::kMove && !status.is_ok()) lost(*job);
  if (job->readers) end_read(*job->readers, job->from, job->source);
  if (job->from != kHost) uses_[job->from]--;
  if (job->to != kHost) uses_[job->to]--;
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
  while (Waiter* const waiter = job->waiters.front()) leave(waiter, status);
  by_class_[static_cast<size_t>(job->cls)]--;
  jobs_.erase(job);
  delete job;
}

void Mover::lost(const Job& job) {
  if (!job.source_lost || !job.readers) return;
  if (drop_lost(job.key, job.from, job.source) || lost_.size() >= kMostLost) return;
  try {
    lost_.push_back({job.key, job.from, job.source});
  } catch (const std::bad_alloc&) {
    // The next read finds it.
  }
}

bool Mover::drop_lost(const Key& key, TierId tier, Extent extent) {
  const Handle handle = catalogue_.index().find(key);
  if (handle == kNoHandle) return true;
  const Record& record = catalogue_[handle];
  for (int i = 0; i < 2; i++) {
    if (record.tier(i) != tier || record.extent[i] != extent) continue;
    if (record.in_flight || record.pins > 0) return false;
    counters_.lost_copies++;
    drop_copy(handle, tier, NEOTIER_REMOVED);
    if (!record.has_copy()) catalogue_.forget(handle);
    return true;
  }
  return true;
}

void Mover::forget_lost() {
  std::erase_if(lost_, [this](const Lost& one) { return drop_lost(one.key, one.tier, one.extent); });
}

void Mover::cancel(Ticket& ticket) {
  // Those that end leave the list, the others go to its end: each is looked at once.
  for (size_t left = ticket.waiting.size(); left > 0 && !ticket.waiting.empty(); left--) {
    visits_++;
    Waiter* const waiter = ticket.waiting.pop_front();
    ticket.waiting.push_back(waiter);
    Job* const job = waiter->job;
    if (job->waiters.size() > 1) {
      // Others wait for the same move: it goes on without this one.
      counters_.cancels++;
      leave(waiter, Status(Code::kCancelled, "cancelled"));
    } else {
      cancel_job(job);
    }
  }
}

void Mover::make_stale(Handle handle) {
  const auto it = moving_.find(handle);
  if (it == moving_.end() || !it->second) return;
  it->second->stale = true;
  cancel_job(it->second);
}

void Mover::tier_failed(TierId tier) {
  for (size_t left = jobs_.size(); left > 0 && !jobs_.empty(); left--) {
    visits_++;
    Job* const job = jobs_.pop_front();
    jobs_.push_back(job);
    if (job->from != tier && job->to != tier) continue;
    if (job->error.is_ok()) job->error = gone(catalogue_.info(tier).name);
    cancel_job(job);
  }
}

void Mover::cancel_job(Job* job) {
  visits_++;
  job->cancelled = true;
  if (job->in_room) {
    rooms_[job->to].erase(job);
    job->in_room = false;
    return end(job, job->error.is_ok() ? Status(Code::kCancelled, "cancelled") : job->error);
  }
  dequeue(job);
  if (job->chunks == 0) return job_progressed(job);
  for (Chunk* chunk = job->first_chunk; chunk; chunk = chunk->next_of_job) {
    if (chunk->submitted) catalogue_.tier(chunk->at).cancel(chunk->transfer);
  }
}

void Mover::shut_down() {
  for (size_t left = jobs_.size(); left > 0 && !jobs_.empty(); left--) {
    Job* const job = jobs_.pop_front();
    jobs_.push_back(job);
    cancel_job(job);
  }
  while (!jobs_.empty()) {
    step();
    if (!jobs_.empty()) wait_ns(1000000);
  }
}

}  // namespace neotier::engine

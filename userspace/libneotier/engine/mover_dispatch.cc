// SPDX-License-Identifier: Apache-2.0
// Chunks: whose turn it is, to the tiers and back.
#include <algorithm>
#include <cstdlib>

#include "engine/mover.h"
#include "engine/mover_job.h"

namespace neotier::engine {

namespace {

constexpr uint32_t kDemandDepth = 32;
// What may be at a tier in front of demand: one chunk a copy thread where the host copies, a short queue at a device.
constexpr uint32_t kBackgroundDepthMapped = 2;
constexpr uint32_t kBackgroundDepthDevice = 8;
constexpr uint64_t kDemandLingersNs = 10000000;
constexpr uint64_t kPollNs = 20000;
constexpr uint64_t kResubmitNs = 1000000;
constexpr size_t kStagingAlignment = 4096;
constexpr int kMostRounds = 16;

}  // namespace

Mover::LinkQueue& Mover::link_queue(TierId from, TierId to) { return queues_.find({from, to})->second; }

void Mover::enqueue(Job* job) {
  job->queued = true;
  links_.at(job->from, job->to).queued(job->bytes);
  if (job->to == kHost) {
    const uint64_t now = clock_.now_ns();
    if (job->asked_ns == 0) job->asked_ns = now;
    links_.at(job->from, job->to).began(now);
  }
  link_queue(job->from, job->to).waiting[static_cast<size_t>(job->cls)].push_back(job);
  wake();
}

void Mover::dequeue(Job* job, bool done) {
  if (!job->queued) return;
  // Once its last chunk is at a tier it waits no more, and is counted until it ends.
  if (Queue::has(job)) link_queue(job->from, job->to).waiting[static_cast<size_t>(job->cls)].erase(job);
  job->queued = false;
  Link& link = links_.at(job->from, job->to);
  link.unqueued(job->bytes);
  if (job->to == kHost) link.ended(job->bytes, clock_.now_ns(), done);
}

void Mover::raise(Job* job, MoveClass cls) {
  if (cls >= job->cls) return;
  by_class_[static_cast<size_t>(job->cls)]--;
  by_class_[static_cast<size_t>(cls)]++;
  if (job->queued && Queue::has(job)) {
    auto& waiting = link_queue(job->from, job->to).waiting;
    waiting[static_cast<size_t>(job->cls)].erase(job);
    waiting[static_cast<size_t>(cls)].push_back(job);
  }
  job->cls = cls;
  if (job->queued) wake();
}

Mover::Chunk* Mover::new_chunk() {
  if (free_chunks_.empty()) {
    // All the room that it can ever want is taken now: its end must not fail, in whatever thread it comes.
    try {
      auto fresh = std::make_unique<Chunk>();
      fresh->transfer.done = [this, chunk = fresh.get()](Transfer&, Status status) {
        std::lock_guard lock(completions_mutex_);
        completions_.emplace_back(chunk, std::move(status));
        completed_.notify_one();
      };
      const auto fit = [most = chunks_.size() + 1](auto& list) {
        if (list.capacity() < most) list.reserve(std::max<size_t>(64, 2 * most));
      };
      fit(chunks_);
      fit(free_chunks_);
      fit(submitting_);
      fit(ended_);
      for (auto& list : to_submit_) fit(list);
      {
        std::lock_guard lock(completions_mutex_);
        fit(completions_);
      }
      free_chunks_.push_back(fresh.get());
      chunks_.push_back(std::move(fresh));
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }
  Chunk* const chunk = free_chunks_.back();
  free_chunks_.pop_back();
  return chunk;
}

void Mover::submit(Chunk& chunk, TierId at, Op op, Extent extent, uint64_t offset, std::byte* memory) {
  chunk.at = at;
  chunk.submitted = false;
  chunk.piece = {memory, chunk.bytes};
  chunk.transfer.op = op;
  chunk.transfer.extent = extent;
  chunk.transfer.offset = offset;
  chunk.transfer.pieces = {&chunk.piece, 1};
  to_submit_[at].push_back(&chunk);
}

void Mover::submit_all() {
  for (TierId id = 0; id < catalogue_.tiers(); id++) {
    auto& chunks = to_submit_[id];
    if (chunks.empty()) continue;
    submitting_.clear();
    for (Chunk* chunk : chunks) submitting_.push_back(&chunk->transfer);
    const size_t taken = catalogue_.tier(id).submit(submitting_);
    for (size_t i = 0; i < taken; i++) chunks[i]->submitted = true;
    in_flight_[id] += static_cast<uint32_t>(taken);
    chunks.erase(chunks.begin(), chunks.begin() + static_cast<std::ptrdiff_t>(taken));
  }
}

void Mover::send_chunk(LinkQueue& queue, Job& job, Chunk& chunk, uint64_t now_ns) {
  chunk.job = &job;
  chunk.next_of_job = job.first_chunk;
  job.first_chunk = &chunk;
  chunk.offset = job.sent;
  chunk.bytes = std::min<uint64_t>(knobs_.chunk_bytes, job.bytes - job.sent);
  chunk.begun_ns = now_ns;
  chunk.second_half = false;
  chunk.background = job.cls != MoveClass::kDemand;
  (chunk.background ? queue.background_chunks : queue.demand_chunks)++;
  if (!chunk.background) queue.last_demand_ns = now_ns;
  if (job.sent == 0) job.begun_ns = now_ns;
  job.sent += chunk.bytes;
  job.chunks++;
  if (job.kind == JobKind::kFlush) return submit(chunk, job.from, Op::kFlush, kNoExtent, 0, nullptr);

  std::byte* source = job.from == kHost ? job.host : catalogue_.tier(job.from).map(job.source);
  std::byte* destination = job.to == kHost ? job.host : catalogue_.tier(job.to).map(job.destination);
  const uint64_t from = job.offset + chunk.offset;
  if (job.to != kHost && source) return submit(chunk, job.to, Op::kWrite, job.destination, chunk.offset, source + from);
  if (destination) return submit(chunk, job.from, Op::kRead, job.source, from, destination + chunk.offset);
  if (!chunk.staging) {
    const uint64_t size = (knobs_.chunk_bytes + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment;
    chunk.staging.reset(static_cast<std::byte*>(std::aligned_alloc(kStagingAlignment, size)));
    if (!chunk.staging) {
      // In the engine's thread nobody could catch an exception: the job fails as if its tier had said so.
      chunk.at = job.from;
      in_flight_[job.from]++;
      std::lock_guard lock(completions_mutex_);
      completions_.emplace_back(&chunk, no_memory());
      return;
    }
  }
  submit(chunk, job.from, Op::kRead, job.source, from, chunk.staging.get());
}

bool Mover::dispatch_queue(LinkQueue& queue, MoveClass cls, uint64_t now_ns, uint64_t& wake_ns) {
  auto& waiting = queue.waiting[static_cast<size_t>(cls)];
  Link& link = links_.at(queue.from, queue.to);
  const bool demand = cls == MoveClass::kDemand;
  const auto mapped = [&](TierId id) {
    return id == kHost || catalogue_.info(id).kind == TierKind::kDram || catalogue_.info(id).kind == TierKind::kCxl;
  };
  const uint32_t depth = demand                                   ? kDemandDepth
                         : mapped(queue.from) && mapped(queue.to) ? kBackgroundDepthMapped
                                                                  : kBackgroundDepthDevice;
  if (!demand && !waiting.empty()) {
    const auto cap = [&](TierId id) { return id == kHost ? 0 : catalogue_.setup(id).background_bytes_per_s; };
    uint64_t limit = cap(queue.from) && cap(queue.to) ? std::min(cap(queue.from), cap(queue.to))
                                                      : std::max(cap(queue.from), cap(queue.to));
    bool beside_demand = false;
    for (const auto& [ends, other] : queues_) {
      const bool shared =
          other.from == queue.from || other.from == queue.to || other.to == queue.to || other.to == queue.from;
      if (shared &&
          (other.demand_chunks > 0 || (other.last_demand_ns > 0 && now_ns - other.last_demand_ns < kDemandLingersNs)))
        beside_demand = true;
    }
    if (beside_demand) {
      const auto share = static_cast<uint64_t>(knobs_.background_share * link.bytes_per_s());
      limit = limit ? std::min(limit, share) : share;
    }
    link.set_limit(limit);
  }
  while (Job* const job = waiting.front()) {
    bool ended = false;
    while (job->sent < job->bytes) {
      const uint64_t bytes = std::min<uint64_t>(knobs_.chunk_bytes, job->bytes - job->sent);
      if ((demand ? queue.demand_chunks : queue.background_chunks) >= depth) {
        job->held = true;
        return false;
      }
      if (!demand && !link.may_take(now_ns, bytes)) {
        job->held = true;
        wake_ns = std::min(wake_ns, link.ready_ns(now_ns, bytes));
        return false;
      }
      Chunk* const chunk = new_chunk();
      if (!chunk) {
        // Those that are at tiers come back; where there is none, nothing would ever wake this job.
        job->held = true;
        if (free_chunks_.size() < chunks_.size()) return false;
        dequeue(job);
        end(job, no_memory());
        ended = true;
        break;
      }
      link.take(now_ns, bytes);
      send_chunk(queue, *job, *chunk, now_ns);
    }
    if (!ended) waiting.erase(job);
  }
  return true;
}

uint64_t Mover::dispatch() {
  const uint64_t now = clock_.now_ns();
  uint64_t wake = UINT64_MAX;
  std::array<bool, kMaxTiers + 1> held{};
  for (auto& [ends, queue] : queues_) {
    if (!dispatch_queue(queue, MoveClass::kDemand, now, wake)) held[queue.from] = held[queue.to] = true;
  }
  for (const MoveClass cls : {MoveClass::kPrefetch, MoveClass::kWriteBack}) {
    for (auto& [ends, queue] : queues_) {
      if (!held[queue.from] && !held[queue.to]) dispatch_queue(queue, cls, now, wake);
    }
  }
  submit_all();
  for (TierId id = 0; id < catalogue_.tiers(); id++) {
    if (in_flight_[id] > 0 && needs_poll_[id]) wake = std::min(wake, now + kPollNs);
    if (!to_submit_[id].empty()) wake = std::min(wake, now + kResubmitNs);
  }
  return wake;
}

void Mover::chunk_ended(Chunk& chunk, const Status& status) {
  Job* job = chunk.job;
  in_flight_[chunk.at]--;
  if (status.is_ok()) {
    failures_[chunk.at] = 0;
  } else if (status.code() == Code::kIo || status.code() == Code::kGone) {
    failures_[chunk.at]++;
  } else if (status.code() == Code::kCorrupt) {
    counters_.corrupt_reads++;
  }
  const bool staged =
      job->kind == JobKind::kMove && chunk.transfer.op == Op::kRead && chunk.piece.data == chunk.staging.get();
  if (status.is_ok() && staged && !job->cancelled && job->error.is_ok()) {
    chunk.second_half = true;
    return submit(chunk, job->to, Op::kWrite, job->destination, chunk.offset, chunk.staging.get());
  }
  // What others can change is not kept to fail again; of what is here alone the last copy may still be read in part.
  if (chunk.transfer.op == Op::kRead && chunk.at == job->from)
    job->source_lost |= status.code() == Code::kNotFound ||
                        (status.code() == Code::kCorrupt && catalogue_.info(job->from).kind == TierKind::kRemote);
  LinkQueue& queue = link_queue(job->from, job->to);
  (chunk.background ? queue.background_chunks : queue.demand_chunks)--;
  if (!status.is_ok() && job->error.is_ok() && status.code() != Code::kCancelled) job->error = status;
  if (!status.is_ok() && status.code() == Code::kCancelled) job->cancelled = true;
  job->chunks--;
  Chunk** at = &job->first_chunk;
  while (*at != &chunk) at = &(*at)->next_of_job;
  *at = chunk.next_of_job;
  chunk.job = nullptr;
  chunk.submitted = false;
  free_chunks_.push_back(&chunk);
  job_progressed(job);
}

void Mover::job_progressed(Job* job) {
  if (job->chunks > 0) return;
  const bool failed = !job->error.is_ok() || job->cancelled;
  if (!failed && job->sent < job->bytes) return;
  const bool was_queued = job->queued;
  dequeue(job, !failed);
  if (!failed) {
    Link& link = links_.at(job->from, job->to);
    const uint64_t now = clock_.now_ns();
    if (!job->held && job->kind != JobKind::kFlush) link.observe(job->bytes, now - job->begun_ns);
    if (job->kind == JobKind::kRead) {
      link.waited.add(job->begun_ns - job->asked_ns);
      link.took.add(now - job->asked_ns);
    }
    return end(job, Status::ok());
  }
  if (!job->error.is_ok() && job->kind == JobKind::kRead) lost(*job);
  if (!job->error.is_ok() && job->kind == JobKind::kRead && was_queued && read_elsewhere(job)) return;
  end(job, job->error.is_ok() ? Status(Code::kCancelled, "cancelled") : job->error);
}

bool Mover::read_elsewhere(Job* job) {
  if (job->second_try || catalogue_.index().find(job->key) != job->handle) return false;
  const Record& record = catalogue_[job->handle];
  if (job->offset + job->bytes > record.bytes) return false;
  for (int i = 0; i < 2; i++) {
    const TierId other = record.tier(i);
    if (other == kNoTier || other == job->from || !usable_[other]) continue;
    Readers* readers = nullptr;
    try {
      readers = &reading(other, record.extent[i]);
    } catch (const std::bad_alloc&) {
      return false;
    }
    end_read(*job->readers, job->from, job->source);
    uses_[job->from]--;
    uses_[other]++;
    job->readers = readers;
    job->from = other;
    job->source = record.extent[i];
    job->sent = 0;
    job->error = Status::ok();
    job->source_lost = false;
    job->cancelled = false;
    job->second_try = true;
    counters_.second_copy_reads++;
    enqueue(job);
    return true;
  }
  return false;
}

void Mover::take_completions() {
  ended_.clear();
  {
    std::lock_guard lock(completions_mutex_);
    ended_.swap(completions_);
  }
  for (auto& [chunk, status] : ended_) chunk_ended(*chunk, status);
}

uint64_t Mover::step() {
  for (TierId id = 0; id < catalogue_.tiers(); id++) {
    if (in_flight_[id] > 0 && catalogue_.tier(id).poll() > 0) needs_poll_[id] = true;
  }
  take_completions();
  if (!lost_.empty()) forget_lost();
  const auto changed = [this] {
    return std::find(room_changed_.begin(), room_changed_.end(), true) != room_changed_.end();
  };
  // A few rounds, as one job's end may be another's room; the rest in the next step, after completions.
  for (int round = 0; round < kMostRounds && changed(); round++) retry_rooms();
  const uint64_t wake = dispatch();
  return changed() ? 0 : wake;
}

void Mover::wait_ns(uint64_t ns) {
  std::unique_lock lock(completions_mutex_);
  const auto ready = [this] { return woken_ || !completions_.empty(); };
  completed_.wait_for(lock, std::chrono::nanoseconds(std::min<uint64_t>(ns, 1000000000)), ready);
  woken_ = false;
}

void Mover::wake() {
  std::lock_guard lock(completions_mutex_);
  woken_ = true;
  completed_.notify_one();
}

}  // namespace neotier::engine

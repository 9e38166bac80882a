// SPDX-License-Identifier: Apache-2.0
// Tiers as the engine finds them: measured, recovered, watched; and the status of it all.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "engine/engine.h"

namespace neotier::engine {

namespace {

constexpr uint64_t kSmallProbe = 4096;
constexpr uint64_t kLargeProbe = 1 << 20;
constexpr int kProbes = 3;
constexpr int kBatchProbe = 8;  // large ones at once
constexpr std::chrono::seconds kProbeTimeout{2};
constexpr uint64_t kSettledNs = 10000000000;
constexpr std::chrono::microseconds kLook{50};  // between two looks at whether a tier is still in use

struct FreeMemory {
  void operator()(std::byte* p) const { std::free(p); }
};

// A transfer of each extent, all at once, waited for; their time, or nothing where one failed or takes too long.
std::optional<uint64_t> timed(Tier& tier, Op op, std::span<const Extent> extents, std::byte* memory, uint64_t bytes) {
  Ticket ticket;
  std::array<Transfer, kBatchProbe> transfers;
  std::array<Piece, kBatchProbe> pieces;
  std::vector<Transfer*> left;
  for (size_t i = 0; i < extents.size(); i++) {
    pieces[i] = {memory + i * bytes, bytes};
    transfers[i].op = op;
    transfers[i].extent = extents[i];
    transfers[i].pieces = {&pieces[i], 1};
    transfers[i].done = [&](Transfer&, const Status& status) { ticket.end(status); };
    ticket.expect();
    left.push_back(&transfers[i]);
  }
  const SteadyClock clock;
  const uint64_t begin = clock.now_ns();
  while (!left.empty()) {
    left.erase(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(tier.submit(left)));
    tier.poll();
  }
  bool cancelled = false;
  Status status;
  for (;;) {
    tier.poll();
    status = ticket.wait_ns(20000);
    if (status.code() != Code::kTimeout) break;
    if (!cancelled && clock.now_ns() - begin > static_cast<uint64_t>(std::chrono::nanoseconds(kProbeTimeout).count())) {
      for (size_t i = 0; i < extents.size(); i++) tier.cancel(transfers[i]);
      cancelled = true;
    }
  }
  if (!status.is_ok()) return std::nullopt;
  return clock.now_ns() - begin;
}

struct Times {
  uint64_t small_ns = UINT64_MAX, large_ns = UINT64_MAX, batch_ns = UINT64_MAX;
  bool known() const { return small_ns != UINT64_MAX && large_ns != UINT64_MAX; }
};

void probe(Tier& tier, std::byte* memory, Times& read, Times& write) {
  if (tier.info().capacity_bytes < 2 * kLargeProbe) return;
  for (const uint64_t bytes : {kSmallProbe, kLargeProbe}) {
    const Result<Extent> extent = tier.allocate(Key{}, bytes);
    if (!extent) return;
    for (int i = 0; i < kProbes; i++) {
      for (const Op op : {Op::kWrite, Op::kRead}) {
        const std::optional<uint64_t> ns = timed(tier, op, {&*extent, 1}, memory, bytes);
        Times& times = op == Op::kRead ? read : write;
        uint64_t& best = bytes == kSmallProbe ? times.small_ns : times.large_ns;
        if (ns) best = std::min(best, *ns);
      }
    }
    tier.free(*extent);
  }
  if (tier.info().capacity_bytes < 4 * kBatchProbe * kLargeProbe) return;
  std::vector<Extent> extents;
  while (extents.size() < kBatchProbe) {
    const Result<Extent> extent = tier.allocate(Key{}, kLargeProbe);
    if (!extent) break;
    extents.push_back(*extent);
  }
  if (extents.size() == kBatchProbe && timed(tier, Op::kWrite, extents, memory, kLargeProbe)) {
    for (int i = 0; i < kProbes; i++) {
      const std::optional<uint64_t> ns = timed(tier, Op::kRead, extents, memory, kLargeProbe);
      if (ns) read.batch_ns = std::min(read.batch_ns, *ns);
    }
  }
  for (const Extent extent : extents) tier.free(extent);
}

}  // namespace

void Engine::measure() {
  const std::unique_ptr<std::byte, FreeMemory> memory(
      static_cast<std::byte*>(std::aligned_alloc(kSmallProbe, kBatchProbe * kLargeProbe)));
  if (!memory) throw std::bad_alloc();
  std::fill_n(memory.get(), kBatchProbe * kLargeProbe, std::byte{0x5a});
  std::array<Times, kMaxTiers> reads, writes;
  const auto set = [&](TierId from, TierId to, const Times& t) {
    if (t.known()) links_.at(from, to).set_measured(kSmallProbe, t.small_ns, kLargeProbe, t.large_ns);
  };
  for (TierId id = 0; id < catalogue_.tiers(); id++) {
    if (!usable_[id]) continue;
    probe(catalogue_.tier(id), memory.get(), reads[id], writes[id]);
    set(id, kHost, reads[id]);
    if (reads[id].batch_ns != UINT64_MAX)
      links_.at(id, kHost).set_measured_batch(kBatchProbe * kLargeProbe, reads[id].batch_ns);
    set(kHost, id, writes[id]);
  }
  // Between two tiers: the slower end where one is mapped, both one after the other through a staging buffer.
  for (TierId from = 0; from < catalogue_.tiers(); from++) {
    for (TierId to = 0; to < catalogue_.tiers(); to++) {
      const Times &r = reads[from], &w = writes[to];
      if (from == to || !r.known() || !w.known()) continue;
      const auto memory_tier = [&](TierId id) {
        return catalogue_.info(id).kind == TierKind::kDram || catalogue_.info(id).kind == TierKind::kCxl;
      };
      const bool direct = memory_tier(from) || memory_tier(to);
      set(from, to,
          direct ? Times{std::max(r.small_ns, w.small_ns), std::max(r.large_ns, w.large_ns)}
                 : Times{r.small_ns + w.small_ns, r.large_ns + w.large_ns});
    }
  }
}

void Engine::recover() {
  for (TierId id = 0; id < catalogue_.tiers(); id++) {
    if (!catalogue_.info(id).durable) continue;
    const Result<std::vector<Recovered>> found = catalogue_.tier(id).recover();
    if (!found) throw std::runtime_error(found.status().what());
    for (const Recovered& r : *found) {
      Handle handle = catalogue_.index().find(r.key);
      if (handle != kNoHandle) {
        Record& record = catalogue_[handle];
        // A key twice on one tier: the later one replaced the other and the crash came before the other was forgotten.
        if (record.tier(0) == id || record.tier(1) == id) {
          catalogue_.tier(id).free(catalogue_.drop_copy(handle, id, NEOTIER_REMOVED));
        } else if (record.bytes != r.bytes || record.tier(1) != kNoTier) {
          catalogue_.tier(id).free(r.extent);
          continue;
        }
        record.bytes = static_cast<uint32_t>(r.bytes);
      } else {
        Result<Handle> fresh = catalogue_.known(r.key);
        if (!fresh && make_index_room()) fresh = catalogue_.known(r.key);
        if (fresh) catalogue_.claim(*fresh);
        Record unnamed{};
        unnamed.take_note(r.note);
        if (!fresh && unnamed.may_go()) {
          // Room that nobody could give back would be taken for ever.
          counters_.discards++;
          catalogue_.tier(id).free(r.extent);
          continue;
        }
        if (!fresh || r.bytes > UINT32_MAX) {
          // It stays on the medium; a larger index finds it at the next start.
          counters_.full_refusals++;
          if (fresh) catalogue_.index().erase(*fresh);
          continue;
        }
        handle = *fresh;
        Record& record = catalogue_[handle];
        record.bytes = static_cast<uint32_t>(r.bytes);
        record.recovered = 1;
        record.take_note(r.note);
        record.moved_ms = static_cast<uint32_t>(clock_.now_ns() / 1000000) - config_.knobs.hysteresis_ms;
      }
      catalogue_.insert_copy(handle, id, r.extent, clock_.now_ns(), false);
    }
  }
}

void Engine::tier_down(TierId tier, uint64_t now_ns) {
  if (!usable_[tier]) return;
  usable_[tier] = false;
  Health& health = health_[tier];
  health.down = true;
  const uint64_t wait_ms = uint64_t{config_.knobs.retry_ms} << std::min(health.attempts, 6u);
  health.retry_ns = now_ns + wait_ms * 1000000;
  health.attempts++;
  counters_.tier_failures++;
  mover_.tier_failed(tier);
}

void Engine::check_tiers(uint64_t now_ns) {
  for (TierId id = 0; id < catalogue_.tiers(); id++) {
    Health& health = health_[id];
    if (!usable_[id]) continue;
    if (!catalogue_.tier(id).in_service() || mover_.failures_in_a_row(id) >= config_.knobs.failures) {
      tier_down(id, now_ns);
      continue;
    }
    if (health.attempts > 0 && now_ns > health.retry_ns + kSettledNs) health.attempts = 0;
    std::vector<Planned> plan;
    try {
      planner_.relieve(id, mover_.leaving_bytes(id), now_ns, plan);
    } catch (const std::bad_alloc&) {
      continue;  // at the next look
    }
    mover_.carry_out(plan, MoveClass::kWriteBack);
  }
}

Status Engine::bring_back(Lock& lock, TierId tier, bool asked) {
  Health& health = health_[tier];
  if (health.trying) return status_of(Code::kBusy, [] { return "an attempt is under way"; });
  health.trying = true;
  lock.unlock();
  Status status = no_memory();
  try {
    status = catalogue_.tier(tier).come_back();
  } catch (const std::bad_alloc&) {
    // As any other attempt that failed.
  }
  lock.lock();
  health.trying = false;
  const uint64_t now = clock_.now_ns();
  if (!asked && health.withdrawn) return status;
  if (status.is_ok()) {
    health.down = false;
    health.withdrawn = false;
    health.retry_ns = now;
    mover_.forgive(tier);
    if (!usable_[tier]) counters_.tier_returns++;
    usable_[tier] = true;
  } else {
    const uint64_t wait_ms = uint64_t{config_.knobs.retry_ms} << std::min(health.attempts, 6u);
    health.retry_ns = now + wait_ms * 1000000;
    health.attempts++;
  }
  return status;
}

void Engine::try_failed_tiers(Lock& lock) {
  for (TierId id = 0; id < catalogue_.tiers(); id++) {
    const Health& health = health_[id];
    // What comes of it is in the tier's status; the next attempt follows by itself.
    if (health.down && !health.withdrawn && !health.trying && clock_.now_ns() >= health.retry_ns)
      (void)bring_back(lock, id, false);
  }
}

Status Engine::set_in_service(const std::string& tier, bool in_service) {
  return without_throwing([&] { return put_in_service(tier, in_service); });
}

Status Engine::put_in_service(const std::string& tier, bool in_service) {
  const Result<TierId> id = tier_by_name(tier);
  if (!id) return id.status();
  Lock lock(mutex_);
  if (in_service) return bring_back(lock, *id, true);
  tier_down(*id, clock_.now_ns());
  health_[*id].withdrawn = true;
  mover_.step();
  // Nothing new begins there; what is under way has an end: a chunk's time, a copy's time.
  while (mover_.in_use(*id) && health_[*id].withdrawn) {
    lock.unlock();
    mover_.wake();
    if (!config_.thread) step();
    std::this_thread::sleep_for(kLook);
    lock.lock();
  }
  if (!health_[*id].withdrawn)
    return status_of(Code::kCancelled, [] { return "the tier was put back into service meanwhile"; });
  if (const size_t held = pins_.pins_at(*id); held > 0)
    return status_of(Code::kBusy, [&] {
      return fmt::format("tier {} is out of service, but {} pins hold objects in its memory; ask again when they ended",
                         tier, held);
    });
  return {};
}

EngineStatus Engine::status() const {
  EngineStatus s;
  // Before the lock: it asks the kernel.
  std::array<std::vector<NodeBytes>, kMaxTiers> nodes;
  for (TierId id = 0; id < catalogue_.tiers(); id++) nodes[id] = catalogue_.tier(id).nodes();
  std::lock_guard lock(mutex_);
  const auto name = [&](TierId id) { return id == kHost ? std::string("host") : catalogue_.info(id).name; };
  const auto add_link = [&](TierId from, TierId to) {
    const Link& link = links_.at(from, to);
    if (!link.measured() && link.transfers == 0) return;
    s.links.push_back(
        {name(from), name(to), link.latency_ns(), link.bytes_per_s(), link.queued_bytes(), link.transfers, link.bytes});
  };
  for (TierId id = 0; id < catalogue_.tiers(); id++) {
    TierStatus t;
    t.info = catalogue_.info(id);
    t.usage = catalogue_.tier(id).usage();
    t.objects = catalogue_.residents(id);
    t.policy = catalogue_.setup(id).policy;
    t.in_service = usable_[id];
    t.nodes = std::move(nodes[id]);
    const Link &read = links_.at(id, kHost), &write = links_.at(kHost, id);
    t.read_bytes_per_s = read.bytes_per_s();
    t.write_bytes_per_s = write.bytes_per_s();
    t.read_latency_ns = read.latency_ns();
    t.write_latency_ns = write.latency_ns();
    t.waited = read.waited;
    t.took = read.took;
    s.tiers.push_back(std::move(t));
    add_link(id, kHost);
    add_link(kHost, id);
    for (TierId to = 0; to < catalogue_.tiers(); to++) {
      if (to != id) add_link(id, to);
    }
  }
  s.objects = catalogue_.objects();
  s.remembered = catalogue_.remembered();
  s.max_objects = catalogue_.index().max_objects();
  s.overhead_bytes_per_object = catalogue_.bytes_per_object();
  s.sessions = pins_.sessions();
  s.pins = pins_.pins();
  s.jobs = mover_.jobs();
  for (size_t i = 0; i < kMoveClasses; i++) s.queued[i] = mover_.queued(static_cast<MoveClass>(i));
  s.lookups = lookups_.read();
  s.counters = counters_;
  return s;
}

}  // namespace neotier::engine

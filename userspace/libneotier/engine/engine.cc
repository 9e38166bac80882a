// SPDX-License-Identifier: Apache-2.0
// What callers ask for. How tiers are measured, recovered and watched is in engine_tiers.cc.
#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <stdexcept>

#include "util/random_number.h"

namespace neotier::engine {

namespace {

constexpr uint64_t kCheckNs = 50000000;
constexpr uint64_t kNoMemoryNs = 1000000;  // until it is tried again
constexpr uint64_t kStepNs = 50000;        // between a caller's steps where there is no thread
// What a call on many does before others may pass: some hundred microseconds' worth. A pass costs as much, where
// somebody waits.
constexpr size_t kMovesAtOnce = 128, kLooksAtOnce = 2048, kReadsAtOnce = 64;

const EngineConfig& checked(const EngineConfig& config, const std::vector<TierSetup>& tiers) {
  if (config.max_objects < 1 || config.max_objects >= UINT32_MAX)
    throw std::runtime_error(fmt::format("max_objects {} is not in 1 .. {}", config.max_objects, UINT32_MAX - 1));
  if (tiers.empty() || tiers.size() > kMaxTiers)
    throw std::runtime_error(fmt::format("{} tiers: an engine has 1 .. {}", tiers.size(), kMaxTiers));
  const Knobs& knobs = config.knobs;
  if (!(knobs.low_watermark > 0 && knobs.low_watermark <= knobs.high_watermark && knobs.high_watermark <= 1))
    throw std::runtime_error(
        fmt::format("watermarks {} and {}: expected 0 < low <= high <= 1", knobs.low_watermark, knobs.high_watermark));
  if (!(knobs.background_share > 0 && knobs.background_share <= 1))
    throw std::runtime_error(fmt::format("background_share {} is not in 0 .. 1", knobs.background_share));
  if (knobs.chunk_bytes < 4096 || knobs.chunk_bytes > (1u << 30))
    throw std::runtime_error(fmt::format("chunk_bytes {} is not in 4096 .. 1 GiB", knobs.chunk_bytes));
  for (size_t i = 0; i < tiers.size(); i++) {
    if (!tiers[i].tier) throw std::runtime_error("a tier is missing");
    for (size_t k = 0; k < i; k++) {
      if (tiers[k].tier->info().name == tiers[i].tier->info().name)
        throw std::runtime_error(fmt::format("two tiers are called '{}'", tiers[i].tier->info().name));
    }
  }
  return config;
}

uint64_t seed_of(uint64_t seed) { return seed ? seed : random_number(); }

Status not_found() { return Status(Code::kNotFound, "no such object"); }

bool within(const Record& record, uint64_t offset, std::span<const std::byte> into) {
  return offset <= record.bytes && into.size() <= record.bytes - offset && (into.empty() || into.data());
}

Status beyond(const Record& record, uint64_t offset, std::span<const std::byte> into) {
  return status_of(Code::kInvalid, [&] {
    return !into.empty() && !into.data()
               ? "where to is NULL"
               : fmt::format("{} bytes from byte {} of an object of {}", into.size(), offset, record.bytes);
  });
}

}  // namespace

Engine::Engine(EngineConfig config, std::vector<TierSetup> tiers)
    : config_(checked(config, tiers)),
      clock_(config.clock ? *config.clock : steady_),
      catalogue_(config.max_objects, std::move(tiers), seed_of(config.seed), config.events, config.history),
      links_(catalogue_.tiers()),
      planner_(catalogue_, links_, usable_, counters_, config_.knobs),
      mover_(catalogue_, links_, planner_, usable_, counters_, clock_, config_.knobs),
      pins_(catalogue_, counters_) {
  recover();
  for (TierId id = 0; id < catalogue_.tiers(); id++) {
    usable_[id] = catalogue_.tier(id).in_service();
    health_[id].down = !usable_[id];
  }
  if (config_.measure) measure();
  if (config_.thread) thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  stop_ = true;
  mover_.wake();
  if (thread_.joinable()) thread_.join();
  std::lock_guard lock(mutex_);
  mover_.shut_down();
}

void Engine::run() {
  Lock lock(mutex_);
  while (!stop_) {
    uint64_t wake = clock_.now_ns() + kNoMemoryNs;
    try {
      wake = step_locked();
      try_failed_tiers(lock);
    } catch (const std::bad_alloc&) {
      // Nobody called this thread, and what did not find memory was left as it was: it is tried again.
    }
    lock.unlock();
    const uint64_t now = clock_.now_ns();
    if (wake > now) mover_.wait_ns(wake - now);
    lock.lock();
  }
}

uint64_t Engine::step() {
  Lock lock(mutex_);
  const uint64_t wake = step_locked();
  try_failed_tiers(lock);
  return wake;
}

uint64_t Engine::step_locked() {
  const uint64_t now = clock_.now_ns();
  pins_.expire(now);
  if (now >= checked_ns_ + kCheckNs) {
    checked_ns_ = now;
    check_tiers(now);
  }
  const uint64_t wake = mover_.step();
  return std::min({wake, pins_.next_expiry_ns(), checked_ns_ + kCheckNs});
}

Status Engine::await(const Ticket& ticket) {
  if (config_.thread) return ticket.wait();
  for (;;) {
    step();
    if (ticket.progress().pending == 0) return ticket.wait();
    mover_.wait_ns(kStepNs);
  }
}

SessionId Engine::open_session() {
  std::lock_guard lock(mutex_);
  return pins_.open_session();
}

void Engine::close_session(SessionId session) {
  std::lock_guard lock(mutex_);
  while (!pins_.close_session(session, kMovesAtOnce)) mutex_.pass();
}

Result<TierId> Engine::tier_by_name(const std::string& name) const {
  const TierId id = catalogue_.find_tier(name);
  if (id != kNoTier) return id;
  std::string known;
  for (TierId i = 0; i < catalogue_.tiers(); i++) known += (i ? ", " : "") + catalogue_.info(i).name;
  return Status(Code::kInvalid, fmt::format("no tier '{}'; there are: {}", name, known));
}

Result<TierId> Engine::readable(const Record& record) const {
  for (int i = 0; i < 2; i++) {
    if (record.tier(i) != kNoTier && usable_[record.tier(i)]) return record.tier(i);
  }
  return Status(Code::kGone, fmt::format("tier {} is out of service; the object may come back with it",
                                         catalogue_.info(record.tier(0)).name));
}

bool Engine::make_index_room() {
  Handle named[16];
  for (TierId id = static_cast<TierId>(catalogue_.tiers()); id-- > 0;) {
    const uint32_t found = catalogue_.victims(id, 0, 16, named, clock_.now_ns(), false);
    bool any = false;
    for (uint32_t i = 0; i < found; i++) {
      const Record& record = catalogue_[named[i]];
      if (!record.may_go() || record.in_flight || record.pins > 0) continue;
      if (record.has_place()) {
        mover_.drop_place(named[i], NEOTIER_EVICTED);
      } else {
        mover_.drop_all(named[i], NEOTIER_EVICTED);
      }
      catalogue_.forget(named[i]);
      counters_.discards++;
      any = true;
    }
    if (any) return true;
  }
  return false;
}

Result<Handle> Engine::claim(Lock& lock, const Key& key, const PutOptions& options, uint32_t bytes, bool wait) {
  for (;;) {
    const Handle handle = catalogue_.index().find(key);
    if (handle == kNoHandle || (!catalogue_[handle].has_copy() && !mover_.busy(handle))) {
      Result<Handle> fresh = catalogue_.known(key);
      if (!fresh && fresh.status().code() == Code::kFull && make_index_room()) continue;
      if (!fresh) return fresh;
      catalogue_.claim(*fresh);
      Record& record = catalogue_[*fresh];
      record.bytes = bytes;
      record.take_note(
          encode_note(options.kind, encode_cost(options.recompute_ns), options.discard || config_.discard));
      record.moved_ms = static_cast<uint32_t>(clock_.now_ns() / 1000000) - config_.knobs.hysteresis_ms;
      return fresh;
    }
    if (!options.replace) return Status(Code::kExists, "an object of this key is there already; ask for replacing it");
    if (catalogue_[handle].pins > 0) return Status(Code::kBusy, "the object is pinned; unpin it, or let the lease end");
    if (!mover_.busy(handle)) return handle;
    if (!wait && mover_.held(handle)) return Status(Code::kBusy, "the object is being written");
    mover_.make_stale(handle);
    if (!mover_.busy(handle)) continue;
    // Its chunks that are at a tier come back first: one chunk's time.
    lock.unlock();
    mover_.wake();
    if (!config_.thread) step();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    lock.lock();
  }
}

Status Engine::put(const Key& key, std::span<const std::byte> data, const PutOptions& options) {
  if (data.empty() || data.size() > UINT32_MAX || !data.data())
    return Status(Code::kInvalid, fmt::format("{} bytes: an object has 1 .. {}", data.size(), UINT32_MAX));
  if (options.kind < ObjectKind::kKv || options.kind > ObjectKind::kPlain)
    return Status(Code::kInvalid, "no such kind of object");
  return without_throwing([&]() -> Status {
    std::optional<uint32_t> takers;
    if (!options.tier.empty()) {
      const Result<TierId> asked = tier_by_name(options.tier);
      return asked ? put_to(key, data, options, *asked, takers) : asked.status();
    }
    Status first = put_to(key, data, options, kNoTier, takers);
    if (first.code() != Code::kFull && first.code() != Code::kGone && first.code() != Code::kIo) return first;
    // Where the first tier cannot make room, or fails and was not found out yet, a slower one will do.
    for (TierId id = 1; id < catalogue_.tiers(); id++) {
      if (put_to(key, data, options, id, takers)) return {};
    }
    return first;
  });
}

Status Engine::put_to(const Key& key, std::span<const std::byte> data, const PutOptions& options, TierId to,
                      std::optional<uint32_t>& takers) {
  // Whatever may throw comes before the object is held: nobody would let it go.
  const auto ticket = std::make_shared<Ticket>();
  Lock lock(mutex_);
  const auto bytes = static_cast<uint32_t>(data.size());
  const Result<Handle> claimed = claim(lock, key, options, bytes);
  if (!claimed) return claimed.status();
  const Handle handle = *claimed;
  const bool asked = to != kNoTier;
  if (!takers) takers = options.used ? catalogue_.use_alone(handle, clock_.now_ns()) : UINT32_MAX;
  // What a caller puts is kept, even where no policy wants it.
  if (!asked) to = planner_.first_tier(bytes, *takers);
  const auto refuse = [&](Status status) {
    if (!catalogue_[handle].has_copy()) catalogue_.forget(handle);
    return status;
  };
  if (to == kNoTier || !usable_[to])
    return refuse(status_of(Code::kGone, [&] {
      return asked ? fmt::format("tier {} is out of service", catalogue_.info(to).name)
                   : "no tier in service is large enough for the object";
    }));
  const Version version{bytes, options.kind, options.recompute_ns, options.discard || config_.discard};
  if (!mover_.hold(handle)) return refuse(no_memory());
  const Extent extent = mover_.reserve(handle, version, to);
  std::byte* room = extent == kNoExtent ? nullptr : catalogue_.tier(to).map(extent);
  Status status;
  if (room) {
    mover_.begin_write(to);
    lock.unlock();
    std::memcpy(room, data.data(), data.size());
    lock.lock();
    mover_.end_write(to);
    if (usable_[to]) {
      mover_.put_in_place(handle, version, to, extent);
    } else {
      mover_.retire(to, extent, bytes);
      status =
          status_of(Code::kGone, [&] { return fmt::format("tier {} went out of service", catalogue_.info(to).name); });
    }
    mover_.let_go(handle);
  } else {
    if (extent != kNoExtent) mover_.retire(to, extent, bytes);
    mover_.put(handle, version, to, data.data(), ticket);
    mover_.step();
    lock.unlock();
    status = await(*ticket);
    lock.lock();
  }
  if (!status.is_ok()) return status;
  if (const Handle there = catalogue_.find(key); there != kNoHandle) {
    stored(there);
  } else {
    counters_.puts++;
  }
  return status;
}

void Engine::after_use(Handle handle, uint64_t now_ns) {
  counters_.hits++;
  catalogue_.count_use(handle, now_ns);
  (void)catalogue_.use_alone(handle, now_ns);
  std::vector<Planned> plan;
  plan_promotion(handle, now_ns, plan);
  if (!plan.empty()) mover_.carry_out(plan, MoveClass::kPrefetch);
}

void Engine::plan_promotion(Handle handle, uint64_t now_ns, std::vector<Planned>& plan) {
  if (catalogue_[handle].tier(0) == 0) return;
  try {
    planner_.promote(handle, now_ns, plan);
  } catch (const std::bad_alloc&) {
    // Hot objects are used again.
  }
}

Status Engine::get(const Key& key, uint64_t offset, std::span<std::byte> into) {
  return without_throwing([&] { return read_now(key, offset, into); });
}

Status Engine::read_now(const Key& key, uint64_t offset, std::span<std::byte> into) {
  Lock lock(mutex_);
  const Handle handle = catalogue_.index().find(key);
  if (handle == kNoHandle || !catalogue_[handle].has_copy()) {
    counters_.misses++;
    return not_found();
  }
  const Record& record = catalogue_[handle];
  if (!within(record, offset, into)) return beyond(record, offset, into);
  const Result<TierId> from = readable(record);
  if (!from) return from.status();
  // No chunk would be sent for no bytes, so nothing would end the ticket.
  if (into.empty()) {
    after_use(handle, clock_.now_ns());
    return {};
  }
  const Extent extent = record.extent[record.tier(0) == *from ? 0 : 1];
  Status status;
  if (const std::byte* bytes = catalogue_.tier(*from).map(extent)) {
    const uint64_t begin = clock_.now_ns();
    mover_.begin_read(*from, extent);
    after_use(handle, begin);
    lock.unlock();
    std::memcpy(into.data(), bytes + offset, into.size());
    const uint64_t took = clock_.now_ns() - begin;
    lock.lock();
    mover_.end_read(*from, extent);
    links_.at(*from, kHost).took.add(took);
    return status;
  }
  const auto ticket = std::make_shared<Ticket>();
  mover_.read(handle, offset, into.data(), into.size(), ticket);
  after_use(handle, clock_.now_ns());
  mover_.step();
  lock.unlock();
  status = await(*ticket);
  if (status.code() != Code::kCorrupt) return status;
  // What may go is not kept to fail again.
  lock.lock();
  const Handle now = catalogue_.index().find(key);
  if (now != handle || mover_.busy(now) || !catalogue_[now].may_go() || catalogue_[now].pins > 0 ||
      catalogue_[now].tier(1) != kNoTier)
    return status;
  mover_.drop_all(now, NEOTIER_REMOVED);
  catalogue_.forget(now);
  counters_.discards++;
  return status;
}

void Engine::get_async(const Key& key, uint64_t offset, std::span<std::byte> into, const TicketRef& ticket, bool used) {
  const auto answer = [&](const Status& status) {
    ticket->expect();
    ticket->end(status);
  };
  Lock lock(mutex_);
  const Handle handle = catalogue_.index().find(key);
  if (handle == kNoHandle || !catalogue_[handle].has_copy()) {
    counters_.misses++;
    return answer(not_found());
  }
  const Record& record = catalogue_[handle];
  if (!within(record, offset, into)) return answer(beyond(record, offset, into));
  if (into.empty()) {
    answer(Status::ok());
  } else {
    mover_.read(handle, offset, into.data(), into.size(), ticket);
  }
  if (used) after_use(handle, clock_.now_ns());
  mover_.wake();
}

void Engine::read_mapped(std::span<const Key> keys,
                         const std::function<void(size_t index, const std::byte* bytes)>& read,
                         std::vector<bool>& done) {
  struct Held {
    size_t index;
    TierId tier;
    Extent extent;
    const std::byte* bytes;
  };
  std::vector<Held> held;
  for (size_t from = 0; from < keys.size(); from += kReadsAtOnce) {
    held.clear();
    held.reserve(kReadsAtOnce);
    {
      std::lock_guard lock(mutex_);
      for (size_t i = from; i < std::min(keys.size(), from + kReadsAtOnce); i++) {
        const Handle handle = catalogue_.find(keys[i]);
        if (handle == kNoHandle) continue;
        const Record& record = catalogue_[handle];
        const Result<TierId> at = readable(record);
        if (!at) continue;
        const Extent extent = record.extent[record.tier(0) == *at ? 0 : 1];
        const std::byte* const bytes = catalogue_.tier(*at).map(extent);
        if (!bytes) continue;
        try {
          mover_.begin_read(*at, extent);
        } catch (const std::bad_alloc&) {
          break;
        }
        held.push_back({i, *at, extent, bytes});
      }
    }
    const uint64_t begin = clock_.now_ns();
    for (const Held& one : held) {
      read(one.index, one.bytes);
      done[one.index] = true;
    }
    const uint64_t each = held.empty() ? 0 : (clock_.now_ns() - begin) / held.size();
    std::lock_guard lock(mutex_);
    for (const Held& one : held) {
      mover_.end_read(one.tier, one.extent);
      links_.at(one.tier, kHost).took.add(each);
    }
  }
}

Result<ObjectInfo> Engine::lookup(const Key& key) const {
  return without_throwing([&] { return look_up(key); });
}

Result<ObjectInfo> Engine::look_up(const Key& key) const {
  std::lock_guard lock(mutex_);
  const Handle handle = catalogue_.index().find(key);
  if (handle == kNoHandle || !catalogue_[handle].has_copy()) return not_found();
  const Record& record = catalogue_[handle];
  ObjectInfo info;
  info.kind = static_cast<ObjectKind>(record.kind);
  info.bytes = record.bytes;
  info.recompute_ns = decode_cost(record.recompute);
  info.tier = catalogue_.info(record.tier(0)).name;
  if (record.tier(1) != kNoTier) info.second_tier = catalogue_.info(record.tier(1)).name;
  info.pins = record.pins;
  info.moving = record.in_flight;
  info.recovered = record.recovered;
  return info;
}

template <typename Each>
size_t Engine::leading(std::span<const Key> keys, Each each) const {
  size_t found = 0;
  for (const Key& key : keys) {
    const std::array<TierId, 2> copies = catalogue_.index().copies(key);
    const auto at =
        std::find_if(copies.begin(), copies.end(), [this](TierId id) { return id != kNoTier && usable_[id]; });
    if (at == copies.end()) break;
    each(*at);
    found++;
  }
  return found;
}

size_t Engine::lookup_prefix(std::span<const Key> keys) const {
  const uint64_t begin = clock_.now_ns();
  const size_t found = leading(keys, [](TierId) {});
  lookups_.add(clock_.now_ns() - begin);
  return found;
}

bool Engine::has(const Key& key) const { return catalogue_.index().copies(key)[0] != kNoTier; }

size_t Engine::find(std::span<const Key> keys) {
  TierId shared = kNoTier;
  for (TierId id = 0; id < catalogue_.tiers(); id++) {
    if (catalogue_.info(id).shared) shared = id;
  }
  if (shared == kNoTier || config_.knobs.find_ms == 0) return 0;
  std::vector<Found> found;
  size_t taken = 0;
  try {
    std::vector<Key> unknown;
    std::copy_if(keys.begin(), keys.end(), std::back_inserter(unknown), [this](const Key& key) { return !has(key); });
    // Where all are here nobody is waited for.
    if (unknown.empty()) return 0;
    {
      std::lock_guard lock(mutex_);
      if (!usable_[shared]) return 0;
      std::erase_if(unknown, [this](const Key& key) {
        const Handle handle = catalogue_.index().find(key);
        return handle != kNoHandle && (catalogue_[handle].has_copy() || mover_.busy(handle));
      });
    }
    if (unknown.empty()) return 0;
    found = catalogue_.tier(shared).find(unknown, config_.knobs.find_ms);
  } catch (const std::bad_alloc&) {
    return 0;
  }
  std::lock_guard lock(mutex_);
  for (const Found& one : found) {
    bool kept = false;
    try {
      kept = usable_[shared] && take_found(shared, one);
    } catch (const std::bad_alloc&) {
      // It is found again another time.
    }
    if (kept) {
      taken++;
    } else {
      catalogue_.tier(shared).free(one.extent);
    }
  }
  counters_.found_copies += taken;
  return taken;
}

bool Engine::take_found(TierId id, const Found& found) {
  const Handle there = catalogue_.index().find(found.key);
  if (there != kNoHandle && (catalogue_[there].has_copy() || mover_.busy(there))) return false;
  Result<Handle> fresh = catalogue_.known(found.key);
  if (!fresh && make_index_room()) fresh = catalogue_.known(found.key);
  if (!fresh) return false;
  catalogue_.claim(*fresh);
  Record& record = catalogue_[*fresh];
  record.bytes = static_cast<uint32_t>(found.bytes);
  record.recovered = 1;
  // Others may delete it at any time: it is nothing that this process must keep.
  record.take_note(encode_note(ObjectKind::kPlain, 0, /*discard=*/true));
  record.moved_ms = static_cast<uint32_t>(clock_.now_ns() / 1000000) - config_.knobs.hysteresis_ms;
  catalogue_.insert_copy(*fresh, id, found.extent, clock_.now_ns(), false);
  return true;
}

size_t Engine::read_sources(std::span<const Key> keys, std::vector<TierId>& from,
                            std::array<ReadPrice, kMaxTiers>& prices) const {
  from.clear();
  from.reserve(keys.size());
  const size_t found = leading(keys, [&](TierId at) { from.push_back(at); });
  std::lock_guard lock(mutex_);
  for (TierId id = 0; id < catalogue_.tiers(); id++) {
    const Link& link = links_.at(id, kHost);
    const uint64_t wait = link.predict_batch_ns(0);
    const TierKind kind = catalogue_.info(id).kind;
    constexpr uint64_t kMany = 1 << 30;
    prices[id] = {kind == TierKind::kDram || kind == TierKind::kCxl, wait,
                  static_cast<double>(link.predict_batch_ns(kMany) - wait) / kMany};
  }
  return found;
}

Status Engine::remove(const Key& key, bool wait) {
  return without_throwing([&] { return remove_now(key, wait); });
}

Status Engine::remove_now(const Key& key, bool wait) {
  Lock lock(mutex_);
  if (const Handle there = catalogue_.index().find(key);
      there == kNoHandle || (!catalogue_[there].has_copy() && !mover_.busy(there)))
    return not_found();
  PutOptions replace;
  replace.replace = true;
  const Result<Handle> claimed = claim(lock, key, replace, 1, wait);
  if (!claimed) return claimed.status();
  const bool there = catalogue_[*claimed].has_copy();
  mover_.drop_all(*claimed, NEOTIER_REMOVED);
  catalogue_.forget(*claimed);
  if (!there) return not_found();
  counters_.removes++;
  return {};
}

Status Engine::describe(const Key& key, ObjectKind kind, uint64_t recompute_ns) {
  if (kind < ObjectKind::kKv || kind > ObjectKind::kPlain) return Status(Code::kInvalid, "no such kind of object");
  std::lock_guard lock(mutex_);
  const Handle handle = catalogue_.index().find(key);
  if (handle == kNoHandle || (!catalogue_[handle].has_copy() && !mover_.busy(handle))) return not_found();
  Record& record = catalogue_[handle];
  const Note note = encode_note(kind, encode_cost(recompute_ns), record.discard);
  record.take_note(note);
  record.recovered = 0;
  for (int i = 0; i < 2; i++) {
    if (record.tier(i) != kNoTier) catalogue_.tier(record.tier(i)).describe(record.extent[i], note);
  }
  return {};
}

Status Engine::touch(const Key& key) {
  std::lock_guard lock(mutex_);
  const Handle handle = catalogue_.index().find(key);
  if (handle == kNoHandle || !catalogue_[handle].has_copy()) {
    counters_.misses++;
    return not_found();
  }
  after_use(handle, clock_.now_ns());
  return {};
}

Result<PinResult> Engine::pin(SessionId session, const Key& key, uint64_t lease_ms, bool used) {
  return without_throwing([&] { return pin_now(session, key, lease_ms, used); });
}

Result<PinResult> Engine::pin_now(SessionId session, const Key& key, uint64_t lease_ms, bool used) {
  std::lock_guard lock(mutex_);
  const Handle handle = catalogue_.index().find(key);
  if (handle == kNoHandle || !catalogue_[handle].has_copy()) return not_found();
  const Record& record = catalogue_[handle];
  const Result<TierId> at = readable(record);
  if (!at) return at.status();
  if (!mover_.yields_to_pin(handle)) return Status(Code::kBusy, "the object is being replaced; try again");
  const Result<PinId> pin =
      pins_.pin(session, handle, *at, std::min<uint64_t>(lease_ms, UINT64_MAX / 2000000) * 1000000, clock_.now_ns());
  if (!pin) return pin.status();
  if (used) after_use(handle, clock_.now_ns());
  mover_.wake();
  Tier& tier = catalogue_.tier(*at);
  const Extent extent = record.extent[record.tier(0) == *at ? 0 : 1];
  const std::byte* const data = tier.map(extent);
  return PinResult{*pin, data, data ? nullptr : tier.address(extent), record.bytes};
}

Status Engine::unpin(SessionId session, PinId pin) {
  std::lock_guard lock(mutex_);
  return without_throwing([&] { return pins_.unpin(session, pin); });
}

std::vector<std::span<std::byte>> Engine::ranges(TierKind kind) {
  std::vector<std::span<std::byte>> all;
  for (TierId id = 0; id < catalogue_.tiers(); id++) {
    if (catalogue_.info(id).kind != kind) continue;
    if (const std::span<std::byte> range = catalogue_.tier(id).range(); !range.empty()) all.push_back(range);
  }
  return all;
}

TicketRef Engine::move(std::span<const Key> keys, const std::string& tier, MoveClass cls) {
  auto ticket = std::make_shared<Ticket>();
  const Result<TierId> to = tier_by_name(tier);
  Lock lock(mutex_);
  for (size_t i = 0; i < keys.size(); i++) {
    if (i % kMovesAtOnce == kMovesAtOnce - 1) {
      mover_.step();
      mutex_.pass();
    }
    const Handle handle = to ? catalogue_.index().find(keys[i]) : kNoHandle;
    if (handle == kNoHandle || !catalogue_[handle].has_copy()) {
      ticket->expect();
      ticket->end(to ? not_found() : to.status());
      continue;
    }
    const TierId at = catalogue_[handle].tier(0);
    const Reason reason = *to > at ? Reason::kDemotion : cls == MoveClass::kDemand ? Reason::kAsked : Reason::kPrefetch;
    // A copy on a durable tier stays: leaving again then costs nothing. On a shared one others may find it.
    const bool keep = catalogue_.info(at).durable || catalogue_.info(at).shared;
    mover_.move(handle, *to, cls, reason, *to < at && keep, ticket);
  }
  mover_.step();
  return ticket;
}

TicketRef Engine::write_back(std::span<const Key> keys) {
  auto ticket = std::make_shared<Ticket>();
  Lock lock(mutex_);
  for (size_t i = 0; i < keys.size(); i++) {
    if (i % kMovesAtOnce == kMovesAtOnce - 1) {
      mover_.step();
      mutex_.pass();
    }
    const TierId to = planner_.first_durable();
    const Handle handle = catalogue_.index().find(keys[i]);
    if (handle == kNoHandle || to == kNoTier) {
      ticket->expect();
      ticket->end(to == kNoTier
                      ? status_of(Code::kUnsupported, [] { return "no durable or shared tier is in service"; })
                      : not_found());
      continue;
    }
    mover_.move(handle, to, MoveClass::kWriteBack, Reason::kWriteBack, true, ticket);
  }
  mover_.step();
  return ticket;
}

void Engine::cancel(std::span<const TicketRef> tickets) {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < tickets.size(); i++) {
    if (i % kLooksAtOnce == kLooksAtOnce - 1) mutex_.pass();
    mover_.cancel(*tickets[i]);
  }
  mover_.wake();
}

Status Engine::flush() {
  return without_throwing([&] {
    const auto ticket = std::make_shared<Ticket>();
    {
      std::lock_guard lock(mutex_);
      for (TierId id = 0; id < catalogue_.tiers(); id++) {
        if (catalogue_.info(id).durable && usable_[id]) mover_.flush(id, ticket);
      }
      mover_.step();
    }
    return await(*ticket);
  });
}

uint64_t Engine::take_events(EventCursor& reader, size_t max, std::vector<ObjectEvent>& out) {
  std::lock_guard lock(mutex_);
  return catalogue_.events().take(reader, max, out);
}

Result<Decision> Engine::decide(const Key& key, const std::string& tier, uint64_t compute_queue_ns, uint64_t cpu_ns) {
  return without_throwing([&]() -> Result<Decision> {
    TierId to = kHost;
    if (!tier.empty()) {
      const Result<TierId> named = tier_by_name(tier);
      if (!named) return named.status();
      to = *named;
    }
    std::lock_guard lock(mutex_);
    const Handle handle = catalogue_.index().find(key);
    if (handle == kNoHandle || !catalogue_[handle].has_copy()) return not_found();
    return planner_.decide(handle, to, compute_queue_ns, cpu_ns);
  });
}

}  // namespace neotier::engine

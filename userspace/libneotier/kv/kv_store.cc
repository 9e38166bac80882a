// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace neotier::kv {

using engine::Code;
using engine::Key;
using engine::Result;
using engine::Status;

namespace {

// Beyond any deadline that a caller means.
constexpr uint64_t kLongestWaitMs = UINT64_MAX / 2000000;

// What a copy of takes some microseconds, as a job of the mover does.
constexpr uint64_t kInlineBytes = 16 << 10;

// Blocks at the end of an order that are read at once, where one was not enough.
constexpr size_t kTail = 8;

// Between two reads of a tier that is passed over.
constexpr uint64_t kTrialMs = 1000;

// Both coefficients are followed from a guess above 0: at first the later one counts for little where it is not known.
engine::TimeModel compute_guess(double block_ns, double position_ns) {
  const double block = std::max(block_ns, 1.0);
  return {block, position_ns > 0 ? position_ns : block * 1e-4, 200000};
}

BlockLayout layout_of(const StoreOptions& options) {
  if (options.piece_bytes.empty()) {
    if (!options.layer_pieces.empty()) throw std::runtime_error("layer_pieces without piece_bytes");
    return BlockLayout(options.layers, options.layer_bytes);
  }
  if (options.layer_bytes != 0) throw std::runtime_error("layer_bytes and piece_bytes: give one of them");
  return BlockLayout(options.layers, options.piece_bytes, options.layer_pieces);
}

Status in_a_queue() { return Status(Code::kExists, "the load has its place in a queue already"); }

Status no_session() { return Status(Code::kNotFound, "no such session; open one, it may have expired"); }

}  // namespace

size_t KvStore::KeyHash::operator()(const Key& key) const {
  // Keys are hashes already.
  size_t hash;
  std::memcpy(&hash, key.bytes, sizeof hash);
  return hash;
}

KvStore::KvStore(engine::Engine& engine, const StoreOptions& options)
    : engine_(engine),
      options_(options),
      layout_(layout_of(options)),
      clock_(options.clock ? *options.clock : steady_),
      events_(options.events) {
  if (options_.store_after == 0 || options_.write_after == 0)
    throw std::runtime_error("store_after and write_after count from 1");
  for (const engine::TierStatus& tier : engine_.status().tiers) {
    tier_names_.push_back(tier.info.name);
    durable_ |= tier.info.durable || tier.info.shared;
  }
  bypassed_of_tier_.resize(tier_names_.size());
  tried_ms_.resize(tier_names_.size());
  if (options_.recompute_ns > 0 || options_.recompute_per_position_ns > 0)
    models_.compute = compute_guess(static_cast<double>(options_.recompute_ns),
                                    static_cast<double>(options_.recompute_per_position_ns));
  if (const Status status = engine_.expect(block_bytes()); !status) throw std::runtime_error(status.what());
}

TenantId KvStore::tenant(const std::string& name, uint64_t quota_bytes) {
  std::lock_guard lock(tenants_mutex_);
  for (Tenant& tenant : tenants_) {
    if (tenant.name != name) continue;
    tenant.quota_bytes = quota_bytes;
    return tenant.id;
  }
  return tenants_.emplace_back(name, static_cast<TenantId>(tenants_.size()), quota_bytes).id;
}

std::vector<TenantStatus> KvStore::tenants() const {
  std::vector<TenantStatus> all;
  {
    std::lock_guard lock(tenants_mutex_);
    for (const Tenant& tenant : tenants_) all.push_back({tenant.name, tenant.quota_bytes, tenant.used_bytes, 0});
  }
  for (const Shard& shard : shards_) {
    std::lock_guard lock(shard.mutex);
    for (size_t i = 0; i < std::min(all.size(), shard.orders.size()); i++)
      all[i].blocks += shard.orders[i].held.size() + shard.orders[i].idle.size();
  }
  return all;
}

Result<SessionId> KvStore::open_session(TenantId tenant, uint64_t ttl_ms, bool remove_expired) {
  Tenant* owner = nullptr;
  {
    std::lock_guard lock(tenants_mutex_);
    if (tenant >= tenants_.size()) return Status(Code::kInvalid, "no such tenant; make it with tenant()");
    owner = &tenants_[tenant];
  }
  const SessionId id = next_session_++;
  const auto session = std::make_shared<Session>(id, *owner, ttl_ms, remove_expired, now_ms());
  const uint64_t deadline_ms = deadline_of(*session);
  Deadlines place;
  if (ttl_ms > 0) place.emplace(deadline_ms, id);
  {
    SessionShard& shard = shard_of(id);
    std::lock_guard lock(shard.mutex);
    shard.sessions.emplace(id, session);
  }
  // Where its deadline came first, who looks for what is over would find no session, and forget the deadline.
  if (ttl_ms > 0) put_back(place.extract(place.begin()), *session, deadline_ms);
  return id;
}

Status KvStore::close_session(SessionId session) {
  const Asking asking = find(session);
  if (!asking) return no_session();
  (void)tell(*asking);
  release(*asking, asking->held.size(), false);
  if (asking->ttl_ms > 0) {
    std::lock_guard lock(deadlines_mutex_);
    deadlines_.erase({asking->deadline_ms, session});
    note_earliest();
  }
  close(*asking);
  return {};
}

std::shared_ptr<KvStore::Session> KvStore::registered(SessionId session) {
  SessionShard& shard = shard_of(session);
  std::lock_guard lock(shard.mutex);
  const auto found = shard.sessions.find(session);
  return found == shard.sessions.end() ? nullptr : found->second;
}

KvStore::Asking KvStore::find(SessionId session) {
  Asking asking{registered(session), {}};
  if (!asking) return asking;
  asking.lock = std::unique_lock(asking->mutex);
  // Meanwhile it may have ended.
  if (asking->closed) return {};
  return asking;
}

void KvStore::close(Session& session) {
  session.closed = true;
  SessionShard& shard = shard_of(session.id);
  std::lock_guard lock(shard.mutex);
  shard.sessions.erase(session.id);
}

// The engine discards and recovers objects by itself; its events say what.
void KvStore::follow_engine(bool wait) {
  if (engine_.events_so_far() == followed_.load(std::memory_order_acquire)) return;
  std::unique_lock lock(follow_mutex_, std::defer_lock);
  if (wait) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return;
  }
  follow();
}

void KvStore::follow() {
  taken_.clear();
  const uint64_t lost = engine_.take_events(engine_events_, SIZE_MAX, taken_);
  // It may have been stored again since.
  const auto forget_gone = [&](Shard& shard, const Key& key) {
    if (!engine_.has(key)) forget(shard, key);
  };
  for (const engine::ObjectEvent& event : taken_) {
    if (event.kind != engine::EventKind::kForgotten) continue;
    Shard& shard = shard_of(event.key);
    std::lock_guard lock(shard.mutex);
    forget_gone(shard, event.key);
  }
  for (const engine::ObjectEvent& event : taken_) events_.push(event.key, event.kind, event.tier);
  lost_events_ += lost + (options_.events == 0 ? taken_.size() : 0);
  if (lost > 0) {
    for (Shard& shard : shards_) {
      std::lock_guard lock(shard.mutex);
      for (auto at = shard.entries.begin(); at != shard.entries.end();) forget_gone(shard, Key((at++)->first));
    }
  }
  followed_.store(engine_events_.next, std::memory_order_release);
}

KvStore::Shard& KvStore::shard_of(const Key& key) {
  static_assert(kShards == 32);
  // Not by the bits that choose a bucket in the shard.
  return shards_[KeyHash()(key) * 0x9e3779b97f4a7c15u >> 59];
}

void KvStore::forget(Shard& shard, const Key& key) {
  const auto found = shard.entries.find(key);
  if (found == shard.entries.end()) return;
  found->second.tenant->used_bytes -= block_bytes();
  order_of(shard, found->second).erase(found->second.order);
  shard.entries.erase(found);
}

uint64_t KvStore::cost_at(uint64_t position) const {
  uint64_t more = 0, cost = 0;
  if (__builtin_mul_overflow(options_.recompute_per_position_ns, position, &more) ||
      __builtin_add_overflow(options_.recompute_ns, more, &cost))
    return UINT64_MAX;
  return cost;
}

uint64_t KvStore::seen_cost_at(const Models& models, uint64_t position) const {
  if (!models.compute || models.compute->seen() == 0) return cost_at(position);
  return static_cast<uint64_t>(std::llround(models.compute->predict_ns(1, static_cast<double>(position))));
}

LoadPlan KvStore::make_plan(const Session& session, std::span<const Key> keys, uint32_t first_position,
                            const PlanOptions& options, std::vector<engine::TierId>& from) const {
  std::array<engine::ReadPrice, engine::kMaxTiers> prices;
  const size_t found = engine_.read_sources(keys, from, prices);
  const Models models = [&] {
    std::lock_guard lock(models_mutex_);
    return models_;
  }();
  std::array<PlanTier, engine::kMaxTiers> tiers;
  const bool small = layout_.largest_piece() <= kInlineBytes;
  for (size_t i = 0; i < tiers.size(); i++) {
    tiers[i] = small && prices[i].mapped
                   ? PlanTier{0, models.inlined.predict_ns(static_cast<double>(layout_.nr_pieces()),
                                                           static_cast<double>(block_bytes()))}
                   : PlanTier{static_cast<double>(prices[i].wait_ns),
                              prices[i].ns_per_byte * static_cast<double>(block_bytes())};
  }
  const Request& request = session.request;
  const bool told = !request.cost_ns.empty() && request.holds(keys, first_position);
  std::vector<uint64_t> rest(found + 1);
  uint64_t sum = options.after_ns;
  for (size_t i = keys.size(); i-- > 0;) {
    const uint64_t cost = told ? request.cost_ns[first_position - request.first_position + i]
                               : seen_cost_at(models, uint64_t{first_position} + i);
    if (i < found && cost == 0) sum = UINT64_MAX;
    if (sum != UINT64_MAX && __builtin_add_overflow(sum, cost, &sum)) sum = UINT64_MAX - 1;
    if (i <= found) rest[i] = sum;
  }
  if (found == keys.size()) rest[found] = options.after_ns;
  return plan_load({from.data(), found}, tiers, rest, layout_.layers(), options);
}

Result<LoadPlan> KvStore::plan(SessionId session, std::span<const Key> keys, const PlanOptions& options,
                               uint32_t first_position) {
  const Asking asking = find(session);
  if (!asking) return no_session();
  std::vector<engine::TierId> from;
  return make_plan(*asking, keys, first_position, options, from);
}

Status KvStore::computed(uint32_t first_position, uint32_t blocks, uint64_t ns) {
  if (blocks == 0 || ns == 0) return Status(Code::kInvalid, "computed: no blocks, or no time");
  const double n = blocks, positions = n * first_position + n * (n - 1) / 2, time = static_cast<double>(ns);
  std::lock_guard lock(models_mutex_);
  if (!models_.compute) models_.compute = compute_guess(time / n, 0);
  models_.compute->observe(n, positions, time);
  return {};
}

KvStore::Entry* KvStore::adopt(Shard& shard, const Key& key, Tenant& tenant, bool coming, bool& fresh) {
  if (const auto found = shard.entries.find(key); found != shard.entries.end()) return &found->second;
  if (!coming && !engine_.has(key)) return nullptr;
  if (shard.orders.size() <= tenant.id) shard.orders.resize(tenant.id + 1);
  std::list<Place> order(1, {key, 0});
  Entry& entry = shard.entries[key];
  entry.id = next_entry_.fetch_add(1, std::memory_order_relaxed);
  entry.tenant = &tenant;
  entry.order = order.begin();
  to_front(shard.orders[tenant.id].idle, order, entry.order, draw_ranks(1));
  tenant.used_bytes += block_bytes();
  fresh = true;
  return &entry;
}

void KvStore::enter(const Key& key, Tenant& tenant, uint64_t position, bool write_out) {
  bool fresh = false;
  {
    Shard& shard = shard_of(key);
    std::lock_guard lock(shard.mutex);
    Entry* const entry = adopt(shard, key, tenant, false, fresh);
    write_out = write_out && entry && due_out(*entry);
    if (write_out) entry->written = true;
  }
  if (fresh) describe_recovered(key, position);
  if (write_out) (void)engine_.write_back({&key, 1});
}

// A medium of an older version, and whoever stored without a cost, kept none: what has none never makes room.
void KvStore::describe_recovered(const Key& key, uint64_t position) {
  const Result<engine::ObjectInfo> info = engine_.lookup(key);
  const uint64_t cost = cost_at(position);
  if (info && info->recovered && info->recompute_ns == 0 && cost > 0)
    (void)engine_.describe(key, engine::ObjectKind::kKv, cost);
}

std::list<KvStore::Place>& KvStore::order_of(Shard& shard, const Entry& entry) {
  Orders& orders = shard.orders[entry.tenant->id];
  return entry.sessions > 0 ? orders.held : orders.idle;
}

// Who drew a higher rank may have come first: it is not overtaken.
void KvStore::to_front(std::list<Place>& to, std::list<Place>& from, std::list<Place>::iterator at, int64_t rank) {
  at->rank = to.empty() ? rank : std::max(rank, to.front().rank);
  to.splice(to.begin(), from, at);
}

void KvStore::use(Shard& shard, Entry& entry, int64_t rank) {
  entry.uses++;
  std::list<Place>& order = order_of(shard, entry);
  to_front(order, order, entry.order, rank);
}

void KvStore::change_holders(Shard& shard, Entry& entry, bool one_more, int64_t rank) {
  std::list<Place>& from = order_of(shard, entry);
  entry.sessions += one_more ? 1 : -1;
  std::list<Place>& to = order_of(shard, entry);
  if (&from != &to) to_front(to, from, entry.order, rank);
}

KvStore::Entry* KvStore::held(Shard& shard, const Held& held) {
  const auto found = shard.entries.find(held.key);
  return found == shard.entries.end() || found->second.id != held.entry ? nullptr : &found->second;
}

void KvStore::hold_all(Session& session, std::span<const Key> keys, bool enter) {
  // Behind what it holds so far, which is let go of last: whatever ends this early, it holds what it says.
  const size_t former = session.held.size();
  session.held.reserve(former + keys.size());
  const int64_t rank = draw_ranks(keys.size());
  // The first block of a prefix becomes the most recently used: without it the others are of no use.
  for (size_t i = keys.size(); i-- > 0;) {
    bool fresh = false;
    {
      Shard& shard = shard_of(keys[i]);
      std::lock_guard lock(shard.mutex);
      Entry* entry = nullptr;
      if (enter) {
        entry = adopt(shard, keys[i], session.tenant, false, fresh);
      } else if (const auto found = shard.entries.find(keys[i]); found != shard.entries.end()) {
        entry = &found->second;
      }
      if (!entry) continue;
      const auto mine = rank + static_cast<int64_t>(keys.size() - 1 - i);
      change_holders(shard, *entry, true, mine);
      use(shard, *entry, mine);
      session.held.push_back({keys[i], entry->id});
    }
    if (fresh) describe_recovered(keys[i], i);
  }
  release(session, former, false);
  session.used_ms = now_ms();
}

void KvStore::release(Session& session, size_t nr, bool expired) {
  const int64_t rank = draw_ranks(nr);
  for (size_t i = 0; i < nr; i++) {
    const Held& one = session.held[i];
    Shard& shard = shard_of(one.key);
    {
      std::lock_guard lock(shard.mutex);
      Entry* const entry = held(shard, one);
      if (!entry) continue;
      change_holders(shard, *entry, false, rank + static_cast<int64_t>(i));
      if (!expired || entry->sessions > 0) continue;
      if (!session.remove_expired) {
        std::list<Place>& order = order_of(shard, *entry);
        entry->order->rank = std::min(oldest_.fetch_sub(1, std::memory_order_relaxed) - 1, order.back().rank);
        order.splice(order.end(), order, entry->order);
        continue;
      }
    }
    if (!engine_.remove(one.key, /*wait=*/false)) continue;
    counters_.expired_blocks++;
    std::lock_guard lock(shard.mutex);
    const Entry* const entry = held(shard, one);
    if (entry && entry->sessions == 0 && !engine_.has(one.key)) forget(shard, one.key);
  }
  session.held.erase(session.held.begin(), session.held.begin() + static_cast<std::ptrdiff_t>(nr));
}

uint64_t KvStore::deadline_of(const Session& session) {
  return session.ttl_ms > UINT64_MAX - session.used_ms ? UINT64_MAX : session.used_ms + session.ttl_ms;
}

// A session that is used keeps its place among the deadlines: only when that comes is it looked at, and put behind.
void KvStore::expire() {
  const uint64_t now = now_ms();
  if (now < earliest_ms_.load(std::memory_order_acquire)) return;
  for (;;) {
    Deadlines::node_type place;
    {
      std::lock_guard lock(deadlines_mutex_);
      if (deadlines_.empty() || deadlines_.begin()->first > now) return;
      expiry_visits_++;
      place = deadlines_.extract(deadlines_.begin());
      note_earliest();
    }
    const std::shared_ptr<Session> session = registered(place.value().second);
    if (!session) continue;  // it could not be opened, or was closed meanwhile
    const std::unique_lock lock(session->mutex, std::try_to_lock);
    if (!lock) {
      // It is in use, so its time is not over.
      put_back(std::move(place), *session, now + 1);
      continue;
    }
    if (session->closed) continue;
    if (const uint64_t later = deadline_of(*session); later > now) {
      put_back(std::move(place), *session, later);
      continue;
    }
    (void)tell(*session);
    release(*session, session->held.size(), true);
    counters_.expired_sessions++;
    close(*session);
  }
}

void KvStore::put_back(Deadlines::node_type place, Session& session, uint64_t deadline_ms) {
  std::lock_guard lock(deadlines_mutex_);
  place.value().first = session.deadline_ms = deadline_ms;
  deadlines_.insert(std::move(place));
  note_earliest();
}

void KvStore::note_earliest() {
  earliest_ms_.store(deadlines_.empty() ? UINT64_MAX : deadlines_.begin()->first, std::memory_order_release);
}

void KvStore::tick() {
  follow_engine(true);
  expire();
}

bool KvStore::Request::holds(std::span<const Key> some, uint64_t position) const {
  if (keys.empty() || position < first_position || position - first_position > keys.size() ||
      some.size() > keys.size() - (position - first_position))
    return false;
  return std::equal(some.begin(), some.end(), keys.begin() + static_cast<std::ptrdiff_t>(position - first_position));
}

void KvStore::begin(Session& session, std::span<const Key> keys, uint32_t first_position, const RequestTraits& traits) {
  (void)tell(session);
  session.request = {};
  session.request.keys.assign(keys.begin(), keys.end());
  session.request.cost_ns.assign(traits.cost_ns.begin(), traits.cost_ns.end());
  session.request.first_position = first_position;
  session.request.category = traits.category;
}

Result<engine::Arrival> KvStore::tell(Session& session, uint32_t position, const std::vector<bool>& at_hand) {
  Request& request = session.request;
  if (request.keys.empty() || request.told) return engine::Arrival();
  std::vector<engine::RequestUse> uses(request.keys.size());
  for (size_t i = 0; i < uses.size(); i++) {
    uses[i].key = request.keys[i];
    uses[i].cost_ns = request.cost_ns.empty() ? cost_at(request.first_position + i) : request.cost_ns[i];
    const size_t place = i + request.first_position - position;
    uses[i].at_hand = i + request.first_position >= position && place < at_hand.size() && at_hand[place];
  }
  engine::RequestInfo info;
  info.bytes = static_cast<uint32_t>(block_bytes());
  info.first_position = request.first_position;
  info.category = request.category;
  Result<engine::Arrival> arrival = engine_.request(info, uses);
  if (!arrival) return arrival;
  counters_.requests++;
  request.told = true;
  if (!at_hand.empty() && position + at_hand.size() >= request.first_position + request.keys.size()) {
    // Nothing more of it will be stored.
    request = {};
    return arrival;
  }
  for (const engine::UseOutcome outcome : arrival->outcomes())
    request.passed.push_back(outcome == engine::UseOutcome::kPass);
  return arrival;
}

Result<size_t> KvStore::lookup(SessionId session, std::span<const Key> keys, const RequestTraits& traits) {
  if (!traits.cost_ns.empty() && traits.cost_ns.size() != keys.size())
    return Status(Code::kInvalid, fmt::format("{} costs for {} blocks", traits.cost_ns.size(), keys.size()));
  // Without the session's lock: others are asked over a network.
  engine_.find(keys);
  follow_engine(false);
  expire();
  const Asking asking = find(session);
  if (!asking) return no_session();
  const Request& open = asking->request;
  if (open.told || open.first_position != 0 || open.keys.size() != keys.size() || !open.holds(keys, 0))
    begin(*asking, keys, 0, traits);
  const size_t found = engine_.lookup_prefix(keys);
  if (durable_ && options_.write != WritePolicy::kWriteBack)
    for (size_t i = 0; i < found; i++) enter(keys[i], asking->tenant, i, true);
  hold_all(*asking, keys.first(found), true);
  counters_.lookups++;
  counters_.lookup_blocks += keys.size();
  counters_.lookup_hits += found;
  return found;
}

bool KvStore::due_out(const Entry& entry) const {
  if (!durable_ || entry.written || options_.write == WritePolicy::kWriteBack) return false;
  return options_.write != WritePolicy::kSelective || entry.uses + 1 >= options_.write_after;
}

void KvStore::passed_over(const Key& key, engine::TierId tier) {
  // Its ticket holds the memory that is written, so that nobody need wait for it.
  struct Trial : engine::Ticket {
    std::vector<std::byte> block;
  };
  const uint64_t now = now_ms();
  if (tried_ms_[tier] == 0) tried_ms_[tier] = now;
  if (now < tried_ms_[tier] + kTrialMs || !trial_.expired()) return;
  tried_ms_[tier] = now;
  try {
    const auto trial = std::make_shared<Trial>();
    trial->block.resize(block_bytes());
    trial_ = trial;
    counters_.trials++;
    engine_.get_async(key, 0, trial->block, trial, false);
  } catch (const std::bad_alloc&) {
    // Another time.
  }
}

Result<std::unique_ptr<Pins>> KvStore::pin(SessionId session, std::span<const Key> keys, uint32_t first_position,
                                           const PlanOptions* decide, uint64_t lease_ms) {
  std::unique_ptr<Pins> pins(new Pins(*this, layout_.layers()));
  std::vector<engine::PinResult>& places = pins->places_;
  {
    follow_engine(false);
    expire();
    const Asking asking = find(session);
    if (!asking) return no_session();
    const Request& open = asking->request;
    if (open.told || !open.holds(keys, first_position)) begin(*asking, keys, first_position, {});
    size_t most = keys.size();
    if (decide) {
      std::vector<engine::TierId> from;
      pins->plan_ = make_plan(*asking, keys, first_position, *decide, from);
      most = pins->plan_.load;
      (most == from.size() ? counters_.decided_all : most > 0 ? counters_.decided_part : counters_.decided_none)++;
      counters_.bypassed_blocks += from.size() - most;
      std::lock_guard lock(models_mutex_);
      for (size_t i = most; i < from.size(); i++) bypassed_of_tier_[from[i]]++;
      for (size_t i = 0; i < most; i++) tried_ms_[from[i]] = 0;
      if (most < from.size()) passed_over(keys[most], from[most]);
    }
    places.reserve(most);
    while (places.size() < most) {
      const size_t block = places.size();
      const auto pin = engine_.pin(pins->session_, keys[block], lease_ms, false);
      if (!pin) break;
      places.push_back(*pin);
      enter(keys[block], asking->tenant, first_position + block, true);
    }
    // With all of it there, nothing will be stored.
    if (places.size() == open.keys.size()) (void)tell(*asking);
    hold_all(*asking, keys.first(places.size()), false);
    counters_.loads++;
  }
  if (!decide) pins->plan_.found = pins->plan_.load = places.size();
  pins->good_ = places.size();
  return pins;
}

Result<std::unique_ptr<Load>> KvStore::load(SessionId session, std::span<const Key> keys,
                                            std::span<std::byte* const> into, uint32_t first_position,
                                            const PlanOptions* decide) {
  if (keys.size() > SIZE_MAX / layout_.nr_pieces() || into.size() != keys.size() * layout_.nr_pieces())
    return Status(Code::kInvalid, fmt::format("{} destinations for {} blocks of {} pieces", into.size(), keys.size(),
                                              layout_.nr_pieces()));
  auto pins = pin(session, keys, first_position, decide, options_.lease_ms);
  if (!pins) return pins.status();
  std::unique_ptr<Load> load(new Load(*this, std::move(*pins), layout_.layers()));
  // Small pieces of blocks that the host can address are copied here and now: handing one to another thread takes
  // longer than copying it.
  std::vector<bool> there(load->blocks());
  if (layout_.largest_piece() <= kInlineBytes) {
    const uint64_t begin = steady_.now_ns();
    engine_.read_mapped(
        keys.first(load->blocks()),
        [&](size_t block, const std::byte* bytes) {
          for (size_t i = 0; i < layout_.nr_pieces(); i++) {
            const BlockPiece& piece = layout_.pieces()[i];
            std::memcpy(into[i * keys.size() + block], bytes + piece.offset, piece.bytes);
          }
        },
        there);
    if (const auto copied = static_cast<double>(std::count(there.begin(), there.end(), true)); copied > 0) {
      std::lock_guard lock(models_mutex_);
      models_.inlined.observe(copied * static_cast<double>(layout_.nr_pieces()),
                              copied * static_cast<double>(block_bytes()),
                              static_cast<double>(steady_.now_ns() - begin));
    }
  }
  const auto others = static_cast<size_t>(std::count(there.begin(), there.end(), false));
  // In the order in which a forward pass needs them.
  for (uint32_t layer = 0; layer < layout_.layers(); layer++) {
    if (others == 0) break;
    load->tickets_[layer].reserve(others);
    // A layer's tickets lie together: they come and go at once.
    const std::shared_ptr<engine::Ticket[]> tickets = std::make_unique<engine::Ticket[]>(others);
    for (size_t block = 0; block < load->blocks(); block++) {
      if (there[block]) continue;
      if (layer == 0) load->coming_.push_back(block);
      // Kept before it is used: the load waits for all that may still write to the caller's memory.
      const engine::TicketRef& ticket =
          load->tickets_[layer].emplace_back(tickets, &tickets[load->tickets_[layer].size()]);
      for (size_t i = layout_.first_piece(layer); i < layout_.end_piece(layer); i++) {
        const BlockPiece& piece = layout_.pieces()[i];
        engine_.get_async(keys[block], piece.offset, {into[i * keys.size() + block], piece.bytes}, ticket, false);
      }
    }
  }
  return load;
}

StoreResult KvStore::store(SessionId session, std::span<const Key> keys, std::span<const std::byte* const> from,
                           uint32_t first_position) {
  StoreResult result;
  if (keys.size() > SIZE_MAX / layout_.nr_pieces() || from.size() != keys.size() * layout_.nr_pieces()) {
    result.status = Status(Code::kInvalid, fmt::format("{} sources for {} blocks of {} pieces", from.size(),
                                                       keys.size(), layout_.nr_pieces()));
    return result;
  }
  // What this call brought into the books, and what is to become of each block.
  struct Offer {
    bool mine = false, passed = false;
    uint64_t entry = 0, cost_ns = 0;
  };
  std::vector<Offer> offers(keys.size());
  std::vector<bool> at_hand(keys.size());
  size_t tried = 0, done = 0, first = 0;
  bool late = false;
  engine::Arrival arrival;
  std::shared_ptr<Session> owner;
  // Whatever ends this early, nobody holds what was not stored.
  struct Undo {
    KvStore& store;
    const std::shared_ptr<Session>& session;
    std::span<const Key> keys;
    const std::vector<Offer>& offers;
    const size_t &done, &tried;
    ~Undo() {
      if (done == tried) return;
      std::lock_guard lock(session->mutex);
      for (size_t i = done; i < tried; i++)
        if (offers[i].mine) store.give_up(*session, {keys[i], offers[i].entry});
    }
  } const undo{*this, owner, keys, offers, done, tried};
  follow_engine(true);
  expire();
  {
    const Asking asking = find(session);
    if (!asking) {
      result.status = no_session();
      return result;
    }
    owner = asking.session;
    Tenant& tenant = owner->tenant;
    if (!asking->request.holds(keys, first_position)) begin(*asking, keys, first_position, {});
    Request& request = asking->request;
    first = first_position - request.first_position;
    late = request.told;
    for (; tried < keys.size(); tried++) {
      const Key& key = keys[tried];
      Offer& offer = offers[tried];
      const uint64_t position = first_position + tried;
      offer.cost_ns = request.cost_ns.empty() ? cost_at(position) : request.cost_ns[first + tried];
      counters_.offered++;
      // Also of what is there: what is stored of the request may throw it out before its turn.
      at_hand[tried] = true;
      if (engine_.lookup_prefix({&key, 1}) == 1) {
        enter(key, tenant, position, false);
        continue;
      }
      if (!pass_filter(key)) {
        counters_.filtered++;
        result.filtered++;
        at_hand[tried] = false;
        continue;
      }
      if (late && request.passed[first + tried]) {
        offer.passed = true;
        continue;
      }
      std::lock_guard room(tenant.room);
      if (!make_quota_room(tenant)) {
        counters_.over_quota++;
        result.status =
            Status(Code::kFull, fmt::format("tenant '{}' has {} of {} bytes, all of them in use", tenant.name,
                                            tenant.used_bytes.load(), tenant.quota_bytes.load()));
        at_hand[tried] = false;
        break;
      }
      // Before its bytes are written. And held, so that the blocks after it do not throw it out.
      asking->held.emplace_back();
      Shard& shard = shard_of(key);
      std::lock_guard lock(shard.mutex);
      bool fresh = false;
      Entry& entry = *adopt(shard, key, tenant, true, fresh);
      offer.mine = true;
      offer.entry = entry.id;
      asking->held.back() = {key, entry.id};
      change_holders(shard, entry, true, draw_ranks(1));
    }
    if (!late) {
      Result<engine::Arrival> told = tell(*asking, first_position, at_hand);
      if (told) {
        arrival = std::move(*told);
      } else {
        result.status = told.status();
        return result;
      }
    }
  }
  const auto copy = [&](size_t i, std::byte* room) {
    for (size_t k = 0; k < layout_.nr_pieces(); k++) {
      const BlockPiece& piece = layout_.pieces()[k];
      std::memcpy(room + piece.offset, from[k * keys.size() + i], piece.bytes);
    }
  };
  // Blocks whose bytes lie together go to a disk side by side.
  for (size_t i = 0; i < tried && layout_.nr_pieces() == 1 && !late; i++)
    if (at_hand[i] && arrival.outcomes()[first + i] == engine::UseOutcome::kRoom) arrival.start(first + i, from[i]);
  for (; done < tried; done++) {
    if (!at_hand[done]) continue;
    const Key& key = keys[done];
    const Offer& offer = offers[done];
    const auto write = [&](std::byte* room) { copy(done, room); };
    engine::UseOutcome outcome = engine::UseOutcome::kRoom;
    Status status;
    if (late) {
      if (offer.passed) {
        outcome = engine::UseOutcome::kPass;
      } else if (!offer.mine) {
        outcome = engine::UseOutcome::kHit;
      } else {
        status =
            layout_.nr_pieces() == 1 ? keep_late(key, offer.cost_ns, from[done]) : keep_late(key, offer.cost_ns, write);
      }
    } else {
      outcome = arrival.outcomes()[first + done];
      if (outcome == engine::UseOutcome::kRoom) status = arrival.fill(first + done, write);
      if (outcome == engine::UseOutcome::kFull) status = Status(Code::kFull, "no tier can make room for the block");
    }
    if (outcome == engine::UseOutcome::kPass) {
      if (offer.mine) {
        std::lock_guard lock(owner->mutex);
        give_up(*owner, {key, offer.entry});
      }
      counters_.passed++;
      result.passed++;
      continue;
    }
    if (!status.is_ok() && status.code() != Code::kExists) {
      if (result.status.is_ok()) result.status = status;
      counters_.no_room++;
      break;
    }
    // The engine may have been followed meanwhile, before the block was in it.
    const bool there = outcome == engine::UseOutcome::kHit;
    enter(key, owner->tenant, first_position + done, !there && options_.write == WritePolicy::kWriteThrough);
    if (there) {
      counters_.present++;
      result.present++;
      continue;
    }
    counters_.stored++;
    result.stored++;
  }
  std::lock_guard lock(owner->mutex);
  if (!owner->closed) hold_all(*owner, keys.first(done), false);
  return result;
}

Status KvStore::keep_late(const Key& key, uint64_t cost_ns, const std::function<void(std::byte* room)>& write) {
  std::vector<std::byte> block(block_bytes());
  write(block.data());
  return keep_late(key, cost_ns, block.data());
}

Status KvStore::keep_late(const Key& key, uint64_t cost_ns, const std::byte* block) {
  engine::PutOptions put;
  put.kind = engine::ObjectKind::kKv;
  put.recompute_ns = cost_ns;
  put.used = false;
  return engine_.put(key, {block, block_bytes()}, put);
}

// A block that could not be stored is held by nobody, unless another session has brought it meanwhile.
void KvStore::give_up(Session& session, const Held& mine) {
  Shard& shard = shard_of(mine.key);
  std::lock_guard lock(shard.mutex);
  Entry* const entry = held(shard, mine);
  const auto at = std::find_if(session.held.rbegin(), session.held.rend(),
                               [&](const Held& one) { return one.entry == mine.entry; });
  if (at != session.held.rend()) {
    session.held.erase(std::next(at).base());
    if (entry) change_holders(shard, *entry, false, draw_ranks(1));
  }
  if (entry && entry->sessions == 0 && engine_.lookup_prefix({&mine.key, 1}) == 0) forget(shard, mine.key);
}

bool KvStore::pass_filter(const Key& key) {
  if (options_.store_after <= 1) return true;
  std::lock_guard lock(filter_mutex_);
  const auto found = offer_of_.find(key);
  if (found == offer_of_.end()) {
    offers_.emplace_front(key, 1);
    offer_of_[key] = offers_.begin();
    if (offers_.size() > options_.filter_blocks) {
      offer_of_.erase(offers_.back().first);
      offers_.pop_back();
    }
    return false;
  }
  offers_.splice(offers_.begin(), offers_, found->second);
  if (++found->second->second < options_.store_after) return false;
  offers_.erase(found->second);
  offer_of_.erase(found);
  return true;
}

// Its own least recently used blocks make room; those of sessions that live go last, and pinned ones stay. No shard's
// lock is held while one is removed, which may take a while: what is held meanwhile is no longer idle, and stays in the
// books until the engine's events say otherwise.
bool KvStore::make_quota_room(Tenant& tenant) {
  const uint64_t quota = tenant.quota_bytes;
  const auto full = [&] { return tenant.used_bytes + block_bytes() > quota; };
  if (quota == 0 || !full()) return true;
  // The end of one shard's order, as far as it was read.
  struct Tail {
    std::array<Place, kTail> places;
    size_t at = 0, nr = 0;
    size_t stay = 0;  // behind those: they were tried
    bool read = false;
  };
  for (const bool held : {false, true}) {
    std::array<Tail, kShards> tails;
    const auto read = [&](size_t i) {
      Tail& tail = tails[i];
      const size_t most = std::exchange(tail.read, true) ? kTail : 1;
      tail.at = tail.nr = 0;
      std::lock_guard lock(shards_[i].mutex);
      if (shards_[i].orders.size() <= tenant.id) return;
      const Orders& orders = shards_[i].orders[tenant.id];
      const std::list<Place>& order = held ? orders.held : orders.idle;
      auto place = order.rbegin();
      for (size_t k = 0; k < tail.stay && place != order.rend(); k++) ++place;
      for (; tail.nr < most && place != order.rend(); ++place) tail.places[tail.nr++] = *place;
    };
    for (size_t i = 0; i < kShards; i++) read(i);
    while (full()) {
      size_t least = kShards;
      for (size_t i = 0; i < kShards; i++) {
        if (tails[i].at == tails[i].nr) continue;
        if (least == kShards || tails[i].places[tails[i].at].rank < tails[least].places[tails[least].at].rank)
          least = i;
      }
      if (least == kShards) break;
      Tail& tail = tails[least];
      if (remove_for_room(tail.places[tail.at++].key, held)) {
        counters_.quota_evictions++;
      } else {
        tail.stay++;
      }
      if (tail.at == tail.nr) read(least);
    }
  }
  return !full();
}

bool KvStore::remove_for_room(const Key& key, bool was_held) {
  const Status removed = engine_.remove(key, /*wait=*/false);
  // Held, it is on its way into the engine.
  const bool gone = removed.code() == Code::kNotFound && !was_held;
  if (!removed && !gone) return false;
  Shard& shard = shard_of(key);
  std::lock_guard lock(shard.mutex);
  const auto found = shard.entries.find(key);
  if (found == shard.entries.end()) return true;  // the engine was followed meanwhile
  if ((found->second.sessions > 0 && !was_held) || engine_.has(key)) return false;
  forget(shard, key);
  return true;
}

uint64_t KvStore::take_events(size_t max, std::vector<StoreEvent>& out) {
  std::lock_guard lock(follow_mutex_);
  follow();
  std::vector<engine::ObjectEvent> taken;
  lost_events_ += events_.take(told_events_, max, taken);
  for (const engine::ObjectEvent& event : taken) {
    out.push_back({event.key, event.kind,
                   event.kind != engine::EventKind::kForgotten && event.tier < tier_names_.size()
                       ? tier_names_[event.tier]
                       : ""});
  }
  return std::exchange(lost_events_, 0);
}

uint64_t KvStore::expiry_visits() const {
  std::lock_guard lock(deadlines_mutex_);
  return expiry_visits_;
}

StoreCounters KvStore::counters() const {
  StoreCounters now;
#define NEOTIER_COUNTER(name, help) now.name = counters_.name;
  NEOTIER_KV_COUNTERS(NEOTIER_COUNTER)
#undef NEOTIER_COUNTER
  std::lock_guard lock(models_mutex_);
  now.bypassed_of_tier = bypassed_of_tier_;
  return now;
}

Pins::Pins(KvStore& store, uint32_t layers)
    : store_(store), arrived_(layers), left_(layers), session_(store.engine_.open_session()) {}

Pins::~Pins() { store_.engine_.close_session(session_); }

void Pins::arrived(uint32_t layer, size_t good) {
  good_ = std::min(good_, good);
  if (arrived_[layer]) return;
  arrived_[layer] = true;
  if (--left_ > 0) return;
  store_.counters_.loaded_blocks += good_;
  store_.counters_.failed_blocks += blocks() - good_;
}

Load::~Load() {
  cancel();
  for (const auto& layer : tickets_) {
    for (const engine::TicketRef& ticket : layer) (void)ticket->wait();
  }
}

Status Load::let_wait(void*, uint32_t, uint64_t) {
  return {Code::kUnsupported, "the load goes to the host's memory, which no stream waits for"};
}
// All that may throw comes first, so that the caller may ask again.
Status Load::notify(const std::shared_ptr<engine::CompletionQueue>& queue, uint64_t tag) {
  if (notified_) return in_a_queue();
  const auto ended = std::make_shared<engine::CompletionTag>(queue, tag);
  notified_ = true;
  for (const auto& layer : tickets_) {
    for (const engine::TicketRef& ticket : layer) {
      ended->expect();
      (void)ticket->listen(ended);
    }
  }
  ended->seal();
  return {};
}

Status Load::notify_layers(const std::shared_ptr<engine::CompletionQueue>& queue, uint64_t tag) {
  if (notified_) return in_a_queue();
  std::vector<std::shared_ptr<engine::CompletionTag>> ended;
  ended.reserve(tickets_.size());
  while (ended.size() < tickets_.size())
    ended.push_back(std::make_shared<engine::CompletionTag>(queue, tag + ended.size()));
  notified_ = true;
  for (size_t layer = 0; layer < tickets_.size(); layer++) {
    for (const engine::TicketRef& ticket : tickets_[layer]) {
      ended[layer]->expect();
      (void)ticket->listen(ended[layer]);
    }
    ended[layer]->seal();
  }
  return {};
}

void Load::cancel() {
  if (std::exchange(cancelled_, true)) return;
  pins_->give_up();
  for (const auto& layer : tickets_) store_.engine_.cancel(layer);
}

Status Load::wait_layer(uint32_t layer, uint64_t timeout_ms) {
  if (layer >= tickets_.size()) return Status(Code::kInvalid, fmt::format("layer {} of {}", layer, tickets_.size()));
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(std::min(timeout_ms, kLongestWaitMs));
  Status first;
  size_t good = blocks();
  for (size_t i = 0; i < coming_.size(); i++) {
    const auto left =
        std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - std::chrono::steady_clock::now()).count();
    Status status = tickets_[layer][i]->wait_ns(
        timeout_ms > kLongestWaitMs ? UINT64_MAX : static_cast<uint64_t>(std::max<int64_t>(left, 0)));
    if (status.code() == Code::kTimeout) return status;
    if (status.is_ok() || !first.is_ok()) continue;
    first = status;
    good = coming_[i];
  }
  pins_->arrived(layer, good);
  return first;
}

Status Load::wait(uint64_t timeout_ms) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(std::min(timeout_ms, kLongestWaitMs));
  Status first;
  for (uint32_t layer = 0; layer < tickets_.size(); layer++) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    Status status =
        wait_layer(layer, timeout_ms > kLongestWaitMs ? UINT64_MAX : static_cast<uint64_t>(std::max<int64_t>(left, 0)));
    if (status.code() == Code::kTimeout) return status;
    if (first.is_ok()) first = status;
  }
  return first;
}

}  // namespace neotier::kv

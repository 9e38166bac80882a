// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
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

Status no_session() { return Status(Code::kNotFound, "no such session; open one, it may have expired"); }

}  // namespace

size_t KvStore::KeyHash::operator()(const Key& key) const {
  // Keys are hashes already.
  size_t hash;
  std::memcpy(&hash, key.bytes, sizeof hash);
  return hash;
}

KvStore::KvStore(engine::Engine& engine, const StoreOptions& options)
    : engine_(engine), options_(options), clock_(options.clock ? *options.clock : steady_) {
  if (options_.layers == 0 || options_.layer_bytes == 0 || block_bytes() / options_.layers != options_.layer_bytes ||
      block_bytes() > UINT32_MAX)
    throw std::runtime_error(fmt::format("{} layers of {} bytes: a block has 1 .. {} bytes in 1 layer or more",
                                         options_.layers, options_.layer_bytes, UINT32_MAX));
  if (options_.store_after == 0 || options_.write_after == 0)
    throw std::runtime_error("store_after and write_after count from 1");
  for (const engine::TierStatus& tier : engine_.status().tiers) {
    tier_names_.push_back(tier.info.name);
    durable_ |= tier.info.durable;
  }
}

TenantId KvStore::tenant(const std::string& name, uint64_t quota_bytes) {
  std::lock_guard lock(mutex_);
  for (TenantId id = 0; id < tenants_.size(); id++) {
    if (tenants_[id].name != name) continue;
    tenants_[id].quota_bytes = quota_bytes;
    return id;
  }
  tenants_.push_back({.name = name, .quota_bytes = quota_bytes, .used_bytes = 0, .order = {}});
  return static_cast<TenantId>(tenants_.size() - 1);
}

std::vector<TenantStatus> KvStore::tenants() const {
  std::lock_guard lock(mutex_);
  std::vector<TenantStatus> all;
  for (const Tenant& tenant : tenants_)
    all.push_back({tenant.name, tenant.quota_bytes, tenant.used_bytes, tenant.order.size()});
  return all;
}

Result<SessionId> KvStore::open_session(TenantId tenant, uint64_t ttl_ms, bool remove_expired) {
  std::lock_guard lock(mutex_);
  if (tenant >= tenants_.size()) return Status(Code::kInvalid, "no such tenant; make it with tenant()");
  const SessionId id = next_session_++;
  sessions_[id] = {
      .tenant = tenant, .ttl_ms = ttl_ms, .used_ms = now_ms(), .remove_expired = remove_expired, .held = {}};
  return id;
}

Status KvStore::close_session(SessionId session) {
  std::lock_guard lock(mutex_);
  Session* found = find(session);
  if (!found) return no_session();
  release(*found, false);
  sessions_.erase(session);
  return {};
}

KvStore::Session* KvStore::find(SessionId session) {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second;
}

// The engine discards and recovers objects by itself; its events say what.
void KvStore::follow_engine() {
  taken_.clear();
  const uint64_t lost = engine_.take_events(SIZE_MAX, taken_);
  for (const engine::ObjectEvent& event : taken_) {
    if (event.kind != engine::EventKind::kForgotten) continue;
    // It may have been stored again since.
    if (!engine_.lookup(event.key)) forget(event.key);
  }
  events_.insert(events_.end(), taken_.begin(), taken_.end());
  if (events_.size() > options_.events) {
    const auto surplus = static_cast<ptrdiff_t>(events_.size() - options_.events);
    events_.erase(events_.begin(), events_.begin() + surplus);
    lost_events_ += static_cast<uint64_t>(surplus);
  }
  lost_events_ += lost;
  if (lost == 0) return;
  std::vector<Key> gone;
  for (const auto& [key, entry] : entries_) {
    if (!engine_.lookup(key)) gone.push_back(key);
  }
  for (const Key& key : gone) forget(key);
}

void KvStore::forget(const Key& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  Tenant& tenant = tenants_[found->second.tenant];
  tenant.used_bytes -= block_bytes();
  tenant.order.erase(found->second.order);
  entries_.erase(found);
}

// A block that is in the engine: stored just now, or by a former process.
KvStore::Entry& KvStore::adopt(const Key& key, TenantId tenant) {
  const auto [at, fresh] = entries_.try_emplace(key);
  if (fresh) {
    Tenant& owner = tenants_[tenant];
    owner.order.push_front(key);
    owner.used_bytes += block_bytes();
    at->second.tenant = tenant;
    at->second.order = owner.order.begin();
  }
  return at->second;
}

void KvStore::use(Entry& entry) {
  entry.uses++;
  std::list<Key>& order = tenants_[entry.tenant].order;
  order.splice(order.begin(), order, entry.order);
}

void KvStore::hold(Session& session, std::span<const Key> keys) {
  std::vector<Key> held;
  // The first block of a prefix becomes the most recently used: without it the others are of no use.
  for (size_t i = keys.size(); i-- > 0;) {
    const auto found = entries_.find(keys[i]);
    if (found == entries_.end()) continue;
    found->second.sessions++;
    use(found->second);
    held.push_back(keys[i]);
  }
  release(session, false);
  session.held = std::move(held);
  session.used_ms = now_ms();
}

void KvStore::release(Session& session, bool expired) {
  for (const Key& key : session.held) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) continue;
    Entry& entry = found->second;
    entry.sessions -= entry.sessions > 0;
    if (!expired || entry.sessions > 0) continue;
    if (session.remove_expired) {
      if (!engine_.remove(key)) continue;
      counters_.expired_blocks++;
      forget(key);
    } else {
      std::list<Key>& order = tenants_[entry.tenant].order;
      order.splice(order.end(), order, entry.order);
    }
  }
  session.held.clear();
}

void KvStore::expire() {
  const uint64_t now = now_ms();
  for (auto at = sessions_.begin(); at != sessions_.end();) {
    Session& session = at->second;
    if (session.ttl_ms == 0 || now - session.used_ms < session.ttl_ms) {
      ++at;
      continue;
    }
    release(session, true);
    counters_.expired_sessions++;
    at = sessions_.erase(at);
  }
}

void KvStore::tick() {
  std::lock_guard lock(mutex_);
  follow_engine();
  expire();
}

Result<size_t> KvStore::lookup(SessionId session, std::span<const Key> keys) {
  std::lock_guard lock(mutex_);
  follow_engine();
  expire();
  Session* asking = find(session);
  if (!asking) return no_session();
  const size_t found = engine_.lookup_prefix(keys);
  for (const Key& key : keys.first(found)) {
    Entry& entry = adopt(key, asking->tenant);
    (void)engine_.touch(key);
    write_out(key, entry);
  }
  hold(*asking, keys.first(found));
  counters_.lookups++;
  counters_.lookup_blocks += keys.size();
  counters_.lookup_hits += found;
  return found;
}

void KvStore::write_out(const Key& key, Entry& entry) {
  if (!durable_ || entry.written || options_.write == WritePolicy::kWriteBack) return;
  if (options_.write == WritePolicy::kSelective && entry.uses + 1 < options_.write_after) return;
  entry.written = true;
  (void)engine_.write_back({&key, 1});
}

Result<std::unique_ptr<Load>> KvStore::load(SessionId session, std::span<const Key> keys,
                                            std::span<std::byte* const> into) {
  if (into.size() != keys.size() * options_.layers)
    return Status(Code::kInvalid,
                  fmt::format("{} destinations for {} blocks of {} layers", into.size(), keys.size(), options_.layers));
  std::unique_ptr<Load> load(new Load(*this, engine_.open_session(), options_.layers));
  {
    std::lock_guard lock(mutex_);
    follow_engine();
    expire();
    Session* asking = find(session);
    if (!asking) return no_session();
    while (load->blocks_ < keys.size() && engine_.pin(load->pins_, keys[load->blocks_], options_.lease_ms)) {
      const Key& key = keys[load->blocks_++];
      write_out(key, adopt(key, asking->tenant));
    }
    hold(*asking, keys.first(load->blocks_));
    counters_.loads++;
  }
  load->good_ = load->blocks_;
  // In the order in which a forward pass needs them.
  for (uint32_t layer = 0; layer < options_.layers; layer++) {
    for (size_t block = 0; block < load->blocks_; block++) {
      auto ticket = std::make_shared<engine::Ticket>();
      engine_.get_async(keys[block], layer * options_.layer_bytes,
                        {into[layer * keys.size() + block], options_.layer_bytes}, ticket);
      load->tickets_[layer].push_back(std::move(ticket));
    }
  }
  return load;
}

StoreResult KvStore::store(SessionId session, std::span<const Key> keys, std::span<const std::byte* const> from,
                           uint32_t first_position) {
  StoreResult result;
  if (from.size() != keys.size() * options_.layers) {
    result.status = Status(Code::kInvalid, fmt::format("{} sources for {} blocks of {} layers", from.size(),
                                                       keys.size(), options_.layers));
    return result;
  }
  std::vector<std::byte> block(block_bytes());
  size_t done = 0;
  for (; done < keys.size() && result.status.is_ok(); done++) {
    const Key& key = keys[done];
    TenantId owner = kNoTenant;
    {
      std::lock_guard lock(mutex_);
      follow_engine();
      expire();
      Session* asking = find(session);
      if (!asking) {
        result.status = no_session();
        break;
      }
      counters_.offered++;
      if (engine_.lookup(key)) {
        (void)adopt(key, asking->tenant);
        counters_.present++;
        result.present++;
        continue;
      }
      if (!pass_filter(key)) {
        counters_.filtered++;
        result.filtered++;
        continue;
      }
      Tenant& tenant = tenants_[asking->tenant];
      if (!make_quota_room(tenant)) {
        counters_.over_quota++;
        result.status = Status(Code::kFull, fmt::format("tenant '{}' has {} of {} bytes, all of them in use",
                                                        tenant.name, tenant.used_bytes, tenant.quota_bytes));
        break;
      }
      owner = asking->tenant;
      // Against its own quota before its bytes are written, so that callers at the same time cannot exceed it together.
      // And held, so that the blocks after it do not throw it out.
      adopt(key, owner).sessions++;
      asking->held.push_back(key);
    }
    for (uint32_t layer = 0; layer < options_.layers; layer++)
      std::memcpy(block.data() + layer * options_.layer_bytes, from[layer * keys.size() + done], options_.layer_bytes);
    engine::PutOptions put;
    put.kind = engine::ObjectKind::kKv;
    put.recompute_ns = options_.recompute_ns + options_.recompute_per_position_ns * (first_position + done);
    const Status status = engine_.put(key, block, put);
    std::lock_guard lock(mutex_);
    if (!status.is_ok() && status.code() != Code::kExists) {
      forget(key);
      counters_.no_room++;
      result.status = status;
      break;
    }
    counters_.stored++;
    result.stored++;
    // The engine may have been followed meanwhile, before the block was in it.
    Entry& entry = adopt(key, owner);
    if (options_.write == WritePolicy::kWriteThrough) write_out(key, entry);
  }
  std::lock_guard lock(mutex_);
  if (Session* asking = find(session)) hold(*asking, keys.first(done));
  return result;
}

bool KvStore::pass_filter(const Key& key) {
  if (options_.store_after <= 1) return true;
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

// Its own least recently used blocks make room; those of sessions that live go last, and pinned ones stay.
bool KvStore::make_quota_room(Tenant& tenant) {
  if (tenant.quota_bytes == 0) return true;
  for (const bool spare : {true, false}) {
    for (auto at = tenant.order.end();
         at != tenant.order.begin() && tenant.used_bytes + block_bytes() > tenant.quota_bytes;) {
      --at;
      const Key key = *at;
      if (spare && entries_[key].sessions > 0) continue;
      if (!engine_.remove(key)) continue;
      ++at;
      forget(key);
      counters_.quota_evictions++;
    }
  }
  return tenant.used_bytes + block_bytes() <= tenant.quota_bytes;
}

uint64_t KvStore::take_events(size_t max, std::vector<StoreEvent>& out) {
  std::lock_guard lock(mutex_);
  follow_engine();
  const size_t taken = std::min(max, events_.size());
  for (size_t i = 0; i < taken; i++) {
    const engine::ObjectEvent& event = events_[i];
    out.push_back({event.key, event.kind,
                   event.kind != engine::EventKind::kForgotten && event.tier < tier_names_.size()
                       ? tier_names_[event.tier]
                       : ""});
  }
  events_.erase(events_.begin(), events_.begin() + static_cast<ptrdiff_t>(taken));
  return std::exchange(lost_events_, 0);
}

StoreCounters KvStore::counters() const {
  std::lock_guard lock(mutex_);
  return counters_;
}

Load::~Load() {
  cancel();
  for (const auto& layer : tickets_) {
    for (const engine::TicketRef& ticket : layer) (void)ticket->wait();
  }
  store_.engine_.close_session(pins_);
}

void Load::cancel() {
  for (const auto& layer : tickets_) {
    for (const engine::TicketRef& ticket : layer) {
      if (ticket->progress().pending > 0) store_.engine_.cancel(ticket);
    }
  }
}

Status Load::wait_layer(uint32_t layer, uint64_t timeout_ms) {
  if (layer >= tickets_.size()) return Status(Code::kInvalid, fmt::format("layer {} of {}", layer, tickets_.size()));
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(std::min(timeout_ms, kLongestWaitMs));
  Status first;
  size_t good = blocks_;
  for (size_t block = 0; block < blocks_; block++) {
    const auto left =
        std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - std::chrono::steady_clock::now()).count();
    Status status = tickets_[layer][block]->wait_ns(
        timeout_ms > kLongestWaitMs ? UINT64_MAX : static_cast<uint64_t>(std::max<int64_t>(left, 0)));
    if (status.code() == Code::kTimeout) return status;
    if (status.is_ok() || !first.is_ok()) continue;
    first = status;
    good = block;
  }
  good_ = std::min(good_, good);
  if (!waited_[layer]) {
    waited_[layer] = true;
    if (std::find(waited_.begin(), waited_.end(), false) == waited_.end()) {
      std::lock_guard lock(store_.mutex_);
      store_.counters_.loaded_blocks += good_;
      store_.counters_.failed_blocks += blocks_ - good_;
    }
  }
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

// SPDX-License-Identifier: Apache-2.0
// A store of KV blocks on the engine: what a serving engine's connector calls. Blocks are named by keys that hash their
// whole prefix (kv/block_key.h); each is one object of the engine, its layers one after another.
//
// Requests. What policies are told of is a request: all blocks of a prompt, in order, once. A session's lookup() begins
// one, its load() and store() of the same blocks belong to it; it is told whole when its blocks are stored, or when all
// of them are loaded, or at the latest when the session's next one begins or the session ends. Until then the same
// lookup() again is the same request. A store() of other blocks is a request of its own.
//
// Here: which blocks are stored (filter, write policy), whose they are (tenants and their quotas), how long a
// conversation's blocks are worth keeping (sessions with a time to live), loading layer by layer while the caller
// computes, and events for routers. Not here: where blocks lie and when they move; that is the engine's.
//
// Thread safety: all calls from any thread, but a Load belongs to one. No lock is met by all look-ups: each takes its
// own session's for as long as it lasts, and a shard's for each block. Locking order: a session's -> a tenant's room ->
// any one of the others (two of them are never held at once) -> the engine's. Following the engine comes first of all,
// with no session's lock held. A shard's lock is never held while the engine's is waited for. Under a session's lock no
// medium is waited for, but a block that is removed while it moves: one chunk's time. Nor is whoever stores a block:
// he may be waiting for that session.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/clock.h"
#include "engine/completion_queue.h"
#include "engine/engine.h"
#include "engine/events.h"
#include "engine/time_model.h"
#include "kv/block_layout.h"
#include "kv/counters.h"
#include "kv/load_plan.h"
#include "kv/spinning_mutex.h"

namespace neotier::kv {

using TenantId = uint32_t;
using SessionId = uint64_t;
inline constexpr TenantId kNoTenant = UINT32_MAX;

enum class WritePolicy : uint8_t {
  kWriteBack,     // a block goes to the durable tier when it leaves the faster ones
  kSelective,     // a copy is written there in the background once the block has been used `write_after` times
  kWriteThrough,  // a copy is written there in the background at once
};

struct StoreOptions {
  uint32_t layers = 0;
  uint64_t layer_bytes = 0;  // of one block in one layer, which is one piece then; 0: piece_bytes has them
  // Of BlockLayout: layers of several pieces, or of sizes of their own.
  std::vector<uint64_t> piece_bytes = {};
  std::vector<uint32_t> layer_pieces = {};
  WritePolicy write = WritePolicy::kWriteBack;
  uint32_t write_after = 2;
  // A block is stored when it is offered for the so-many-th time. 1: at once. Text that is seen once is most of what a
  // server sees; LMCache and vLLM have such a filter with 2.
  uint32_t store_after = 1;
  size_t filter_blocks = 64000;  // blocks remembered that were offered and not stored
  // Time to make a block anew after `position` blocks: base + per_position * position. 0: the engine never discards
  // one.
  uint64_t recompute_ns = 0, recompute_per_position_ns = 0;
  uint64_t lease_ms = 60000;             // pins of a Load end then, whatever became of its owner
  size_t events = 65536;                 // newest ones kept for take_events()
  const engine::Clock* clock = nullptr;  // of sessions; NULL: the steady one
};

struct TenantStatus {
  std::string name;
  uint64_t quota_bytes = 0, used_bytes = 0, blocks = 0;
};

struct StoreEvent {
  engine::Key key;
  engine::EventKind kind{};
  std::string tier;  // empty where the block is gone
};

struct StoreResult {
  uint32_t stored = 0, present = 0, filtered = 0;
  uint32_t passed = 0;    // the policies of all tiers would rather keep what they have
  engine::Status status;  // why the rest was not: the first of them. Blocks before it are stored
};

// What is known of a request besides its blocks.
struct RequestTraits {
  uint32_t category = 0;                // kind of request, numbered as the caller likes; 0: not known
  std::span<const uint64_t> cost_ns{};  // to make each block anew; empty: as StoreOptions has it
};

class KvStore;

// Leading blocks of a request, pinned where they lie until this is gone, and what was decided of them. The store must
// outlive it. Belongs to one thread at a time.
class Pins {
 public:
  ~Pins();
  Pins(const Pins&) = delete;
  Pins& operator=(const Pins&) = delete;

  size_t blocks() const { return places_.size(); }
  // Where nothing was to be decided all that was found is pinned, and there are no times.
  const LoadPlan& plan() const { return plan_; }
  // Of each block: its bytes as the host reaches them, or as a GPU does; both NULL where they have to be read.
  std::span<const engine::PinResult> places() const { return places_; }
  // Leading blocks whose layers, of those told, have all arrived. Given up: none, until all layers are told.
  size_t good() const { return given_up_ && left_ > 0 ? 0 : good_; }
  void give_up() { given_up_ = true; }
  // The layer came of the first `good` blocks. With the last layer the store counts what was loaded.
  void arrived(uint32_t layer, size_t good);

 private:
  friend class KvStore;
  Pins(KvStore& store, uint32_t layers);

  KvStore& store_;
  std::vector<engine::PinResult> places_;
  LoadPlan plan_;
  size_t good_ = 0;
  std::vector<bool> arrived_;  // by layer
  size_t left_;                // layers that have not
  bool given_up_ = false;
  const engine::SessionId session_;  // last: nothing throws once it is open
};

// Blocks on their way into the caller's memory. They are pinned until the load is gone, so that what lookup() said
// stays true. Destroying it cancels what has not arrived.
class Loading {
 public:
  virtual ~Loading() = default;
  // Leading blocks that are being loaded: those of the keys asked for that are there, or what is worth loading of them.
  virtual size_t blocks() const = 0;
  // What was decided; where nothing was to be decided all that was found is loaded, and there are no times.
  virtual const LoadPlan& plan() const = 0;
  // Until the layer of all blocks is there. kTimeout: still under way. An error: good_blocks() tells the first block to
  // be computed anew; those before it are good in this layer.
  virtual engine::Status wait_layer(uint32_t layer, uint64_t timeout_ms) = 0;
  virtual engine::Status wait(uint64_t timeout_ms) = 0;
  // What `stream`, of the GPU that is loaded into, gets later comes after the layer's arrival. Waits only for what is
  // still on its way to where that GPU reads it. kUnsupported: it goes to the host's memory.
  virtual engine::Status let_wait(void* stream, uint32_t layer, uint64_t timeout_ms) = 0;
  // `tag` comes to the queue once nothing is under way any more; at once if that is so. kExists: this or the next one
  // was asked for before. kUnsupported: it goes to a GPU's memory.
  virtual engine::Status notify(const std::shared_ptr<engine::CompletionQueue>& queue, uint64_t tag) = 0;
  // The same for each layer by itself, of all blocks: tag + layer.
  virtual engine::Status notify_layers(const std::shared_ptr<engine::CompletionQueue>& queue, uint64_t tag) = 0;
  // Leading blocks whose layers, of those waited for, have all arrived. Cancelled: none, until all layers have been.
  virtual size_t good_blocks() const = 0;
  virtual void cancel() = 0;
};

// Into the host's memory.
class Load final : public Loading {
 public:
  ~Load() override;
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  size_t blocks() const override { return pins_->blocks(); }
  const LoadPlan& plan() const override { return pins_->plan(); }
  engine::Status wait_layer(uint32_t layer, uint64_t timeout_ms) override;
  engine::Status wait(uint64_t timeout_ms) override;
  engine::Status let_wait(void* stream, uint32_t layer, uint64_t timeout_ms) override;
  engine::Status notify(const std::shared_ptr<engine::CompletionQueue>& queue, uint64_t tag) override;
  engine::Status notify_layers(const std::shared_ptr<engine::CompletionQueue>& queue, uint64_t tag) override;
  size_t good_blocks() const override { return pins_->good(); }
  void cancel() override;

 private:
  friend class KvStore;
  Load(KvStore& store, std::unique_ptr<Pins> pins, uint32_t layers)
      : store_(store), pins_(std::move(pins)), tickets_(layers) {}

  KvStore& store_;
  const std::unique_ptr<Pins> pins_;
  bool cancelled_ = false, notified_ = false;
  std::vector<size_t> coming_;                           // blocks that were not there at once, in order
  std::vector<std::vector<engine::TicketRef>> tickets_;  // [layer][of those]
};

class KvStore {
 public:
  // The engine must outlive the store and have been made with `events` > 0 for quotas to follow what it discards.
  // Throws std::runtime_error on options that are none.
  KvStore(engine::Engine& engine, const StoreOptions& options);

  engine::Engine& engine() { return engine_; }
  const StoreOptions& options() const { return options_; }
  const BlockLayout& layout() const { return layout_; }
  uint64_t block_bytes() const { return layout_.bytes(); }

  // The tenant of that name, made or given a new quota. quota 0: none.
  TenantId tenant(const std::string& name, uint64_t quota_bytes);
  std::vector<TenantStatus> tenants() const;

  // A conversation. Its blocks (those of its last lookup, load or store) are kept for ttl_ms after its last use; then
  // those that no other session holds are the tenant's first to go, or are removed at once where `remove_expired`. ttl
  // 0: ends only by close_session().
  engine::Result<SessionId> open_session(TenantId tenant, uint64_t ttl_ms, bool remove_expired = false);
  engine::Status close_session(SessionId session);

  // A request begins: how many of its leading blocks are there. kInvalid: costs for another number of blocks.
  engine::Result<size_t> lookup(SessionId session, std::span<const engine::Key> keys, const RequestTraits& traits = {});

  // Starts to load the leading blocks that are there, layer 0 of all of them first. into: [piece * keys.size() +
  // block], as many bytes as the layout's piece has; must stay until the load is gone. first_position: of the first key
  // in its prefix. decide: only as many as plan() would load.
  engine::Result<std::unique_ptr<Load>> load(SessionId session, std::span<const engine::Key> keys,
                                             std::span<std::byte* const> into, uint32_t first_position = 0,
                                             const PlanOptions* decide = nullptr);
  // What load() would load, for who reads it himself. lease_ms: the pins end then; 0: never, a device may still read.
  engine::Result<std::unique_ptr<Pins>> pin(SessionId session, std::span<const engine::Key> keys,
                                            uint32_t first_position = 0, const PlanOptions* decide = nullptr,
                                            uint64_t lease_ms = 0);

  // How many of the leading blocks are worth loading, by what the tiers have to do now and what computing blocks costs:
  // the session's request says so (RequestTraits), else what computed() has seen, else the options. A block of cost 0
  // is loaded if it is there. Begins no request and counts nothing.
  engine::Result<LoadPlan> plan(SessionId session, std::span<const engine::Key> keys, const PlanOptions& options,
                                uint32_t first_position = 0);
  // The caller has computed so many blocks, from `first_position` on, in `ns`, without what its processor did before.
  // Calls for one block and for many, early and late ones, tell the two costs of StoreOptions apart. kInvalid: 0.
  engine::Status computed(uint32_t first_position, uint32_t blocks, uint64_t ns);

  // Stores blocks. from: as `into` of load(). first_position: of the first key in its prefix. Blocks that are there, or
  // that the filter or the policies keep out, are skipped; the first that finds no room ends it, since what follows
  // would be of no use.
  StoreResult store(SessionId session, std::span<const engine::Key> keys, std::span<const std::byte* const> from,
                    uint32_t first_position = 0);

  // Sessions whose time is over, and what the engine did meanwhile. Called by the calls above as well.
  void tick();
  // Appends up to `max` events, oldest first; returns how many are lost.
  uint64_t take_events(size_t max, std::vector<StoreEvent>& out);
  StoreCounters counters() const;
  std::vector<engine::TierStatus> tiers() const { return engine_.status().tiers; }
  // Sessions that were looked at so far for whether their time is over: what that costs, without a clock.
  uint64_t expiry_visits() const;

 private:
  friend class Load;
  friend class Pins;
  struct Tenant {
    Tenant(const std::string& its_name, TenantId number, uint64_t quota)
        : name(its_name), id(number), quota_bytes(quota) {}
    const std::string name;
    const TenantId id;
    std::atomic<uint64_t> quota_bytes;
    std::atomic<uint64_t> used_bytes{0};
    // From finding room within the quota until it is used, so that callers at the same time cannot exceed it together.
    std::mutex room;
  };
  // A block among others of its tenant: the lower its rank, the sooner it makes room.
  struct Place {
    engine::Key key;
    int64_t rank = 0;
  };
  struct Entry {
    uint64_t id = 0;  // of this entry among all there ever were
    Tenant* tenant = nullptr;
    uint32_t uses = 0;
    uint32_t sessions = 0;  // that hold it
    bool written = false;   // a durable copy was asked for
    std::list<Place>::iterator order;
  };
  // A session's hold is of an entry, not of a key: what was forgotten and stored again since is not its own.
  struct Held {
    engine::Key key;
    uint64_t entry = 0;
  };
  struct KeyHash {
    size_t operator()(const engine::Key& key) const;
  };
  // A tenant's blocks in a shard: those that sessions hold, and the others. Invariant: from front to back no rank
  // rises. So the least of all shards' last ones is the next to make room, and it does not matter how many there are.
  struct Orders {
    std::list<Place> held, idle;
  };
  // The blocks whose keys hash to it. Invariant: an entry is of a block that the engine has, or that is being stored,
  // or whose end in the engine follow_engine() has yet to hear of: who makes one asks the engine under this lock, and
  // who follows forgets under it.
  struct alignas(64) Shard {
    mutable SpinningMutex mutex;
    std::unordered_map<engine::Key, Entry, KeyHash> entries;
    std::vector<Orders> orders;  // by tenant
  };
  // The request that a session has begun.
  struct Request {
    std::vector<engine::Key> keys;  // empty: none
    std::vector<uint64_t> cost_ns;  // empty, or of each
    uint32_t first_position = 0, category = 0;
    bool told = false;         // to the engine; what is stored now was missing then
    std::vector<bool> passed;  // told: blocks that no policy wanted
    bool holds(std::span<const engine::Key> some, uint64_t position) const;
  };
  struct Session {
    Session(SessionId number, Tenant& owner, uint64_t ttl, bool remove, uint64_t now)
        : id(number), tenant(owner), ttl_ms(ttl), remove_expired(remove), used_ms(now) {}
    const SessionId id;
    Tenant& tenant;
    const uint64_t ttl_ms;
    const bool remove_expired;
    std::mutex mutex;  // guards the rest, but for `deadline_ms`
    bool closed = false;
    uint64_t used_ms;
    std::vector<Held> held;
    Request request;
    uint64_t deadline_ms = 0;  // its place in deadlines_, whose lock guards it
  };
  struct alignas(64) SessionShard {
    std::mutex mutex;
    std::unordered_map<SessionId, std::shared_ptr<Session>> sessions;
  };
  // A session that is open, with its lock; or none.
  struct Asking {
    std::shared_ptr<Session> session;
    std::unique_lock<std::mutex> lock;
    explicit operator bool() const { return session != nullptr; }
    Session& operator*() const { return *session; }
    Session* operator->() const { return session.get(); }
  };
  // When a session's time is over at the earliest: it may have been used since.
  using Deadlines = std::set<std::pair<uint64_t, SessionId>>;
  // What copying and computing take, as far as it was seen.
  struct Models {
    // x is blocks, y the sum of their positions. Empty: nothing was seen, and no cost is configured.
    std::optional<engine::TimeModel> compute;
    // Of copying small pieces here and now: x is pieces, y their bytes.
    engine::TimeModel inlined{1000, 0.1, 20000};
  };
  struct Counters {
#define NEOTIER_COUNTER(name, help) std::atomic<uint64_t> name{0};
    NEOTIER_KV_COUNTERS(NEOTIER_COUNTER)
#undef NEOTIER_COUNTER
  };
  static constexpr size_t kShards = 32;

  uint64_t now_ms() const { return clock_.now_ns() / 1000000; }
  static uint64_t deadline_of(const Session& session);
  uint64_t cost_at(uint64_t position) const;
  // To compute the block, by what was seen. 0: not known.
  uint64_t seen_cost_at(const Models& models, uint64_t position) const;
  // from: scratch; the tier that each of those found would be read from.
  LoadPlan make_plan(const Session& session, std::span<const engine::Key> keys, uint32_t first_position,
                     const PlanOptions& options, std::vector<engine::TierId>& from) const;

  SessionShard& shard_of(SessionId session) { return session_shards_[session % kShards]; }
  std::shared_ptr<Session> registered(SessionId session);
  Asking find(SessionId session);
  // With the session's lock: nobody finds it from here on.
  void close(Session& session);
  // Without a session's lock.
  void expire();
  void put_back(Deadlines::node_type place, Session& session, uint64_t deadline_ms);
  // With deadlines_mutex_.
  void note_earliest();

  // Without a session's lock. wait: also where somebody else does that just now.
  void follow_engine(bool wait);
  // With follow_mutex_.
  void follow();

  Shard& shard_of(const engine::Key& key);
  // With the lock of the entry's shard, as all that have one as an argument.
  std::list<Place>& order_of(Shard& shard, const Entry& entry);
  static void to_front(std::list<Place>& to, std::list<Place>& from, std::list<Place>::iterator at, int64_t rank);
  void use(Shard& shard, Entry& entry, int64_t rank);
  void change_holders(Shard& shard, Entry& entry, bool one_more, int64_t rank);
  void forget(Shard& shard, const engine::Key& key);
  // NULL where the session's hold is of nothing any more.
  static Entry* held(Shard& shard, const Held& held);
  // NULL: it is not in the engine. coming: nor need it be, its bytes are on their way there.
  Entry* adopt(Shard& shard, const engine::Key& key, Tenant& tenant, bool coming, bool& fresh);
  bool due_out(const Entry& entry) const;
  // So many ranks above all others; the first of them.
  int64_t draw_ranks(size_t nr) { return newest_.fetch_add(static_cast<int64_t>(nr), std::memory_order_relaxed) + 1; }

  // The block is in the engine: stored just now, or by a former process. `position`: in its prefix. write_out: a
  // durable copy is asked for where that is due.
  void enter(const engine::Key& key, Tenant& tenant, uint64_t position, bool write_out);
  void describe_recovered(const engine::Key& key, uint64_t position);
  void begin(Session& session, std::span<const engine::Key> keys, uint32_t first_position, const RequestTraits& traits);
  // Tells the engine of the session's request, if that is to be done. at_hand: of the blocks from `position` on.
  engine::Result<engine::Arrival> tell(Session& session, uint32_t position = 0, const std::vector<bool>& at_hand = {});
  engine::Status keep_late(const engine::Key& key, uint64_t cost_ns, const std::byte* block);
  engine::Status keep_late(const engine::Key& key, uint64_t cost_ns, const std::function<void(std::byte* room)>& write);
  // The session holds these from now on, and nothing else. enter: also those that no entry is of yet.
  void hold_all(Session& session, std::span<const engine::Key> keys, bool enter);
  // The first `nr` that it holds.
  void release(Session& session, size_t nr, bool expired);
  void give_up(Session& session, const Held& mine);
  // With the tenant's room.
  bool make_quota_room(Tenant& tenant);
  // False: the block stays.
  bool remove_for_room(const engine::Key& key, bool was_held);
  bool pass_filter(const engine::Key& key);
  // The block was there and was passed over. A tier that nobody reads says nothing of itself: one block of it a second
  // is read for that alone, so that what was slow once is found out to be fast again.
  void passed_over(const engine::Key& key, engine::TierId tier);

  engine::Engine& engine_;
  StoreOptions options_;
  const BlockLayout layout_;
  engine::SteadyClock steady_;
  const engine::Clock& clock_;
  std::vector<std::string> tier_names_;
  bool durable_ = false;

  mutable std::mutex tenants_mutex_;
  std::deque<Tenant> tenants_;  // they stay where they are

  std::array<SessionShard, kShards> session_shards_;
  std::atomic<SessionId> next_session_{1};
  mutable std::mutex deadlines_mutex_;
  Deadlines deadlines_;
  uint64_t expiry_visits_ = 0;
  std::atomic<uint64_t> earliest_ms_{UINT64_MAX};  // of deadlines_, for who does not take its lock

  std::array<Shard, kShards> shards_;
  std::atomic<uint64_t> next_entry_{1};
  std::atomic<int64_t> newest_{0}, oldest_{0};  // ranks that were given out

  std::mutex filter_mutex_;
  // Offers of blocks that are not stored, oldest at the back.
  std::list<std::pair<engine::Key, uint32_t>> offers_;
  std::unordered_map<engine::Key, std::list<std::pair<engine::Key, uint32_t>>::iterator, KeyHash> offer_of_;

  std::mutex follow_mutex_;
  std::vector<engine::ObjectEvent> taken_;  // scratch
  engine::EventCursor engine_events_;       // seen of the engine's
  std::atomic<uint64_t> followed_{0};       // the same, for who does not take the lock
  engine::EventRing events_;
  engine::EventCursor told_events_;  // of those, to take_events()'s caller
  uint64_t lost_events_ = 0;

  mutable std::mutex models_mutex_;
  Models models_;
  // By tier: when it was passed over first, or tried last; 0: it is in use.
  std::vector<uint64_t> tried_ms_;
  std::weak_ptr<engine::Ticket> trial_;  // there while one is under way
  std::vector<uint64_t> bypassed_of_tier_;

  alignas(64) Counters counters_;
};

}  // namespace neotier::kv

// SPDX-License-Identifier: Apache-2.0
// The engine: objects in interchangeable tiers, kept where the policies want them, moved by one mover.
//
// One lock guards index, policies, links, planner, mover and pins; it is never held while bytes are copied or a medium
// is waited for, and what is asked of many objects at once lets others pass after a few. Who asks how much of a prefix
// is there takes no lock (ObjectIndex::copies). Locking order: engine -> a
// tier's own -> the mover's completion list; tickets are last. One thread of the engine's decides; the tiers' threads,
// and callers that read memory tiers, copy.
//
// An object is whole at every moment or not there: put() and moves write elsewhere and publish at the end; a reader
// that began before keeps the bytes it began with.
//
// Errors: Status (kNoMemory: out of memory, nothing was done); only construction throws, and what gives no Status
// (std::bad_alloc). Thread safety: all calls from any thread, the destructor excepted.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/catalogue.h"
#include "engine/clock.h"
#include "engine/counters.h"
#include "engine/link.h"
#include "engine/mover.h"
#include "engine/passing_mutex.h"
#include "engine/pins.h"
#include "engine/planner.h"
#include "engine/ticket.h"

namespace neotier::engine {

struct EngineConfig {
  size_t max_objects = 1 << 20;  // 1 .. 2^32 - 2, those remembered included; memory is taken as they come
  size_t history = 0;            // objects remembered after they left, for the policies: Catalogue has the default
  size_t events = 0;             // newest events kept for take_events(), for all readers; 0: none
  bool discard = false;          // PutOptions::discard of every put
  uint64_t seed = 0;             // of the index's hash and of policies; 0: random
  Knobs knobs;
  bool measure = true;           // probe each link at start (some ms a tier)
  bool thread = true;            // false: somebody calls step(); for tests
  const Clock* clock = nullptr;  // NULL: the steady one
};

struct ObjectInfo {
  ObjectKind kind{};
  uint64_t bytes = 0;
  uint64_t recompute_ns = 0;
  std::string tier, second_tier;  // where it is; the second is empty where there is one copy
  uint32_t pins = 0;
  bool moving = false;
  bool recovered = false;
};

struct PutOptions {
  ObjectKind kind = ObjectKind::kPlain;
  uint64_t recompute_ns = 0;  // to make it anew; 0: impossible, so the object is never thrown away, but for `discard`
  std::string tier = {};      // where to; empty: the policies decide
  bool replace = false;       // else kExists where there is one
  bool discard = false;       // it may be thrown away for want of room, whatever making it anew costs
  bool used = true;           // false: a request() has told of the use, when the bytes were not at hand
};

// What a request uses, in order.
struct RequestUse {
  Key key;
  uint64_t cost_ns = 0;  // to make it anew; 0: impossible, as in PutOptions
  bool at_hand = false;  // its bytes can be had, so it may be stored where it is missing
};

struct RequestInfo {
  ObjectKind kind = ObjectKind::kKv;
  uint32_t bytes = 0;  // of each object, > 0
  bool discard = false;
  uint32_t first_position = 0;  // of the first use: how many objects of its prefix come before
  uint32_t category = 0;        // kind of request, as the host numbers them; 0: not known
};

enum class UseOutcome : uint8_t {
  kHit,   // it was there
  kMiss,  // it was not, and was not at hand, and a tier's policy wants it
  kPass,  // it was not, and no tier's policy wants it
  kFull,  // one does, and there is no room
  kRoom,  // it has a place now: Arrival::fill()
};

class Engine;

// What became of a request's uses, and the places of those that are to be stored: held until they are filled, or this
// is gone. One caller's; the engine must outlive it.
class Arrival {
 public:
  Arrival() = default;
  Arrival(Arrival&& other) noexcept { *this = std::move(other); }
  Arrival& operator=(Arrival&& other) noexcept;
  // Gives up the places that were not filled.
  ~Arrival();

  const std::vector<UseOutcome>& outcomes() const { return outcomes_; }
  // Starts to store use `index`, whose outcome is kRoom, from where its bytes lie together. They must stay until fill()
  // of it has returned, or this is gone. Does nothing where fill() would take no longer: the host can write the place.
  void start(size_t index, const std::byte* bytes);
  // Stores use `index`, whose outcome is kRoom: `write` is called once, with room for the object's bytes, and not under
  // the engine's lock; or not at all where start() was, which this waits for. Then it is in its tier, whole, or not at
  // all: kGone, kFull, kIo, kNoMemory.
  Status fill(size_t index, const std::function<void(std::byte* room)>& write);

 private:
  friend class Engine;
  struct Place {
    Handle handle = kNoHandle;  // kNoHandle: none, or filled
    TierId tier = kNoTier;
    Extent extent = kNoExtent;  // kNoExtent: room is waited for
    std::byte* room = nullptr;  // where the host can write it
    uint64_t cost_ns = 0;
    Handle started = kNoHandle;  // its handle from start() on
    TicketRef ticket;
  };
  Engine* engine_ = nullptr;
  RequestInfo info_;
  std::vector<UseOutcome> outcomes_;
  std::vector<Place> places_;
};

struct PinResult {
  PinId id = 0;
  const std::byte* data = nullptr;    // NULL: the host cannot address it there
  const std::byte* device = nullptr;  // then, where a GPU can, that one's address
  uint64_t bytes = 0;
};

// What reading from a tier into the caller's memory costs now.
struct ReadPrice {
  bool mapped = false;   // the host can address what lies there
  uint64_t wait_ns = 0;  // until what is queued is there, and for the first byte
  double ns_per_byte = 0;
};

struct TierStatus {
  TierInfo info;
  TierUsage usage;
  uint64_t objects = 0;
  std::string policy;
  bool in_service = true;
  std::vector<NodeBytes> nodes;  // Tier::nodes()
  double read_bytes_per_s = 0, write_bytes_per_s = 0, read_latency_ns = 0, write_latency_ns = 0;
  Histogram waited, took;  // of reads into the caller's memory, as in Link
};

struct LinkStatus {
  std::string from, to;  // "host": the caller's memory
  double latency_ns = 0, bytes_per_s = 0;
  uint64_t queued_bytes = 0, transfers = 0, bytes = 0;
};

struct EngineStatus {
  std::vector<TierStatus> tiers;
  std::vector<LinkStatus> links;  // those that carried or were measured
  uint64_t objects = 0, remembered = 0, max_objects = 0;
  double overhead_bytes_per_object = 0;
  uint64_t sessions = 0, pins = 0, jobs = 0;
  uint64_t queued[kMoveClasses] = {};
  Histogram lookups;  // of prefixes
  Counters counters;
};

class Engine {
 public:
  // Tiers fastest first, 1 .. 14, by different names. Durable ones are asked what they still hold. Throws
  // std::runtime_error, std::bad_alloc.
  Engine(EngineConfig config, std::vector<TierSetup> tiers);
  // Cancels what is under way. Sessions are closed with it.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  SessionId open_session();
  // Its pins are released, all of them.
  void close_session(SessionId session);

  // Tells the policies of a request with all that it uses, whole and at once: a use of what is there, a miss of the
  // rest; and makes room for what is missing, at hand and wanted by a policy, in the fastest such tier. Objects that
  // cannot be made anew find room whatever the policies want. kInvalid, kNoMemory: nothing was told.
  Result<Arrival> request(const RequestInfo& info, std::span<const RequestUse> uses);
  // Objects of tiers without a size of their own (TierSetup::object_bytes) are of this size; for an idea of how many
  // fit.
  Status expect(uint64_t object_bytes);

  // Returns when the object is in a tier, whole. kExists, kFull, kInvalid (0 bytes, 4 GiB and more), kBusy (pinned),
  // kGone.
  Status put(const Key& key, std::span<const std::byte> data, const PutOptions& options = {});
  // Copies [offset, offset + into.size()) out. kNotFound, kInvalid (beyond its end), kGone, kIo, kCorrupt. Counts as a
  // use.
  Status get(const Key& key, uint64_t offset, std::span<std::byte> into);
  // The same, without waiting; `into` must stay until the ticket ends.
  // used: false where a request() has told of the use.
  void get_async(const Key& key, uint64_t offset, std::span<std::byte> into, const TicketRef& ticket, bool used = true);
  // Calls `read` with the bytes of each object that the host can address, one after the other, in the caller's thread
  // and not under the lock: the object stays what it is meanwhile. Marks those in `done`, as long as `keys`; the others
  // want get_async(). No use is counted.
  void read_mapped(std::span<const Key> keys, const std::function<void(size_t index, const std::byte* bytes)>& read,
                   std::vector<bool>& done);
  Result<ObjectInfo> lookup(const Key& key) const;
  // How many of the first keys are there, in tiers in service: the longest prefix that need not be computed. Waits for
  // nobody: each key is answered as of a moment of its own.
  size_t lookup_prefix(std::span<const Key> keys) const;
  // Whether lookup() would find it. Waits for nobody.
  bool has(const Key& key) const;
  // Asks shared tiers for those that are not known here, waiting for at most Knobs::find_ms; what other processes have
  // stored is known from then on. Returns how many came to be. 0 at once where no tier is shared. They may be thrown
  // away, and describe() says what they are.
  size_t find(std::span<const Key> keys);
  // The same as lookup_prefix(), and the tier that each would be read from, with the prices of all tiers.
  size_t read_sources(std::span<const Key> keys, std::vector<TierId>& from,
                      std::array<ReadPrice, kMaxTiers>& prices) const;
  // kNotFound, kBusy (pinned). wait: until a caller who writes the object has ended; else kBusy: for whom that caller
  // might wait in turn.
  Status remove(const Key& key, bool wait = true);
  // What a recovered object is; or new costs.
  Status describe(const Key& key, ObjectKind kind, uint64_t recompute_ns);
  // Counts as a use without reading.
  Status touch(const Key& key);

  // Holds the object where it is. lease_ms 0: until unpin() or the session's end. used: as in get_async().
  Result<PinResult> pin(SessionId session, const Key& key, uint64_t lease_ms, bool used = true);
  Status unpin(SessionId session, PinId pin);
  // Host memory of the tiers of that kind, for as long as the engine lives: for who wants a device to reach it.
  std::vector<std::span<std::byte>> ranges(TierKind kind);

  // Brings objects to a tier; the ticket ends for each key, whatever comes of it.
  TicketRef move(std::span<const Key> keys, const std::string& tier, MoveClass cls);
  // Copies on the first durable tier, beside the ones there are.
  TicketRef write_back(std::span<const Key> keys);
  void cancel(const TicketRef& ticket) { cancel({&ticket, 1}); }
  void cancel(std::span<const TicketRef> tickets);
  // All objects that are on durable tiers now survive a crash when it returns.
  Status flush();

  // Load, make anew, or compute where it lies. tier: where to, empty: the caller's memory.
  Result<Decision> decide(const Key& key, const std::string& tier, uint64_t compute_queue_ns, uint64_t cpu_ns);

  // Takes a tier out of service (its objects stay known), or tries to bring it back. Out: returns when nobody reads or
  // writes its memory any more, so that it can be withdrawn. kBusy: all but pins have ended; the tier is out of
  // service, but who holds the pins may still read there: ask again when they have let go. kCancelled: somebody brought
  // it back meanwhile.
  Status set_in_service(const std::string& tier, bool in_service);

  // Which tiers are in service, and their names; without the lock.
  std::vector<bool> in_service() const {
    return std::vector<bool>(usable_.begin(), usable_.begin() + catalogue_.tiers());
  }
  const std::string& tier_name(size_t tier) const { return catalogue_.info(static_cast<TierId>(tier)).name; }
  EngineStatus status() const;
  size_t events() const { return config_.events; }
  // Events so far; where a reader's cursor is there, take_events() has nothing for it. Waits for nobody.
  uint64_t events_so_far() const { return catalogue_.events().pushed(); }
  // Appends up to `max` events that the reader has not seen, oldest first. Returns how many came before them and are
  // lost. Readers do not take each other's.
  uint64_t take_events(EventCursor& reader, size_t max, std::vector<ObjectEvent>& out);

  // Without a thread: does what can be done now, returns when to call again (clock's time).
  uint64_t step();
  // Not under the lock: for tests and benchmarks that are alone with the engine.
  Links& links() { return links_; }
  Catalogue& catalogue() { return catalogue_; }
  Planner& planner() { return planner_; }
  const Mover& mover() const { return mover_; }

 private:
  friend class Arrival;
  using Lock = std::unique_lock<PassingMutex>;
  struct Health {
    bool down = false;
    bool withdrawn = false;  // by the operator: not tried again
    uint64_t retry_ns = 0;
    uint32_t attempts = 0;  // in a row
    bool trying = false;
  };

  void run();
  uint64_t step_locked();
  void measure();
  void recover();
  void check_tiers(uint64_t now_ns);
  void tier_down(TierId tier, uint64_t now_ns);
  // Lets the lock go while the tier tries.
  // `asked`: by the operator, whose word alone brings back a tier that he withdrew.
  Status bring_back(Lock& lock, TierId tier, bool asked);
  void try_failed_tiers(Lock& lock);
  bool make_index_room();
  // takers: of Catalogue::use(), which the first of the attempts makes.
  Status put_to(const Key& key, std::span<const std::byte> data, const PutOptions& options, TierId to,
                std::optional<uint32_t>& takers);
  Status fill(Arrival& arrival, Arrival::Place& place, const std::function<void(std::byte*)>& write);
  void start(Arrival& arrival, Arrival::Place& place, const std::byte* bytes);
  Status finish(Arrival::Place& place);
  void abandon(Arrival& arrival);
  // With the lock. False where the object is known meanwhile, or there is no room to know it.
  bool take_found(TierId id, const Found& found);
  UseOutcome find_place(uint32_t index, Handle handle, const Version& version, uint32_t takers);
  // Counts it, and copies it to the durable tier where that is asked for.
  void stored(Handle handle);
  // What the public calls do, which catch what these throw.
  Status read_now(const Key& key, uint64_t offset, std::span<std::byte> into);
  Result<ObjectInfo> look_up(const Key& key) const;
  Status remove_now(const Key& key, bool wait);
  Status put_in_service(const std::string& tier, bool in_service);
  Result<PinResult> pin_now(SessionId session, const Key& key, uint64_t lease_ms, bool used);
  void after_use(Handle handle, uint64_t now_ns);
  void plan_promotion(Handle handle, uint64_t now_ns, std::vector<Planned>& plan);
  Result<TierId> tier_by_name(const std::string& name) const;
  // How many of the first keys are there, calling `each` with the tier that each would be read from. Without the lock.
  template <typename Each>
  size_t leading(std::span<const Key> keys, Each each) const;
  // The copy to read, and its tier; kGone.
  Result<TierId> readable(const Record& record) const;
  // Waits for a ticket, stepping where there is no thread.
  Status await(const Ticket& ticket);
  // The object's handle, new or not, with no job of it under way; the lock is held. wait: as in remove().
  Result<Handle> claim(Lock& lock, const Key& key, const PutOptions& options, uint32_t bytes, bool wait = true);

  EngineConfig config_;
  SteadyClock steady_;
  const Clock& clock_;
  mutable PassingMutex mutex_;
  Counters counters_;
  Usable usable_{};
  Catalogue catalogue_;
  Links links_;
  mutable SharedHistogram lookups_;
  Planner planner_;
  Mover mover_;
  Pins pins_;
  std::array<Health, kMaxTiers> health_;
  uint64_t checked_ns_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace neotier::engine

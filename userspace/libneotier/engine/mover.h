// SPDX-License-Identifier: Apache-2.0
// Carries out what was asked for and what the planner planned: the only one that changes placement.
//
// A job takes one object from one end to another: reserve room -> copy, a chunk at a time -> verify that the object is
// still what it was -> publish. Until it is published the object is where it was, so a job that fails, is cancelled or
// goes stale leaves it there, whole. A copy that somebody still reads is set aside at publishing and freed when the
// last reader has left.
//
// Order: chunks of demand before those of prefetch before those of write-back, wherever they share a tier. Of the lower
// two at most a few chunks are at a tier at any time, and beside demand they share a token bucket, so that demand finds
// a queue of one chunk in front of it and not of one request.
//
// Transfers between a tier and memory are the tiers' work; the mover's own thread only decides, and blocks on nothing
// but its wake-up.
//
// Memory: what a job needs until its end is taken when it starts, and a job that finds none does not start. From then
// on nothing is allocated but chunks, which are used again; so the thread that nobody calls cannot be ended by
// bad_alloc.
//
// Costs: whatever is done to a job looks at that job, at the tickets that wait for it and at its chunks at tiers, not
// at other jobs; but for a tier's failure, which looks at all once.
//
// Thread safety: none but of wake(); the engine's lock. Completions arrive from threads of tiers through a list of
// their own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/catalogue.h"
#include "engine/clock.h"
#include "engine/counters.h"
#include "engine/link.h"
#include "engine/linked_list.h"
#include "engine/planner.h"
#include "engine/ticket.h"

namespace neotier::engine {

enum class JobKind : uint8_t;

// What of a record changes with its bytes, at the same moment.
struct Version {
  uint32_t bytes = 0;
  ObjectKind kind = ObjectKind::kPlain;
  uint64_t recompute_ns = 0;
  bool discard = false;
  Note note() const { return encode_note(kind, encode_cost(recompute_ns), discard); }
};

struct OfAll;
struct OfJob;
struct OfQueue;

class Mover {
 public:
  struct Job;  // mover_job.h

  Mover(Catalogue& catalogue, Links& links, Planner& planner, Usable& usable, Counters& counters, const Clock& clock,
        const Knobs& knobs);
  // Nothing may be under way: shut_down() first.
  ~Mover();

  // Brings the object to a tier. The ticket (may be NULL) ends once for it; an object that is there already, or on its
  // way, is no error. kBusy: pinned, or on its way elsewhere.
  void move(Handle handle, TierId to, MoveClass cls, Reason reason, bool keep_source, const TicketRef& ticket);
  // Stores `handle`, which is in the index: its first copy, or one that takes the place of those it has. `data` must
  // stay until the ticket ends.
  void put(Handle handle, const Version& version, TierId to, const std::byte* data, const TicketRef& ticket);
  // The same, the bytes having been written already by the caller to an extent that reserve() gave.
  // The object is held against all others from before the caller writes until after: hold() and let_go().
  void put_in_place(Handle handle, const Version& version, TierId to, Extent extent);
  // hold(): false where there is no memory for it.
  bool hold(Handle handle);
  void let_go(Handle handle);
  bool held(Handle handle) const {
    const auto found = moving_.find(handle);
    return found != moving_.end() && !found->second;
  }
  // Room for it without waiting, evicting only what costs no transfer; kNoExtent where that is not possible.
  Extent reserve(Handle handle, const Version& version, TierId to);
  // The same for use `index` of the event that is being told, `handle`'s: the tier's policy takes it in at once, and
  // what must go first may be on its way still. False: there is no room. fill_place() or drop_place() follows, or
  // the policy gives it up again before it is held.
  bool make_place(uint32_t index, Handle handle, const Version& version, TierId to);
  // What a tier gave up before its bytes came has a place in a slower one instead.
  bool move_place(Handle handle, TierId to);
  // Its bytes were written to its room by the caller.
  void fill_place(Handle handle, const Version& version);
  void drop_place(Handle handle, neotier_remove_reason reason);
  // Copies bytes out. `into` must stay until the ticket ends.
  void read(Handle handle, uint64_t offset, std::byte* into, uint64_t bytes, const TicketRef& ticket);
  void flush(TierId tier, const TicketRef& ticket);
  // A removed object's extents go back to their tiers as soon as nobody reads them.
  void drop_all(Handle handle, neotier_remove_reason reason);
  void retire(TierId tier, Extent extent, uint64_t bytes);

  // Readers outside the lock hold the extent between these.
  void begin_read(TierId tier, Extent extent) { (void)reading(tier, extent); }
  void end_read(TierId tier, Extent extent);
  // The same for who writes to an extent that nobody else knows yet.
  void begin_write(TierId tier) { uses_[tier]++; }
  void end_write(TierId tier) { uses_[tier]--; }
  // Whether anybody reads or writes the tier's memory, or may: jobs, and those between the calls above.
  bool in_use(TierId tier) const { return uses_[tier] > 0; }

  // Ends what only this ticket waits for, as early as may be.
  void cancel(Ticket& ticket);
  // Throws the object's job away, if it has one.
  void make_stale(Handle handle);
  bool busy(Handle handle) const { return moving_.count(handle) != 0; }
  // Whether what is under way gives way to a pin: a move is thrown away at its end, a new version is not.
  bool yields_to_pin(Handle handle) const;

  // Does all that can be done now. Returns when to call again without an event in between; UINT64_MAX: not needed.
  uint64_t step();
  // Jobs of the planner for what it finds by itself.
  void carry_out(const std::vector<Planned>& plan, MoveClass cls);
  uint64_t leaving_bytes(TierId tier) const { return leaving_bytes_[tier]; }
  size_t jobs() const { return jobs_.size(); }
  size_t queued(MoveClass cls) const { return by_class_[static_cast<size_t>(cls)]; }
  // Jobs and waits for jobs that were looked at so far: what an operation costs, without a clock.
  uint64_t visits() const { return visits_; }
  // Cancels everything and waits for what the tiers still have. Afterwards every ticket has ended.
  void shut_down();
  // A tier went out of service: what waits for it ends.
  void tier_failed(TierId tier);
  // Transfers in a row that the tier has failed.
  uint32_t failures_in_a_row(TierId tier) const { return failures_[tier]; }
  void forgive(TierId tier) { failures_[tier] = 0; }

  // Waits until a transfer ended, wake() was called, or the time has passed. Call without the engine's lock.
  void wait_ns(uint64_t ns);
  void wake();

 private:
  struct Chunk;
  using Queue = LinkedList<Job, OfQueue>;
  struct LinkQueue {
    TierId from = kNoTier, to = kNoTier;
    std::array<Queue, kMoveClasses> waiting;
    uint32_t demand_chunks = 0, background_chunks = 0;  // at the tiers now
    uint64_t last_demand_ns = 0;
  };
  struct Readers {
    uint32_t count = 0;
    bool retired = false;  // freed by the last of them
    uint64_t bytes = 0;    // where retired
  };

  // NULL where there is no memory for it; the ticket has its answer then. `source`: kNoExtent where it reads none.
  Job* start(JobKind kind, Handle handle, TierId from, Extent source, TierId to, MoveClass cls,
             const TicketRef& ticket);
  Readers& reading(TierId tier, Extent extent);
  void end_read(Readers& readers, TierId tier, Extent extent);
  // The ticket waits for the job as well. False where there is no memory for that.
  bool join(Job* job, const TicketRef& ticket);
  void leave(Waiter* waiter, const Status& status);
  void end(Job* job, const Status& status);
  Status publish(Job& job);
  // Of the tier itself; what is known of the object goes with it.
  Result<Extent> allocate(TierId to, const Key& key, uint64_t bytes, Note note);
  // Empty where there is no memory for them.
  std::vector<Planned> victims_for(TierId tier, Handle handle, uint64_t bytes, MoveClass cls);
  void find_room(Job* job);
  // Room for a place, kNoExtent where it is waited for; false: there is none.
  bool room_for_place(Handle handle, TierId to, Extent& extent);
  void leave_waiting(Job* job);
  void count_leaving(Job* job);
  void cancel_job(Job* job);
  void enqueue(Job* job);
  // done: its bytes are there.
  void dequeue(Job* job, bool done = false);
  void raise(Job* job, MoveClass cls);
  LinkQueue& link_queue(TierId from, TierId to);
  void drop_copy(Handle handle, TierId tier, neotier_remove_reason reason);
  void free_extent(TierId tier, Extent extent);

  void take_completions();
  void chunk_ended(Chunk& chunk, const Status& status);
  void job_progressed(Job* job);
  // A read whose tier failed starts again from the object's other copy, once.
  bool read_elsewhere(Job* job);
  // The medium has it no more, or not as it was written. Where the object is held it is tried again by forget_lost().
  void lost(const Job& job);
  bool drop_lost(const Key& key, TierId tier, Extent extent);
  void forget_lost();
  void retry_rooms();
  uint64_t dispatch();
  // Sends chunks of the queue's first jobs; false where more could not be sent now.
  bool dispatch_queue(LinkQueue& queue, MoveClass cls, uint64_t now_ns, uint64_t& wake_ns);
  void send_chunk(LinkQueue& queue, Job& job, Chunk& chunk, uint64_t now_ns);
  // NULL where there is no memory for one.
  Chunk* new_chunk();
  void submit(Chunk& chunk, TierId at, Op op, Extent extent, uint64_t offset, std::byte* memory);
  void submit_all();

  Catalogue& catalogue_;
  Links& links_;
  Planner& planner_;
  const Usable& usable_;
  Counters& counters_;
  const Clock& clock_;
  const Knobs& knobs_;

  LinkedList<Job, OfAll> jobs_;  // owned
  std::array<size_t, kMoveClasses> by_class_{};
  std::unordered_map<Handle, Job*> moving_;                // those that change the object's placement
  std::map<std::pair<TierId, TierId>, LinkQueue> queues_;  // of every pair from the beginning
  std::array<Queue, kMaxTiers> rooms_;                     // waiting for room
  uint64_t visits_ = 0;
  std::array<bool, kMaxTiers> room_changed_{};
  std::array<uint64_t, kMaxTiers> freed_{};          // how often something left, or failed to
  std::array<uint64_t, kMaxTiers> leaving_bytes_{};  // on the way out, or read by somebody for the last time
  std::array<uint64_t, kMaxTiers> waiting_bytes_{};  // that jobs want there
  std::array<uint32_t, kMaxTiers> failures_{};
  std::array<uint32_t, kMaxTiers> in_flight_{};  // transfers at the tier
  std::array<bool, kMaxTiers> needs_poll_{};
  std::array<std::vector<Chunk*>, kMaxTiers> to_submit_;
  std::map<std::pair<TierId, Extent>, Readers> readers_;
  std::array<uint64_t, kMaxTiers> uses_{};
  struct Lost {
    Key key;
    TierId tier;
    Extent extent;
  };
  std::vector<Lost> lost_;  // copies of objects that are held

  std::vector<std::unique_ptr<Chunk>> chunks_;
  // All of them, and below, have room for every chunk there is.
  std::vector<Chunk*> free_chunks_;
  std::vector<Transfer*> submitting_;
  std::vector<std::pair<Chunk*, Status>> ended_;

  std::mutex completions_mutex_;
  std::condition_variable completed_;
  std::vector<std::pair<Chunk*, Status>> completions_;
  bool woken_ = false;
};

}  // namespace neotier::engine

// SPDX-License-Identifier: Apache-2.0
// The inside of the SSD tier. Split by what it does: store.cc (opening, the thread, commits), transfers.cc (reads and
// writes), cleaner.cc (getting room back), medium_loss.cc (going out of service and coming back).
//
// Memory: the thread has nobody who could catch what it throws. Where there is none for a transfer, that one ends with
// kNoMemory; what cannot be noted in the journal is not done, or waits for the next turn.
//
// Locking: mutex_ guards what is marked so; all else belongs to the thread (and to open() before it starts).
#pragma once

#include <xxhash.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/linked_list.h"
#include "engine/tiers/ssd/access.h"
#include "engine/tiers/ssd/extent_table.h"
#include "engine/tiers/ssd/journal.h"
#include "engine/tiers/ssd/segments.h"
#include "engine/tiers/ssd/ssd_tier.h"

namespace neotier::engine {

class SsdTier::Store {
 public:
  Store(SsdOptions options, std::unique_ptr<File> file, const ssd::Geometry& geometry);
  ~Store();
  static Result<std::unique_ptr<Store>> open(SsdOptions options);

  const TierInfo& info() const { return info_; }
  TierUsage usage() const;
  Result<Extent> allocate(const Key& key, uint64_t bytes);
  void free(Extent extent);
  void describe(Extent extent, Note note);
  size_t submit(std::span<Transfer* const> transfers);
  void cancel(Transfer& transfer);
  bool in_service() const { return !gone_; }
  Status come_back();
  Result<std::vector<Recovered>> recover();
  SsdStats stats() const;
  uint64_t window_bytes() const { return uint64_t{window_chunks_} * ssd::kChunk; }
  std::optional<uint64_t> place_of(Extent extent, uint64_t offset) const;

 private:
  static constexpr uint32_t kMaxWindow = 64;  // chunks
  static constexpr size_t kBounces = kMaxWindow;
  static constexpr size_t kMoves = 8;      // chunks that the cleaner moves at once
  static constexpr uint32_t kMaxRun = 16;  // chunks an access: 1 MiB
  // Transfer::state. A cancelled transfer's `done` is called by whoever changes kQueued.
  enum State : uint32_t { kQueued = 1, kStarted, kCancelled };

  struct Request;
  // Consecutive chunks of a window that one access reads or writes; or one chunk, by way of a bounce buffer.
  struct Run : ssd::Access {
    Request* request = nullptr;
    uint32_t first = 0, count = 0;  // in the window
    std::byte* bounce = nullptr;
    bool old = false;  // reading what a partial write leaves as it is
  };
  struct Stalled;
  struct Request : Linked<Request, Stalled> {
    Transfer* transfer = nullptr;
    uint32_t slot = 0, generation = 0;
    uint32_t extent_bytes = 0;
    uint64_t bytes = 0;             // of the transfer
    uint32_t next = 0, end = 0;     // chunks of the extent to do
    uint32_t first = 0, count = 0;  // the window
    uint32_t under_way = 0;
    Status status;
    std::array<ssd::Place, kMaxWindow> places, old;
    bool write() const { return transfer->op == Op::kWrite; }
  };
  enum class Stall { kNone, kChunk, kRoom, kBounce };
  struct Freed {
    ssd::Record record;
    uint32_t bytes;
    ssd::Place one;
    std::unique_ptr<ssd::Place[]> many;
    const ssd::Place* places() const { return many ? many.get() : &one; }
  };
  static constexpr size_t kFreedAtOnce = 1024;  // more than these wait for the thread where memory is out
  struct Move : ssd::Access {
    uint32_t slot = 0, generation = 0, chunk = 0, count = 0;
    ssd::Place from, to;
    std::byte* memory = nullptr;
    bool active = false;
  };
  struct Moving {
    uint32_t slot, generation, chunk;
    ssd::Place from;
  };
  using Holes = std::vector<std::pair<uint32_t, uint32_t>>;  // what was written, ranges of bytes in a chunk

  // store.cc, and from failure() on medium_loss.cc
  static bool erase_unused(const SsdOptions& options, const std::string& path);
  Status load();
  void run();
  void turn(bool stop);
  bool take_wishes();
  void serve_wishes();
  void note_again(Extent extent);
  void fail_if_stuck();
  void reset_file(std::unique_ptr<File> file);
  void dispatch(ssd::Access& access);
  // With the lock.
  ssd::Record record_of(uint32_t slot, uint32_t first, uint32_t count);
  void maybe_commit(bool stop);
  void commit_ended();
  bool emit_index(std::vector<std::byte>& to, size_t limit, bool begin);
  void complete(Transfer& transfer, Status status);
  Status failure(int64_t result, const char* doing);
  void lose(const std::string& why);
  Status gone_status() const;
  Status try_come_back();
  Status rewrite_pending();
  bool idle() const { return under_way_ == 0 && !journal_.committing(); }
  void start(ssd::Access& access) {
    under_way_++;
    access.ssd::Access::start(*file_);
  }

  // transfers.cc
  void begin(Transfer& transfer);
  Stall go_on(Request& request);
  Stall take_window(Request& request);
  void place_window(Request& request);
  void issue(Request& request);
  void issue_from(Request& request, Run*& unstarted);
  void run_ended(Run& run);
  bool goes_on(Run& run);
  uint32_t sum_of(const Request& request, uint32_t chunk) const;
  void corrupt(Request& request, uint32_t chunk);
  void copy(const Request& request, uint32_t chunk, std::byte* bounce, bool out) const;
  void merge_and_write(Run& run);
  void release(Run& run);
  void window_ended(Request& request);
  void apply(Request& request);
  void finish(Request& request);
  void retry_stalled();
  bool direct(const Request& request, uint32_t chunk) const;
  // The part of chunk `chunk` that the transfer covers, bytes within the chunk.
  std::pair<uint32_t, uint32_t> covered(const Request& request, uint32_t chunk) const;
  void slice(const Request& request, uint32_t chunk, uint32_t from, uint32_t to, std::vector<iovec>& into) const;
  Run& new_run(Request& request, uint32_t first);
  void start_run(Run& run);
  void make_room_for_holes(const Request& request);
  bool note_holes(uint64_t id, const ssd::Place& old, uint32_t from, uint32_t to, uint32_t content);
  int registered(const std::byte* memory, uint64_t bytes) const;
  static uint32_t content(const Request& request, uint32_t chunk) {
    return static_cast<uint32_t>(std::min<uint64_t>(ssd::kChunk, request.extent_bytes - uint64_t{chunk} * ssd::kChunk));
  }
  static uint64_t chunk_id(uint32_t slot, uint32_t chunk) { return uint64_t{slot} << 32 | chunk; }

  // cleaner.cc
  bool want_room() const { return segments_.low() || room_waiter_ != nullptr; }
  void clean();
  bool find_victim();
  bool list_victim();
  void move_ended(Move& move);

  const SsdOptions options_;
  const std::shared_ptr<FileSystem> file_system_;
  const ssd::Geometry geometry_;
  TierInfo info_;
  uint32_t window_chunks_;

  mutable std::mutex mutex_;
  ssd::ExtentTable table_;            // guarded by mutex_
  std::vector<Transfer*> submitted_;  // guarded by mutex_
  std::vector<Freed> freed_;          // guarded by mutex_
  std::vector<Extent> described_;     // guarded by mutex_: since they were written
  size_t taken_ = 0;                  // guarded by mutex_: transfers not completed
  bool stop_ = false;                 // guarded by mutex_
  bool sleeping_ = false;             // guarded by mutex_
  bool cancels_ = false;              // guarded by mutex_: some transfer was cancelled
  bool back_wanted_ = false;          // guarded by mutex_
  std::optional<Status> back_;        // guarded by mutex_
  std::condition_variable back_changed_;
  std::atomic<bool> gone_ = false;
  std::string gone_why_;  // guarded by mutex_

  std::unique_ptr<File> file_;
  ssd::Memory memory_;             // bounce buffers, the cleaner's, the journal's; registered as buffer 0
  std::vector<iovec> registered_;  // as the kernel numbers them
  ssd::Segments segments_;
  ssd::Journal journal_;
  size_t under_way_ = 0;  // accesses, but for the journal's

  std::deque<Request> requests_;
  std::vector<Request*> free_requests_;
  std::deque<Run> runs_;
  std::vector<Run*> free_runs_;
  std::vector<std::byte*> bounces_;
  LinkedList<Request, Stalled> stalled_;
  // The first that waits for room, or for bounce buffers: later ones wait behind it.
  Request* room_waiter_ = nullptr;
  Request* bounce_waiter_ = nullptr;
  std::unordered_set<uint64_t> writing_;  // chunks
  std::unordered_map<uint64_t, Holes> holes_;
  struct FreeState {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  const std::unique_ptr<XXH3_state_t, FreeState> hash_{XXH3_createState()};
  mutable std::vector<iovec> slices_;  // for the moment
  std::vector<Transfer*> wishes_;
  std::vector<Freed> freed_now_;
  size_t freed_done_ = 0;  // of them
  std::vector<Extent> described_now_;
  std::vector<Transfer*> flushes_, flushes_next_;  // of the commit under way; of the one after it
  unsigned failures_in_a_row_ = 0;
  bool ready_ = false;  // there is work that needs no completion
  uint32_t index_slot_ = 0;

  std::array<Move, kMoves> moves_;
  std::vector<Moving> moving_;
  size_t moves_under_way_ = 0;
  std::optional<uint32_t> victim_;
  bool victim_failed_ = false;

  struct {
    std::atomic<uint64_t> bytes_read = 0, bytes_written = 0, bytes_cleaned = 0, commits = 0, checkpoints = 0,
                          corrupt_chunks = 0, errors = 0;
  } count_;
  const char* method_;
  std::thread thread_;
};

}  // namespace neotier::engine

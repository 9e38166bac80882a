// SPDX-License-Identifier: Apache-2.0
// Brings bytes of files into memory: demand before background, in chunks, so that demand waits for few of the others'.
// Background loads share a token bucket, where one is set. A read that fails is tried once more; then its load fails,
// and no other.
//
// Thread safety: calls with the owner's lock held (the one it gave); `done` and `idle` are called by the loader's
// thread with that lock held. While the thread waits for the medium the lock is free.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/io/file.h"
#include "engine/link.h"
#include "experts/layout.h"

namespace neotier::experts {

struct LoaderOptions {
  uint64_t chunk_bytes = 512 << 10;     // a multiple of kIoBlock
  uint32_t demand_chunks = 16;          // whole ones at the medium at a time, or as many bytes of smaller ones
  uint32_t background_chunks = 2;       // the same, for background to add one
  uint64_t background_bytes_per_s = 0;  // 0: no limit
};

class Loader {
 public:
  struct Load;
  struct Hooks {
    // The load has ended; its memory is not touched any more. kCancelled after cancel(). The load is gone afterwards.
    std::function<void(Load&, Status)> done;
    // Nothing is left to start: true where it called start() for more.
    std::function<bool()> idle;
  };
  struct Counters {
    uint64_t bytes = 0, loads = 0, cancelled = 0, retries = 0, failures = 0;
  };

  // names: of the files, for messages; bytes: of each; registered: whether Load::buffer names the file's buffers.
  Loader(std::mutex& mutex, std::unique_ptr<engine::File> file, std::vector<std::string> names,
         std::vector<uint64_t> bytes, bool registered, const LoaderOptions& options, Hooks hooks);
  // Cancels what is under way and waits for the medium to let go of it.
  ~Loader();

  // memory: of runs.back().at + .bytes. object, buffer: the caller's own.
  Load* start(uint32_t object, std::vector<Run> runs, std::byte* memory, int buffer, bool demand);
  // Changes its class; a load that becomes demand goes behind the demand there is.
  void set_demand(Load* load, bool demand);
  // done() follows, perhaps at once.
  void cancel(Load* load);
  // idle() may have something now.
  void wake();

  // Time until the load would be there if nothing else came, ns; from what transfers took lately.
  uint64_t predict_ns(const Load& load) const;
  const engine::Link& link() const { return link_; }
  const Counters& counters() const { return counters_; }
  const char* method() const { return file_->method(); }

 private:
  struct Chunk;
  void run();
  void pump();
  void submit_from(std::list<Load*>& queue, uint64_t limit);
  void submit(Load& load);
  void ended(Chunk& chunk);
  void finish(Load& load, Status status);
  static uint64_t now_ns();

  std::mutex& mutex_;
  std::unique_ptr<engine::File> file_;
  const std::vector<std::string> names_;
  const std::vector<uint64_t> bytes_;
  const bool registered_;
  const LoaderOptions options_;
  const Hooks hooks_;
  engine::Link link_;
  Counters counters_;
  std::list<std::unique_ptr<Load>> loads_;
  std::list<Load*> demand_, background_;  // with chunks left to submit, in order
  std::vector<std::unique_ptr<Chunk>> free_chunks_;
  std::list<std::unique_ptr<Chunk>> busy_chunks_;
  uint32_t outstanding_ = 0;  // chunks at the medium
  uint64_t outstanding_bytes_ = 0;
  uint64_t last_end_ns_ = 0;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

struct Loader::Load {
  uint32_t object = 0;
  int buffer = -1;
  std::byte* memory = nullptr;
  std::vector<Run> runs;
  bool demand = false;

 private:
  friend class Loader;
  size_t run = 0;                // next to submit
  uint64_t in_run = 0;           // bytes of it that were submitted
  uint64_t bytes = 0, left = 0;  // all, and not there yet
  uint32_t outstanding = 0;
  uint64_t started_ns = 0;
  bool cancelled = false, queued = false;
  Status error;
  std::list<std::unique_ptr<Load>>::iterator self;
};

}  // namespace neotier::experts

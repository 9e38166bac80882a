// SPDX-License-Identifier: Apache-2.0
// Blocks that a GPU cannot read where they lie come to staging, and go on from there. Staging may be smaller than a
// load: a slot is filled again once the device has read it.
//
// Order. Layer 0 of all blocks comes first, as a forward pass needs them. A slot does not take a block but a chunk: as
// many layers of blocks as fit, next to each other in that order. So no layer of a large load waits for a later one.
// Progress. A chunk's read and its copy wait for tiers and for the device, never for a caller or for another slot.
// Loads take slots in turn, one each. So loads that share the staging cannot wait for each other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/tiers/cuda/device_copies.h"
#include "kv/block_layout.h"
#include "kv/staging.h"

namespace neotier::kv {

// Wakes the stager. Who rings it shares it, and may come after the stager has gone.
class Bell {
 public:
  void ring();

 private:
  friend class Stager;
  std::mutex mutex_;  // taken last: who rings may hold others
  std::condition_variable changed_;
  bool rung_ = false;
};

// What staged blocks are read with, and copied.
struct StagingLane {
  engine::Engine& engine;
  const BlockLayout& layout;
  engine::DeviceCopies& copies;
  Staging& staging;
  std::shared_ptr<Bell> bell;
};

// Those blocks of one load. Thread safety: the public calls belong to one thread at a time, the stager's own beside it.
class StagedBlocks {
 public:
  struct Block {
    size_t number = 0;  // in the load
    engine::Key key;
  };
  // What became of a layer.
  struct Layer {
    engine::Status status;                     // the error of the first block that has not come
    size_t good = SIZE_MAX;                    // that one's number
    std::unique_ptr<engine::DeviceMark> mark;  // of the copies of those before it; NULL: there are none
  };

  // blocks: by number, pinned for as long as this is there. into: [piece * stride + number].
  StagedBlocks(StagingLane lane, std::vector<Block> blocks, std::span<std::byte* const> into, size_t stride);
  // Not before Stager::remove(). Waits until nothing writes to staging or to `into` any more.
  ~StagedBlocks();
  StagedBlocks(const StagedBlocks&) = delete;
  StagedBlocks& operator=(const StagedBlocks&) = delete;

  // Until all copies of the layer that will ever be asked for have been. NULL: not within that time.
  const Layer* wait(uint32_t layer, uint64_t timeout_ms);
  // Layers that have not been asked for end with kCancelled, soon.
  void cancel();

 private:
  friend class Stager;
  // Told of each read that has ended; rings when all have.
  class Arrivals;
  // Of a chunk: one layer of blocks_[first .. end), from `at` on.
  struct Section {
    uint32_t layer = 0;
    size_t first = 0, end = 0;
    std::byte* at = nullptr;
    std::vector<engine::TicketRef> reads;  // by block
    std::shared_ptr<Arrivals> arrivals;
  };
  struct Chunk {
    std::byte* slot = nullptr;
    std::vector<Section> sections;
    size_t sent = 0;                           // of those
    bool copied = false;                       // the device reads the slot, until the mark has passed
    std::shared_ptr<engine::DeviceMark> mark;  // once all sections are sent
  };
  enum class Turn : uint8_t {
    kMoved,    // it may go on at once
    kWaiting,  // until the bell rings
    kCopying,  // the same, or until the device has read a slot, which rings no bell
    kEnded,    // nothing is left to do
  };

  // What follows is the stager's thread's.
  Turn turn();
  void stop();
  bool fetch();
  std::vector<Section> next_sections(std::byte* slot);
  bool send_on();
  bool let_go();
  void take(Chunk& chunk, const Section& section);
  void flush();
  void tell();
  void fail(engine::Status status);
  void cancel_reads();

  const StagingLane lane_;
  const std::vector<Block> blocks_;
  const std::span<std::byte* const> into_;
  const size_t stride_;
  std::atomic<bool> cancelled_{false};
  bool stopped_ = false;  // cancelled_ was seen

  // In order: read from, sent on, and let go from the front.
  std::deque<Chunk> chunks_;
  std::vector<engine::DeviceCopy> asked_;  // to be asked for, of sections that count as sent
  // The next to be read, and to be sent on: a layer, and in it an index of blocks_.
  uint32_t read_layer_ = 0, sent_layer_ = 0;
  size_t read_at_ = 0, sent_at_ = 0;
  // Blocks from this index of blocks_ on are given up, for this reason; in layers that are whole they are good.
  size_t end_;
  engine::Status error_;
  bool broken_ = false;  // of what the device did nothing is known

  std::mutex mutex_;  // of what follows
  std::condition_variable told_;
  std::vector<Layer> layers_;
  uint32_t layers_told_ = 0;  // from the first one on; those are the caller's
};

// The thread that drives them, so that no caller has to. Any thread.
class Stager {
 public:
  Stager() : thread_([this] { run(); }) {}
  // All were removed before.
  ~Stager();
  const std::shared_ptr<Bell>& bell() const { return bell_; }
  void add(StagedBlocks& blocks);
  // The stager has no part in them when it returns.
  void remove(const StagedBlocks& blocks);

 private:
  void run();

  const std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
  // With the bell's lock.
  std::vector<StagedBlocks*> all_;
  const StagedBlocks* busy_ = nullptr;  // without the lock
  std::condition_variable not_busy_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace neotier::kv

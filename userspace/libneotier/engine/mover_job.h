// SPDX-License-Identifier: Apache-2.0
// What the two halves of the mover share.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "engine/mover.h"

namespace neotier::engine {

enum class JobKind : uint8_t { kMove, kPut, kRead, kFlush };

// A ticket may wait for one job more than once, where a call names a key twice.
struct Waiter : Linked<Waiter, OfTicket>, Linked<Waiter, OfJob> {
  TicketRef ticket;
  Mover::Job* job = nullptr;
  uint32_t times = 1;
};

struct Mover::Job : Linked<Job, OfAll>, Linked<Job, OfQueue> {
  JobKind kind{};
  MoveClass cls{};
  Reason reason{};
  Handle handle = kNoHandle;
  Key key;
  TierId from = kNoTier, to = kNoTier;  // kHost: `host`
  Extent source = kNoExtent, destination = kNoExtent;
  Readers* readers = nullptr;  // of the source
  std::byte* host = nullptr;
  uint64_t bytes = 0;
  Version version;      // of a put
  uint64_t offset = 0;  // of the first byte in the source
  uint64_t sent = 0;    // bytes whose chunks are at a tier, or done
  uint32_t chunks = 0;  // at a tier
  Chunk* first_chunk = nullptr;
  bool keep_source = false;
  bool queued = false;   // its bytes are counted at its link
  bool in_room = false;  // OfQueue is rooms_[to]; else it is a LinkQueue's, or none
  bool stale = false;
  bool cancelled = false;
  bool second_try = false;
  bool source_lost = false;  // the medium does not have it, or not as it was written
  bool held = false;         // its chunks had to wait for others'
  bool waiting = false;      // counted in waiting_bytes_
  bool leaving = false;      // counted in leaving_bytes_
  uint32_t stalls = 0;       // rounds of evictions in a row that freed nothing
  uint64_t used_before = UINT64_MAX;
  uint64_t asked_at = UINT64_MAX;  // Mover::freed_ when it last asked for victims
  uint64_t asked_ns = 0;           // when it first stood in a queue
  uint64_t begun_ns = 0;           // its first chunk's start
  Status error;
  LinkedList<Waiter, OfJob> waiters;
  Waiter first_waiter;  // most have one
};

// A piece of a job at a tier: one transfer, or a read into `staging` and then a write out of it.
struct Mover::Chunk {
  Transfer transfer;
  Piece piece;
  Job* job = nullptr;
  Chunk* next_of_job = nullptr;
  TierId at = kNoTier;  // whose transfer it is now
  uint64_t offset = 0, bytes = 0;
  uint64_t begun_ns = 0;
  bool submitted = false;
  bool second_half = false;  // out of the staging buffer
  bool background = false;
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> staging;
};

}  // namespace neotier::engine

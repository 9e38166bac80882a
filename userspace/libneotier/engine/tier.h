// SPDX-License-Identifier: Apache-2.0
// The contract of a tier: somewhere that byte ranges can be kept. Every tier passes the same conformance suite
// (engine/testing/tier_conformance.h), and no tier includes another.
//
// A tier holds extents. It knows nothing of heat, policies, pins or other tiers; the mover alone calls it, so the mover
// alone changes placement. All transfers are between an extent and host memory: a move between two tiers is a read or a
// write where one of them is mapped into the host (map()), and goes through a staging buffer where neither is.
//
// Life of an extent: allocate() -> write (once or more) -> [durable after a completed flush, where durable()] -> read
// ... -> free(). A crash loses extents that were never flushed and no other; recover() names those that came back.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/status.h"

namespace neotier::engine {

struct Key {
  uint8_t bytes[16] = {};
  friend bool operator==(const Key&, const Key&) = default;
};

enum class TierKind : uint8_t { kGpu, kDram, kCxl, kSsd, kRemote, kStandIn };

// What the engine says of an extent's object to the process after this one. Opaque to tiers; 0: nothing was said.
using Note = uint32_t;

// Opaque to all but the tier that gave it out. kNoExtent never names one.
using Extent = uint64_t;
inline constexpr Extent kNoExtent = UINT64_MAX;

struct TierInfo {
  std::string name;  // as configured: "dram", "cxl0", "ssd"
  TierKind kind{};
  bool stand_in = false;  // imitates the hardware it is named after; every report says so
  bool durable = false;   // flush() and recover() mean something
  bool shared = false;    // others write there too: find() means something
  bool kernel_moves =
      false;  // its pages begin there; the kernel takes hot ones to DRAM, and the engine leaves that to it
  uint64_t capacity_bytes = 0;
  uint32_t alignment =
      1;  // of host addresses and sizes that transfer without a copy; a power of two. Others work, slower
};

struct TierUsage {
  uint64_t used_bytes = 0;  // of capacity_bytes, with what rounding and headers cost
  uint64_t extents = 0;
};

// Of a tier's memory, what lies on one NUMA node.
struct NodeBytes {
  int node = -1;
  uint64_t bytes = 0;
};

// A piece of host memory of a transfer. Pieces follow one another in the extent.
struct Piece {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
};

// UINT64_MAX where the sum does not fit.
inline uint64_t bytes_of(std::span<const Piece> pieces) {
  uint64_t sum = 0;
  for (const Piece& piece : pieces) sum = piece.bytes > UINT64_MAX - sum ? UINT64_MAX : sum + piece.bytes;
  return sum;
}

enum class Op : uint8_t { kRead, kWrite, kFlush };

// One transfer. Owned by the caller, who keeps it, and the host memory it names, alive until `done` was called. Filled
// in by the caller: op, extent, offset, pieces, done. kFlush ignores the rest: it completes when every write that
// completed before its submission is durable, and with kUnsupported on a tier that is not.
struct Transfer {
  Op op = Op::kRead;
  Extent extent = kNoExtent;
  uint64_t offset = 0;  // into the extent, bytes
  std::span<const Piece> pieces;
  // Called exactly once for each transfer that submit() took, from any thread of the tier or from within poll() or
  // cancel(); must not block, must not call the tier but for submit().
  std::function<void(Transfer&, Status)> done;
  // The tier's own while in flight.
  std::atomic<uint32_t> state{0};
  void* tier_data = nullptr;
  Transfer* next = nullptr;
};

// What recover() brings back.
struct Recovered {
  Key key;
  Extent extent = kNoExtent;
  uint64_t bytes = 0;
  Note note = 0;  // of the last describe() that a flush covered
};

// What find() brings.
struct Found {
  Key key;
  Extent extent = kNoExtent;
  uint64_t bytes = 0;
};

// Thread safety: all calls may come from any thread at any time, close() excepted.
class Tier {
 public:
  virtual ~Tier() = default;

  virtual const TierInfo& info() const = 0;
  virtual TierUsage usage() const = 0;

  // Room for an object. kFull, kInvalid (0 bytes, more than the tier's largest), kGone. Never waits for the medium.
  // Throws std::bad_alloc, and has changed nothing then.
  // What a read finds before the first write of those bytes is not said.
  // `key` goes with the bytes where the tier is durable.
  virtual Result<Extent> allocate(const Key& key, uint64_t bytes) = 0;
  // The extent's bytes are no longer wanted. Never throws. No transfer of it may be in flight. On a durable tier the
  // extent is not recovered any more once a later flush has completed (sooner is allowed).
  virtual void free(Extent extent) = 0;

  // Goes with the extent where the tier is durable: said before the extent is first written it becomes durable with
  // those bytes, later with the next flush, or not at all where memory is out. Never waits for the medium, never
  // throws; said of no extent it is nothing.
  virtual void describe(Extent, Note) {}

  // Where the extent lies in the host's address space, or NULL where the host cannot address it (SSD, GPU, remote).
  // Valid until free().
  virtual std::byte* map(Extent extent) = 0;
  // All memory that map() answers from; empty: none.
  virtual std::span<std::byte> range() { return {}; }
  // Where the kernel moves it (TierInfo::kernel_moves): on which nodes it lies, lowest first. An estimate from a sample
  // of its pages, at most a second old; what is swapped out is on none. Not for who holds a lock: it asks the kernel,
  // some ms. Throws std::bad_alloc.
  virtual std::vector<NodeBytes> nodes() const { return {}; }
  // Where it lies in the address space of the processor that computes there: a GPU's own address of it, else map().
  // Valid until free().
  virtual std::byte* address(Extent extent) { return map(extent); }

  // Starts transfers, in any order among themselves. Does not wait for the medium. Returns how many of the first were
  // taken: fewer than all where queues are full or memory is out; the caller submits the rest after some have
  // completed, or later. Never throws. A transfer that is out of the extent's bounds, or of no extent that allocate()
  // gave and free() has not taken back (kInvalid), or whose tier is gone (kGone), is taken and completes with its
  // error. One of no bytes completes with kOk.
  // A read ends with kNotFound where the medium has lost the bytes for good and says so (a server that came back empty,
  // or evicted them): the copy is worth nothing any more, and the tier serves on. kTimeout: what holds them does not
  // answer now, and other parts of the tier do.
  virtual size_t submit(std::span<Transfer* const> transfers) = 0;
  // Asks that a transfer end early. It still completes through `done`: kCancelled where nothing of it reached the
  // extent or all of its reader's memory may be disregarded, or as if cancel() had not been called. Harmless after
  // that.
  virtual void cancel(Transfer& transfer) = 0;
  // Completes what has ended, without waiting, where the tier has no thread of its own for that. Returns how many.
  virtual size_t poll() = 0;

  // False once the medium is lost; the engine then moves no more there. Objects are kept in the index: come_back() may
  // bring the tier into service again.
  virtual bool in_service() const = 0;
  // Tries to serve again. kOk: extents that survived are as they were.
  virtual Status come_back() = 0;

  // Durable tiers, once, before the first allocate(): what a former process left. Named are the extents of which every
  // byte was written and flushed; bytes that rotted since are found by the read (kCorrupt). In the order of their
  // allocation: where a crash left two of one key, the later is the newer. Others return an empty list.
  virtual Result<std::vector<Recovered>> recover() = 0;

  // Shared tiers: which of these objects others have stored there. Waits for the medium, at most timeout_ms; what
  // comes later is kept for the next call with that key. Each is an extent from now on, of which every byte was
  // written; free() forgets it and leaves it to others. Throws std::bad_alloc, and has made no extent then.
  virtual std::vector<Found> find(std::span<const Key>, uint32_t /*timeout_ms*/) { return {}; }
};

}  // namespace neotier::engine

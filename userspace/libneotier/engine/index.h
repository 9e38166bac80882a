// SPDX-License-Identifier: Apache-2.0
// From a 16-byte key to what is known of an object: 48 bytes of record and 10 of hash table each.
//
// Open addressing, linear probing, one 8-byte slot an object at 80 % load: 32 bits of hash and the handle, so that a
// lookup touches one or two cache lines of the table and one of the records. The hash is XXH3 with a seed of this
// engine's own: keys come from outside. Handles are dense, as placement policies want them, and are used again.
//
// Thread safety: the engine's lock, but for copies(). Invariant: whoever calls that sees the table, keys and `tiers` as
// they were at one moment: all that it reads is written by atomic stores, and each change of more than one of them
// makes a counter odd before and even after (a sequence lock; H.-J. Boehm, "Can seqlocks get along with programming
// language memory models?", MSPC 2012).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "engine/mapped_array.h"
#include "engine/status.h"
#include "engine/tier.h"

namespace neotier::engine {

using Handle = uint32_t;
inline constexpr Handle kNoHandle = UINT32_MAX;

// Position in the configured list, fastest first.
using TierId = uint8_t;
inline constexpr TierId kNoTier = 15;
inline constexpr size_t kMaxTiers = 14;
// The caller's own memory, as an end of a transfer.
inline constexpr TierId kHost = 14;

enum class ObjectKind : uint8_t { kKv = 1, kExpert = 2, kPlain = 3 };

// Times up to some 70 hours in 16 bits, 0.05 % apart: 11 bits of mantissa, 5 of exponent, in units of 62.5 ns. 0 is 0,
// and nothing else is; longer ones are the longest.
uint16_t encode_cost(uint64_t ns);
uint64_t decode_cost(uint16_t code);

// What a durable tier keeps of an object besides its bytes. Never 0.
Note encode_note(ObjectKind kind, uint16_t recompute, bool discard);

struct Record {
  Key key;
  // Copies: [0] on the faster tier; kNoExtent where tier(i) is kNoTier. Without a copy: [0] is the room of `place`, [1]
  // the neighbours in the history (ObjectHistory).
  Extent extent[2];
  uint32_t bytes;         // a free record: the next free handle
  uint32_t moved_ms;      // when it last changed tiers; wraps after 49 days
  uint16_t pins;          // of sessions; while > 0 the object stays where it is
  uint16_t recompute;     // encode_cost(); 0: cannot be made anew
  uint8_t tiers;          // two TierIds, [0] in the low half
  uint8_t place;          // TierId whose policy has taken the object in, its bytes being still to come; or kNoTier
  uint8_t heat;           // uses lately: count in the low half, epoch of the last in the high half
  uint8_t kind : 2;       // ObjectKind; 0: the record is free
  uint8_t in_flight : 1;  // a job of the mover has it
  uint8_t recovered : 1;  // from a former process, and not described since
  uint8_t discard : 1;    // may be thrown away whatever it costs

  TierId tier(int copy) const { return static_cast<TierId>(copy == 0 ? tiers & 15 : tiers >> 4); }
  void set_tiers(TierId first, TierId second) {
    std::atomic_ref(tiers).store(static_cast<uint8_t>(first | second << 4), std::memory_order_release);
  }
  bool has_copy() const { return tier(0) != kNoTier; }
  bool has_place() const { return place != kNoTier; }
  // Whether it may be thrown away for want of room.
  bool may_go() const { return discard || recompute != 0; }
  // 0 where nothing is known of it.
  Note note() const;
  // Takes what encode_note() made; anything else changes nothing.
  void take_note(Note note);
};
static_assert(sizeof(Record) == 48);

class ObjectIndex {
 public:
  // Room for `max_objects`, 1 .. 2^32 - 2. Throws std::bad_alloc.
  ObjectIndex(size_t max_objects, uint64_t seed);

  // While it exists, what is done to the index and to the copies of its objects is one change to those who look by
  // copies(); they wait for its end. They may nest.
  class Change {
   public:
    explicit Change(ObjectIndex& index);
    ~Change();
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    ObjectIndex& index_;
  };

  // Changes so far.
  uint64_t changes() const { return changes_.load(std::memory_order_relaxed) / 2; }

  // kNoHandle where there is none.
  Handle find(const Key& key) const;
  // The tiers of an object's copies, the faster one first; kNoTier: none. From any thread, without the engine's lock.
  std::array<TierId, 2> copies(const Key& key) const;
  // A record without copies. kExists, kFull.
  Result<Handle> add(const Key& key);
  // The record must hold no copy.
  void erase(Handle handle);

  Record& operator[](Handle handle) { return records_[handle]; }
  const Record& operator[](Handle handle) const { return records_[handle]; }
  size_t size() const { return size_; }
  size_t max_objects() const { return records_.size(); }
  // Upper end of the handles ever given out: for walks over all of them (kind 0: free).
  Handle end() const { return fresh_; }
  // Of table and records, per object at full size.
  double bytes_per_object() const;

 private:
  struct alignas(8) Slot {
    uint32_t hash;
    uint32_t handle_plus_1;  // 0: empty
  };
  uint32_t hash(const Key& key) const;
  size_t home(uint32_t hash) const { return static_cast<size_t>(uint64_t{hash} * slots_.size() >> 32); }
  size_t next(size_t slot) const { return slot + 1 == slots_.size() ? 0 : slot + 1; }
  // The slot of the key, or the empty one where it would go.
  size_t probe(const Key& key, uint32_t hash) const;

  // One look, which may have seen half of a change.
  std::array<TierId, 2> look(const Key& key, uint32_t hash) const;
  bool has_key(Handle handle, const Key& key) const;
  void set(size_t slot, Slot value);

  uint64_t seed_;
  MappedArray<Record> records_;
  MappedArray<Slot> slots_;
  size_t size_ = 0;
  Handle fresh_ = 0;
  Handle free_ = kNoHandle;
  uint32_t depth_ = 0;                            // of changes
  alignas(64) std::atomic<uint64_t> changes_{0};  // odd: one is under way
};

}  // namespace neotier::engine

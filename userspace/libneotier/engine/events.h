// SPDX-License-Identifier: Apache-2.0
// What became of objects, for those who keep something of their own about them: routers, quotas, mirrors.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/tier.h"

namespace neotier::engine {

enum class EventKind : uint8_t {
  kCopied,     // a copy is in the tier now
  kLeft,       // the tier's copy is gone; there may be another
  kForgotten,  // the object is gone: removed, or discarded for want of room
};

struct ObjectEvent {
  Key key;
  EventKind kind{};
  uint8_t tier = 0;  // TierId; of kForgotten: meaningless
};

// How far one reader has come. Each has its own, so that no reader takes another's events.
struct EventCursor {
  uint64_t next = 0;
};

// The newest `capacity` events. Thread safety: none, but for pushed(); the engine's lock.
class EventRing {
 public:
  explicit EventRing(size_t capacity) : ring_(capacity) {}

  void push(const Key& key, EventKind kind, uint8_t tier) {
    if (ring_.empty()) return;
    const uint64_t at = pushed();
    ring_[at % ring_.size()] = {key, kind, tier};
    pushed_.store(at + 1, std::memory_order_release);
  }

  // Events ever. From any thread: a reader whose cursor is there has seen all of them.
  uint64_t pushed() const { return pushed_.load(std::memory_order_acquire); }

  // Appends up to `max` events that the reader has not seen, oldest first. Returns how many before them were
  // overwritten.
  uint64_t take(EventCursor& reader, size_t max, std::vector<ObjectEvent>& out) const {
    const uint64_t end = pushed(), oldest = end - std::min<uint64_t>(end, ring_.size());
    const uint64_t lost = oldest - std::min(oldest, reader.next);
    for (reader.next += lost; max > 0 && reader.next < end; max--) out.push_back(ring_[reader.next++ % ring_.size()]);
    return lost;
  }

 private:
  std::vector<ObjectEvent> ring_;
  std::atomic<uint64_t> pushed_{0};
};

}  // namespace neotier::engine

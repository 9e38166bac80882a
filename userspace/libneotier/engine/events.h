// SPDX-License-Identifier: Apache-2.0
// What became of objects, for those who keep something of their own about them: routers, quotas, mirrors.
#pragma once

#include <algorithm>
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

// The newest `capacity` events. Thread safety: none; the engine's lock.
class EventRing {
 public:
  explicit EventRing(size_t capacity) : ring_(capacity) {}

  void push(const Key& key, EventKind kind, uint8_t tier) {
    if (!ring_.empty()) ring_[pushed_++ % ring_.size()] = {key, kind, tier};
  }

  // Appends up to `max` events that the reader has not seen, oldest first. Returns how many before them were
  // overwritten.
  uint64_t take(EventCursor& reader, size_t max, std::vector<ObjectEvent>& out) const {
    const uint64_t oldest = pushed_ - std::min<uint64_t>(pushed_, ring_.size());
    const uint64_t lost = oldest - std::min(oldest, reader.next);
    for (reader.next += lost; max > 0 && reader.next < pushed_; max--)
      out.push_back(ring_[reader.next++ % ring_.size()]);
    return lost;
  }

 private:
  std::vector<ObjectEvent> ring_;
  uint64_t pushed_ = 0;
};

}  // namespace neotier::engine

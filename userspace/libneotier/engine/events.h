// SPDX-License-Identifier: Apache-2.0
// What became of objects, for those who keep something of their own about them: routers, quotas, mirrors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
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

// The newest `capacity` events that nobody has taken. Thread safety: none; the engine's lock.
class EventRing {
 public:
  explicit EventRing(size_t capacity) : ring_(capacity) {}

  void push(const Key& key, EventKind kind, uint8_t tier) {
    if (ring_.empty()) return;
    if (size_ == ring_.size()) {
      first_ = (first_ + 1) % ring_.size();
      size_--;
      lost_++;
    }
    ring_[(first_ + size_++) % ring_.size()] = {key, kind, tier};
  }

  // Appends up to `max` events, oldest first. Returns how many were overwritten since the last call.
  uint64_t take(size_t max, std::vector<ObjectEvent>& out) {
    for (; max > 0 && size_ > 0; max--, size_--) {
      out.push_back(ring_[first_]);
      first_ = (first_ + 1) % ring_.size();
    }
    return std::exchange(lost_, 0);
  }

 private:
  std::vector<ObjectEvent> ring_;
  size_t first_ = 0, size_ = 0;
  uint64_t lost_ = 0;
};

}  // namespace neotier::engine

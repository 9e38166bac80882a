// SPDX-License-Identifier: Apache-2.0
// Time as the engine sees it, so that tests set it.
#pragma once

#include <chrono>
#include <cstdint>

namespace neotier::engine {

// Thread safety: all calls from any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  // Never decreases; from an arbitrary origin.
  virtual uint64_t now_ns() const = 0;
};

class SteadyClock final : public Clock {
 public:
  uint64_t now_ns() const override {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count());
  }
};

}  // namespace neotier::engine

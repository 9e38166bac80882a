// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include "engine/clock.h"

namespace neotier::engine {

// Stands still until told.
class FakeClock final : public Clock {
 public:
  uint64_t now_ns() const override { return now_.load(); }
  void advance_ns(uint64_t ns) { now_ += ns; }
  void advance_ms(uint64_t ms) { now_ += ms * 1000000; }

 private:
  std::atomic<uint64_t> now_{1000000000};
};

}  // namespace neotier::engine

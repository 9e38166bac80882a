// SPDX-License-Identifier: Apache-2.0
// An engine without a thread over tiers whose faults are at the test's command, under a clock that the test sets.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/testing/fake_clock.h"
#include "engine/testing/mem_tier.h"
#include "engine/testing/pattern.h"

namespace neotier::engine {

struct EngineRig {
  struct TierSpec {
    std::string name;
    TierKind kind = TierKind::kDram;
    uint64_t capacity = 1 << 20;
    bool mappable = true;
    std::shared_ptr<MemMedium> medium = nullptr;
    std::string policy = "lru";  // whose order tests can tell
    bool kernel_moves = false;
  };

  FakeClock clock;
  std::vector<MemTier*> mems;  // owned by the engine
  std::unique_ptr<Engine> engine;

  EngineRig(const std::vector<TierSpec>& specs, EngineConfig config = {}) {
    std::vector<TierSetup> setups;
    for (const TierSpec& spec : specs) {
      MemTierOptions options;
      options.name = spec.name;
      options.kind = spec.kind;
      options.capacity_bytes = spec.capacity;
      options.mappable = spec.mappable;
      options.medium = spec.medium;
      options.kernel_moves = spec.kernel_moves;
      auto tier = std::make_unique<MemTier>(options);
      mems.push_back(tier.get());
      TierSetup setup;
      setup.object_bytes = 4096;
      setup.policy = spec.policy;
      setup.tier = std::move(tier);
      setups.push_back(std::move(setup));
    }
    config.max_objects = config.max_objects == EngineConfig().max_objects ? 10000 : config.max_objects;
    config.seed = 7;
    config.measure = false;
    config.thread = false;
    config.clock = &clock;
    engine = std::make_unique<Engine>(config, std::move(setups));
  }

  Status put(uint64_t n, size_t bytes, PutOptions options = {}) {
    const auto data = pattern(n, bytes);
    return engine->put(make_key(n), data, options);
  }
  ::testing::AssertionResult holds(uint64_t n, size_t bytes, uint64_t version = UINT64_MAX) {
    std::vector<std::byte> read(bytes);
    const Status status = engine->get(make_key(n), 0, read);
    if (!status) return ::testing::AssertionFailure() << n << ": " << to_string(status.code()) << ", " << status.what();
    if (read != pattern(version == UINT64_MAX ? n : version, bytes))
      return ::testing::AssertionFailure() << n << ": other bytes";
    return ::testing::AssertionSuccess();
  }
  std::string where(uint64_t n) {
    const Result<ObjectInfo> info = engine->lookup(make_key(n));
    return info ? info->tier : "";
  }
  // Steps until the ticket has ended, 0.1 ms of the clock each; false after 20,000.
  bool run(const TicketRef& ticket) {
    for (int i = 0; i < 20000; i++) {
      engine->step();
      clock.advance_ns(100000);
      if (ticket->wait_ns(100000).code() != Code::kTimeout) return true;
    }
    return false;
  }
  // The same until the mover has nothing left.
  bool settle() {
    for (int i = 0; i < 20000; i++) {
      engine->step();
      clock.advance_ns(10000);
      if (engine->status().jobs == 0) return true;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return false;
  }
  Counters counters() { return engine->status().counters; }
};

}  // namespace neotier::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <sys/resource.h>

#include <atomic>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "engine/completion_queue.h"
#include "engine/metrics.h"
#include "engine/testing/engine_rig.h"
#include "engine/tiers/memory/memory_tier.h"

namespace neotier::engine {
namespace {

constexpr uint64_t kKiB = 1024;

EngineRig two_tiers(std::shared_ptr<MemMedium> medium = nullptr, Knobs knobs = {}) {
  EngineConfig config;
  config.knobs = knobs;
  return EngineRig({{"dram", TierKind::kDram, 1 << 20}, {"ssd", TierKind::kSsd, 4 << 20, false, std::move(medium)}},
                   config);
}

TEST(Engine, KeepsWhatItIsGiven) {
  EngineRig rig = two_tiers();
  PutOptions options;
  options.kind = ObjectKind::kExpert;
  options.recompute_ns = 5000000;
  ASSERT_TRUE(rig.put(1, 12345, options));
  EXPECT_TRUE(rig.holds(1, 12345));
  const Result<ObjectInfo> info = rig.engine->lookup(make_key(1));
  ASSERT_TRUE(info);
  EXPECT_EQ(info->kind, ObjectKind::kExpert);
  EXPECT_EQ(info->bytes, 12345u);
  EXPECT_NEAR(static_cast<double>(info->recompute_ns), 5e6, 5e3);
  std::vector<std::byte> part(100);
  ASSERT_TRUE(rig.engine->get(make_key(1), 1000, part));
  EXPECT_EQ(std::memcmp(part.data(), pattern(1, 12345).data() + 1000, 100), 0);
}

TEST(Engine, RefusesWhatCannotBe) {
  EngineRig rig = two_tiers();
  ASSERT_TRUE(rig.put(1, 100));
  EXPECT_EQ(rig.put(1, 100).code(), Code::kExists);
  EXPECT_EQ(rig.engine->put(make_key(2), {}, {}).code(), Code::kInvalid);
  EXPECT_EQ(rig.put(2, 10, {.tier = "tape"}).code(), Code::kInvalid);
  std::vector<std::byte> into(101);
  EXPECT_EQ(rig.engine->get(make_key(1), 0, into).code(), Code::kInvalid);
  EXPECT_EQ(rig.engine->get(make_key(1), UINT64_MAX, std::span(into).first(1)).code(), Code::kInvalid);
  EXPECT_EQ(rig.engine->get(make_key(3), 0, into).code(), Code::kNotFound);
  EXPECT_EQ(rig.engine->remove(make_key(3)).code(), Code::kNotFound);
  EXPECT_EQ(rig.engine->pin(99, make_key(1), 0).status().code(), Code::kInvalid);
  EXPECT_EQ(rig.engine->status().objects, 1u);
}

// A request's places are its caller's until they are filled, and nothing where they are not.
TEST(Engine, PlacesThatAreNotFilledLeaveNothing) {
  EngineRig rig({{.name = "dram", .capacity = 4 * 4096}});
  for (uint64_t n = 0; n < 4; n++) ASSERT_TRUE(rig.put(n, 4096, {.recompute_ns = 1000000000}));
  RequestInfo info;
  info.bytes = 4096;
  std::vector<RequestUse> uses;
  for (uint64_t n = 3; n < 7; n++) uses.push_back({make_key(n), 1000000000, n != 5});
  {
    Result<Arrival> arrival = rig.engine->request(info, uses);
    ASSERT_TRUE(arrival) << arrival.status().what();
    const auto& outcomes = arrival->outcomes();
    ASSERT_EQ(outcomes[0], UseOutcome::kHit);
    ASSERT_EQ(outcomes[1], UseOutcome::kRoom);
    EXPECT_EQ(outcomes[2], UseOutcome::kMiss) << "its bytes are not at hand";
    ASSERT_EQ(outcomes[3], UseOutcome::kRoom);
    EXPECT_FALSE(rig.engine->lookup(make_key(4))) << "not before its bytes are there";
    EXPECT_EQ(rig.put(4, 4096).code(), Code::kExists) << "somebody brings it";
    const auto data = pattern(4, 4096);
    EXPECT_TRUE(arrival->fill(1, [&](std::byte* room) { std::memcpy(room, data.data(), data.size()); }));
    EXPECT_FALSE(arrival->fill(1, [](std::byte*) {})) << "once";
    EXPECT_FALSE(arrival->fill(0, [](std::byte*) {}));
  }
  EXPECT_TRUE(rig.holds(4, 4096));
  EXPECT_FALSE(rig.engine->lookup(make_key(6)));
  EXPECT_EQ(rig.engine->status().objects, 3u);
  EXPECT_EQ(rig.engine->status().tiers[0].usage.used_bytes, 3 * 4096u);
  EXPECT_TRUE(rig.put(6, 4096, {.recompute_ns = 1000000000})) << "nothing is in its way";
  EXPECT_TRUE(rig.holds(6, 4096));
  EXPECT_EQ(rig.engine->status().objects, 4u);
  info.bytes = 0;
  EXPECT_EQ(rig.engine->request(info, uses).status().code(), Code::kInvalid);
  info.bytes = 4096;
  EXPECT_EQ(rig.engine->request(info, {}).status().code(), Code::kInvalid);
}

// What a request finds no memory or room for is refused, and what waits for room of others comes in when they have
// left.
TEST(Engine, APlaceMayWaitForWhatLeaves) {
  EngineRig rig = two_tiers();
  for (uint64_t n = 0; n < 256; n++) ASSERT_TRUE(rig.put(n, 4096));  // may not be thrown away
  RequestInfo info;
  info.bytes = 4096;
  std::vector<RequestUse> uses;
  for (uint64_t n = 1000; n < 1064; n++) uses.push_back({make_key(n), 0, true});
  {
    Result<Arrival> arrival = rig.engine->request(info, uses);
    ASSERT_TRUE(arrival);
    for (size_t i = 0; i < uses.size(); i++) {
      ASSERT_EQ(arrival->outcomes()[i], UseOutcome::kRoom) << i;
      if (i % 8 == 7) continue;
      const auto data = pattern(1000 + i, 4096);
      EXPECT_TRUE(arrival->fill(i, [&](std::byte* room) { std::memcpy(room, data.data(), data.size()); })) << i;
    }
  }
  ASSERT_TRUE(rig.settle());
  for (uint64_t n = 0; n < 256; n++) ASSERT_TRUE(rig.holds(n, 4096));
  for (uint64_t i = 0; i < 64; i++) {
    if (i % 8 == 7) {
      EXPECT_FALSE(rig.engine->lookup(make_key(1000 + i)));
    } else {
      EXPECT_TRUE(rig.holds(1000 + i, 4096));
    }
  }
  EXPECT_EQ(rig.engine->status().objects, 256u + 56);
}

// What the host cannot write goes to the medium side by side, from the caller's memory, which is read no more when the
// arrival is gone.
TEST(Engine, PlacesAreFilledSideBySide) {
  EngineRig rig({{.name = "ssd", .kind = TierKind::kSsd, .mappable = false}});
  MemTier& ssd = *rig.mems[0];
  RequestInfo info;
  info.bytes = 4096;
  std::vector<RequestUse> uses;
  std::vector<std::vector<std::byte>> data;
  for (uint64_t n = 0; n < 32; n++) {
    uses.push_back({make_key(n), 1000, true});
    data.push_back(pattern(n, 4096));
  }
  std::thread releases;
  const auto never = [](std::byte*) { ADD_FAILURE() << "it was started: nothing is to be copied"; };
  {
    Result<Arrival> arrival = rig.engine->request(info, uses);
    ASSERT_TRUE(arrival);
    ssd.hold();
    for (size_t i = 0; i < 24; i++) arrival->start(i, data[i].data());
    arrival->start(0, data[1].data());  // again: no difference
    arrival->start(99, data[1].data());
    EXPECT_EQ(rig.engine->status().jobs, 24u) << "all of them at once";
    ssd.fail(Op::kWrite, 1);
    ssd.release();
    size_t failed = 0;
    for (size_t i = 0; i < 16; i++) failed += !arrival->fill(i, never);
    EXPECT_LE(failed, 1u);
    EXPECT_FALSE(arrival->fill(0, never)) << "once";
    Arrival moved = std::move(*arrival);
    for (size_t i = 16; i < 20; i++) failed += !moved.fill(i, never);
    // The others are waited for here, or given up where they were not started.
    ssd.hold();
    releases = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ssd.release();
    });
    for (size_t i = 24; i < 28; i++) moved.start(i, data[i].data());
  }
  for (auto& bytes : data) std::fill(bytes.begin(), bytes.end(), std::byte{0xee});
  releases.join();
  ASSERT_TRUE(rig.settle());
  size_t there = 0;
  for (uint64_t n = 0; n < 28; n++) {
    if (!rig.engine->lookup(make_key(n))) continue;
    there++;
    EXPECT_TRUE(rig.holds(n, 4096)) << n;
  }
  EXPECT_EQ(there, 27u) << "one write failed";
  for (uint64_t n = 28; n < 32; n++) EXPECT_FALSE(rig.engine->lookup(make_key(n)));
}

// Who removes an object need not wait for who writes it, and takes nothing from him.
TEST(Engine, WhatIsBeingWrittenIsNotWaitedFor) {
  EngineRig rig({{.name = "dram"}});
  RequestInfo info;
  info.bytes = 4096;
  const RequestUse uses[] = {{make_key(1), 1000, true}};
  Result<Arrival> arrival = rig.engine->request(info, uses);
  ASSERT_TRUE(arrival);
  EXPECT_EQ(rig.engine->remove(make_key(1), /*wait=*/false).code(), Code::kBusy);
  const std::vector<std::byte> bytes = pattern(1, 4096);
  EXPECT_TRUE(arrival->fill(0, [&](std::byte* room) { std::memcpy(room, bytes.data(), bytes.size()); }));
  EXPECT_TRUE(rig.holds(1, 4096));
  EXPECT_TRUE(rig.engine->remove(make_key(1), /*wait=*/false));
}

// A queue that always has something in it keeps no more than what is in it, nor does one that was asked in vain.
TEST(Engine, AQueueThatIsNeverEmptyDoesNotGrow) {
  const auto queue = std::make_shared<CompletionQueue>();
  uint64_t in = 0, out = 0, tag = 0;
  while (in < 10) std::make_shared<CompletionTag>(queue, in++)->seal();
  for (int i = 0; i < 100000; i++) {
    std::make_shared<CompletionTag>(queue, in++)->seal();
    ASSERT_EQ(queue->take({&tag, 1}), 1u);
    ASSERT_EQ(tag, out++) << "in the order in which they came";
    (void)std::make_shared<CompletionTag>(queue, 0);  // asked for, and given up
  }
  EXPECT_LE(queue->room(), 100u);
}

TEST(Engine, BadConfigurationsAreRefused) {
  const auto open = [](EngineConfig config, size_t tiers, const std::string& policy = "lru") {
    std::vector<TierSetup> setups(tiers);
    for (TierSetup& setup : setups) {
      setup.tier = std::make_unique<MemTier>(MemTierOptions{});
      setup.policy = policy;
    }
    config.measure = config.thread = false;
    Engine engine(config, std::move(setups));
  };
  EXPECT_THROW(open({}, 0), std::runtime_error);
  EXPECT_THROW(open({}, 2), std::runtime_error) << "two of one name";
  EXPECT_THROW(open({}, 1, "nonsense"), std::runtime_error);
  EXPECT_THROW(open({}, 1, "belady"), std::runtime_error);
  EngineConfig config;
  config.max_objects = 0;
  EXPECT_THROW(open(config, 1), std::runtime_error);
  config = {};
  config.knobs.low_watermark = 0.99;
  EXPECT_THROW(open(config, 1), std::runtime_error);
  EXPECT_NO_THROW(open({}, 1));
}

TEST(Engine, ReplacesAndRemoves) {
  EngineRig rig = two_tiers();
  for (const char* tier : {"dram", "ssd"}) {
    ASSERT_TRUE(rig.put(1, 100 * kKiB, {.tier = tier, .replace = true}));
    const auto newer = pattern(2, 30 * kKiB);
    ASSERT_TRUE(rig.engine->put(make_key(1), newer, {.tier = tier, .replace = true}));
    EXPECT_TRUE(rig.holds(1, 30 * kKiB, 2));
  }
  ASSERT_TRUE(rig.engine->remove(make_key(1)));
  EXPECT_EQ(rig.engine->status().objects, 0u);
  EXPECT_EQ(rig.mems[0]->usage().extents + rig.mems[1]->usage().extents, 0u);
}

TEST(Engine, AFailedReplacementLeavesTheFormerVersion) {
  EngineRig rig = two_tiers();
  ASSERT_TRUE(rig.put(1, 10 * kKiB, {.tier = "ssd"}));
  rig.mems[1]->fail(Op::kWrite, 1);
  const auto newer = pattern(2, 30 * kKiB);
  EXPECT_EQ(rig.engine->put(make_key(1), newer, {.tier = "ssd", .replace = true}).code(), Code::kIo);
  EXPECT_TRUE(rig.holds(1, 10 * kKiB));
  EXPECT_EQ(rig.mems[1]->usage().extents, 1u);
}

TEST(Engine, LongestPrefix) {
  EngineRig rig = two_tiers();
  for (const uint64_t n : {1, 2, 3, 5}) ASSERT_TRUE(rig.put(n, 100));
  std::vector<Key> keys;
  for (uint64_t n = 1; n <= 5; n++) keys.push_back(make_key(n));
  EXPECT_EQ(rig.engine->lookup_prefix(keys), 3u);
  EXPECT_EQ(rig.engine->lookup_prefix({}), 0u);
}

// A tier whose usage() waits to be let go, with the engine's lock held around it.
class BusyTier final : public MemTier {
 public:
  using MemTier::MemTier;
  TierUsage usage() const override {
    if (busy) {
      inside = true;
      inside.notify_all();
      busy.wait(true);
    }
    return MemTier::usage();
  }
  mutable std::atomic<bool> busy{false}, inside{false};
};

TEST(Engine, WhoAsksForAPrefixWaitsForNobody) {
  FakeClock clock;
  EngineConfig config;
  config.max_objects = 100;
  config.measure = config.thread = false;
  config.clock = &clock;
  MemTierOptions options;
  options.name = "dram";
  std::vector<TierSetup> setups(1);
  auto made = std::make_unique<BusyTier>(options);
  BusyTier& tier = *made;
  setups[0].tier = std::move(made);
  setups[0].policy = "lru";
  Engine engine(config, std::move(setups));
  ASSERT_TRUE(engine.put(make_key(1), pattern(1, 4096), {}));

  tier.busy = true;
  std::thread other([&] { (void)engine.status(); });
  tier.inside.wait(false);
  const std::vector<Key> keys = {make_key(1), make_key(2)};
  std::atomic<size_t> found{SIZE_MAX};
  std::thread asks([&] { found = engine.lookup_prefix(keys); });
  for (int i = 0; i < 20000 && found == SIZE_MAX; i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(found, 1u);
  tier.busy = false;
  tier.busy.notify_all();
  asks.join();
  other.join();
}

// Moving and replacing take a copy away before the next one is there.
TEST(Engine, WhatMovesOrIsReplacedIsNeverMissed) {
  EngineRig rig = two_tiers();
  const std::vector<Key> keys = {make_key(1), make_key(2)};
  for (uint64_t n : {1, 2}) ASSERT_TRUE(rig.put(n, 4096));
  PutOptions replace;
  replace.replace = true;
  const auto changes = [&] { return rig.engine->catalogue().index().changes(); };
  uint64_t before = changes();
  bool moved = rig.run(rig.engine->move({keys.data(), 1}, "ssd", MoveClass::kDemand));
  EXPECT_EQ(changes(), before + 1) << "the former copy leaves and the new one comes in one change";
  before = changes();
  ASSERT_TRUE(rig.put(2, 4096, replace));
  EXPECT_EQ(changes(), before + 1) << "and so do versions";
  std::atomic<bool> done{false};
  std::atomic<uint64_t> looks{0}, missed{0};
  std::thread asks([&] {
    while (!done) {
      missed += rig.engine->lookup_prefix(keys) != 2;
      looks++;
    }
  });
  for (int i = 1; looks < 20000 && missed == 0 && moved; i++) {
    moved = rig.run(rig.engine->move({keys.data(), 1}, i % 2 ? "dram" : "ssd", MoveClass::kDemand)) &&
            rig.put(2, 4096, replace).is_ok();
  }
  done = true;
  asks.join();
  EXPECT_TRUE(moved);
  EXPECT_EQ(missed, 0u) << "of " << looks;
}

TEST(Engine, PinsEndWithTheirSession) {
  EngineRig rig = two_tiers();
  ASSERT_TRUE(rig.put(1, 100));
  const SessionId a = rig.engine->open_session(), b = rig.engine->open_session();
  for (int i = 0; i < 3; i++) ASSERT_TRUE(rig.engine->pin(a, make_key(1), 0));
  const Result<PinResult> held = rig.engine->pin(b, make_key(1), 0);
  ASSERT_TRUE(held);
  EXPECT_EQ(rig.engine->unpin(a, held->id).code(), Code::kNotFound) << "another session's";
  EXPECT_EQ(rig.engine->lookup(make_key(1))->pins, 4u);
  rig.engine->close_session(a);
  EXPECT_EQ(rig.engine->lookup(make_key(1))->pins, 1u);
  EXPECT_EQ(rig.engine->remove(make_key(1)).code(), Code::kBusy);
  rig.engine->close_session(b);
  rig.engine->close_session(b);
  EXPECT_EQ(rig.engine->status().pins, 0u);
  EXPECT_EQ(rig.counters().session_releases, 4u);
  EXPECT_TRUE(rig.engine->remove(make_key(1)));
}

TEST(Engine, LeasesEndByThemselves) {
  EngineRig rig = two_tiers();
  ASSERT_TRUE(rig.put(1, 100));
  const SessionId session = rig.engine->open_session();
  const Result<PinResult> brief = rig.engine->pin(session, make_key(1), 10);
  ASSERT_TRUE(rig.engine->pin(session, make_key(1), 20));
  rig.clock.advance_ms(9);
  rig.engine->step();
  EXPECT_EQ(rig.engine->lookup(make_key(1))->pins, 2u);
  rig.clock.advance_ms(1);
  rig.engine->step();
  EXPECT_EQ(rig.engine->lookup(make_key(1))->pins, 1u);
  EXPECT_EQ(rig.engine->unpin(session, brief->id).code(), Code::kNotFound);
  rig.clock.advance_ms(100);
  rig.engine->step();
  EXPECT_EQ(rig.engine->status().pins, 0u);
  EXPECT_EQ(rig.counters().lease_expiries, 2u);
}

TEST(Engine, AFailedTiersObjectsComeBackWithIt) {
  EngineRig rig = two_tiers();
  ASSERT_TRUE(rig.put(1, 100 * kKiB, {.tier = "ssd"}));
  ASSERT_TRUE(rig.put(2, 100 * kKiB, {.tier = "dram"}));
  rig.mems[1]->lose();
  std::vector<std::byte> into(100 * kKiB);
  EXPECT_FALSE(rig.engine->get(make_key(1), 0, into));
  rig.clock.advance_ms(60);
  rig.engine->step();
  EXPECT_EQ(rig.engine->get(make_key(1), 0, into).code(), Code::kGone);
  EXPECT_TRUE(rig.holds(2, 100 * kKiB)) << "others serve on";
  EXPECT_EQ(rig.put(3, 10, {.tier = "ssd"}).code(), Code::kGone);
  const Key two = make_key(2);
  EXPECT_EQ(rig.engine->move(std::span(&two, 1), "ssd", MoveClass::kDemand)->wait_ns(0).code(), Code::kGone);
  EXPECT_FALSE(rig.engine->status().tiers[1].in_service);
  EXPECT_EQ(rig.engine->lookup_prefix(std::vector<Key>{make_key(2), make_key(1)}), 1u);
  // Attempts fail while it is broken, and are made further apart.
  for (int i = 0; i < 5; i++) {
    rig.clock.advance_ms(1000);
    rig.engine->step();
  }
  EXPECT_FALSE(rig.engine->status().tiers[1].in_service);
  rig.mems[1]->mend();
  for (int i = 0; i < 200 && !rig.engine->status().tiers[1].in_service; i++) {
    rig.clock.advance_ms(1000);
    rig.engine->step();
  }
  EXPECT_TRUE(rig.engine->status().tiers[1].in_service);
  EXPECT_TRUE(rig.holds(1, 100 * kKiB));
  EXPECT_EQ(rig.counters().tier_failures, 1u);
  EXPECT_EQ(rig.counters().tier_returns, 1u);
}

TEST(Engine, ATierThatFailsTransfersInARowIsTakenOut) {
  Knobs knobs;
  knobs.promote_heat = 0;
  EngineRig rig = two_tiers(nullptr, knobs);
  for (uint64_t n = 0; n < 3; n++) ASSERT_TRUE(rig.put(n, 1 * kKiB, {.tier = "ssd"}));
  std::vector<std::byte> into(1 * kKiB);
  rig.mems[1]->fail(Op::kRead, 8);
  for (int i = 0; i < 8; i++) EXPECT_EQ(rig.engine->get(make_key(0), 0, into).code(), Code::kIo);
  rig.clock.advance_ms(60);
  rig.engine->step();
  EXPECT_EQ(rig.engine->get(make_key(0), 0, into).code(), Code::kGone);
  rig.clock.advance_ms(1100);
  rig.engine->step();
  EXPECT_TRUE(rig.holds(0, 1 * kKiB));
}

// A lost tier is found out at the next look, 50 ms later. Until then what is stored goes to a tier that works.
TEST(Engine, APutGoesToASlowerTierWhereTheFirstIsLost) {
  EngineRig rig = two_tiers();
  rig.mems[0]->lose();
  for (uint64_t n = 0; n < 3; n++) ASSERT_TRUE(rig.put(n, 1 * kKiB));
  for (uint64_t n = 0; n < 3; n++) EXPECT_TRUE(rig.holds(n, 1 * kKiB));
  rig.mems[1]->lose();
  EXPECT_EQ(rig.put(4, 1 * kKiB).code(), Code::kGone);
  EXPECT_EQ(rig.put(5, 1 * kKiB, {.tier = "ssd"}).code(), Code::kGone) << "a tier that was asked for, or none";
}

TEST(Engine, AnOperatorTakesATierOutAndPutsItBack) {
  EngineRig rig = two_tiers();
  ASSERT_TRUE(rig.put(1, 1 * kKiB, {.tier = "ssd"}));
  ASSERT_TRUE(rig.engine->set_in_service("ssd", false));
  std::vector<std::byte> into(1 * kKiB);
  for (int i = 0; i < 10; i++) {
    rig.clock.advance_ms(5000);
    rig.engine->step();
  }
  EXPECT_EQ(rig.engine->get(make_key(1), 0, into).code(), Code::kGone) << "it is not tried before it is asked for";
  ASSERT_TRUE(rig.engine->set_in_service("ssd", true));
  EXPECT_TRUE(rig.holds(1, 1 * kKiB));
  EXPECT_EQ(rig.engine->set_in_service("tape", true).code(), Code::kInvalid);
}

// Who withdraws the memory does it when the call returns.
TEST(Engine, ATierIsOutWhenNobodyReadsItsMemoryAnyMore) {
  std::atomic<bool> go{false}, out{false};
  std::atomic<int> copying{0};
  std::vector<TierSetup> tiers(2);
  MemTierOptions near;
  near.name = "dram";
  near.kind = TierKind::kDram;
  tiers[0].tier = std::make_unique<MemTier>(near);
  MemoryTierOptions far;
  far.name = "gpu";
  far.kind = TierKind::kGpu;
  far.capacity_bytes = 1 << 20;
  far.before_copy = [&](Op) {
    for (copying++; !go;) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return Status::ok();
  };
  tiers[1].tier = std::make_unique<MemoryTier>(far);
  EngineConfig config;
  config.max_objects = 100;
  config.measure = false;
  Engine engine(config, std::move(tiers));
  ASSERT_TRUE(engine.put(make_key(1), pattern(1, 1000), {.tier = "dram"}));
  const Key key = make_key(1);
  const TicketRef ticket = engine.move({&key, 1}, "gpu", MoveClass::kDemand);
  while (copying == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  Status status;
  std::thread withdraws([&] {
    status = engine.set_in_service("dram", false);
    out = true;
  });
  while (engine.status().tiers[0].in_service) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(out) << "its bytes are still being copied";
  go = true;
  withdraws.join();
  EXPECT_TRUE(status) << status.what();
  EXPECT_EQ(ticket->wait().code(), Code::kGone);
  EXPECT_EQ(engine.status().jobs, 0u);
  ASSERT_TRUE(engine.set_in_service("dram", true));
  std::vector<std::byte> into(1000);
  ASSERT_TRUE(engine.get(key, 0, into));
  EXPECT_EQ(into, pattern(1, 1000));
}

TEST(Engine, ATierWhoseObjectsArePinnedIsOutButNotFree) {
  EngineRig rig = two_tiers();
  ASSERT_TRUE(rig.put(1, kKiB, {.tier = "dram"}));
  ASSERT_TRUE(rig.put(2, kKiB, {.tier = "ssd"}));
  const SessionId session = rig.engine->open_session();
  const Result<PinResult> near = rig.engine->pin(session, make_key(1), 0),
                          far = rig.engine->pin(session, make_key(2), 0);
  ASSERT_TRUE(near && far);
  const Status busy = rig.engine->set_in_service("dram", false);
  EXPECT_EQ(busy.code(), Code::kBusy);
  EXPECT_NE(busy.what().find("1 pins"), std::string::npos) << busy.what();
  EXPECT_FALSE(rig.engine->status().tiers[0].in_service);
  std::vector<std::byte> into(kKiB);
  EXPECT_EQ(rig.engine->get(make_key(1), 0, into).code(), Code::kGone);
  ASSERT_TRUE(rig.engine->unpin(session, near->id));
  EXPECT_TRUE(rig.engine->set_in_service("dram", false));
  EXPECT_TRUE(rig.holds(2, kKiB));
  ASSERT_TRUE(rig.engine->set_in_service("dram", true));
  EXPECT_TRUE(rig.holds(1, kKiB));
}

TEST(Engine, TheOtherCopyServesWhereOneFails) {
  Knobs knobs;
  knobs.write_back = true;
  EngineRig rig = two_tiers(std::make_shared<MemMedium>(), knobs);
  ASSERT_TRUE(rig.put(1, 100 * kKiB));
  ASSERT_TRUE(rig.settle());
  EXPECT_EQ(rig.engine->lookup(make_key(1))->second_tier, "ssd");
  EXPECT_EQ(rig.counters().write_backs, 1u);
  rig.mems[0]->lose();
  rig.clock.advance_ms(60);
  rig.engine->step();
  EXPECT_TRUE(rig.holds(1, 100 * kKiB));
}

TEST(Engine, AReadStartsAgainFromTheOtherCopy) {
  EngineRig rig({{"gpu", TierKind::kGpu, 1 << 20, false},
                 {"ssd", TierKind::kSsd, 1 << 20, false, std::make_shared<MemMedium>()}});
  ASSERT_TRUE(rig.put(1, 100 * kKiB, {.tier = "ssd"}));
  const Key key = make_key(1);
  ASSERT_TRUE(rig.run(rig.engine->move(std::span(&key, 1), "gpu", MoveClass::kDemand)));
  ASSERT_EQ(rig.where(1), "gpu");
  ASSERT_EQ(rig.engine->lookup(key)->second_tier, "ssd") << "a durable copy stays";
  rig.mems[0]->fail(Op::kRead, 1);
  EXPECT_TRUE(rig.holds(1, 100 * kKiB));
  EXPECT_EQ(rig.counters().second_copy_reads, 1u);
}

TEST(Engine, EvictionWithADurableCopyCostsNoTransfer) {
  Knobs knobs;
  knobs.write_back = true;
  EngineRig rig = two_tiers(std::make_shared<MemMedium>(), knobs);
  for (uint64_t n = 0; n < 20; n++) {
    ASSERT_TRUE(rig.put(n, 100 * kKiB));
    ASSERT_TRUE(rig.settle());
  }
  const Counters c = rig.counters();
  EXPECT_EQ(c.demotions, 0u);
  EXPECT_GE(c.clean_drops, 10u);
  for (uint64_t n = 0; n < 20; n++) EXPECT_TRUE(rig.holds(n, 100 * kKiB));
}

TEST(Engine, WhatWasFlushedIsThereAfterARestart) {
  const auto medium = std::make_shared<MemMedium>();
  {
    EngineRig rig = two_tiers(medium);
    ASSERT_TRUE(rig.put(1, 10 * kKiB, {.tier = "ssd"}));
    ASSERT_TRUE(rig.put(2, 20 * kKiB, {.tier = "dram"}));
    const Key keys[] = {make_key(2)};
    ASSERT_TRUE(rig.run(rig.engine->write_back(keys)));
    ASSERT_TRUE(rig.engine->flush());
    ASSERT_TRUE(rig.put(3, 10 * kKiB, {.tier = "dram"}));
  }
  EngineRig rig = two_tiers(medium);
  EXPECT_TRUE(rig.holds(1, 10 * kKiB));
  EXPECT_TRUE(rig.holds(2, 20 * kKiB));
  EXPECT_EQ(rig.where(3), "");
  EXPECT_TRUE(rig.engine->lookup(make_key(1))->recovered);
  ASSERT_TRUE(rig.engine->describe(make_key(1), ObjectKind::kKv, 1000000));
  EXPECT_FALSE(rig.engine->lookup(make_key(1))->recovered);
}

TEST(Engine, WhatWasKnownOfAnObjectIsKnownAfterARestart) {
  const auto medium = std::make_shared<MemMedium>();
  {
    EngineRig rig = two_tiers(medium);
    ASSERT_TRUE(rig.put(1, 100, {.kind = ObjectKind::kKv, .recompute_ns = 1000000, .tier = "ssd"}));
    ASSERT_TRUE(rig.put(2, 100, {.kind = ObjectKind::kExpert, .tier = "dram"}));
    const Key two = make_key(2);
    ASSERT_TRUE(rig.run(rig.engine->write_back({&two, 1})));
    ASSERT_TRUE(rig.put(3, 100, {.tier = "ssd"}));
    ASSERT_TRUE(rig.engine->describe(make_key(3), ObjectKind::kKv, 2000000));
    ASSERT_TRUE(rig.put(4, 100, {.tier = "ssd"}));
    ASSERT_TRUE(rig.engine->flush());
  }
  medium->extents.rbegin()->second.note = 0;
  EngineRig rig = two_tiers(medium);
  const auto info = [&](uint64_t n) { return *rig.engine->lookup(make_key(n)); };
  EXPECT_EQ(info(1).kind, ObjectKind::kKv);
  EXPECT_NEAR(static_cast<double>(info(1).recompute_ns), 1e6, 1e3);
  EXPECT_EQ(info(2).kind, ObjectKind::kExpert);
  EXPECT_EQ(info(2).recompute_ns, 0u);
  EXPECT_EQ(info(3).kind, ObjectKind::kKv);
  EXPECT_NEAR(static_cast<double>(info(3).recompute_ns), 2e6, 2e3);
  EXPECT_EQ(info(4).kind, ObjectKind::kPlain) << "a medium that keeps no notes";
  for (uint64_t n = 1; n <= 4; n++) EXPECT_TRUE(info(n).recovered);
}

// A full tier goes on taking what is new after a restart, as it would have without.
TEST(Engine, WhatComesBackMakesRoomAgain) {
  const auto medium = std::make_shared<MemMedium>();
  constexpr size_t kBytes = 64 * kKiB;
  const PutOptions kv{.kind = ObjectKind::kKv, .recompute_ns = 1000000000};
  const auto fill = [&](EngineRig& rig, uint64_t from, uint64_t to) {
    for (uint64_t n = from; n < to; n++) {
      ASSERT_TRUE(rig.put(n, kBytes, kv)) << n;
      const Key key = make_key(n);
      ASSERT_TRUE(rig.run(rig.engine->write_back({&key, 1})));
    }
  };
  Knobs knobs;
  knobs.hysteresis_ms = 0;
  {
    EngineRig rig = two_tiers(medium, knobs);
    fill(rig, 0, 64);
    ASSERT_TRUE(rig.engine->flush());
  }
  ASSERT_EQ(medium->extents.size(), 64u) << "the tier of 4 MiB is full";
  EngineRig rig = two_tiers(medium, knobs);
  fill(rig, 100, 200);
  size_t there = 0;
  for (uint64_t n = 100; n < 200; n++) there += !rig.where(n).empty();
  EXPECT_GE(there, 64u);
  EXPECT_EQ(rig.counters().full_refusals, 0u);
}

// A cache of objects that nobody priced: each put says that it may go, or the engine takes all of them so.
TEST(Engine, WhatMayBeDiscardedNeverFillsTheTiers) {
  constexpr size_t kBytes = 64 * kKiB;
  for (const bool all : {true, false}) {
    const auto medium = std::make_shared<MemMedium>();
    EngineConfig config;
    config.discard = all;
    config.knobs.hysteresis_ms = 0;
    const std::vector<EngineRig::TierSpec> tiers = {{"dram", TierKind::kDram, 1 << 20},
                                                    {"ssd", TierKind::kSsd, 4 << 20, false, medium}};
    {
      EngineRig rig(tiers, config);
      for (uint64_t n = 0; n < 200; n++) ASSERT_TRUE(rig.put(n, kBytes, {.discard = !all})) << n;
      EXPECT_TRUE(rig.holds(199, kBytes));
      EXPECT_EQ(rig.engine->lookup(make_key(199))->recompute_ns, 0u) << "its cost is not known for that";
      ASSERT_TRUE(rig.engine->flush());
    }
    EngineRig rig(tiers, config);
    for (uint64_t n = 300; n < 500; n++) ASSERT_TRUE(rig.put(n, kBytes, {.discard = !all})) << "after a restart " << n;
  }
  EngineRig rig = two_tiers();
  Status full;
  for (uint64_t n = 0; n < 200 && full; n++) full = rig.put(n, kBytes);
  EXPECT_EQ(full.code(), Code::kFull);
  EXPECT_NE(full.what().find("recompute_ns"), std::string::npos) << full.what();
  for (uint64_t n = 0; n < 60; n++) EXPECT_TRUE(rig.holds(n, kBytes)) << "what cannot be made anew stays";
}

// What the index has no room for would hold its place on the medium, and nobody could ask for it.
TEST(Engine, ASmallerIndexThrowsAwayWhatMayGo) {
  const auto medium = std::make_shared<MemMedium>();
  {
    EngineRig rig = two_tiers(medium);
    for (uint64_t n = 0; n < 60; n++)
      ASSERT_TRUE(rig.put(n, kKiB, {.recompute_ns = n < 10 ? 0u : 1000000u, .tier = "ssd"}));
    ASSERT_TRUE(rig.engine->flush());
  }
  EngineConfig config;
  config.max_objects = 20;
  EngineRig rig({{"ssd", TierKind::kSsd, 4 << 20, false, medium}}, config);
  EXPECT_LE(rig.engine->status().objects, 20u);
  EXPECT_EQ(rig.mems[0]->usage().extents, rig.engine->status().objects);
  for (uint64_t n = 0; n < 10; n++) EXPECT_TRUE(rig.holds(n, kKiB)) << "cannot be made anew";
}

TEST(Engine, AGetOfNoBytesEnds) {
  for (const bool mappable : {true, false}) {
    EngineRig rig({{.name = "only", .kind = mappable ? TierKind::kDram : TierKind::kSsd, .mappable = mappable}});
    ASSERT_TRUE(rig.put(1, 1000));
    std::byte none{};
    for (const uint64_t offset : {0, 1000}) {
      const Status status = rig.engine->get(make_key(1), offset, {&none, 0});
      EXPECT_TRUE(status) << status.what();
      const auto ticket = std::make_shared<Ticket>();
      rig.engine->get_async(make_key(1), offset, {}, ticket);
      EXPECT_EQ(ticket->progress().done, 1u) << ticket->wait_ns(0).what();
    }
    EXPECT_EQ(rig.engine->get(make_key(1), 1001, {&none, 0}).code(), Code::kInvalid);
    EXPECT_EQ(rig.engine->get(make_key(1), 0, {static_cast<std::byte*>(nullptr), 1}).code(), Code::kInvalid);
    EXPECT_TRUE(rig.run(rig.engine->move({}, "only", MoveClass::kDemand)));
    EXPECT_TRUE(rig.run(rig.engine->write_back({})));
    EXPECT_EQ(rig.engine->status().jobs, 0u);
  }
}

TEST(Engine, WithoutMemoryForABufferTheMoveFailsAndNothingElse) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "skipped: a sanitizer needs address space itself";
#endif
  EngineConfig config;
  config.knobs.chunk_bytes = 1 << 30;
  EngineRig rig({{.name = "gpu", .kind = TierKind::kGpu, .mappable = false},
                 {.name = "ssd", .kind = TierKind::kSsd, .mappable = false}},
                config);
  ASSERT_TRUE(rig.put(1, 1000));
  ASSERT_EQ(rig.where(1), "gpu");
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const struct rlimit little { pages * 4096 + (64 << 20), before.rlim_max };
  ASSERT_EQ(setrlimit(RLIMIT_AS, &little), 0);
  const Key keys[] = {make_key(1)};
  const TicketRef ticket = rig.engine->move(keys, "ssd", MoveClass::kDemand);
  const bool ended = rig.run(ticket);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ticket->wait().code(), Code::kNoMemory);
  EXPECT_TRUE(rig.holds(1, 1000));
}

TEST(Engine, AFullIndexForgetsWhatCanBeMadeAnew) {
  EngineConfig config;
  config.max_objects = 50;
  EngineRig rig({{"dram", TierKind::kDram, 1 << 20}}, config);
  PutOptions kv;
  kv.recompute_ns = 1000000;
  for (uint64_t n = 0; n < 200; n++) ASSERT_TRUE(rig.put(n, 100, kv)) << n;
  EXPECT_LE(rig.engine->status().objects, 50u);
  EXPECT_TRUE(rig.holds(199, 100));
}

TEST(Engine, MetricsNameEveryCounterOnce) {
  EngineRig rig = two_tiers();
  ASSERT_TRUE(rig.put(1, 100));
  const EngineStatus status = rig.engine->status();
  const std::string text = prometheus_text(status);
  EXPECT_NE(text.find("neotier_puts_total 1\n"), std::string::npos);
  EXPECT_NE(text.find("neotier_tier_objects{tier=\"dram\",kind=\"dram\",stand_in=\"true\"} 1\n"), std::string::npos);
  std::set<std::string> families;
  for (size_t at = text.find("# TYPE "); at != std::string::npos; at = text.find("# TYPE ", at + 1)) {
    EXPECT_TRUE(families.insert(text.substr(at + 7, text.find(' ', at + 7) - at - 7)).second);
  }
  for (const std::string& family : families) EXPECT_NE(text.find("# HELP " + family + " "), std::string::npos);
  const auto json = to_json(status);
  EXPECT_NE(text.find("neotier_load_seconds_bucket{tier=\"dram\",le=\"+Inf\"} 0\n"), std::string::npos);
  EXPECT_EQ(json["counters"]["puts"], 1);
  EXPECT_EQ(json["tiers"][0]["objects"], 1);
}

// What a caller waits for, by tier: queued reads with their wait, and copies of what the host can address.
TEST(Engine, LoadsAreTimed) {
  EngineRig rig = two_tiers();
  PutOptions options;
  for (uint64_t n = 0; n < 4; n++) {
    options.tier = n % 2 ? "ssd" : "dram";
    ASSERT_TRUE(rig.put(n, 1000, options));
  }
  for (uint64_t n = 0; n < 4; n++) EXPECT_TRUE(rig.holds(n, 1000));
  std::vector<Key> keys{make_key(0), make_key(1), make_key(2)};
  EXPECT_EQ(rig.engine->lookup_prefix(keys), 3u);
  EngineStatus status = rig.engine->status();
  EXPECT_EQ(status.tiers[0].took.count(), 2u);
  EXPECT_EQ(status.tiers[1].took.count(), 2u);
  EXPECT_EQ(status.tiers[0].waited.count(), 0u) << "copied at once";
  EXPECT_EQ(status.tiers[1].waited.count(), 2u);
  EXPECT_EQ(status.lookups.count(), 1u);
  std::vector<bool> done(3);
  rig.engine->read_mapped(
      keys, [](size_t, const std::byte*) {}, done);
  status = rig.engine->status();
  EXPECT_EQ(status.tiers[0].took.count(), 4u);
  EXPECT_EQ(to_json(status)["tiers"][1]["load"]["count"], 2);
  EXPECT_EQ(to_json(status)["lookup"]["count"], 1);
  EXPECT_NE(prometheus_text(status).find("neotier_load_wait_seconds_count{tier=\"ssd\"} 2\n"), std::string::npos);
}

// The whole engine under load: threads store, read, move, pin, cancel, remove while tiers fail and come back. Each
// thread owns its keys, so it knows which version every object has to hold, byte for byte.
TEST(WholeEngine, EveryByteUnderLoad) {
  constexpr int kThreads = 3, kObjects = 60, kSteps = 2500;
  const char* given = std::getenv("NEOTIER_TEST_SEED");
  const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device()();
  SCOPED_TRACE("NEOTIER_TEST_SEED=" + std::to_string(seed));

  std::vector<MemTier*> mems;
  std::vector<TierSetup> tiers(4);
  const char* const names[] = {"gpu", "dram", "cxl", "ssd"};
  const TierKind kinds[] = {TierKind::kGpu, TierKind::kDram, TierKind::kCxl, TierKind::kSsd};
  const uint64_t sizes[] = {1 << 20, 2 << 20, 3 << 20, 16 << 20};
  for (int i = 0; i < 4; i++) {
    if (i == 1) {
      MemoryTierOptions memory;
      memory.name = names[i];
      memory.capacity_bytes = sizes[i];
      tiers[i].tier = std::make_unique<MemoryTier>(memory);
    } else {
      MemTierOptions options;
      options.name = names[i];
      options.kind = kinds[i];
      options.capacity_bytes = sizes[i];
      options.mappable = i == 2;
      if (i == 3) options.medium = std::make_shared<MemMedium>();
      auto tier = std::make_unique<MemTier>(options);
      mems.push_back(tier.get());
      tiers[i].tier = std::move(tier);
    }
    tiers[i].object_bytes = 32 * kKiB;
  }
  EngineConfig config;
  config.max_objects = 1000;
  config.measure = false;
  config.knobs.chunk_bytes = 16 * kKiB;
  config.knobs.hysteresis_ms = 5;
  config.knobs.retry_ms = 10;
  config.knobs.promote_heat = 2;
  config.knobs.write_back = true;
  Engine engine(config, std::move(tiers));

  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0, lost = 0;
  const auto worker = [&](int id) {
    std::mt19937_64 random(seed * 31 + id);
    struct Mine {
      uint64_t version = 0;  // 0: not there
      size_t bytes = 0;
      bool droppable = false;
    };
    std::vector<Mine> mine(kObjects);
    std::vector<TicketRef> tickets;
    SessionId session = engine.open_session();
    uint64_t version = uint64_t(id + 1) << 32;
    std::vector<std::byte> into;
    for (int step = 0; step < kSteps; step++) {
      const uint64_t slot = random() % kObjects;
      const Key key = make_key(uint64_t(id) * 1000 + slot);
      Mine& object = mine[slot];
      switch (random() % 10) {
        case 0:
        case 1: {
          PutOptions options;
          options.replace = true;
          options.recompute_ns = random() % 2 ? 1000000000 : 0;
          const size_t bytes = 1 + random() % (60 * kKiB);
          const Status status = engine.put(key, pattern(++version, bytes), options);
          if (status.is_ok()) object = {version, bytes, options.recompute_ns != 0};
          break;
        }
        case 2: {
          const Status status = engine.remove(key);
          if (status.is_ok() || status.code() == Code::kNotFound) {
            if (status.code() == Code::kNotFound && object.version && !object.droppable) lost++;
            object = {};
          }
          break;
        }
        case 3:
        case 4: {
          const MoveClass cls = static_cast<MoveClass>(random() % 3);
          tickets.push_back(engine.move(std::span(&key, 1), names[random() % 4], cls));
          if (random() % 4 == 0) engine.cancel(tickets.back());
          if (random() % 4 == 0) (void)tickets.back()->wait_ns(2000000);
          break;
        }
        case 5: {
          const Result<PinResult> pin = engine.pin(session, key, random() % 3 ? 1 + random() % 5 : 0);
          if (!pin) break;
          if (pin->data && object.version) {
            // Compared under the pin, not after its lease could have ended.
            const Result<PinResult> lasting = engine.pin(session, key, 0);
            if (lasting) {
              const auto expected = pattern(object.version, object.bytes);
              if (lasting->data && lasting->bytes == object.bytes &&
                  std::memcmp(lasting->data, expected.data(), expected.size()) != 0)
                wrong++;
              (void)engine.unpin(session, lasting->id);
            }
          }
          if (random() % 2) (void)engine.unpin(session, pin->id);
          if (random() % 8 == 0) {
            engine.close_session(session);
            session = engine.open_session();
          }
          break;
        }
        default: {
          if (!object.version) break;
          into.assign(object.bytes, std::byte{0});
          const Status status = engine.get(key, 0, into);
          if (status.is_ok()) {
            if (into != pattern(object.version, object.bytes)) wrong++;
          } else if (status.code() == Code::kNotFound) {
            if (!object.droppable) lost++;
            object = {};
          } else if (status.code() == Code::kInvalid) {
            wrong++;
          }
        }
      }
    }
    for (const TicketRef& ticket : tickets) {
      if (ticket->wait_ns(uint64_t{60} * 1000000000).code() == Code::kTimeout) wrong++;
    }
    engine.close_session(session);
    // All tiers serve again: what is not there now is lost.
    while (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (uint64_t slot = 0; slot < kObjects; slot++) {
      if (!mine[slot].version) continue;
      into.assign(mine[slot].bytes, std::byte{0});
      const Status status = engine.get(make_key(uint64_t(id) * 1000 + slot), 0, into);
      if (status.is_ok() && into != pattern(mine[slot].version, mine[slot].bytes)) wrong++;
      if (!status.is_ok() && !(status.code() == Code::kNotFound && mine[slot].droppable)) {
        lost++;
        ADD_FAILURE() << "at the end: " << to_string(status.code()) << ", " << status.what();
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; i++) {
    threads.emplace_back([&, i] { worker(i); });
  }
  std::thread chaos([&] {
    std::mt19937_64 random(seed);
    for (int i = 0; i < 150; i++) {
      MemTier& tier = *mems[random() % mems.size()];
      switch (random() % 4) {
        case 0:
          tier.fail(Op::kRead, 1);
          break;
        case 1:
          tier.fail(Op::kWrite, 1);
          break;
        case 2:
          tier.hold();
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          tier.release();
          break;
        case 3:
          tier.lose();
          std::this_thread::sleep_for(std::chrono::milliseconds(random() % 60));
          tier.mend();
          break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    for (MemTier* tier : mems) {
      tier->release();
      tier->mend();
      tier->fail(Op::kRead, 0);
      tier->fail(Op::kWrite, 0);
    }
    for (const char* name : names) {
      for (int i = 0; i < 1000 && !engine.set_in_service(name, true); i++)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    stop = true;
  });
  chaos.join();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(lost, 0);
  const EngineStatus status = engine.status();
  EXPECT_EQ(status.pins, 0u);
  EXPECT_EQ(status.sessions, 0u);
  EXPECT_GT(status.counters.moves, 0u) << to_json(status).dump(1);
  EXPECT_GT(status.counters.tier_failures, 0u) << to_json(status).dump(1);
}

}  // namespace
}  // namespace neotier::engine

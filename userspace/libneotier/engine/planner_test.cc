// SPDX-License-Identifier: Apache-2.0
// What is decided, under a clock that stands still and links whose speed is set.
#include "engine/planner.h"

#include <map>

#include "engine/testing/engine_rig.h"

namespace neotier::engine {
namespace {

constexpr uint64_t kKiB = 1024, kMs = 1000000;

PutOptions droppable(uint64_t recompute_ns, const std::string& tier = "") {
  PutOptions options;
  options.kind = ObjectKind::kKv;
  options.recompute_ns = recompute_ns;
  options.tier = tier;
  return options;
}

// latency 100 us, 1 GB/s: 64 KiB in some 165 us.
void set_speed(Link& link, double factor = 1) {
  link.set_measured(4096, static_cast<uint64_t>(factor * 104096), 1 << 20, static_cast<uint64_t>(factor * 1148576));
}

TEST(Decide, WhateverEndsFirst) {
  EngineRig rig({{"dram", TierKind::kDram}, {"ssd", TierKind::kSsd, 1 << 20, false}});
  set_speed(rig.engine->links().at(1, kHost));
  ASSERT_TRUE(rig.put(1, 64 * kKiB, droppable(10 * kMs, "ssd")));
  ASSERT_TRUE(rig.put(2, 64 * kKiB, droppable(kMs / 10, "ssd")));
  const auto decide = [&](uint64_t n, uint64_t queue, uint64_t cpu) {
    const Result<Decision> d = rig.engine->decide(make_key(n), "", queue, cpu);
    EXPECT_TRUE(d);
    return *d;
  };
  EXPECT_EQ(decide(1, 0, 0).choice, Choice::kLoad);
  EXPECT_NEAR(static_cast<double>(decide(1, 0, 0).load_ns), 165536, 200);
  EXPECT_EQ(decide(2, 0, 0).choice, Choice::kRecompute);
  EXPECT_EQ(decide(2, kMs, 0).choice, Choice::kLoad) << "work that is before it counts";
  // The CPU cannot address the SSD.
  EXPECT_EQ(decide(1, 0, 1).choice, Choice::kLoad);
  EXPECT_EQ(decide(1, 0, 1).cpu_ns, UINT64_MAX);
  // A queue on the link turns it over.
  rig.engine->links().at(1, kHost).queued(100 << 20);
  EXPECT_EQ(decide(1, 0, 0).choice, Choice::kRecompute);
  rig.engine->links().at(1, kHost).unqueued(100 << 20);
  EXPECT_EQ(decide(1, 0, 0).choice, Choice::kLoad);
  const Counters c = rig.counters();
  EXPECT_EQ(c.recommended_recomputes, 2u);
  EXPECT_EQ(c.bypasses, 2u);
}

TEST(Decide, ComputesOnTheCpuWhereTheObjectLies) {
  EngineRig rig({{"dram", TierKind::kDram}, {"cxl", TierKind::kCxl}});
  set_speed(rig.engine->links().at(0, kHost));
  set_speed(rig.engine->links().at(1, kHost), 3);
  set_speed(rig.engine->links().at(1, 0), 3);
  ASSERT_TRUE(rig.put(1, 64 * kKiB, droppable(10 * kMs, "cxl")));
  const Result<Decision> d = rig.engine->decide(make_key(1), "dram", 0, 100000);
  ASSERT_TRUE(d);
  EXPECT_NEAR(static_cast<double>(d->cpu_ns), 300000, 1000) << "three times slower to read there";
  EXPECT_EQ(d->choice, Choice::kComputeOnCpu);
  EXPECT_EQ(rig.engine->decide(make_key(1), "dram", 0, 400000)->choice, Choice::kLoad);
}

TEST(Decide, AnObjectThatIsThereIsThere) {
  EngineRig rig({{"dram", TierKind::kDram}});
  ASSERT_TRUE(rig.put(1, 4096, droppable(1)));
  EXPECT_EQ(rig.engine->decide(make_key(1), "dram", 0, 0)->load_ns, 0u);
  EXPECT_EQ(rig.engine->decide(make_key(2), "dram", 0, 0).status().code(), Code::kNotFound);
  EXPECT_EQ(rig.engine->decide(make_key(1), "tape", 0, 0).status().code(), Code::kInvalid);
}

TEST(Room, TheLeastRecentlyUsedGoesDown) {
  EngineRig rig({{"dram", TierKind::kDram, 40 * kKiB}, {"cxl", TierKind::kCxl}});
  for (uint64_t n = 0; n < 10; n++) ASSERT_TRUE(rig.put(n, 4 * kKiB));
  EXPECT_TRUE(rig.holds(0, 4 * kKiB));
  ASSERT_TRUE(rig.put(10, 4 * kKiB));
  ASSERT_TRUE(rig.settle());
  EXPECT_EQ(rig.where(0), "dram");
  EXPECT_EQ(rig.where(1), "cxl");
  EXPECT_EQ(rig.where(10), "dram");
  for (uint64_t n = 0; n <= 10; n++) EXPECT_TRUE(rig.holds(n, 4 * kKiB));
}

TEST(Room, ATierSlowerThanMakingAnewIsPassedOver) {
  EngineRig rig({{"dram", TierKind::kDram, 40 * kKiB}, {"ssd", TierKind::kSsd, 1 << 20, false}});
  set_speed(rig.engine->links().at(1, kHost), 100);
  for (uint64_t n = 0; n < 10; n++) ASSERT_TRUE(rig.put(n, 4 * kKiB, droppable(kMs)));
  ASSERT_TRUE(rig.put(10, 4 * kKiB, droppable(kMs)));
  ASSERT_TRUE(rig.settle());
  EXPECT_EQ(rig.where(0), "") << "thrown away: 10 ms to load, 1 ms to make";
  const Counters c = rig.counters();
  EXPECT_GT(c.bypasses, 0u);
  EXPECT_GT(c.discards, 0u);
  EXPECT_EQ(c.demotions, 0u);
}

TEST(Room, WhatCannotBeMadeAnewIsNeverThrownAway) {
  EngineRig rig({{"dram", TierKind::kDram, 40 * kKiB}, {"ssd", TierKind::kSsd, 40 * kKiB, false}});
  set_speed(rig.engine->links().at(1, kHost), 100);
  for (uint64_t n = 0; n < 20; n++) ASSERT_TRUE(rig.put(n, 4 * kKiB)) << n;
  EXPECT_EQ(rig.put(20, 4 * kKiB).code(), Code::kFull);
  EXPECT_EQ(rig.put(21, 4 * kKiB, droppable(kMs)).code(), Code::kFull);
  for (uint64_t n = 0; n < 20; n++) EXPECT_TRUE(rig.holds(n, 4 * kKiB));
  EXPECT_GT(rig.counters().full_refusals, 0u);
  EXPECT_EQ(rig.engine->status().objects, 20u) << "what was refused left nothing";
}

TEST(Room, AnObjectLargerThanTheTierGoesToOneThatHasRoom) {
  EngineRig rig({{"dram", TierKind::kDram, 40 * kKiB}, {"cxl", TierKind::kCxl, 400 * kKiB}});
  ASSERT_TRUE(rig.put(1, 100 * kKiB));
  EXPECT_EQ(rig.where(1), "cxl");
  EXPECT_EQ(rig.put(2, 4000 * kKiB).code(), Code::kGone);
}

TEST(Hysteresis, BackgroundLeavesAloneWhatJustMoved) {
  EngineConfig config;
  config.knobs.high_watermark = config.knobs.low_watermark = 1;
  config.knobs.promote_heat = 2;
  EngineRig rig({{"dram", TierKind::kDram, 8 * kKiB}, {"cxl", TierKind::kCxl}}, config);
  for (uint64_t n = 0; n < 4; n++) ASSERT_TRUE(rig.put(n, 4 * kKiB, {.tier = "cxl"}));
  // Two uses: worth DRAM, where there is room.
  for (int i = 0; i < 2; i++) {
    for (uint64_t n = 0; n < 2; n++) EXPECT_TRUE(rig.holds(n, 4 * kKiB));
  }
  ASSERT_TRUE(rig.settle());
  EXPECT_EQ(rig.where(0), "dram");
  EXPECT_EQ(rig.where(1), "dram");
  EXPECT_EQ(rig.counters().promotions, 2u);
  // Hotter ones find room only where something leaves, and what is there has just come.
  for (int i = 0; i < 5; i++) EXPECT_TRUE(rig.holds(2, 4 * kKiB));
  ASSERT_TRUE(rig.settle());
  EXPECT_EQ(rig.where(2), "cxl");
  EXPECT_GT(rig.counters().hysteresis_holds, 0u);
  rig.clock.advance_ms(1500);
  for (int i = 0; i < 5; i++) EXPECT_TRUE(rig.holds(2, 4 * kKiB));
  ASSERT_TRUE(rig.settle());
  EXPECT_EQ(rig.where(2), "dram");
}

TEST(Hysteresis, DemandOverrides) {
  EngineConfig config;
  config.knobs.high_watermark = config.knobs.low_watermark = 1;
  EngineRig rig({{"dram", TierKind::kDram, 8 * kKiB}, {"cxl", TierKind::kCxl}}, config);
  for (uint64_t n = 0; n < 4; n++) ASSERT_TRUE(rig.put(n, 4 * kKiB, {.tier = "cxl"}));
  const auto bring = [&](uint64_t n, MoveClass cls) {
    const Key key = make_key(n);
    const TicketRef ticket = rig.engine->move(std::span(&key, 1), "dram", cls);
    EXPECT_TRUE(rig.run(ticket));
    return ticket->wait();
  };
  ASSERT_TRUE(bring(0, MoveClass::kDemand));
  ASSERT_TRUE(bring(1, MoveClass::kDemand));
  EXPECT_EQ(bring(2, MoveClass::kPrefetch).code(), Code::kFull);
  EXPECT_EQ(rig.counters().hysteresis_overrides, 0u);
  EXPECT_TRUE(bring(2, MoveClass::kDemand));
  EXPECT_EQ(rig.where(2), "dram");
  EXPECT_EQ(rig.where(0), "cxl");
  EXPECT_EQ(rig.counters().hysteresis_overrides, 1u);
}

TEST(Promotion, OnlyInExchangeForSomethingColder) {
  EngineConfig config;
  config.knobs.high_watermark = config.knobs.low_watermark = 1;
  config.knobs.promote_heat = 3;
  EngineRig rig({{"dram", TierKind::kDram, 4 * kKiB}, {"cxl", TierKind::kCxl}}, config);
  ASSERT_TRUE(rig.put(0, 4 * kKiB));
  ASSERT_TRUE(rig.put(1, 4 * kKiB, {.tier = "cxl"}));
  for (int i = 0; i < 9; i++) EXPECT_TRUE(rig.holds(0, 4 * kKiB));
  for (int i = 0; i < 5; i++) EXPECT_TRUE(rig.holds(1, 4 * kKiB));
  ASSERT_TRUE(rig.settle());
  EXPECT_EQ(rig.where(1), "cxl") << "5 uses against 9";
  for (int i = 0; i < 6; i++) EXPECT_TRUE(rig.holds(1, 4 * kKiB));
  ASSERT_TRUE(rig.settle());
  EXPECT_EQ(rig.where(1), "dram");
  EXPECT_EQ(rig.where(0), "cxl");
}

TEST(Promotion, HeatFades) {
  EngineRig rig({{"dram", TierKind::kDram}, {"cxl", TierKind::kCxl}});
  ASSERT_TRUE(rig.put(1, 4 * kKiB, {.tier = "cxl"}));
  for (int i = 0; i < 6; i++) {
    EXPECT_TRUE(rig.holds(1, 4 * kKiB));
    rig.clock.advance_ms(1000);
  }
  ASSERT_TRUE(rig.settle());
  EXPECT_EQ(rig.where(1), "cxl") << "one use a second is not three";
  for (int i = 0; i < 3; i++) EXPECT_TRUE(rig.holds(1, 4 * kKiB));
  ASSERT_TRUE(rig.settle());
  EXPECT_EQ(rig.where(1), "dram");
}

// Twice the same heat would be two moves. What the kernel cannot do is the engine's as before: up to a GPU, up from an
// SSD, down from DRAM, and what is asked for.
TEST(Promotion, ToDramIsTheKernelsWhereItMovesTheTier) {
  EngineConfig config;
  config.knobs.hysteresis_ms = 0;
  EngineRig rig({{"gpu", TierKind::kGpu, 4 * kKiB},
                 {"dram", TierKind::kDram, 40 * kKiB},
                 {.name = "cxl", .kind = TierKind::kCxl, .kernel_moves = true},
                 {"ssd", TierKind::kSsd, 1 << 20, false}},
                config);
  ASSERT_TRUE(rig.put(1, 8 * kKiB, {.tier = "cxl"}));
  ASSERT_TRUE(rig.put(2, 8 * kKiB, {.tier = "ssd"}));
  ASSERT_TRUE(rig.put(3, 4 * kKiB, {.tier = "cxl"}));
  const std::byte* there =
      rig.mems[2]->map(rig.engine->catalogue()[rig.engine->catalogue().index().find(make_key(1))].extent[0]);
  for (int i = 0; i < 20; i++) {
    for (uint64_t n = 1; n <= 2; n++) EXPECT_TRUE(rig.holds(n, 8 * kKiB));
    ASSERT_TRUE(rig.settle());
  }
  EXPECT_EQ(rig.where(1), "cxl") << "too large for the gpu tier, and dram is the kernel's to choose";
  const SessionId session = rig.engine->open_session();
  const Result<PinResult> pin = rig.engine->pin(session, make_key(1), 0);
  ASSERT_TRUE(pin);
  EXPECT_EQ(pin->data, there) << "used in place";
  rig.engine->close_session(session);
  EXPECT_EQ(rig.where(2), "dram");
  for (int i = 0; i < 20; i++) EXPECT_TRUE(rig.holds(3, 4 * kKiB));
  ASSERT_TRUE(rig.settle());
  EXPECT_EQ(rig.where(3), "gpu");
  const Key asked[] = {make_key(1)};
  ASSERT_TRUE(rig.run(rig.engine->move(asked, "dram", MoveClass::kDemand)));
  EXPECT_EQ(rig.where(1), "dram");
  ASSERT_TRUE(rig.run(rig.engine->move(asked, "cxl", MoveClass::kDemand)));
  EXPECT_EQ(rig.where(1), "cxl");
  EXPECT_TRUE(rig.holds(1, 8 * kKiB));
}

TEST(Watermarks, ObjectsLeaveInTheBackgroundBeforeRoomIsNeeded) {
  EngineRig rig({{"dram", TierKind::kDram, 400 * kKiB}, {"cxl", TierKind::kCxl}});
  for (uint64_t n = 0; n < 98; n++) ASSERT_TRUE(rig.put(n, 4 * kKiB));
  rig.clock.advance_ms(100);
  ASSERT_TRUE(rig.settle());
  const EngineStatus status = rig.engine->status();
  EXPECT_LE(status.tiers[0].usage.used_bytes, 400 * kKiB * 90 / 100);
  EXPECT_GE(status.tiers[0].usage.used_bytes, 400 * kKiB * 88 / 100);
  EXPECT_EQ(rig.where(0), "cxl");
  EXPECT_EQ(rig.where(97), "dram");
}

TEST(Watermarks, NothingIsThrownAwayBeforeItsRoomIsNeeded) {
  EngineRig rig({{"dram", TierKind::kDram, 400 * kKiB}});
  for (uint64_t n = 0; n < 100; n++) ASSERT_TRUE(rig.put(n, 4 * kKiB, droppable(1)));
  rig.clock.advance_ms(100);
  ASSERT_TRUE(rig.settle());
  EXPECT_EQ(rig.engine->status().objects, 100u);
}

// LRU that counts what it is told, by its state.
struct Told {
  uint64_t events = 0, hits = 0, uses_missed = 0, offers = 0, inserts = 0, arrivals = 0;
};
std::map<const void*, Told> g_told;
const neotier_placement& lru() {
  static const placement::PolicyRef policy = placement::find_policy("lru", NEOTIER_KV);
  return *policy;
}
placement::PolicyRef counting_lru() {
  static neotier_placement p = lru();
  p.init = [](void* state, const neotier_placement_config* config) {
    g_told[state] = {};
    return lru().init(state, config);
  };
  p.on_event = [](void* state, const neotier_event*) { g_told[state].events++; };
  p.on_hit = [](void* state, const neotier_event* e, uint32_t i) {
    g_told[state].hits++;
    return lru().on_hit(state, e, i);
  };
  p.admit = [](void* state, const neotier_event* e, uint32_t) {
    (e->kind == NEOTIER_EVENT_DEMAND ? g_told[state].uses_missed : g_told[state].offers)++;
    return 1;
  };
  p.on_insert = [](void* state, const neotier_event* e, uint32_t i) {
    (e->kind == NEOTIER_EVENT_DEMAND ? g_told[state].inserts : g_told[state].arrivals)++;
    return lru().on_insert(state, e, i);
  };
  return placement::PolicyRef(&p, [](const neotier_placement*) {});
}

// A store is one use, whatever it takes to make room for it; a move is none. And every tier's policy sees every use.
TEST(Policies, MovesAreNoUses) {
  g_told.clear();
  FakeClock clock;
  std::vector<TierSetup> tiers(2);
  for (size_t i = 0; i < 2; i++) {
    MemTierOptions options;
    options.name = i == 0 ? "near" : "far";
    options.capacity_bytes = (i == 0 ? 4 : 64) * 4 * kKiB;
    tiers[i].tier = std::make_unique<MemTier>(options);
    tiers[i].own_policy = counting_lru();
    tiers[i].object_bytes = (i == 0 ? 4 : 64) * kKiB;  // which state is whose
  }
  EngineConfig config;
  config.max_objects = 100;
  config.measure = config.thread = false;
  config.clock = &clock;
  Engine engine(config, std::move(tiers));
  for (uint64_t n = 0; n < 12; n++)
    ASSERT_TRUE(engine.put(make_key(n), pattern(n, 4 * kKiB), {.recompute_ns = 3600000000000}));
  const std::vector<Key> back = {make_key(0), make_key(1)};
  const TicketRef ticket = engine.move(back, "near", MoveClass::kDemand);
  for (int i = 0; i < 10000 && ticket->progress().pending > 0; i++) {
    engine.step();
    clock.advance_ms(1);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  std::vector<std::byte> bytes(4 * kKiB);
  ASSERT_TRUE(engine.get(make_key(0), 0, bytes));
  const uint64_t moves = engine.status().counters.moves;
  EXPECT_GE(moves, 10u);
  ASSERT_EQ(g_told.size(), 2u);
  uint64_t arrivals = 0, offers = 0, inserts = 0, hits = 0, missed = 0;
  for (const auto& [state, told] : g_told) {
    EXPECT_EQ(told.events, 13u) << "twelve stores and a use";
    arrivals += told.arrivals;
    offers += told.offers;
    inserts += told.inserts;
    hits += told.hits;
    missed += told.uses_missed;
  }
  EXPECT_EQ(inserts, 12u);
  EXPECT_EQ(arrivals, moves);
  EXPECT_GE(offers, 8u) << "the far tier is asked for what the near one gives up";
  EXPECT_EQ(hits + missed, 2 * 13u);
  EXPECT_GE(hits, 1u);
}

// Every policy for KV blocks decides what a tier keeps, as it is.
TEST(Policies, AllOfThemKeepATierWithinItsRoom) {
  for (const neotier_placement* policy : placement::policies(NEOTIER_KV)) {
    if (policy->flags & (NEOTIER_NEEDS_ORACLE | NEOTIER_PREDICTOR)) continue;
    FakeClock clock;
    MemTierOptions options;
    options.capacity_bytes = 40 * kKiB;
    std::vector<TierSetup> tiers(1);
    tiers[0].tier = std::make_unique<MemTier>(options);
    tiers[0].policy = policy->name;
    tiers[0].object_bytes = 4 * kKiB;
    EngineConfig config;
    config.max_objects = 1000;
    config.measure = config.thread = false;
    config.clock = &clock;
    Engine engine(config, std::move(tiers));
    uint64_t kept = 0;
    for (uint64_t n = 0; n < 300; n++) {
      clock.advance_ms(1);
      const Status stored = engine.put(make_key(n), pattern(n, 4 * kKiB), droppable(1));
      kept += stored.is_ok();
      if (n % 3 == 0 && n > 0) (void)engine.touch(make_key(n - 1));
    }
    EXPECT_GE(kept, 290u) << policy->name;
    EXPECT_EQ(engine.status().objects, 10u) << policy->name;
  }
}

}  // namespace
}  // namespace neotier::engine

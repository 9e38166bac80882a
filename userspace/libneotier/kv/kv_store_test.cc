// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_store.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <list>
#include <random>
#include <stdexcept>
#include <thread>

#include "engine/testing/fake_clock.h"
#include "engine/testing/mem_tier.h"
#include "engine/testing/pattern.h"
#include "util/cpu_clock.h"

namespace neotier::kv {
namespace {

using engine::Code;
using engine::EventKind;
using engine::Key;
using engine::make_key;
using engine::Status;

constexpr uint32_t kLayers = 4;
constexpr uint64_t kLayerBytes = 1024;
constexpr uint64_t kBlockBytes = kLayers * kLayerBytes;

std::vector<Key> block_keys(uint64_t first, size_t nr) {
  std::vector<Key> keys;
  for (size_t i = 0; i < nr; i++) keys.push_back(make_key(first + i));
  return keys;
}

uint8_t byte_of(uint64_t block, uint32_t layer, uint64_t at) {
  return static_cast<uint8_t>((block * 31 + layer * 7 + at) * 0x9e3779b97f4a7c15u >> 56);
}

// The caller's KV cache: layers one after another, as serving engines lay it out.
struct Cache {
  size_t blocks;
  std::vector<std::byte> bytes = std::vector<std::byte>(blocks * kBlockBytes);
  std::vector<std::byte*> into;

  explicit Cache(size_t nr) : blocks(nr) {
    for (uint32_t layer = 0; layer < kLayers; layer++) {
      for (size_t block = 0; block < nr; block++) into.push_back(bytes.data() + (layer * nr + block) * kLayerBytes);
    }
  }
  void fill(uint64_t first) {
    for (uint32_t layer = 0; layer < kLayers; layer++) {
      for (size_t block = 0; block < blocks; block++) {
        for (uint64_t at = 0; at < kLayerBytes; at++)
          into[layer * blocks + block][at] = static_cast<std::byte>(byte_of(first + block, layer, at));
      }
    }
  }
  ::testing::AssertionResult holds(uint64_t first, size_t nr, uint32_t layers = kLayers) const {
    for (uint32_t layer = 0; layer < layers; layer++) {
      for (size_t block = 0; block < nr; block++) {
        for (uint64_t at = 0; at < kLayerBytes; at++) {
          if (into[layer * blocks + block][at] != static_cast<std::byte>(byte_of(first + block, layer, at)))
            return ::testing::AssertionFailure() << "block " << first + block << ", layer " << layer << ", byte " << at;
        }
      }
    }
    return ::testing::AssertionSuccess();
  }
  std::vector<const std::byte*> from() const { return {into.begin(), into.end()}; }
};

StoreOptions small() {
  StoreOptions options;
  options.layers = kLayers;
  options.layer_bytes = kLayerBytes;
  options.recompute_ns = 1000000;
  return options;
}

// A DRAM tier and, behind it, a durable one that is not mapped.
struct Rig {
  engine::FakeClock clock;
  std::shared_ptr<engine::MemMedium> medium;
  engine::MemTier* fast = nullptr;
  engine::MemTier* slow = nullptr;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<KvStore> store;
  TenantId tenant = 0;
  SessionId session = 0;

  explicit Rig(StoreOptions options = small(), size_t fast_blocks = 64, size_t slow_blocks = 256,
               std::shared_ptr<engine::MemMedium> on = std::make_shared<engine::MemMedium>(),
               const char* policy = placement::kRecommendedKvPolicy, const placement::PolicyRef& own_policy = nullptr)
      : medium(std::move(on)) {
    std::vector<engine::TierSetup> setups(2);
    engine::MemTierOptions tier;
    tier.name = "dram";
    tier.capacity_bytes = fast_blocks * kBlockBytes;
    auto made = std::make_unique<engine::MemTier>(tier);
    fast = made.get();
    setups[0].tier = std::move(made);
    tier.name = "ssd";
    tier.capacity_bytes = slow_blocks * kBlockBytes;
    tier.mappable = false;
    tier.medium = medium;
    made = std::make_unique<engine::MemTier>(tier);
    slow = made.get();
    setups[1].tier = std::move(made);
    for (engine::TierSetup& setup : setups) {
      setup.object_bytes = kBlockBytes;
      setup.policy = policy;
      setup.own_policy = own_policy;
    }
    engine::EngineConfig config;
    config.max_objects = 2000;
    config.events = 4096;
    config.seed = 7;
    config.measure = false;
    engine = std::make_unique<engine::Engine>(config, std::move(setups));
    options.clock = &clock;
    store = std::make_unique<KvStore>(*engine, options);
    tenant = store->tenant("t", 0);
    session = *store->open_session(tenant, 0);
  }

  StoreResult put(uint64_t first, size_t nr, SessionId as = 0) {
    Cache cache(nr);
    cache.fill(first);
    const auto from = cache.from();
    return store->store(as ? as : session, block_keys(first, nr), from);
  }
  // The later blocks of a prompt.
  StoreResult put_at(uint64_t first, uint32_t position, size_t nr) {
    Cache cache(nr);
    cache.fill(first + position);
    return store->store(session, block_keys(first + position, nr), cache.from(), position);
  }
  size_t found(uint64_t first, size_t nr, SessionId as = 0) {
    return *store->lookup(as ? as : session, block_keys(first, nr));
  }
  ::testing::AssertionResult loads(uint64_t first, size_t nr) {
    Cache cache(nr);
    auto load = store->load(session, block_keys(first, nr), cache.into);
    if (!load) return ::testing::AssertionFailure() << load.status().what();
    const Status status = (*load)->wait(10000);
    if (!status) return ::testing::AssertionFailure() << status.what();
    if ((*load)->blocks() != nr) return ::testing::AssertionFailure() << (*load)->blocks() << " of " << nr << " blocks";
    return cache.holds(first, nr);
  }
  TenantStatus of(const std::string& name) {
    for (const TenantStatus& status : store->tenants()) {
      if (status.name == name) return status;
    }
    return {};
  }
};

TEST(KvStore, WhatIsStoredIsFoundAndLoadedLayerByLayer) {
  Rig rig;
  EXPECT_EQ(rig.put(0, 10).stored, 10u);
  EXPECT_EQ(rig.found(0, 12), 10u);
  Cache cache(10);
  auto load = rig.store->load(rig.session, block_keys(0, 10), cache.into);
  ASSERT_TRUE(load.is_ok()) << load.status().what();
  for (uint32_t layer = 0; layer < kLayers; layer++) {
    ASSERT_TRUE((*load)->wait_layer(layer, 10000).is_ok());
    EXPECT_TRUE(cache.holds(0, 10, layer + 1));
  }
  EXPECT_EQ((*load)->good_blocks(), 10u);
  EXPECT_EQ((*load)->wait_layer(kLayers, 0).code(), Code::kInvalid);
}

TEST(KvStore, OnlyLeadingBlocksCount) {
  Rig rig;
  rig.put(0, 3);
  rig.put(4, 3);
  EXPECT_EQ(rig.found(0, 7), 3u);
  EXPECT_EQ(rig.found(3, 4), 0u);
  Cache cache(7);
  auto load = rig.store->load(rig.session, block_keys(0, 7), cache.into);
  ASSERT_TRUE(load.is_ok());
  EXPECT_EQ((*load)->blocks(), 3u);
  ASSERT_TRUE((*load)->wait(10000).is_ok());
  for (uint32_t layer = 0; layer < kLayers; layer++) {
    for (size_t block = 0; block < 3; block++)
      EXPECT_EQ(cache.into[layer * 7 + block][5], static_cast<std::byte>(byte_of(block, layer, 5)));
    for (size_t block = 3; block < 7; block++)
      EXPECT_EQ(cache.into[layer * 7 + block][5], std::byte{0}) << "not asked for";
  }
}

TEST(KvStore, StoringAgainCostsNothing) {
  Rig rig;
  rig.put(0, 5);
  const StoreResult again = rig.put(0, 8);
  EXPECT_EQ(again.present, 5u);
  EXPECT_EQ(again.stored, 3u);
  EXPECT_EQ(rig.of("t").used_bytes, 8 * kBlockBytes);
}

// What policies are told of is a request, once, however many calls serve it.
TEST(KvStore, ARequestIsToldOnce) {
  Rig rig;
  const auto told = [&] { return rig.engine->status().counters.request_events; };
  EXPECT_EQ(rig.found(0, 8), 0u);
  EXPECT_EQ(rig.found(0, 8), 0u);
  EXPECT_EQ(told(), 0u) << "a look-up again is the same request, and it may still be stored";
  EXPECT_EQ(rig.put(0, 3).stored, 3u);
  EXPECT_EQ(told(), 1u);
  EXPECT_EQ(rig.put_at(0, 3, 5).stored, 5u) << "the rest of it, later";
  EXPECT_EQ(told(), 1u);
  EXPECT_EQ(rig.found(0, 8), 8u);
  EXPECT_TRUE(rig.loads(0, 8));
  EXPECT_EQ(told(), 2u) << "all of it is there";
  EXPECT_EQ(rig.put(0, 8).present, 8u);
  EXPECT_EQ(told(), 2u);
  EXPECT_EQ(rig.found(0, 9), 8u);
  EXPECT_EQ(told(), 2u);
  EXPECT_EQ(rig.found(100, 1), 0u);
  EXPECT_EQ(told(), 3u) << "the next one begins, and nobody stored the former";
  const uint64_t hits = rig.engine->status().counters.hits, misses = rig.engine->status().counters.misses;
  ASSERT_TRUE(rig.store->close_session(rig.session));
  EXPECT_EQ(told(), 4u);
  EXPECT_EQ(rig.engine->status().counters.hits, hits);
  EXPECT_EQ(rig.engine->status().counters.misses, misses + 1);
}

// Blocks in the middle of a prompt: the load begins a request at their position, and what is stored next belongs to it.
TEST(KvStore, ALoadFromTheMiddleOfAPrompt) {
  Rig rig;
  const auto told = [&] { return rig.engine->status().counters.request_events; };
  ASSERT_EQ(rig.put(0, 6).stored, 6u);
  ASSERT_EQ(told(), 1u);
  {
    Cache cache(4);
    auto load = rig.store->load(rig.session, block_keys(4, 4), cache.into, 4);
    ASSERT_TRUE(load);
    EXPECT_EQ((*load)->blocks(), 2u);
    ASSERT_TRUE((*load)->wait(10000));
    EXPECT_TRUE(cache.holds(4, 2));
  }
  EXPECT_EQ(told(), 1u) << "two of it are not there, and may be stored";
  EXPECT_EQ(rig.put_at(0, 6, 2).stored, 2u);
  EXPECT_EQ(told(), 2u) << "one request of four blocks";
}

// A block that left is known when it comes again: the policy that counts uses keeps it for one that came once.
TEST(KvStore, PoliciesRememberWhatLeft) {
  std::vector<engine::TierSetup> setups(1);
  engine::MemTierOptions tier;
  tier.name = "dram";
  tier.capacity_bytes = 4 * kBlockBytes;
  setups[0].tier = std::make_unique<engine::MemTier>(tier);
  setups[0].policy = "lfu";
  engine::EngineConfig config;
  config.max_objects = 100;
  config.events = 100;
  config.measure = false;
  config.history = 10;
  engine::Engine engine(config, std::move(setups));
  KvStore store(engine, small());
  const SessionId session = *store.open_session(store.tenant("t", 0), 0);
  const auto put = [&](uint64_t first, size_t nr) {
    Cache cache(nr);
    cache.fill(first);
    EXPECT_TRUE(store.store(session, block_keys(first, nr), cache.from()).status.is_ok());
  };
  for (int i = 0; i < 3; i++) {
    put(1, 1);
    put(10 + 4 * static_cast<uint64_t>(i), 4);
  }
  put(1, 1);
  put(50, 4);
  EXPECT_TRUE(engine.lookup(make_key(1))) << "used four times";
  EXPECT_EQ(engine.status().objects, 4u);
  EXPECT_LE(engine.status().remembered, 10u);
  EXPECT_FALSE(engine.lookup(make_key(10)));
  EXPECT_EQ(engine.remove(make_key(10)).code(), Code::kNotFound);
  put(100, 4);
  put(200, 4);
  put(300, 4);
  EXPECT_LE(engine.status().remembered, 10u) << "the bound";
  EXPECT_GE(engine.status().remembered, 6u);
}

TEST(KvStore, TheFilterKeepsOutWhatIsOfferedOnce) {
  StoreOptions options = small();
  options.store_after = 2;
  options.filter_blocks = 6;
  Rig rig(options);
  EXPECT_EQ(rig.put(0, 4).filtered, 4u);
  EXPECT_EQ(rig.found(0, 4), 0u);
  EXPECT_EQ(rig.put(0, 4).stored, 4u);
  EXPECT_TRUE(rig.loads(0, 4));
  rig.put(100, 1);
  rig.put(200, 6);  // the filter remembers six
  EXPECT_EQ(rig.put(100, 1).filtered, 1u);
}

TEST(KvStore, BlocksGoDownAndComeBackWhole) {
  Rig rig(small(), 16, 256);
  for (uint64_t first = 0; first < 96; first += 8) ASSERT_TRUE(rig.put(first, 8).status.is_ok());
  EXPECT_EQ(rig.found(0, 96), 96u) << "the second tier has what the first has no room for";
  for (uint64_t first = 0; first < 96; first += 8) EXPECT_TRUE(rig.loads(first, 8));
}

TEST(KvStore, WritePolicies) {
  for (const WritePolicy policy : {WritePolicy::kWriteBack, WritePolicy::kSelective, WritePolicy::kWriteThrough}) {
    StoreOptions options = small();
    options.write = policy;
    auto medium = std::make_shared<engine::MemMedium>();
    {
      Rig rig(options, 64, 256, medium);
      rig.put(0, 4);
      if (policy == WritePolicy::kSelective) rig.found(0, 2);
      for (int i = 0; i < 2000 && rig.engine->status().jobs > 0; i++)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ASSERT_TRUE(rig.engine->flush().is_ok());
    }
    // As after a restart: what was written out is there, with its bytes.
    Rig again(options, 64, 256, medium);
    const size_t expected = policy == WritePolicy::kWriteBack ? 0 : policy == WritePolicy::kSelective ? 2 : 4;
    EXPECT_EQ(again.found(0, 4), expected) << static_cast<int>(policy);
    EXPECT_TRUE(expected == 0 || again.loads(0, expected));
    EXPECT_EQ(again.of("t").used_bytes, expected * kBlockBytes) << "who finds it owns it";
  }
}

// A tier that is full when the process ends takes what is new after the next start, also where its file kept no costs.
TEST(KvStore, AFullTierTakesNewBlocksAfterARestart) {
  StoreOptions options = small();
  options.write = WritePolicy::kWriteThrough;
  options.recompute_ns = 1000000000;
  const auto settle = [](Rig& rig) {
    for (int i = 0; i < 5000 && rig.engine->status().jobs > 0; i++)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  for (const bool notes : {true, false}) {
    const auto medium = std::make_shared<engine::MemMedium>();
    {
      Rig rig(options, 8, 64, medium, "lru");
      for (uint64_t first = 0; first < 64; first += 4) {
        rig.put(first, 4);
        settle(rig);
      }
      ASSERT_TRUE(rig.engine->flush().is_ok());
    }
    ASSERT_EQ(medium->extents.size(), 64u);
    if (!notes)
      for (auto& [extent, kept] : medium->extents) kept.note = 0;
    Rig rig(options, 8, 64, medium, "lru");
    EXPECT_EQ(rig.found(0, 64), 64u);
    EXPECT_GT(rig.engine->lookup(make_key(5))->recompute_ns, 0u);
    for (uint64_t first = 1000; first < 1064; first += 4) {
      EXPECT_EQ(rig.put(first, 4).stored, 4u) << notes;
      settle(rig);
    }
    EXPECT_EQ(rig.store->counters().no_room, 0u);
    size_t there = 0;
    for (uint64_t key = 1000; key < 1064; key++) there += rig.engine->lookup(make_key(key)).is_ok();
    EXPECT_GE(there, 56u) << notes;
    EXPECT_EQ(rig.engine->status().counters.full_refusals, 0u) << notes;
  }
}

// What the engine forgot and another session stored again is that session's.
TEST(KvStore, ASessionLetsGoOfNothingButItsOwn) {
  Rig rig;
  const TenantId tight = rig.store->tenant("tight", 2 * kBlockBytes);
  const SessionId a = *rig.store->open_session(tight, 0), b = *rig.store->open_session(tight, 0),
                  c = *rig.store->open_session(tight, 0);
  EXPECT_EQ(rig.put(1, 1, a).stored, 1u);
  ASSERT_TRUE(rig.engine->remove(make_key(1)).is_ok());
  rig.store->tick();
  EXPECT_EQ(rig.put(1, 1, b).stored, 1u);
  EXPECT_EQ(rig.put(2, 1, c).stored, 1u);
  EXPECT_EQ(rig.found(7, 1, a), 0u) << "holds nothing now";
  ASSERT_TRUE(rig.store->close_session(c).is_ok());
  EXPECT_EQ(rig.put(3, 1, a).stored, 1u);
  EXPECT_TRUE(rig.engine->lookup(make_key(1))) << "session b holds it";
  EXPECT_FALSE(rig.engine->lookup(make_key(2))) << "nobody does";
}

TEST(KvStore, ABlockThatFoundNoRoomIsHeldByNobody) {
  Rig rig(small(), 2, 2);
  rig.fast->lose();
  rig.slow->lose();
  EXPECT_EQ(rig.put(1, 2).stored, 0u);
  EXPECT_EQ(rig.of("t").blocks, 0u);
  EXPECT_EQ(rig.of("t").used_bytes, 0u);
}

TEST(KvStore, AQuotaIsKeptByTheTenantsOwnBlocks) {
  Rig rig;
  const TenantId small_one = rig.store->tenant("small", 4 * kBlockBytes);
  const SessionId a = *rig.store->open_session(small_one, 0), b = *rig.store->open_session(small_one, 0);
  rig.put(1000, 10);
  EXPECT_EQ(rig.put(0, 4, a).stored, 4u);
  EXPECT_EQ(rig.put(100, 2, b).stored, 2u);
  EXPECT_EQ(rig.of("small").used_bytes, 4 * kBlockBytes);
  EXPECT_EQ(rig.found(100, 2, b), 2u);
  EXPECT_EQ(rig.found(0, 4, a), 2u) << "the end of a prefix goes first";
  EXPECT_EQ(rig.found(1000, 10), 10u) << "another tenant's stay";
  EXPECT_EQ(rig.store->counters().quota_evictions, 2u);
}

TEST(KvStore, PinnedBlocksMakeNoRoom) {
  Rig rig;
  const TenantId small_one = rig.store->tenant("small", 2 * kBlockBytes);
  const SessionId as = *rig.store->open_session(small_one, 0);
  rig.put(0, 2, as);
  Cache cache(2);
  auto load = rig.store->load(as, block_keys(0, 2), cache.into);
  ASSERT_TRUE(load.is_ok());
  const StoreResult full = rig.put(50, 1, as);
  EXPECT_EQ(full.status.code(), Code::kFull);
  EXPECT_EQ(full.stored, 0u);
  EXPECT_NE(full.status.what().find("'small'"), std::string::npos) << full.status.what();
  ASSERT_TRUE((*load)->wait(10000).is_ok());
  EXPECT_TRUE(cache.holds(0, 2));
  load = Status(Code::kInvalid, "");
  EXPECT_EQ(rig.put(50, 1, as).stored, 1u);
}

TEST(KvStore, SessionsExpire) {
  Rig rig;
  const SessionId brief = *rig.store->open_session(rig.tenant, 1000, true);
  const SessionId other = *rig.store->open_session(rig.tenant, 0);
  rig.put(0, 4, brief);
  EXPECT_EQ(rig.found(0, 2, other), 2u);
  rig.clock.advance_ms(900);
  EXPECT_EQ(rig.found(0, 4, brief), 4u);
  rig.clock.advance_ms(900);
  rig.store->tick();
  EXPECT_EQ(rig.found(0, 4, other), 4u) << "used 900 ms ago";
  EXPECT_EQ(rig.found(0, 2, other), 2u);
  rig.clock.advance_ms(200);
  rig.store->tick();
  EXPECT_EQ(rig.store->counters().expired_sessions, 1u);
  EXPECT_EQ(rig.found(0, 4, other), 2u) << "two are another session's";
  EXPECT_EQ(rig.store->lookup(brief, block_keys(0, 1)).status().code(), Code::kNotFound);
  EXPECT_EQ(rig.store->close_session(brief).code(), Code::kNotFound);
  EXPECT_TRUE(rig.store->close_session(other).is_ok());
}

// Neither sessions that live nor events that nobody takes cost who stores and looks up.
TEST(KvStore, SessionsThatLiveAreNotLookedAt) {
  Rig rig;
  rig.put(0, 4);
  std::vector<SessionId> sessions;
  for (int i = 0; i < 5000; i++) sessions.push_back(*rig.store->open_session(rig.tenant, 1000));
  for (int i = 0; i < 100; i++) EXPECT_EQ(rig.found(0, 4), 4u);
  EXPECT_EQ(rig.store->expiry_visits(), 0u);
  // Each that was used has one look when its first deadline comes, whatever was done with it.
  rig.clock.advance_ms(900);
  for (int i = 0; i < 100; i++) {
    for (int k = 0; k < 5; k++) EXPECT_EQ(rig.found(0, 4, sessions[i]), 4u);
  }
  rig.clock.advance_ms(200);
  rig.store->tick();
  EXPECT_EQ(rig.store->expiry_visits(), 5000u);
  EXPECT_EQ(rig.store->counters().expired_sessions, 4900u);
  rig.clock.advance_ms(1000);
  rig.store->tick();
  EXPECT_EQ(rig.store->expiry_visits(), 5100u);
  EXPECT_EQ(rig.store->counters().expired_sessions, 5000u);
}

TEST(KvStore, UnreadEventsCostNothing) {
  StoreOptions options = small();
  options.events = 1 << 16;
  Rig rig(options);
  const std::vector<std::byte> block(kBlockBytes);
  // Processor time of two thousand looks at the engine, each of which finds something new: three thousand events.
  const auto cost = [&] {
    const double before = cpu_seconds();
    for (int i = 0; i < 1000; i++) {
      EXPECT_TRUE(rig.engine->put(make_key(1), block));
      rig.store->tick();
      EXPECT_TRUE(rig.engine->remove(make_key(1)));
      rig.store->tick();
    }
    return cpu_seconds() - before;
  };
  std::vector<double> full, empty;
  for (int i = 0; i < 23; i++) (void)cost();
  for (int i = 0; i < 5; i++) full.push_back(cost());
  std::vector<StoreEvent> events;
  EXPECT_GT(rig.store->take_events(SIZE_MAX, events), 0u) << "as many as it keeps were there";
  for (int i = 0; i < 5; i++) {
    empty.push_back(cost());
    events.clear();
    (void)rig.store->take_events(SIZE_MAX, events);
  }
  EXPECT_LT(*std::min_element(full.begin(), full.end()), 4 * *std::min_element(empty.begin(), empty.end()));
}

TEST(KvStore, ABlockThatFailsIsComputedAnew) {
  Rig rig(small(), 8, 256);
  for (uint64_t first = 0; first < 32; first += 4) rig.put(first, 4);
  for (int i = 0; i < 2000 && rig.engine->status().jobs > 0; i++)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_EQ(rig.engine->lookup(make_key(0))->tier, "ssd");
  rig.slow->fail(engine::Op::kRead, 1);
  Cache cache(4);
  auto load = rig.store->load(rig.session, block_keys(0, 4), cache.into);
  ASSERT_TRUE(load.is_ok());
  EXPECT_EQ((*load)->blocks(), 4u);
  EXPECT_EQ((*load)->wait(10000).code(), Code::kIo);
  EXPECT_LT((*load)->good_blocks(), 4u);
  EXPECT_EQ(rig.store->counters().failed_blocks, 4 - (*load)->good_blocks());
}

// Who gives up asks for what is good then: a block that has not come is not.
TEST(KvStore, OfALoadThatIsGivenUpOnlyWhatHasComeIsGood) {
  Rig rig(small(), 8, 256);
  for (uint64_t first = 0; first < 32; first += 4) rig.put(first, 4);
  for (int i = 0; i < 2000 && rig.engine->status().jobs > 0; i++)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_EQ(rig.engine->lookup(make_key(0))->tier, "ssd");
  rig.slow->hold();
  Cache cache(4);
  auto load = rig.store->load(rig.session, block_keys(0, 4), cache.into);
  ASSERT_TRUE(load.is_ok());
  EXPECT_EQ((*load)->wait(50).code(), Code::kTimeout);
  (*load)->cancel();
  EXPECT_EQ((*load)->good_blocks(), 0u);
  (void)(*load)->wait(0);
  EXPECT_EQ((*load)->good_blocks(), 0u);
  rig.slow->release();
  EXPECT_EQ((*load)->wait(10000).code(), Code::kCancelled);
  EXPECT_EQ((*load)->good_blocks(), 0u);
  // Of one that had all come nothing is lost by that.
  auto again = rig.store->load(rig.session, block_keys(0, 4), cache.into);
  ASSERT_TRUE(again.is_ok());
  EXPECT_TRUE((*again)->wait(10000));
  (*again)->cancel();
  EXPECT_EQ((*again)->good_blocks(), 4u);
}

TEST(KvStore, EventsTellRouters) {
  Rig rig;
  rig.put(0, 2);
  ASSERT_TRUE(rig.engine->remove(make_key(1)).is_ok());
  std::vector<StoreEvent> events;
  EXPECT_EQ(rig.store->take_events(100, events), 0u);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_TRUE(events[0].key == make_key(0) && events[0].kind == EventKind::kCopied && events[0].tier == "dram");
  EXPECT_TRUE(events[1].key == make_key(1) && events[1].kind == EventKind::kCopied);
  EXPECT_TRUE(events[2].key == make_key(1) && events[2].kind == EventKind::kLeft);
  EXPECT_TRUE(events[3].key == make_key(1) && events[3].kind == EventKind::kForgotten && events[3].tier.empty());
  EXPECT_EQ(rig.of("t").used_bytes, kBlockBytes) << "what the engine dropped is no longer the tenant's";
  events.clear();
  rig.store->take_events(100, events);
  EXPECT_TRUE(events.empty());
}

// Pools of a hybrid model have a store each, on one engine.
TEST(KvStore, StoresOfOneEngineTakeNoEventsFromEachOther) {
  Rig rig;
  StoreOptions options = small();
  options.clock = &rig.clock;
  KvStore other(*rig.engine, options);
  const TenantId tenant = other.tenant("t", 0);
  const SessionId session = *other.open_session(tenant, 0);
  Cache cache(2);
  cache.fill(100);
  for (int round = 0; round < 2; round++) {
    rig.put(0, 2);
    ASSERT_TRUE(other.store(session, block_keys(100, 2), cache.from()).status.is_ok());
    // Whichever looks first.
    for (KvStore* first : {rig.store.get(), &other}) {
      const uint64_t gone = first == &other ? 0 : 1;
      ASSERT_TRUE(rig.engine->remove(make_key(gone)).is_ok());
      ASSERT_TRUE(rig.engine->remove(make_key(100 + gone)).is_ok());
      first->tick();
      rig.store->tick();
      other.tick();
    }
    for (const KvStore* store : {rig.store.get(), &other}) {
      const auto tenants = store->tenants();
      ASSERT_EQ(tenants.size(), 1u);
      EXPECT_EQ(tenants[0].used_bytes, 0u) << (store == &other ? "the second" : "the first");
    }
  }
  for (KvStore* store : {rig.store.get(), &other}) {
    std::vector<StoreEvent> events;
    EXPECT_EQ(store->take_events(SIZE_MAX, events), 0u);
    EXPECT_EQ(events.size(), 24u) << "each router is told of all";
  }
}

TEST(KvStore, LostEventsAreToldAndMadeUpFor) {
  StoreOptions options = small();
  options.events = 3;
  Rig rig(options);
  rig.put(0, 5);
  std::vector<StoreEvent> events;
  EXPECT_EQ(rig.store->take_events(100, events), 2u);
  EXPECT_EQ(events.size(), 3u);
}

TEST(KvStore, WithoutACostAllIsLoaded) {
  StoreOptions options = small();
  options.recompute_ns = 0;
  Rig rig(options);
  rig.engine->links().at(0, engine::kHost).set_measured(4096, 14096, 1 << 20, 10000 + (1 << 20));
  ASSERT_EQ(rig.put(1, 8).stored, 8u);
  const std::vector<Key> keys = block_keys(1, 8);
  LoadPlan plan = *rig.store->plan(rig.session, keys, {});
  EXPECT_EQ(plan.found, 8u);
  EXPECT_EQ(plan.load, 8u);
  EXPECT_EQ(plan.compute_all_ns, UINT64_MAX);
}

TEST(KvStore, SlowBlocksAreLeftToBeComputed) {
  StoreOptions options = small();
  options.recompute_ns = 5000;
  Rig rig(options, 4, 256);
  // Small pieces of mapped tiers are copied at once; the other one's link is slow.
  engine::Link& slow = rig.engine->links().at(1, engine::kHost);
  slow.set_measured(4096, 14096, 1 << 20, 10000 + (1 << 20));
  ASSERT_EQ(rig.put(1, 4).stored, 4u);
  ASSERT_TRUE(rig.engine->move(block_keys(1, 4), "ssd", engine::MoveClass::kDemand)->wait().is_ok());
  const std::vector<Key> keys = block_keys(1, 4);
  // 10 us and 4 x 4.096 us against 4 x 5 us.
  LoadPlan plan = *rig.store->plan(rig.session, keys, {});
  EXPECT_EQ(plan.found, 4u);
  EXPECT_EQ(plan.load, 0u);
  EXPECT_NEAR(static_cast<double>(plan.load_all_ns), 10000 + 4 * 4096, 100);
  EXPECT_EQ(plan.compute_all_ns, 20000u);
  // The processor has something else to do meanwhile.
  plan = *rig.store->plan(rig.session, keys, {.overlap = false, .compute_queue_ns = 40000, .after_ns = 0});
  EXPECT_EQ(plan.load, 4u);
  // Others wait for the link.
  slow.queued(1 << 20);
  plan = *rig.store->plan(rig.session, keys, {.overlap = false, .compute_queue_ns = 40000, .after_ns = 0});
  EXPECT_EQ(plan.load, 0u);
  slow.unqueued(1 << 20);

  Cache cache(4);
  const PlanOptions decide;
  {
    const auto load = rig.store->load(rig.session, keys, cache.into, 0, &decide);
    ASSERT_TRUE(load);
    EXPECT_EQ((*load)->blocks(), 0u);
    EXPECT_EQ((*load)->plan().found, 4u);
    EXPECT_TRUE((*load)->wait(1000).is_ok());
  }
  StoreCounters counters = rig.store->counters();
  EXPECT_EQ(counters.decided_none, 1u);
  EXPECT_EQ(counters.bypassed_blocks, 4u);
  EXPECT_EQ(counters.bypassed_of_tier, (std::vector<uint64_t>{0, 4}));
  // What a request says of its own blocks comes first: the first two are dear.
  const uint64_t costs[] = {50000, 50000, 1000, 1000};
  const SessionId other = *rig.store->open_session(rig.tenant, 0);
  ASSERT_EQ(*rig.store->lookup(other, keys, {.category = 0, .cost_ns = costs}), 4u);
  const auto load = rig.store->load(other, keys, cache.into, 0, &decide);
  EXPECT_EQ((*load)->blocks(), 2u);
  EXPECT_TRUE((*load)->wait(1000).is_ok());
  EXPECT_TRUE(cache.holds(1, 2));
  EXPECT_EQ((*load)->plan().load, 2u);
  counters = rig.store->counters();
  EXPECT_EQ(counters.decided_part, 1u);
  EXPECT_EQ(counters.bypassed_blocks, 6u);
  // Asking without one loads all.
  const auto all = rig.store->load(rig.session, keys, cache.into);
  EXPECT_EQ((*all)->blocks(), 4u);
  EXPECT_EQ((*all)->plan().load, 4u);
  EXPECT_TRUE((*all)->wait(1000).is_ok());
}

// The breaker closes again: what was slow once is not passed over for ever.
TEST(KvStore, ATierThatIsPassedOverIsTriedNowAndThen) {
  StoreOptions options = small();
  options.recompute_ns = 1000000000;
  Rig rig(options, 4, 256);
  ASSERT_EQ(rig.put(1, 4).stored, 4u);
  ASSERT_TRUE(rig.engine->move(block_keys(1, 4), "ssd", engine::MoveClass::kDemand)->wait().is_ok());
  // A minute for a block, it was once.
  rig.engine->links().at(1, engine::kHost).set_measured(4096, 60000000000, 1 << 20, 61000000000);
  const std::vector<Key> keys = block_keys(1, 4);
  const PlanOptions decide;
  Cache cache(4);
  const auto loaded = [&] { return (*rig.store->load(rig.session, keys, cache.into, 0, &decide))->blocks(); };
  EXPECT_EQ(loaded(), 0u);
  EXPECT_EQ(loaded(), 0u);
  EXPECT_EQ(rig.store->counters().trials, 0u) << "not at once";
  size_t blocks = 0;
  for (int second = 0; second < 100 && blocks == 0; second++) {
    rig.clock.advance_ms(1000);
    blocks = loaded();
    while (rig.engine->status().jobs > 0) std::this_thread::yield();
  }
  EXPECT_EQ(blocks, 4u);
  EXPECT_GT(rig.store->counters().trials, 0u);
  // It is in use now.
  const uint64_t trials = rig.store->counters().trials;
  rig.clock.advance_ms(1000);
  EXPECT_EQ(loaded(), 4u);
  EXPECT_EQ(rig.store->counters().trials, trials);
}

TEST(KvStore, TheCostOfComputingIsLearned) {
  StoreOptions options = small();
  options.recompute_ns = 20000000;
  Rig rig(options);
  engine::Link& slow = rig.engine->links().at(1, engine::kHost);
  slow.set_measured(4096, 14096000, 1 << 20, (10000 + (1 << 20)) * uint64_t{1000});  // 1 MB/s, 10 ms
  ASSERT_EQ(rig.put(1, 8).stored, 8u);
  const std::vector<Key> keys = block_keys(1, 8);
  ASSERT_TRUE(rig.engine->move(keys, "ssd", engine::MoveClass::kDemand)->wait().is_ok());
  EXPECT_EQ(rig.store->plan(rig.session, keys, {})->load, 8u);
  // 1 ms a block and 10 us for each before it, by calls of all kinds.
  for (uint32_t i = 0; i < 40; i++) {
    const uint32_t first = i * 97 % 1000, nr = 1 + i % 5;
    const uint64_t positions = uint64_t{nr} * first + nr * (nr - 1) / 2;
    ASSERT_TRUE(rig.store->computed(first, nr, nr * 1000000 + positions * 10000).is_ok());
  }
  LoadPlan plan = *rig.store->plan(rig.session, keys, {});
  EXPECT_EQ(plan.load, 0u);
  EXPECT_NEAR(static_cast<double>(plan.compute_all_ns), 8280000, 500000);
  plan = *rig.store->plan(rig.session, keys, {}, 2000);
  EXPECT_EQ(plan.load, 8u) << "so late in a prompt a block costs 21 ms";
  EXPECT_NEAR(static_cast<double>(plan.compute_all_ns), 8 * 21000000 + 280000, 10000000);
  EXPECT_EQ(rig.store->computed(0, 0, 5).code(), Code::kInvalid);
  EXPECT_EQ(rig.store->computed(0, 5, 0).code(), Code::kInvalid);
  EXPECT_EQ(rig.store->plan(99, keys, {}).status().code(), Code::kNotFound);
}

TEST(KvStore, ALoadLeavesNoPin) {
  Rig rig;
  rig.put(0, 8);
  {
    Cache cache(8);
    rig.fast->hold();
    auto load = rig.store->load(rig.session, block_keys(0, 8), cache.into);
    EXPECT_EQ(rig.engine->status().pins, 8u);
    rig.fast->release();
  }
  EXPECT_EQ(rig.engine->status().pins, 0u);
  EXPECT_EQ(rig.engine->status().sessions, 0u);
  for (const Key& key : block_keys(0, 8)) EXPECT_TRUE(rig.engine->remove(key).is_ok());
}

// No tier's thread is asked for what the caller's own can copy sooner.
TEST(KvStore, SmallPiecesThatTheHostCanAddressAreThereAtOnce) {
  Rig rig;
  rig.put(0, 8);
  Cache cache(8);
  rig.fast->hold();
  auto load = rig.store->load(rig.session, block_keys(0, 8), cache.into);
  ASSERT_TRUE(load.is_ok());
  EXPECT_EQ((*load)->blocks(), 8u);
  EXPECT_TRUE((*load)->wait(0)) << "without a transfer";
  EXPECT_EQ((*load)->good_blocks(), 8u);
  EXPECT_TRUE(cache.holds(0, 8));
  EXPECT_EQ(rig.engine->status().jobs, 0u);
  EXPECT_EQ(rig.store->counters().loaded_blocks, 8u);
  rig.fast->release();
}

TEST(KvStore, BadCallsAreRefused) {
  Rig rig;
  StoreOptions options = small();
  options.layers = 0;
  EXPECT_THROW(KvStore(*rig.engine, options), std::runtime_error);
  options.layers = 1u << 20;
  options.layer_bytes = 1ull << 50;
  EXPECT_THROW(KvStore(*rig.engine, options), std::runtime_error);
  options = small();
  options.store_after = 0;
  EXPECT_THROW(KvStore(*rig.engine, options), std::runtime_error);
  EXPECT_EQ(rig.store->open_session(7, 0).status().code(), Code::kInvalid);
  Cache cache(2);
  EXPECT_EQ(rig.store->load(rig.session, block_keys(0, 3), cache.into).status().code(), Code::kInvalid);
  EXPECT_EQ(rig.store->store(rig.session, block_keys(0, 3), cache.from()).status.code(), Code::kInvalid);
  EXPECT_EQ(rig.store->load(999, block_keys(0, 2), cache.into).status().code(), Code::kNotFound);
  EXPECT_EQ(rig.store->store(999, block_keys(0, 2), cache.from()).status.code(), Code::kNotFound);
}

// A policy in which a caller can be stopped: where the engine holds its lock, and the store what it holds then.
class StoppingPolicy {
 public:
  StoppingPolicy() : inner_(placement::find_policy("lru", NEOTIER_KV)), stopping_(*inner_) {
    g_stopping = this;
    stopping_.on_event = [](void* state, const neotier_event* event) {
      if (g_stopping->at_event.exchange(false)) g_stopping->stop();
      if (g_stopping->inner_->on_event) g_stopping->inner_->on_event(state, event);
    };
    stopping_.on_remove = [](void* state, uint32_t object, neotier_remove_reason reason) {
      if (g_stopping->at_removal.exchange(false)) g_stopping->stop();
      return g_stopping->inner_->on_remove(state, object, reason);
    };
  }
  ~StoppingPolicy() { g_stopping = nullptr; }
  placement::PolicyRef policy() const {
    return placement::PolicyRef(&stopping_, [](const neotier_placement*) {});
  }
  // Stops the next one there.
  std::atomic<bool> at_event{false}, at_removal{false};
  void wait_for_it() { stopped_.get_future().wait(); }
  void go_on() { go_on_.set_value(); }

 private:
  void stop() {
    stopped_.set_value();
    go_on_.get_future().wait();
  }
  static StoppingPolicy* g_stopping;
  placement::PolicyRef inner_;
  neotier_placement stopping_;
  std::promise<void> stopped_, go_on_;
};
StoppingPolicy* StoppingPolicy::g_stopping = nullptr;

// Enough for every shard to have some.
constexpr size_t kOfAllShards = 200;
// Until what has not come is taken never to come.
constexpr std::chrono::seconds kNever{60};

// Whether a look-up of them all comes back while somebody else is stopped.
bool looks_up_meanwhile(Rig& rig, StoppingPolicy& policy, const std::function<void()>& somebody_else) {
  rig.store->tick();
  auto stopped = std::async(std::launch::async, somebody_else);
  policy.wait_for_it();
  auto look = std::async(std::launch::async, [&] { return rig.found(0, kOfAllShards); });
  const bool came = look.wait_for(kNever) == std::future_status::ready;
  policy.go_on();
  stopped.get();
  EXPECT_EQ(look.get(), kOfAllShards);
  return came;
}

TEST(KvStore, ALookUpWaitsForNoOtherOne) {
  StoppingPolicy policy;
  Rig rig(small(), 2 * kOfAllShards, 256, std::make_shared<engine::MemMedium>(), "", policy.policy());
  ASSERT_EQ(rig.put(0, kOfAllShards).stored, kOfAllShards);
  ASSERT_EQ(rig.found(0, kOfAllShards), kOfAllShards);
  const SessionId other = *rig.store->open_session(rig.tenant, 0);
  ASSERT_EQ(rig.found(0, 5, other), 5u);
  policy.at_event = true;
  const bool came = looks_up_meanwhile(
      rig, policy, [&] { EXPECT_EQ(rig.found(3, 7, other), 7u) << "the policies are told of the five"; });
  EXPECT_TRUE(came);
}

TEST(KvStore, ALookUpWaitsForNoBlockThatMakesRoom) {
  StoppingPolicy policy;
  Rig rig(small(), 2 * kOfAllShards, 256, std::make_shared<engine::MemMedium>(), "", policy.policy());
  ASSERT_EQ(rig.put(0, kOfAllShards).stored, kOfAllShards);
  ASSERT_EQ(rig.found(0, kOfAllShards), kOfAllShards);
  for (uint64_t first : {1000, 1001}) {
    const SessionId other = *rig.store->open_session(rig.tenant, 0);
    ASSERT_EQ(rig.put(first, 1, other).stored, 1u);
    ASSERT_TRUE(rig.store->close_session(other));
  }
  (void)rig.store->tenant("t", (kOfAllShards + 2) * kBlockBytes);
  const SessionId other = *rig.store->open_session(rig.tenant, 0);
  policy.at_removal = true;
  const bool came = looks_up_meanwhile(rig, policy, [&] { EXPECT_EQ(rig.put(2000, 1, other).stored, 1u); });
  EXPECT_TRUE(came);
  EXPECT_FALSE(rig.engine->lookup(make_key(1000)));
  EXPECT_TRUE(rig.engine->lookup(make_key(1001)));
}

// Whatever shards they lie in, a tenant's blocks make room in one order.
TEST(KvStore, TheLeastRecentlyUsedMakesRoomFirst) {
  constexpr uint64_t kBlocks = 60;
  for (uint32_t seed = 1; seed <= 5; seed++) {
    Rig rig(small(), 200, 256);
    const TenantId tenant = rig.store->tenant("full", kBlocks * kBlockBytes);
    const SessionId keeps = *rig.store->open_session(tenant, 0);
    std::mt19937 random(seed);
    std::list<uint64_t> idle;  // most recently used first
    const auto with_a_session = [&](uint64_t ttl_ms, const auto& body) {
      const SessionId session = *rig.store->open_session(tenant, ttl_ms);
      body(session);
      if (ttl_ms == 0) {
        EXPECT_TRUE(rig.store->close_session(session));
      } else {
        rig.clock.advance_ms(ttl_ms);
        rig.store->tick();
      }
    };
    for (uint64_t block = 0; block < kBlocks; block++) {
      with_a_session(0, [&](SessionId session) { ASSERT_EQ(rig.put(block, 1, session).stored, 1u); });
      idle.push_front(block);
    }
    for (int i = 0; i < 200; i++) {
      const uint64_t block = random() % kBlocks;
      const bool expires = random() % 8 == 0;
      with_a_session(expires ? 10 : 0, [&](SessionId session) { EXPECT_EQ(rig.found(block, 1, session), 1u); });
      idle.remove(block);
      idle.insert(expires ? idle.end() : idle.begin(), block);
    }
    ASSERT_EQ(rig.found(20, 5, keeps), 5u);
    for (uint64_t block = 20; block < 25; block++) idle.remove(block);
    uint64_t fresh = 1000;
    while (!idle.empty()) {
      // Stays held, so that it does not make room itself.
      const SessionId session = *rig.store->open_session(tenant, 0);
      ASSERT_EQ(rig.put(fresh++, 1, session).stored, 1u);
      const uint64_t gone = idle.back();
      idle.pop_back();
      ASSERT_FALSE(rig.engine->lookup(make_key(gone))) << "seed " << seed << ", block " << gone;
      for (const uint64_t block : idle) ASSERT_TRUE(rig.engine->lookup(make_key(block))) << block;
    }
    for (uint64_t block = 20; block < 25; block++) ASSERT_TRUE(rig.engine->lookup(make_key(block))) << "held";
    const SessionId session = *rig.store->open_session(tenant, 0);
    ASSERT_EQ(rig.put(fresh++, 1, session).stored, 1u);
    EXPECT_FALSE(rig.engine->lookup(make_key(24))) << "the end of the prefix, of what is held";
    EXPECT_EQ(rig.of("full").used_bytes, kBlocks * kBlockBytes);
  }
}

// All that a store is asked for, by threads that meet in the same blocks, tenants and sessions: its books are right in
// the end, which is what no entry that was lost or left behind leaves them.
TEST(KvStore, LookUpsAndAllElseAtOnce) {
  StoreOptions options = small();
  options.write = WritePolicy::kSelective;
  options.store_after = 2;
  Rig rig(options, 24, 60, std::make_shared<engine::MemMedium>(), "lru");
  const TenantId tenants[] = {rig.store->tenant("a", 40 * kBlockBytes), rig.store->tenant("b", 0)};
  constexpr uint64_t kPrompts = 10, kLongest = 12;
  // Of all threads: one that has expired is opened again by who finds out.
  std::array<std::atomic<SessionId>, 6> sessions;
  for (size_t i = 0; i < sessions.size(); i++) sessions[i] = *rig.store->open_session(tenants[i % 2], 50, i % 3 == 0);
  std::atomic<int> wrong{0};
  std::atomic<uint64_t> hits{0};
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < 4; thread++) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(thread + 1);
      for (int round = 0; round < 400; round++) {
        const size_t which = random() % sessions.size();
        const SessionId session = sessions[which];
        const uint64_t first = 100 * (random() % kPrompts);
        const size_t nr = 1 + random() % kLongest;
        const auto keys = block_keys(first, nr);
        Code code = Code::kOk;
        switch (random() % 10) {
          case 0: {
            Cache cache(nr);
            auto load = rig.store->load(session, keys, cache.into);
            code = load.status().code();
            if (!load) break;
            (void)(*load)->wait(60000);
            if (!cache.holds(first, (*load)->good_blocks())) wrong++;
            break;
          }
          case 1:
          case 2:
          case 3: {
            Cache cache(nr);
            cache.fill(first);
            code = rig.store->store(session, keys, cache.from()).status.code();
            // Cancelled: another thread removed the block while it was being stored.
            if (code == Code::kFull || code == Code::kBusy || code == Code::kCancelled) code = Code::kOk;
            break;
          }
          case 4:
            (void)rig.engine->remove(keys[0]);
            break;
          case 5:
            rig.clock.advance_ms(random() % 10);
            rig.store->tick();
            break;
          case 6: {
            std::vector<StoreEvent> events;
            (void)rig.store->take_events(10, events);
            (void)rig.store->tenants();
            (void)rig.store->counters();
            code = rig.store->plan(session, keys, {}).status().code();
            break;
          }
          case 7:
            if (random() % 4 == 0) code = rig.store->close_session(session).code();
            break;
          default: {
            const auto found = rig.store->lookup(session, keys);
            code = found.status().code();
            if (found) hits += *found;
          }
        }
        if (code == Code::kNotFound) {
          SessionId gone = session;
          const SessionId fresh = *rig.store->open_session(tenants[which % 2], 50, which % 3 == 0);
          if (!sessions[which].compare_exchange_strong(gone, fresh) && !rig.store->close_session(fresh)) wrong++;
        } else if (code != Code::kOk) {
          wrong++;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(hits, 100u);
  for (const auto& session : sessions) (void)rig.store->close_session(session);
  for (int i = 0; i < 5000 && rig.engine->status().jobs > 0; i++)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  rig.store->tick();
  EXPECT_EQ(rig.engine->status().pins, 0u);
  uint64_t there = 0, blocks = 0;
  for (uint64_t prompt = 0; prompt < kPrompts; prompt++)
    for (const Key& key : block_keys(100 * prompt, kLongest)) there += rig.engine->lookup(key).is_ok();
  for (const TenantStatus& tenant : rig.store->tenants()) {
    EXPECT_EQ(tenant.used_bytes, tenant.blocks * kBlockBytes) << tenant.name;
    blocks += tenant.blocks;
  }
  EXPECT_EQ(blocks, there);
  EXPECT_GT(there, 0u);
  // Nothing is held: all of it makes room for one of a tenant that has room for it alone.
  for (size_t i = 0; i < 2; i++) {
    (void)rig.store->tenant(i == 0 ? "a" : "b", kBlockBytes);
    const SessionId session = *rig.store->open_session(tenants[i], 0);
    for (int offered = 0; offered < 2; offered++) (void)rig.put(5000 + i, 1, session);
    EXPECT_EQ(rig.of(i == 0 ? "a" : "b").blocks, 1u);
  }
}

// Threads that look up, load and store prefixes of one another's while a small fast tier keeps everything moving: no
// byte is ever another's, and nothing is held at the end.
TEST(KvStore, ManyAtOnce) {
  StoreOptions options = small();
  options.write = WritePolicy::kSelective;
  Rig rig(options, 24, 200);
  std::vector<TenantId> tenants = {rig.store->tenant("a", 60 * kBlockBytes), rig.store->tenant("b", 80 * kBlockBytes)};
  std::atomic<int> wrong{0};
  std::atomic<uint64_t> loaded{0};
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < 4; thread++) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(thread + 1);
      const SessionId session = *rig.store->open_session(tenants[thread % 2], 0);
      for (int round = 0; round < 150; round++) {
        const uint64_t first = 100 * (random() % 12);
        const size_t nr = 1 + random() % 12;
        const auto keys = block_keys(first, nr);
        Cache cache(nr);
        auto load = rig.store->load(session, keys, cache.into);
        if (!load) {
          wrong++;
          continue;
        }
        if (random() % 8 == 0) (*load)->cancel();
        const Status status = (*load)->wait(20000);
        const size_t good = (*load)->good_blocks();
        if (status.code() == Code::kTimeout) wrong++;
        if (!cache.holds(first, good)) wrong++;
        loaded += good;
        load = Status(Code::kInvalid, "");
        cache.fill(first);
        const StoreResult stored = rig.store->store(session, keys, cache.from());
        if (stored.status.code() != Code::kOk && stored.status.code() != Code::kFull &&
            stored.status.code() != Code::kBusy)
          wrong++;
      }
      if (!rig.store->close_session(session)) wrong++;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(loaded, 500u);
  EXPECT_EQ(rig.engine->status().pins, 0u);
  for (const TenantStatus& tenant : rig.store->tenants()) {
    EXPECT_EQ(tenant.used_bytes, tenant.blocks * kBlockBytes);
    EXPECT_TRUE(tenant.quota_bytes == 0 || tenant.used_bytes <= tenant.quota_bytes) << tenant.name;
  }
}

}  // namespace
}  // namespace neotier::kv

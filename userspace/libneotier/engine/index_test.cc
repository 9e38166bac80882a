// SPDX-License-Identifier: Apache-2.0
#include "engine/index.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace neotier::engine {
namespace {

Key key_of(uint64_t n) {
  Key key;
  std::memcpy(key.bytes, &n, sizeof n);
  return key;
}

TEST(ObjectIndex, FindsWhatWasAddedAndNothingElse) {
  ObjectIndex index(100, 1);
  const Result<Handle> a = index.add(key_of(1));
  ASSERT_TRUE(a);
  EXPECT_EQ(index.find(key_of(1)), *a);
  EXPECT_EQ(index.find(key_of(2)), kNoHandle);
  EXPECT_EQ(index.add(key_of(1)).status().code(), Code::kExists);
  EXPECT_FALSE(index[*a].has_copy());
  index.erase(*a);
  EXPECT_EQ(index.find(key_of(1)), kNoHandle);
  EXPECT_EQ(index.size(), 0u);
}

TEST(ObjectIndex, FullAndRoomAgain) {
  ObjectIndex index(3, 1);
  for (uint64_t i = 0; i < 3; i++) ASSERT_TRUE(index.add(key_of(i)));
  EXPECT_EQ(index.add(key_of(9)).status().code(), Code::kFull);
  index.erase(index.find(key_of(1)));
  EXPECT_TRUE(index.add(key_of(9)));
  EXPECT_NE(index.find(key_of(0)), kNoHandle);
  EXPECT_NE(index.find(key_of(2)), kNoHandle);
}

// Against std::map, full to the brim, so that runs of slots wrap and merge and backward shifts are long.
TEST(ObjectIndex, ChurnAgainstAMap) {
  constexpr size_t kObjects = 500;
  for (uint64_t seed = 1; seed <= 20; seed++) {
    ObjectIndex index(kObjects, seed);
    std::mt19937_64 random(seed);
    std::map<uint64_t, Handle> model;
    for (int i = 0; i < 20000; i++) {
      const uint64_t n = random() % 1000;
      const auto it = model.find(n);
      ASSERT_EQ(index.find(key_of(n)), it == model.end() ? kNoHandle : it->second) << "seed " << seed;
      if (it != model.end()) {
        index.erase(it->second);
        model.erase(it);
      } else if (const Result<Handle> added = index.add(key_of(n))) {
        model[n] = *added;
      } else {
        ASSERT_EQ(model.size(), kObjects);
      }
    }
    std::set<Handle> distinct;
    for (const auto& [n, handle] : model) {
      ASSERT_EQ(index.find(key_of(n)), handle);
      ASSERT_TRUE(distinct.insert(handle).second);
    }
    ASSERT_EQ(index.size(), model.size());
  }
}

TEST(ObjectIndex, WhoLooksWaitsForTheEndOfAChange) {
  ObjectIndex index(10, 1);
  const Handle handle = *index.add(key_of(1));
  index[handle].set_tiers(1, kNoTier);
  const uint64_t before = index.changes();
  std::atomic<bool> answered{false};
  std::thread looks;
  {
    const ObjectIndex::Change change(index);
    index[handle].set_tiers(kNoTier, kNoTier);
    looks = std::thread([&] {
      EXPECT_EQ(index.copies(key_of(1)), (std::array<TierId, 2>{2, 3}));
      answered = true;
    });
    { const ObjectIndex::Change within(index); }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(answered);
    index[handle].set_tiers(2, 3);
  }
  looks.join();
  EXPECT_EQ(index.changes(), before + 1);
}

TEST(ObjectIndex, WhatIsAddedOrErasedIsAChange) {
  ObjectIndex index(10, 1);
  EXPECT_EQ(index.copies(key_of(1)), (std::array<TierId, 2>{kNoTier, kNoTier}));
  const Handle handle = *index.add(key_of(1));
  EXPECT_EQ(index.changes(), 1u);
  index.erase(handle);
  EXPECT_EQ(index.changes(), 2u);
}

// A full table, so that each erasure shifts others; one thread changes it, others look.
TEST(ObjectIndex, WhoLooksSeesNothingHalfDone) {
  constexpr uint64_t kFixed = 300, kMoved = 300, kComing = 400;
  ObjectIndex index(kFixed + kMoved + kComing, 1);
  const auto add = [&](uint64_t n) {
    const Result<Handle> handle = index.add(key_of(n));
    index[*handle].set_tiers(1, n < kFixed ? 2 : kNoTier);
    return *handle;
  };
  std::vector<Handle> moved;
  for (uint64_t n = 0; n < kFixed; n++) add(n);
  for (uint64_t n = 0; n < kMoved; n++) moved.push_back(add(kFixed + n));

  std::atomic<bool> done{false};
  std::atomic<uint64_t> looks{0}, wrong{0};
  const auto look = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    while (!done) {
      const uint64_t n = random() % (kFixed + kMoved + 2 * kComing);
      const auto [first, second] = index.copies(key_of(n));
      bool right = first == 1 || first == kNoTier;
      if (n < kFixed)
        right = first == 1 && second == 2;
      else if (n < kFixed + kMoved)
        right = first == 1 || first == 3;
      else if (n >= kFixed + kMoved + kComing)
        right = first == kNoTier;
      wrong += !right;
      looks++;
    }
  };
  std::thread one(look, 1), other(look, 2);
  std::mt19937_64 random(3);
  for (uint64_t i = 0; (looks < 400000 || i < 400000) && wrong == 0; i++) {
    const uint64_t n = kFixed + kMoved + random() % kComing;
    if (const Handle there = index.find(key_of(n)); there != kNoHandle) {
      index.erase(there);
    } else {
      add(n);
    }
    const ObjectIndex::Change change(index);
    Record& record = index[moved[random() % kMoved]];
    const TierId to = record.tier(0) == 1 ? 3 : 1;
    record.set_tiers(kNoTier, kNoTier);
    record.set_tiers(to, kNoTier);
  }
  done = true;
  one.join();
  other.join();
  EXPECT_EQ(wrong, 0u) << "of " << looks;
}

TEST(ObjectIndex, SizePerObject) {
  const ObjectIndex index(1000000, 1);
  EXPECT_LE(index.bytes_per_object(), 58.1);
}

TEST(Cost, RoundTripsWithinATenthOfAPercent) {
  EXPECT_EQ(decode_cost(encode_cost(0)), 0u);
  EXPECT_GT(decode_cost(encode_cost(1)), 0u) << "what can be made anew stays so";
  for (uint64_t ns = 1000000; ns < uint64_t{1} << 47; ns = ns * 5 / 4 + 7) {
    const auto back = static_cast<double>(decode_cost(encode_cost(ns)));
    EXPECT_NEAR(back / static_cast<double>(ns), 1, 0.001) << ns;
  }
  uint64_t last = 0;
  for (uint64_t ns = 1; ns < uint64_t{1} << 50; ns = ns * 9 / 8 + 1) {
    const uint64_t now = decode_cost(encode_cost(ns));
    EXPECT_GE(now, last) << ns;
    last = now;
  }
  EXPECT_EQ(encode_cost(UINT64_MAX), UINT16_MAX);
}

}  // namespace
}  // namespace neotier::engine

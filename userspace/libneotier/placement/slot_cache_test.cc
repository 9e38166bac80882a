// SPDX-License-Identifier: Apache-2.0
#include "placement/slot_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace neotier::placement {
namespace {

using Key = SlotCache::Key;

Key key(uint32_t number) {
  Key made{};
  std::memcpy(made.data(), &number, sizeof number);
  return made;
}

std::vector<Key> keys(std::initializer_list<uint32_t> numbers) {
  std::vector<Key> made;
  for (const uint32_t number : numbers) made.push_back(key(number));
  return made;
}

SlotCache cache(uint32_t capacity, const char* policy = "lru", uint64_t history = 0) {
  SlotCacheOptions options;
  options.capacity = capacity;
  options.history = history;
  return SlotCache(find_policy(policy, NEOTIER_KV), options);
}

// A request, with as many evictions as what it lacks takes.
size_t serve(SlotCache& cache, const std::vector<Key>& request, std::vector<Key>& evicted) {
  const size_t hits = cache.request(request, {});
  std::vector<Key> missing;
  for (const Key& one : request)
    if (!cache.holds(one)) missing.push_back(one);
  const size_t room = cache.capacity() - cache.size();
  if (missing.size() > room && !cache.evict(missing.size() - room, request, evicted)) return hits;
  for (const Key& one : missing) EXPECT_TRUE(cache.insert(one));
  return hits;
}

TEST(SlotCache, TheLeastRecentlyUsedGo) {
  SlotCache c = cache(4);
  std::vector<Key> evicted;
  EXPECT_EQ(serve(c, keys({1, 2}), evicted), 0u);
  EXPECT_EQ(serve(c, keys({3, 4}), evicted), 0u);
  EXPECT_EQ(serve(c, keys({1, 2}), evicted), 2u);
  EXPECT_EQ(serve(c, keys({5, 6}), evicted), 0u);
  std::sort(evicted.begin(), evicted.end());
  EXPECT_EQ(evicted, keys({3, 4}));
  EXPECT_TRUE(c.holds(key(1)) && c.holds(key(2)) && c.holds(key(5)) && c.holds(key(6)));
}

TEST(SlotCache, ExactlySoManyOrNothing) {
  SlotCache c = cache(4);
  std::vector<Key> evicted;
  serve(c, keys({1, 2, 3, 4}), evicted);
  ASSERT_TRUE(c.pin(key(1), true));
  ASSERT_TRUE(c.pin(key(1), true)) << "again: no difference";
  EXPECT_FALSE(c.evict(3, keys({2}), evicted)) << "one is pinned, one spared";
  EXPECT_TRUE(evicted.empty());
  EXPECT_EQ(c.size(), 4u);
  EXPECT_TRUE(c.evict(2, keys({2, 9}), evicted));
  std::sort(evicted.begin(), evicted.end());
  EXPECT_EQ(evicted, keys({3, 4}));
  evicted.clear();
  EXPECT_FALSE(c.evict(2, {}, evicted));
  ASSERT_TRUE(c.pin(key(1), false));
  EXPECT_TRUE(c.evict(2, {}, evicted)) << "what was spared is so for one call";
  EXPECT_EQ(c.size(), 0u);
  EXPECT_TRUE(c.evict(0, {}, evicted));
  EXPECT_FALSE(c.evict(1, {}, evicted));
}

TEST(SlotCache, WhatCannotBeIsRefused) {
  SlotCache c = cache(1);
  EXPECT_FALSE(c.remove(key(1)));
  EXPECT_FALSE(c.pin(key(1), true));
  EXPECT_TRUE(c.insert(key(1))) << "also of what no request has used";
  EXPECT_FALSE(c.insert(key(1)));
  EXPECT_FALSE(c.insert(key(2))) << "no slot";
  ASSERT_TRUE(c.pin(key(1), true));
  EXPECT_TRUE(c.remove(key(1))) << "by the host's own decision also what is pinned";
  EXPECT_TRUE(c.insert(key(2)));
  std::vector<Key> evicted;
  EXPECT_TRUE(c.evict(1, {}, evicted));
  EXPECT_EQ(evicted, keys({2}));
  EXPECT_THROW((void)cache(0), std::runtime_error);
}

// Inserts that come after another request's event, a history shorter than a request, pins and removals: as a model of
// sets has it, under every policy.
TEST(SlotCache, AnyOrderOfCallsUnderEveryPolicy) {
  for (const neotier_placement* policy : policies(NEOTIER_KV)) {
    if (policy->flags & NEOTIER_NEEDS_ORACLE) continue;
    SCOPED_TRACE(policy->name);
    SlotCache c = cache(64, policy->name, 40);
    std::mt19937 numbers(1);
    const auto random = [&numbers](size_t below) { return static_cast<uint32_t>(numbers() % below); };
    std::set<Key> held, pinned;
    std::vector<Key> late;
    for (uint32_t step = 0; step < 4000; step++) {
      std::vector<Key> request;
      const uint32_t base = random(12) * 1000, nr = 1 + random(48);
      for (uint32_t i = 0; i < nr; i++) request.push_back(key(base + i));
      const auto there = static_cast<size_t>(
          std::count_if(request.begin(), request.end(), [&](const Key& one) { return held.count(one) > 0; }));
      SlotCache::Request info;
      info.now_ns = step * 1000;
      info.category = random(3);
      ASSERT_EQ(c.request(request, info), there);
      // Some are stored now, some when another request has come meanwhile.
      std::vector<Key> now = std::exchange(late, {});
      for (const Key& one : request) (random(4) ? now : late).push_back(one);
      now.erase(std::remove_if(now.begin(), now.end(), [&](const Key& one) { return held.count(one) > 0; }), now.end());
      std::sort(now.begin(), now.end());
      now.erase(std::unique(now.begin(), now.end()), now.end());
      const size_t room = 64 - held.size(), want = now.size() > room ? now.size() - room : 0;
      size_t may = 0;
      for (const Key& one : held)
        may += pinned.count(one) == 0 && std::find(request.begin(), request.end(), one) == request.end();
      std::vector<Key> evicted;
      ASSERT_EQ(c.evict(want, request, evicted), want <= may);
      ASSERT_EQ(evicted.size(), want <= may ? want : 0);
      for (const Key& one : evicted) {
        ASSERT_EQ(pinned.count(one), 0u);
        ASSERT_EQ(std::find(request.begin(), request.end(), one), request.end());
        ASSERT_EQ(held.erase(one), 1u);
      }
      if (want <= may) {
        for (const Key& one : now) {
          ASSERT_TRUE(c.insert(one));
          held.insert(one);
        }
      }
      if (!held.empty() && random(2)) {
        const Key one = *std::next(held.begin(), random(held.size()));
        const bool pin = pinned.size() < 8;
        ASSERT_TRUE(c.pin(one, pin));
        if (pin) {
          pinned.insert(one);
        } else {
          pinned.erase(one);
        }
      }
      if (!held.empty() && random(5) == 0) {
        const Key one = *std::next(held.begin(), random(held.size()));
        ASSERT_TRUE(c.remove(one));
        held.erase(one);
        pinned.erase(one);
      }
      ASSERT_EQ(c.size(), held.size());
    }
    for (const Key& one : held) ASSERT_TRUE(c.holds(one));
  }
}

}  // namespace
}  // namespace neotier::placement

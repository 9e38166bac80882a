// SPDX-License-Identifier: Apache-2.0
// What a full node keeps free for new memory: by what was missed, within its share of time; by values worked out by
// hand.
#include "promotion/spare.h"

#include <gtest/gtest.h>

namespace {

constexpr u64 kMs = 1'000'000, kSecond = 1000 * kMs;
constexpr u64 kNode = 1 << 16;  // pages
constexpr u64 kLeast = kNode / NEOTIER_SPARE_LEAST_SHARE, kMost = kNode / NEOTIER_SPARE_MOST_SHARE;
constexpr u64 kPageNs = 10'000, kWorth = NEOTIER_SPARE_WORTH;

// Watches every interval, each with `more` allocations missed and all room that is wanted.
struct Node {
  neotier_spare spare{};
  u64 now = kSecond, missed = 1000, grown = 50;

  explicit Node(u64 before = 1000) : missed(before) { neotier_spare_watch(&spare, missed, grown, 0, kNode, now); }
  void watch(u64 more, u64 above_low) {
    now += NEOTIER_SPARE_INTERVAL_NS;
    missed += more;
    neotier_spare_watch(&spare, missed, grown, above_low, kNode, now);
  }
  u64 wanted(u64 above_low) { return neotier_spare_wanted(&spare, above_low, kPageNs, now); }
};

TEST(Spare, WhatWasMissedBeforeDoesNotCount) {
  Node n;
  n.watch(0, 0);
  EXPECT_EQ(n.spare.pages, 0u);
  EXPECT_EQ(n.wanted(0), 0u);
}

TEST(Spare, IsDueOncePerInterval) {
  neotier_spare spare{};
  EXPECT_TRUE(neotier_spare_due(&spare, kSecond));
  neotier_spare_watch(&spare, 0, 0, 0, kNode, kSecond);
  EXPECT_FALSE(neotier_spare_due(&spare, kSecond + NEOTIER_SPARE_INTERVAL_NS - 1));
  EXPECT_TRUE(neotier_spare_due(&spare, kSecond + NEOTIER_SPARE_INTERVAL_NS));
}

TEST(Spare, GrowsWhileAllocationsAreMissed) {
  Node n;
  n.watch(kWorth, 0);
  EXPECT_EQ(n.spare.pages, kLeast);
  n.watch(kWorth, kLeast);
  EXPECT_EQ(n.spare.pages, 2 * kLeast);
  for (int i = 0; i < 20; i++) n.watch(kWorth, kNode);
  EXPECT_EQ(n.spare.pages, kMost);
}

TEST(Spare, AFewAreNotWorthIt) {
  Node n;
  n.watch(kWorth - 1, 0);
  EXPECT_EQ(n.spare.pages, 0u);
  n.watch(kWorth, 0);
  EXPECT_GT(n.wanted(0), 0u);
  n.watch(kWorth - 1, 0);
  EXPECT_EQ(n.wanted(0), 0u);
}

TEST(Spare, ProgramsThatGrowGetNone) {
  Node n;
  n.grown += 100;
  n.watch(100, 0);
  EXPECT_EQ(n.spare.pages, 0u);
  n.grown += 50;
  n.watch(100, 0);
  EXPECT_EQ(n.spare.pages, 0u);
  n.grown += 49;
  n.watch(100, 0);
  EXPECT_EQ(n.spare.pages, kLeast);
}

TEST(Spare, ProgramsThatShrinkHideNoMiss) {
  Node n;
  n.grown -= 1000;
  n.watch(kWorth, 0);
  EXPECT_EQ(n.spare.pages, kLeast);
}

// One huge page is an allocation of 512 pages.
TEST(Spare, HugePagesOfProgramsAreGrowth) {
  Node n;
  n.grown += 5120;
  n.watch(15, 0);
  EXPECT_EQ(n.spare.pages, 0u);
}

TEST(Spare, DoesNotGrowBeforeItIsThere) {
  Node n;
  n.watch(kWorth, 0);
  for (int i = 0; i < 20; i++) n.watch(kWorth, kLeast - 1);
  EXPECT_EQ(n.spare.pages, kLeast);
}

TEST(Spare, HalfOfItGoesAfterAWhileWithoutAMiss) {
  Node n;
  n.watch(kWorth, 0);
  n.watch(kWorth, kNode);
  for (u64 ns = 0; ns < NEOTIER_SPARE_CALM_NS - NEOTIER_SPARE_INTERVAL_NS; ns += NEOTIER_SPARE_INTERVAL_NS)
    n.watch(0, kNode);
  EXPECT_EQ(n.spare.pages, 2 * kLeast);
  n.watch(0, kNode);
  EXPECT_EQ(n.spare.pages, kLeast);
  for (int i = 0; i < 2000; i++) n.watch(0, kNode);
  EXPECT_EQ(n.spare.pages, 0u);
}

TEST(Spare, ACounterThatRunsBackwardsIsNoMiss) {
  Node n;
  n.missed = 10;
  n.watch(0, 0);
  EXPECT_EQ(n.spare.pages, 0u);
  n.watch(kWorth, 0);
  EXPECT_EQ(n.spare.pages, kLeast);
}

TEST(Spare, WantsWhatIsLackingWithinItsTime) {
  Node n;
  n.watch(kWorth, 0);
  // 100 ms / 200 = 500 us: 50 pages of 10 us.
  EXPECT_EQ(n.wanted(0), 50u);
  EXPECT_EQ(n.wanted(kLeast - 20), 20u);
  EXPECT_EQ(n.wanted(kLeast), 0u);
  neotier_spare_spent(&n.spare, 450'000);
  EXPECT_EQ(n.wanted(0), 5u);
  neotier_spare_spent(&n.spare, kSecond);
  EXPECT_EQ(n.wanted(0), 0u);
}

TEST(Spare, TimeIsSavedUpToALimit) {
  Node n;
  n.watch(kWorth, 0);
  n.now += 3600 * kSecond;
  n.spare.pages = 1'000'000;
  EXPECT_EQ(n.wanted(0), NEOTIER_SPARE_SAVED_NS / kPageNs);
  n.now += 3600 * kSecond;
  EXPECT_EQ(n.wanted(0), NEOTIER_SPARE_SAVED_NS / kPageNs);
}

TEST(Spare, LittleTimeAddsUp) {
  Node n;
  n.watch(kWorth, 0);
  EXPECT_EQ(n.wanted(0), 50u);
  for (int i = 0; i < 1000; i++) {
    n.now += NEOTIER_SPARE_SHARE / 2;
    n.wanted(0);
  }
  // 100,000 ns / 200 = 500 ns.
  EXPECT_EQ(n.spare.left_ns, 500'000u + 500u);
}

}  // namespace

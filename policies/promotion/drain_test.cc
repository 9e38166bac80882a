// SPDX-License-Identifier: Apache-2.0
// How much of a device's ring is read in an epoch.
#include "promotion/drain.h"

#include <gtest/gtest.h>

#include <utility>

#include "promotion/room.h"

namespace {

TEST(Drain, HalfARingInAnEpoch) {
  neotier_drain drain{};
  neotier_drain_begin(&drain, 100, 50, 4096, 0, NEOTIER_NO_LIMIT);
  EXPECT_EQ(neotier_drain_most(&drain, 0), 2048u);
  neotier_drain_done(&drain, 2000);
  EXPECT_FALSE(drain.left);
  EXPECT_FALSE(neotier_drain_begin(&drain, 149, 50, 4096, 0, NEOTIER_NO_LIMIT));
  EXPECT_EQ(neotier_drain_most(&drain, 0), 48u);
  neotier_drain_done(&drain, 48);
  EXPECT_TRUE(drain.left);
  EXPECT_EQ(neotier_drain_most(&drain, 0), 0u);
}

TEST(Drain, WhatIsLeftIsThrownAwayWhenTheNextEpochBegins) {
  neotier_drain drain{};
  neotier_drain_begin(&drain, 100, 50, 4096, 0, NEOTIER_NO_LIMIT);
  neotier_drain_most(&drain, 0);
  neotier_drain_done(&drain, 2048);
  EXPECT_TRUE(neotier_drain_begin(&drain, 150, 50, 4096, 0, NEOTIER_NO_LIMIT));
  EXPECT_EQ(neotier_drain_most(&drain, 0), 2048u);
}

TEST(Drain, NothingIsThrownAwayWhereTheAllowanceWasNotUsedUp) {
  neotier_drain drain{};
  neotier_drain_begin(&drain, 100, 50, 4096, 0, NEOTIER_NO_LIMIT);
  neotier_drain_most(&drain, 0);
  neotier_drain_done(&drain, 2047);
  EXPECT_FALSE(neotier_drain_begin(&drain, 150, 50, 4096, 0, NEOTIER_NO_LIMIT));
}

TEST(Drain, NothingIsReadWhileEnoughWait) {
  neotier_drain drain{};
  neotier_drain_begin(&drain, 100, 50, 4096, 0, NEOTIER_NO_LIMIT);
  EXPECT_EQ(neotier_drain_most(&drain, NEOTIER_ENOUGH), 0u);
  EXPECT_TRUE(drain.left);
  EXPECT_EQ(neotier_drain_most(&drain, NEOTIER_ENOUGH - 1), 2048u);
  EXPECT_FALSE(drain.left);
}

TEST(Drain, WhereReportsAreCountedAnEighthIsReadWhileEnoughWait) {
  neotier_drain drain{};
  neotier_drain_begin(&drain, 100, 50, 4096, 0, 5000);
  EXPECT_EQ(neotier_drain_most(&drain, NEOTIER_ENOUGH), 512u);
  neotier_drain_done(&drain, 300);
  EXPECT_EQ(neotier_drain_most(&drain, NEOTIER_ENOUGH), 212u);
  neotier_drain_done(&drain, 212);
  EXPECT_EQ(neotier_drain_most(&drain, NEOTIER_ENOUGH), 0u);
  EXPECT_TRUE(drain.left);
  EXPECT_EQ(neotier_drain_most(&drain, 0), 1536u) << "for whom there is use, the rest";
  EXPECT_EQ(neotier_drain_most(&drain, NEOTIER_ENOUGH), 0u);
  EXPECT_TRUE(neotier_drain_begin(&drain, 150, 50, 4096, 0, 5000)) << "what is left is of an epoch ago";
}

TEST(Drain, TwoReportsAreReadForAPageThatMayBePromoted) {
  for (const auto& [pages, reports] :
       {std::pair{0u, 512u}, {255u, 512u}, {300u, 600u}, {1024u, 2048u}, {5000u, 2048u}}) {
    neotier_drain drain{};
    neotier_drain_begin(&drain, 100, 50, 4096, 0, pages);
    EXPECT_EQ(neotier_drain_most(&drain, 0), reports);
  }
}

TEST(Drain, WhereNoPageIsConfirmedFewReportsAreRead) {
  neotier_drain drain{};
  u64 now = 0;
  const auto epoch = [&](u64 confirmed, u32 ring = 4096) {
    neotier_drain_begin(&drain, now += 50, 50, ring, confirmed, NEOTIER_NO_LIMIT);
    return neotier_drain_most(&drain, 0);
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(epoch(0), 2048u);
  EXPECT_EQ(epoch(0), 512u);
  EXPECT_EQ(epoch(0), 512u);
  EXPECT_EQ(epoch(1), 2048u) << "one page confirmed";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(epoch(1), 2048u);
  EXPECT_EQ(epoch(1), 512u);
  EXPECT_EQ(epoch(1, 2), 1u);
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// How much of a device's ring is read in an epoch.
#include "promotion/drain.h"

#include <gtest/gtest.h>

#include "promotion/room.h"

namespace {

TEST(Drain, HalfARingInAnEpoch) {
  neotier_drain drain{};
  neotier_drain_begin(&drain, 100, 50, 4096, 0);
  EXPECT_EQ(neotier_drain_most(&drain, 0), 2048u);
  neotier_drain_done(&drain, 2000);
  EXPECT_FALSE(drain.left);
  EXPECT_FALSE(neotier_drain_begin(&drain, 149, 50, 4096, 0));
  EXPECT_EQ(neotier_drain_most(&drain, 0), 48u);
  neotier_drain_done(&drain, 48);
  EXPECT_TRUE(drain.left);
  EXPECT_EQ(neotier_drain_most(&drain, 0), 0u);
}

TEST(Drain, WhatIsLeftIsThrownAwayWhenTheNextEpochBegins) {
  neotier_drain drain{};
  neotier_drain_begin(&drain, 100, 50, 4096, 0);
  neotier_drain_most(&drain, 0);
  neotier_drain_done(&drain, 2048);
  EXPECT_TRUE(neotier_drain_begin(&drain, 150, 50, 4096, 0));
  EXPECT_EQ(neotier_drain_most(&drain, 0), 2048u);
}

TEST(Drain, NothingIsThrownAwayWhereTheAllowanceWasNotUsedUp) {
  neotier_drain drain{};
  neotier_drain_begin(&drain, 100, 50, 4096, 0);
  neotier_drain_most(&drain, 0);
  neotier_drain_done(&drain, 2047);
  EXPECT_FALSE(neotier_drain_begin(&drain, 150, 50, 4096, 0));
}

TEST(Drain, NothingIsReadWhileEnoughWait) {
  neotier_drain drain{};
  neotier_drain_begin(&drain, 100, 50, 4096, 0);
  EXPECT_EQ(neotier_drain_most(&drain, NEOTIER_ENOUGH), 0u);
  EXPECT_TRUE(drain.left);
  EXPECT_EQ(neotier_drain_most(&drain, NEOTIER_ENOUGH - 1), 2048u);
  EXPECT_FALSE(drain.left);
}

TEST(Drain, WhereNoPageIsConfirmedFewReportsAreRead) {
  neotier_drain drain{};
  u64 now = 0;
  const auto epoch = [&](u64 confirmed, u32 ring = 4096) {
    neotier_drain_begin(&drain, now += 50, 50, ring, confirmed);
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

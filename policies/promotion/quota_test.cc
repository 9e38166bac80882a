// SPDX-License-Identifier: Apache-2.0
// The token bucket, by values worked out by hand. 1 MiB/s is 256 pages a second: one in 3,906,250 ns.
#include "promotion/quota.h"

#include <gtest/gtest.h>

namespace {

constexpr u64 kSecond = 1'000'000'000, kPageNs = 3'906'250;

TEST(Quota, TokensComeWithTime) {
  neotier_bucket bucket{};
  const u64 rate = neotier_quota_rate(1);
  EXPECT_EQ(neotier_bucket_take(&bucket, rate, 10, kPageNs - 1), 0u);
  EXPECT_EQ(neotier_bucket_take(&bucket, rate, 10, kPageNs), 1u);
  EXPECT_EQ(neotier_bucket_take(&bucket, rate, 10, 4 * kPageNs), 3u);
}

TEST(Quota, ABurstIsATenthOfASecond) {
  neotier_bucket bucket{};
  EXPECT_EQ(neotier_bucket_take(&bucket, neotier_quota_rate(1), 1000, 60 * kSecond), 25u);
}

TEST(Quota, TheSmallestRateStillMovesAPage) {
  neotier_bucket bucket{};
  EXPECT_EQ(neotier_bucket_take(&bucket, 1, 10, 60 * kSecond), 1u);
  EXPECT_EQ(neotier_bucket_take(&bucket, 1, 10, 60 * kSecond + kSecond / 2), 0u);
  EXPECT_EQ(neotier_bucket_take(&bucket, 1, 10, 61 * kSecond), 1u);
}

TEST(Quota, ZeroMovesNothing) {
  neotier_bucket bucket{};
  EXPECT_EQ(neotier_bucket_take(&bucket, 0, 10, 60 * kSecond), 0u);
  EXPECT_EQ(neotier_bucket_pages(0, kSecond), 0u);
}

TEST(Quota, WhatWasNotUsedComesBack) {
  neotier_bucket bucket{};
  const u64 rate = neotier_quota_rate(1);
  EXPECT_EQ(neotier_bucket_take(&bucket, rate, 25, kSecond), 25u);
  neotier_bucket_return(&bucket, 20);
  EXPECT_EQ(neotier_bucket_take(&bucket, rate, 25, kSecond), 20u);
}

TEST(Quota, LoweredItTakesEffectAtOnce) {
  neotier_bucket bucket{};
  neotier_bucket_take(&bucket, neotier_quota_rate(1024), 0, kSecond);
  EXPECT_EQ(neotier_bucket_take(&bucket, neotier_quota_rate(1), 1000, kSecond), 25u);
}

TEST(Quota, AClockThatStandsStillBringsNothing) {
  neotier_bucket bucket{};
  const u64 rate = neotier_quota_rate(1);
  EXPECT_EQ(neotier_bucket_take(&bucket, rate, 100, kSecond), 25u);
  EXPECT_EQ(neotier_bucket_take(&bucket, rate, 100, kSecond), 0u);
  EXPECT_EQ(neotier_bucket_take(&bucket, rate, 100, kSecond / 2), 0u);
}

TEST(Quota, TheLargestRateFitsAMinute) {
  EXPECT_EQ(neotier_bucket_pages(NEOTIER_QUOTA_RATE_MAX, 60 * kSecond), 60 * NEOTIER_QUOTA_RATE_MAX);
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
#include "engine/link.h"

#include <gtest/gtest.h>

namespace neotier::engine {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// 10 us + 1 GB/s.
Link measured_link() {
  Link link;
  link.set_measured(4096, 10000 + 4096, kMiB, 10000 + kMiB);
  return link;
}

TEST(Link, ALateSmallProbeDoesNotMakeBandwidth) {
  Link link;
  link.set_measured(4096, 1800000, kMiB, 1800001);
  EXPECT_LT(link.bytes_per_s(), 4e9);
  EXPECT_GT(link.predict_ns(kMiB), 1800000u);
}

TEST(Link, PredictsByLatencyAndBandwidth) {
  const Link link = measured_link();
  EXPECT_NEAR(static_cast<double>(link.predict_ns(65536)), 75536, 2);
  EXPECT_NEAR(link.bytes_per_s(), 1e9, 1e6);
  EXPECT_NEAR(link.latency_ns(), 10000, 10);
}

TEST(Link, FollowsWhatIsSeenPerSizeClass) {
  Link link = measured_link();
  const uint64_t small_before = link.predict_ns(4096);
  for (int i = 0; i < 60; i++) link.observe(kMiB, 4 * (10000 + kMiB));
  EXPECT_NEAR(static_cast<double>(link.predict_ns(kMiB)), 4 * (10000 + kMiB), 0.01 * 4 * kMiB);
  EXPECT_EQ(link.predict_ns(4096), small_before) << "other sizes keep their own";
  EXPECT_EQ(link.transfers, 60u);
  for (int i = 0; i < 60; i++) link.observe(kMiB, 10000 + kMiB);
  EXPECT_NEAR(static_cast<double>(link.predict_ns(kMiB)), 10000 + kMiB, 0.02 * kMiB);
}

TEST(Link, OneOutlierMovesItByABoundedStep) {
  Link link = measured_link();
  link.observe(kMiB, uint64_t{1000} * kMiB);
  EXPECT_LT(link.predict_ns(kMiB), 2 * (10000 + kMiB));
}

TEST(Link, FinishIncludesTheQueue) {
  Link link = measured_link();
  link.queued(10 * kMiB);
  EXPECT_NEAR(static_cast<double>(link.predict_finish_ns(kMiB)), 10000 + 11 * kMiB, 20);
  link.unqueued(10 * kMiB);
  EXPECT_EQ(link.predict_finish_ns(kMiB), link.predict_ns(kMiB));
}

// 100 MB/s: over a second of asking as often as may be, 100 MB pass and no more than a burst beside.
TEST(Link, BucketGivesItsRate) {
  Link link;
  link.set_limit(100000000);
  uint64_t now = 5000000000, passed = 0;
  const uint64_t end = now + 1000000000, chunk = 65536;
  while (now < end) {
    if (link.may_take(now, chunk)) {
      link.take(now, chunk);
      passed += chunk;
    } else {
      const uint64_t ready = link.ready_ns(now, chunk);
      ASSERT_GT(ready, now);
      now = ready;
    }
  }
  EXPECT_NEAR(static_cast<double>(passed), 1e8, 1e6);
}

TEST(Link, DemandComesOffTheOthersShare) {
  Link link;
  link.set_limit(100000000);
  uint64_t now = 5000000000;
  ASSERT_TRUE(link.may_take(now, 65536));
  link.take(now, 5000000);  // demand does not ask
  EXPECT_FALSE(link.may_take(now + 40000000, 65536));
  EXPECT_TRUE(link.may_take(now + 60000000, 65536));
  link.take(now + 60000000, uint64_t{1} << 40);
  EXPECT_TRUE(link.may_take(now + 200000000, 65536)) << "a debt lasts 100 ms at most";
}

TEST(Link, NoLimitNeverHolds) {
  Link link;
  EXPECT_TRUE(link.may_take(1, uint64_t{1} << 40));
  link.take(1, uint64_t{1} << 40);
  EXPECT_TRUE(link.may_take(1, uint64_t{1} << 40));
}

}  // namespace
}  // namespace neotier::engine

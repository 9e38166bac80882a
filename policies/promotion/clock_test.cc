// SPDX-License-Identifier: Apache-2.0
// Which clock tells what moves cost, and what a clock that lies can do.
#include "promotion/clock.h"

#include <gtest/gtest.h>

namespace {

constexpr u64 kMs = 1'000'000;

class Clock : public testing::Test {
 protected:
  bool check(u64 own_ns, u64 device_ns) {
    now_ = {own_ns, device_ns};
    return neotier_clock_check(&clock_, &now_);
  }
  void start(bool device, u64 own_ns, u64 device_ns) {
    now_ = {own_ns, device_ns};
    neotier_clock_start(&clock_, device, &now_);
  }
  u64 span(neotier_time from, neotier_time to) { return neotier_clock_span(&clock_, &from, &to); }
  void mark(u64 own_ns, u64 device_ns, u64 busy_ns) {
    now_ = {own_ns, device_ns};
    neotier_clock_mark(&clock_, &now_, busy_ns);
  }

  neotier_clock clock_{};
  neotier_time now_{};
};

TEST_F(Clock, WithoutADevicesTheDriversOwn) {
  start(false, 1000, 0);
  EXPECT_EQ(span({1000, 0}, {6000, 0}), 5000u);
  mark(1000, 0, 0);
  mark(1000 + 100 * kMs, 0, 50 * kMs);
  EXPECT_EQ(neotier_clock_scale(&clock_, 50 * kMs), 50 * kMs);
}

TEST_F(Clock, ADevicesTellsSpansAndTheLengthOfEpochs) {
  start(true, 1000, 7000);
  EXPECT_TRUE(check(3000, 10'500));
  EXPECT_EQ(span({1000, 7000}, {3000, 10'500}), 3500u);
  mark(0, 0, 0);
  // Half of the time the machine had nothing to do: neither the clock nor the epochs went on.
  mark(200 * kMs, 175 * kMs, 100 * kMs);
  EXPECT_EQ(neotier_clock_scale(&clock_, 50 * kMs), 87'500'000u);
  EXPECT_EQ(neotier_clock_unscale(&clock_, 87'500'000), 50 * kMs) << "and back";
  EXPECT_EQ(neotier_clock_unscale(&clock_, 60'000 * kMs), 34'285'714'285u) << "a minute";
}

TEST_F(Clock, WhileTheDeviceStoodStillNothingIsMeasured) {
  start(true, 0, 0);
  mark(0, 0, 0);
  mark(100 * kMs, 175 * kMs, 100 * kMs);
  neotier_clock_unmark(&clock_);
  mark(900 * kMs, 1575 * kMs, 110 * kMs);
  EXPECT_EQ(neotier_clock_scale(&clock_, 50 * kMs), 87'500'000u) << "what was known stays";
  mark(1000 * kMs, 1675 * kMs, 210 * kMs);
  EXPECT_EQ(neotier_clock_scale(&clock_, 50 * kMs), 50 * kMs);
}

struct Lie {
  const char* what;
  u64 own_ns, device_ns;
};
class LyingClock : public Clock, public testing::WithParamInterface<Lie> {};

TEST_P(LyingClock, IsFoundOutAndNotUsedAgain) {
  start(true, 5000, 100'000);
  mark(5000, 100'000, 0);
  ASSERT_TRUE(check(6000, 102'000));
  mark(6000, 102'000, 1000);
  EXPECT_FALSE(check(GetParam().own_ns, GetParam().device_ns));
  EXPECT_FALSE(clock_.used);
  EXPECT_EQ(span({5000, 100'000}, {9000, ~u64{0}}), 4000u) << "also of a span that began before";
  EXPECT_EQ(neotier_clock_scale(&clock_, 50 * kMs), 50 * kMs);
}
INSTANTIATE_TEST_SUITE_P(Lies, LyingClock,
                         testing::Values(Lie{"stands", 6001 + 1000 * kMs, 102'000}, Lie{"back", 7000, 101'999},
                                         Lie{"zero", 7000, 0}, Lie{"ones", 7000, ~u64{0}},
                                         Lie{"far", 7000, 102'000 + kMs + 1024 * 1000 + 1}),
                         [](const auto& lie) { return lie.param.what; });

TEST_F(Clock, CoarseIsNoLie) {
  start(true, 0, 500);
  EXPECT_TRUE(check(1000 * kMs, 500));
  EXPECT_TRUE(check(1000 * kMs + 1, 501));
  EXPECT_TRUE(check(2000 * kMs, 501));
}

TEST_F(Clock, FastIsNoLie) {
  start(true, 0, 0);
  EXPECT_TRUE(check(1000, kMs + 1024 * 1000));
}

TEST_F(Clock, ALongTimeWithoutALookIsNoLie) {
  start(true, 0, 0);
  EXPECT_TRUE(check(3'600'000 * kMs, 7'200'000 * kMs));
}

TEST_F(Clock, AnEpochStaysWithinBounds) {
  start(true, 0, 0);
  mark(0, 0, 0);
  mark(100 * kMs, 1, 100 * kMs);  // creeps
  EXPECT_EQ(neotier_clock_scale(&clock_, 64 * kMs), kMs);
  mark(200 * kMs, 100'000 * kMs, 100 * kMs + 1);  // the device says that it has hardly counted
  EXPECT_EQ(neotier_clock_scale(&clock_, 50 * kMs), 50 * kMs * 1024);
  mark(300 * kMs, 100'100 * kMs, 0);  // its count goes back
  EXPECT_EQ(neotier_clock_scale(&clock_, 50 * kMs), 50 * kMs * 1024);
  mark(400 * kMs, 100'200 * kMs, 100 * kMs);
  EXPECT_EQ(neotier_clock_scale(&clock_, 50 * kMs), 50 * kMs);
}

}  // namespace

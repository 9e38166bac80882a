// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
// Unit tests of the policies, with values worked out by hand.

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <string>

#include "neotier_policy.h"

namespace {

// A policy with a state of its own.
class Instance {
 public:
  explicit Instance(const neotier_policy& policy, const neotier_policy_params& params = neotier_policy_default_params)
      : policy_(policy) {
    policy_.init(state_.data(), &params);
  }
  neotier_plan decide(const neotier_snapshot& snapshot) {
    neotier_plan plan = {};
    policy_.decide(state_.data(), &snapshot, &plan);
    return plan;
  }

 private:
  const neotier_policy& policy_;
  alignas(8) std::array<unsigned char, NEOTIER_POLICY_STATE_BYTES> state_{};
};

// A slow tier of 1,000,000 pages, so that p in ppm is the number of pages called hot. No load, no promotions, no page
// seen.
neotier_snapshot quiet() {
  neotier_snapshot s = {};
  s.interval_ns = 1'000'000'000;
  s.epochs = 100;
  s.epoch_ns = 10'000'000;
  s.downsampling = 1;
  s.counter_max = 65535;
  s.threshold = 10;
  s.quota_pages = 1000;
  s.slow_total_pages = 1'000'000;
  return s;
}

// Reads p, which a plan does not show, from where the quantile falls in a histogram whose bins hold `step` pages each:
// p in ppm rounded up to a multiple of `step` (63 x step at most).
class NeomemProbe {
 public:
  explicit NeomemProbe(const neotier_policy_params& params = neotier_policy_default_params)
      : instance_(neotier_policy_neomem, params) {}

  // Bins 63 .. 1 hold `step` pages each: theta = low edge of bin 64 - ceil(p / step).
  uint32_t share(neotier_snapshot s, uint32_t step) {
    for (uint32_t bin = 1; bin < NEOTIER_HISTOGRAM_BINS; bin++) s.histogram[bin] = step;
    const uint32_t theta = instance_.decide(s).threshold;
    for (uint32_t bin = 1; bin < NEOTIER_HISTOGRAM_BINS; bin++)
      if (neotier_bin_low(bin) == theta) return (64 - bin) * step;
    ADD_FAILURE() << "theta " << theta << " is not the edge of a bin";
    return 0;
  }

 private:
  Instance instance_;
};

std::map<std::string, uint64_t> read_parameters(const std::string& path) {
  std::map<std::string, uint64_t> values;
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const auto equals = line.find(" = ");
    if (equals == std::string::npos) {
      ADD_FAILURE() << path << ": not 'key = value': " << line;
      continue;
    }
    char* end = nullptr;
    values[line.substr(0, equals)] = std::strtoull(line.c_str() + equals + 3, &end, 10);
    EXPECT_EQ(*end, '\0') << path << ": " << line;
  }
  return values;
}

TEST(Registry, FirstIsTheDefaultAndEndsWithNull) {
  ASSERT_NE(neotier_policies[0], nullptr);
  EXPECT_STREQ(neotier_policies[0]->name, "payback");
  int n = 0;
  while (neotier_policies[n] != nullptr) n++;
  EXPECT_EQ(n, 3);
}

TEST(Registry, FindsByWholeNameOnly) {
  for (auto p = neotier_policies; *p != nullptr; p++) {
    EXPECT_EQ(neotier_policy_find((*p)->name), *p);
    EXPECT_GT(std::strlen((*p)->text), 0u);
  }
  EXPECT_EQ(neotier_policy_find("neo"), nullptr);
  EXPECT_EQ(neotier_policy_find("neomem2"), nullptr);
  EXPECT_EQ(neotier_policy_find("fixed\n"), nullptr);
  EXPECT_EQ(neotier_policy_find(""), nullptr);
}

TEST(Registry, ParameterFilesSayTheCodesDefaults) {
  const auto& d = neotier_policy_default_params;
  const std::string dir = NEOTIER_POLICY_DIR;
  EXPECT_EQ(read_parameters(dir + "/fixed.toml"), (std::map<std::string, uint64_t>{{"threshold", d.threshold}}));
  EXPECT_EQ(read_parameters(dir + "/neomem.toml"), (std::map<std::string, uint64_t>{{"threshold", d.threshold},
                                                                                    {"p_start_ppm", d.p_start_ppm},
                                                                                    {"p_min_ppm", d.p_min_ppm},
                                                                                    {"p_max_ppm", d.p_max_ppm}}));
  EXPECT_EQ(read_parameters(dir + "/payback.toml"),
            (std::map<std::string, uint64_t>{{"saved_ns", d.saved_ns}, {"payback_ms", d.payback_ms}}));
}

TEST(Histogram, BinEdges) {
  EXPECT_EQ(neotier_bin_low(0), 0u);
  EXPECT_EQ(neotier_bin_low(7), 7u);
  EXPECT_EQ(neotier_bin_low(8), 8u);
  EXPECT_EQ(neotier_bin_low(9), 10u);
  EXPECT_EQ(neotier_bin_low(16), 24u);
  EXPECT_EQ(neotier_bin_low(17), 28u);
  EXPECT_EQ(neotier_bin_low(63), 1912u);

  uint32_t histogram[NEOTIER_HISTOGRAM_BINS] = {};
  EXPECT_EQ(neotier_histogram_hot(histogram, 1), 0u) << "none";
  histogram[5] = 1000;
  EXPECT_EQ(neotier_histogram_hot(histogram, 6), 0u) << "none is hot";
  EXPECT_EQ(neotier_histogram_hot(histogram, 5), 5u);
  histogram[16] = 50;  // 24 to 27
  histogram[20] = 60;  // 40 to 43
  histogram[40] = 30;  // 248 to 279
  EXPECT_EQ(neotier_histogram_hot(histogram, 10), (50u * 24 + 60 * 40 + 30 * 160) / 140) << "four medians at most";
  EXPECT_EQ(neotier_histogram_hot(histogram, 27), (50u * 27 + 60 * 40 + 30 * 160) / 140)
      << "a bin that begins below counts";
  EXPECT_EQ(neotier_histogram_hot(histogram, 42), (60u * 42 + 30 * 168) / 90) << "no less than the threshold";
  EXPECT_EQ(neotier_histogram_hot(histogram, 100), 248u);
  histogram[63] = 1000;
  EXPECT_EQ(neotier_histogram_hot(histogram, 1), (1000u * 5 + 50 * 24 + 60 * 40 + 1030 * 160) / 2140)
      << "the median is the 1070th";
  EXPECT_EQ(neotier_histogram_hot(histogram, 65535), 65535u);
}

TEST(Histogram, TopIsTheBinThatHoldsTheLastUnitAskedFor) {
  uint32_t h[NEOTIER_HISTOGRAM_BINS] = {};
  h[40] = 10;  // from 8 * 31 + 0 * 32 = 248
  h[20] = 90;  // from 24 + 4 * 4 = 40
  h[1] = 900;
  EXPECT_EQ(neotier_histogram_top(h, 1), 248u);
  EXPECT_EQ(neotier_histogram_top(h, 10), 248u);
  EXPECT_EQ(neotier_histogram_top(h, 11), 40u);
  EXPECT_EQ(neotier_histogram_top(h, 100), 40u);
  EXPECT_EQ(neotier_histogram_top(h, 101), 1u);
  EXPECT_EQ(neotier_histogram_top(h, 1000), 1u);
  EXPECT_EQ(neotier_histogram_top(h, 1001), 1u);
  EXPECT_EQ(neotier_histogram_top(h, ~0ull), 1u);
  EXPECT_EQ(neotier_histogram_top(h, 0), 248u);
}

TEST(Histogram, NothingSeenGivesNothingToGoBy) {
  const uint32_t h[NEOTIER_HISTOGRAM_BINS] = {};
  EXPECT_EQ(neotier_histogram_top(h, 0), 0u);
  EXPECT_EQ(neotier_histogram_top(h, 5), 0u);
}

TEST(Histogram, FullBinsDoNotOverflow) {
  uint32_t h[NEOTIER_HISTOGRAM_BINS];
  for (auto& bin : h) bin = ~0u;
  EXPECT_EQ(neotier_histogram_top(h, uint64_t{0xffffffff} * 2), 1784u);  // bin 62
  EXPECT_EQ(neotier_histogram_top(h, ~0ull), 1u);
}

TEST(Fixed, IsTheParameterWhateverHappens) {
  Instance p(neotier_policy_fixed);
  neotier_snapshot s = quiet();
  EXPECT_EQ(p.decide(s).threshold, 10u);
  s.promoted = s.quota_pages;
  s.histogram[63] = 1000;
  s.threshold = 77;
  EXPECT_EQ(p.decide(s).threshold, 10u);
  EXPECT_EQ(p.decide(s).promote_max, NEOTIER_NO_LIMIT);
}

TEST(Fixed, StaysWithinWhatTheDeviceCanMatch) {
  neotier_policy_params params = neotier_policy_default_params;
  params.threshold = 5000;
  neotier_snapshot s = quiet();
  s.counter_max = 4095;
  EXPECT_EQ(Instance(neotier_policy_fixed, params).decide(s).threshold, 4095u);
  params.threshold = 0;
  EXPECT_EQ(Instance(neotier_policy_fixed, params).decide(s).threshold, 1u);
  s.counter_max = 0;
  EXPECT_EQ(Instance(neotier_policy_fixed, params).decide(s).threshold, 1u);
}

TEST(Neomem, StartsAtOneInAThousandPages) {
  Instance p(neotier_policy_neomem);
  neotier_snapshot s = quiet();
  s.histogram[40] = 999;
  s.histogram[30] = 1;
  s.histogram[20] = 5000;
  EXPECT_EQ(p.decide(s).threshold, neotier_bin_low(30));  // the 1000th hottest of 1,000,000
  EXPECT_EQ(p.decide(s).promote_max, NEOTIER_NO_LIMIT);
}

TEST(Neomem, ShareIsOfThePagesOfTheTierNotOfThoseSeen) {
  neotier_snapshot s = quiet();
  s.slow_total_pages = 262'144;  // 1 GiB: 262.144 pages at 0.1 %, so the 263rd hottest
  s.histogram[50] = 262;
  s.histogram[45] = 1;
  s.histogram[10] = 20'000;
  EXPECT_EQ(Instance(neotier_policy_neomem).decide(s).threshold, neotier_bin_low(45));
  s.histogram[10] = 0;  // fewer pages seen change nothing
  EXPECT_EQ(Instance(neotier_policy_neomem).decide(s).threshold, neotier_bin_low(45));
}

TEST(Neomem, HugeUnitsAreCountedAsUnits) {
  neotier_snapshot s = quiet();
  s.slow_total_pages = 512 * 10'000;
  s.unit_pages_log2 = 9;  // 10,000 units: 10 of them
  s.histogram[50] = 9;
  s.histogram[45] = 1;
  s.histogram[10] = 1000;
  EXPECT_EQ(Instance(neotier_policy_neomem).decide(s).threshold, neotier_bin_low(45));
}

TEST(Neomem, ThresholdIsAtLeastOne) {
  Instance p(neotier_policy_neomem);
  neotier_snapshot s = quiet();
  s.histogram[1] = 3;  // fewer pages seen than p asks for
  EXPECT_EQ(p.decide(s).threshold, 1u);
  s.histogram[0] = 5000;  // a device that counts untouched units too
  EXPECT_EQ(p.decide(s).threshold, 1u);
}

TEST(Neomem, EmptyHistogramKeepsTheThreshold) {
  Instance p(neotier_policy_neomem);
  neotier_snapshot s = quiet();
  EXPECT_EQ(p.decide(s).threshold, 10u);
  s.histogram[40] = 5000;
  EXPECT_EQ(p.decide(s).threshold, neotier_bin_low(40));
  s.histogram[40] = 0;
  EXPECT_EQ(p.decide(s).threshold, neotier_bin_low(40));
}

TEST(Neomem, ThresholdStaysWithinWhatTheDeviceCanMatch) {
  neotier_snapshot s = quiet();
  s.counter_max = 255;
  s.histogram[60] = 5000;
  EXPECT_EQ(Instance(neotier_policy_neomem).decide(s).threshold, 255u);
  s.counter_max = 0;
  EXPECT_EQ(Instance(neotier_policy_neomem).decide(s).threshold, 1u);
}

TEST(Neomem, ClampDoesNotStick) {
  Instance p(neotier_policy_neomem);
  neotier_snapshot s = quiet();
  s.counter_max = 5;
  EXPECT_EQ(p.decide(s).threshold, 5u);
  s.counter_max = 65535;
  EXPECT_EQ(p.decide(s).threshold, 10u);
}

TEST(Neomem, BandwidthRaisesTheShare) {
  NeomemProbe p;
  neotier_snapshot s = quiet();
  s.peak_lines = 1000;
  s.reads = 300;
  s.writes = 200;
  EXPECT_EQ(p.share(s, 250), 1500u);  // 1000 * 1.5
  EXPECT_EQ(p.share(s, 250), 2250u);  // * 1.5
  s.reads = 5000;                     // over the peak counts as the peak
  EXPECT_EQ(p.share(s, 250), 4500u);  // * 2
}

TEST(Neomem, LightLoadStillMovesTheShare) {
  NeomemProbe p;
  neotier_snapshot s = quiet();
  s.peak_lines = 1'000'000;
  s.reads = 1000;  // B = 65 / 65536 after rounding down
  for (int i = 0; i < 109; i++) p.share(s, 300);
  EXPECT_EQ(p.share(s, 20), 1120u);  // 1000 * (1 + 65 / 65536)^110 = 1115.2
}

TEST(Neomem, UnknownPeakIsNoLoad) {
  NeomemProbe p;
  neotier_snapshot s = quiet();
  s.reads = 1'000'000;
  for (int i = 0; i < 10; i++) EXPECT_EQ(p.share(s, 100), 1000u);
}

TEST(Neomem, PingPongLowersTheShareBySquare) {
  NeomemProbe p;
  neotier_snapshot s = quiet();
  s.promoted = 99;
  s.ping_pong = 100;                // P = 1
  EXPECT_EQ(p.share(s, 50), 250u);  // 1000 / 4
  s.ping_pong = 25;                 // P = 0.25: 250 / 1.5625 = 160
  EXPECT_EQ(p.share(s, 20), 160u);
}

TEST(Neomem, BandwidthAndPingPongTogether) {
  NeomemProbe p;
  neotier_snapshot s = quiet();
  s.peak_lines = 100;
  s.reads = 100;
  s.promoted = 99;
  s.ping_pong = 100;
  EXPECT_EQ(p.share(s, 100), 500u);  // 1000 * 2 / 4
}

TEST(Neomem, HalvesAtTheQuota) {
  NeomemProbe p;
  neotier_snapshot s = quiet();
  s.peak_lines = 100;
  s.reads = 100;
  s.promoted = 1000;  // = quota_pages; load and ping-pong then play no part
  s.ping_pong = 1000;
  EXPECT_EQ(p.share(s, 50), 500u);
  s.promoted = 5000;
  EXPECT_EQ(p.share(s, 50), 250u);
  s.promoted = 999;
  s.ping_pong = 0;
  EXPECT_EQ(p.share(s, 50), 500u);  // under it again: * 2
}

TEST(Neomem, NoQuotaIsNeverReached) {
  NeomemProbe p;
  neotier_snapshot s = quiet();
  s.quota_pages = NEOTIER_NO_LIMIT;
  s.promoted = 1'000'000'000;
  EXPECT_EQ(p.share(s, 100), 1000u);
}

TEST(Neomem, ShareStaysWithinItsBounds) {
  NeomemProbe p;
  neotier_snapshot s = quiet();
  s.peak_lines = 1;
  s.reads = 1;
  for (int i = 0; i < 20; i++) p.share(s, 400);
  EXPECT_EQ(p.share(s, 400), 15600u);
  s.promoted = 1000;
  for (int i = 0; i < 20; i++) p.share(s, 400);
  EXPECT_EQ(p.share(s, 50), 100u);
  s.promoted = 0;
  EXPECT_EQ(p.share(s, 50), 200u);  // leaves the bound at once
}

TEST(Neomem, ExtremeInputsStayInRange) {
  neotier_snapshot s = quiet();
  s.reads = s.writes = s.peak_lines = ~0ull;
  s.promoted = ~0ull - 1;
  s.ping_pong = ~0ull;
  s.quota_pages = NEOTIER_NO_LIMIT;
  s.slow_total_pages = ~0ull;
  for (auto& bin : s.histogram) bin = ~0u;
  const neotier_plan plan = Instance(neotier_policy_neomem).decide(s);
  EXPECT_GE(plan.threshold, 1u);
  EXPECT_LE(plan.threshold, 1912u);

  s.promoted = 0;  // P clamped: p goes to its minimum, not round the corner
  NeomemProbe p;
  s = quiet();
  s.ping_pong = ~0ull;
  EXPECT_EQ(p.share(s, 50), 100u);
}

TEST(Neomem, UnfitParametersAreMovedIntoRange) {
  neotier_policy_params params = {};
  NeomemProbe low(params);  // all zero: 1 ppm
  EXPECT_EQ(low.share(quiet(), 1), 1u);
  params.p_start_ppm = 5'000'000;
  params.p_min_ppm = 2'000'000;
  params.p_max_ppm = 100;
  neotier_snapshot s = quiet();
  s.histogram[40] = 10;
  s.histogram[5] = 999'990;
  EXPECT_EQ(Instance(neotier_policy_neomem, params).decide(s).threshold, 5u);  // every page
}

// Within a second, so that the figures below are round.
neotier_policy_params a_second() {
  neotier_policy_params params = neotier_policy_default_params;
  params.payback_ms = 1000;
  return params;
}

// Moves of 10 us, 40 ns saved a request, 1 s: 2 * 10 us / 40 ns = 500 requests a second, 5 in an epoch of 10 ms.
TEST(Payback, ThresholdRepaysTheMoveInTime) {
  neotier_snapshot s = quiet();
  EXPECT_EQ(Instance(neotier_policy_payback, a_second()).decide(s).threshold, 5u);
  EXPECT_EQ(Instance(neotier_policy_payback, a_second()).decide(s).promote_max, NEOTIER_NO_LIMIT);
  s.epoch_ns = 100'000'000;
  EXPECT_EQ(Instance(neotier_policy_payback, a_second()).decide(s).threshold, 50u);
  s.downsampling = 10;
  EXPECT_EQ(Instance(neotier_policy_payback, a_second()).decide(s).threshold, 5u);
  neotier_policy_params params = neotier_policy_default_params;
  params.saved_ns = 160;
  params.payback_ms = 125;
  EXPECT_EQ(Instance(neotier_policy_payback, params).decide(s).threshold,
            10u);  // a quarter of the price, an 8th of the time
}

TEST(Payback, CostIsMeasuredAndFallsFasterThanItRises) {
  Instance p(neotier_policy_payback, a_second());
  neotier_snapshot s = quiet();
  s.epoch_ns = 100'000'000;
  s.promoted = 15;  // too few to go by
  s.promote_ns = 15 * 90'000;
  EXPECT_EQ(p.decide(s).threshold, 50u);
  s.promoted = 100;
  s.promote_ns = 100 * 90'000;
  EXPECT_EQ(p.decide(s).threshold, 62u);  // 10 us and a 32nd of 80 us
  s.promote_ns = 100 * 2'500;
  EXPECT_EQ(p.decide(s).threshold, 37u);  // half-way from 12.5 us to 2.5 us
  s.promoted = s.promote_ns = 0;          // none moved: what is known stays
  EXPECT_EQ(p.decide(s).threshold, 37u);
}

TEST(Payback, WhatMakesRoomHasACostOfItsOwn) {
  Instance p(neotier_policy_payback, a_second());
  neotier_snapshot s = quiet();
  s.epoch_ns = 100'000'000;
  s.demoted = 15;  // too few to go by: as dear as a promotion
  s.demote_ns = 15 * 90'000;
  EXPECT_EQ(p.decide(s).threshold, 50u);
  s.demoted = 100;
  s.demote_ns = 100 * 5'000;
  EXPECT_EQ(p.decide(s).threshold, 43u);  // 10 us, and 7.5
  s.demoted = s.demote_ns = 0;
  EXPECT_EQ(p.decide(s).threshold, 43u);
}

TEST(Payback, WhereHeatLastsAMoveHasLongerToRepay) {
  neotier_snapshot s = quiet();
  s.epoch_ns = 100'000'000;
  for (const auto& [lasted_ms, threshold] :
       {std::pair{0u, 50u}, {1000u, 50u}, {4000u, 50u}, {5000u, 40u}, {8000u, 25u}}) {
    Instance p(neotier_policy_payback, a_second());
    s.lasted_ns = lasted_ms * 1'000'000ULL;
    EXPECT_EQ(p.decide(s).threshold, threshold) << lasted_ms << " ms";
  }
  Instance never(neotier_policy_payback, a_second());
  s.lasted_ns = UINT64_MAX;
  EXPECT_EQ(never.decide(s).threshold, 1u) << "and no figure is too large";
}

TEST(Payback, RegretsRaiseThePriceAsReturnsDo) {
  Instance p(neotier_policy_payback, a_second());
  neotier_snapshot s = quiet();
  s.epoch_ns = 200'000'000;
  s.promoted = 80;
  s.promote_ns = 80 * 10'000;
  s.regrets = 10;
  EXPECT_EQ(p.decide(s).threshold, 100u);
  s.regrets = 11;
  EXPECT_EQ(p.decide(s).threshold, 125u);
  // Of pages that came back the regrets are those that did so too soon, where each promotion demoted one.
  Instance one_for_one(neotier_policy_payback, a_second());
  s.demoted = s.promoted;
  s.demote_ns = s.promote_ns;
  s.regrets = 10;
  s.ping_pong = 80;
  EXPECT_EQ(one_for_one.decide(s).threshold, 100u);
  // So are promoted pages that were idle again too soon: 10 and 10 of 100 are more than an eighth.
  s.short_stays = 10;
  EXPECT_EQ(one_for_one.decide(s).threshold, 125u);
}

TEST(Payback, PagesThatComeBackRaiseThePriceUntilTheyStop) {
  Instance p(neotier_policy_payback, a_second());
  neotier_snapshot s = quiet();
  s.epoch_ns = 200'000'000;  // 100 requests
  s.promoted = 80;
  s.promote_ns = 80 * 10'000;
  s.ping_pong = 10;  // one in eight is still well
  EXPECT_EQ(p.decide(s).threshold, 100u);
  s.ping_pong = 11;
  EXPECT_EQ(p.decide(s).threshold, 125u);
  EXPECT_EQ(p.decide(s).threshold, 156u);  // pressure 400 of 256
  s.ping_pong = 0;
  EXPECT_EQ(p.decide(s).threshold, 146u);  // 375 of 256
  for (int i = 0; i < 20; i++) p.decide(s);
  EXPECT_EQ(p.decide(s).threshold, 100u);
  s.ping_pong = 80;
  for (int i = 0; i < 100; i++) p.decide(s);
  EXPECT_EQ(p.decide(s).threshold, 25'600u);  // 256 times, no more
}

TEST(Payback, ExtremeInputsStayInRange) {
  neotier_snapshot s = quiet();
  neotier_policy_params params = neotier_policy_default_params;
  params.saved_ns = params.payback_ms = 0;  // the least of each: 1
  Instance p(neotier_policy_payback, params);
  s.epoch_ns = ~0ull;
  s.promoted = 16;
  s.promote_ns = ~0ull;
  s.ping_pong = ~0ull;
  for (int i = 0; i < 100; i++) EXPECT_EQ(p.decide(s).threshold, 65535u);
  s = quiet();
  s.epoch_ns = 1ull << 63;  // taken for a minute: 60 s * 500 requests a second; times the cost it would wrap to nothing
  EXPECT_EQ(Instance(neotier_policy_payback, a_second()).decide(s).threshold, 30'000u);
  s.epoch_ns = 0;
  s.counter_max = 0;
  EXPECT_EQ(Instance(neotier_policy_payback, a_second()).decide(s).threshold, 1u);
}

TEST(All, SameSnapshotsGiveSamePlans) {
  for (auto p = neotier_policies; *p != nullptr; p++) {
    Instance a(**p), b(**p);
    std::mt19937_64 random(20261120);
    for (int i = 0; i < 20'000; i++) {
      neotier_snapshot s = quiet();
      const auto any = [&random] { return random() >> (random() % 64); };
      s.reads = any();
      s.writes = any();
      s.peak_lines = any();
      s.promoted = any();
      s.quota_pages = any();
      s.ping_pong = any();
      s.promote_ns = any();
      s.epoch_ns = any();
      s.downsampling = static_cast<uint32_t>(any());
      s.slow_total_pages = any();
      s.counter_max = static_cast<uint32_t>(any());
      s.unit_pages_log2 = random() % 2 == 0 ? 0 : 9;
      for (auto& bin : s.histogram) bin = random() % 4 == 0 ? static_cast<uint32_t>(any()) : 0;
      const neotier_plan x = a.decide(s), y = b.decide(s);
      ASSERT_EQ(x.threshold, y.threshold) << (*p)->name << " step " << i;
      ASSERT_EQ(x.promote_max, y.promote_max);
      ASSERT_GE(x.threshold, 1u);
      ASSERT_LE(x.threshold, s.counter_max == 0 ? 1u : s.counter_max);
    }
  }
}

}  // namespace

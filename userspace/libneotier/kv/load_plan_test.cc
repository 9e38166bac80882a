// SPDX-License-Identifier: Apache-2.0
#include "kv/load_plan.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace neotier::kv {
namespace {

constexpr uint64_t kNever = UINT64_MAX;

// Ten blocks, one of them 100 ns to load after a wait of 50, and so much to compute.
LoadPlan ten(uint64_t cost, uint32_t layers, const PlanOptions& options) {
  const std::vector<uint8_t> from(10, 0);
  const PlanTier tier{50, 100};
  std::vector<uint64_t> rest;
  for (uint64_t k = 0; k <= 10; k++) rest.push_back((10 - k) * cost + options.after_ns);
  return plan_load(from, {&tier, 1}, rest, layers, options);
}

TEST(LoadPlan, LoadsAllWhereComputingIsSlower) {
  const LoadPlan plan = ten(200, 1, {.after_ns = 7});
  EXPECT_EQ(plan.load, 10u);
  EXPECT_EQ(plan.ttft_ns, 50u + 1000 + 7);
  EXPECT_EQ(plan.load_all_ns, 1057u);
  EXPECT_EQ(plan.compute_all_ns, 2007u);
}

TEST(LoadPlan, LoadsNothingWhereComputingIsFaster) {
  const LoadPlan plan = ten(90, 1, {});
  EXPECT_EQ(plan.found, 10u);
  EXPECT_EQ(plan.load, 0u);
  EXPECT_EQ(plan.ttft_ns, 900u);
}

// The first block alone is worth it: it costs 500, each after it 10.
TEST(LoadPlan, LoadsAPart) {
  const std::vector<uint8_t> from(4, 0);
  const PlanTier tier{0, 100};
  const std::vector<uint64_t> rest{530, 30, 20, 10, 0};
  const LoadPlan plan = plan_load(from, {&tier, 1}, rest, 1, {});
  EXPECT_EQ(plan.load, 1u);
  EXPECT_EQ(plan.ttft_ns, 130u);
}

// While the processor is busy blocks come for nothing.
TEST(LoadPlan, WhatComesWhileTheProcessorIsBusyCostsNothing) {
  const LoadPlan plan = ten(90, 1, {.compute_queue_ns = 550});
  EXPECT_EQ(plan.load, 5u);
  EXPECT_EQ(plan.ttft_ns, 550u + 5 * 90);
}

// 10 layers; loading and computing side by side: 50 + 100 k against (10 - k) 90.
TEST(LoadPlan, WithOverlapBothAreDone) {
  const LoadPlan plan = ten(90, 10, {.overlap = true});
  EXPECT_EQ(plan.load, 4u);
  // 450 ns of loading, 540 of computing: the first layer comes after 45.
  EXPECT_EQ(plan.ttft_ns, 45u + 540);
  EXPECT_LT(plan.ttft_ns, std::min(plan.load_all_ns, plan.compute_all_ns));
}

TEST(LoadPlan, ASlowTierBehindAFastOneIsLeftOut) {
  const std::vector<uint8_t> from{0, 0, 0, 1, 1, 1};
  const PlanTier tiers[] = {{10, 10}, {1000, 500}};
  const std::vector<uint64_t> rest{600, 500, 400, 300, 200, 100, 0};
  const LoadPlan plan = plan_load(from, tiers, rest, 1, {});
  EXPECT_EQ(plan.load, 3u);
  EXPECT_EQ(plan.ttft_ns, 340u);
}

// Tiers are read side by side: the slow one's first block may come meanwhile.
TEST(LoadPlan, TiersAreReadSideBySide) {
  const std::vector<uint8_t> from{0, 0, 0, 1};
  const PlanTier tiers[] = {{0, 100}, {0, 290}};
  const std::vector<uint64_t> rest{4000, 3000, 2000, 1000, 0};
  EXPECT_EQ(plan_load(from, tiers, rest, 1, {}).ttft_ns, 300u);
}

TEST(LoadPlan, WhatCannotBeComputedIsLoaded) {
  const std::vector<uint8_t> from(3, 0);
  const PlanTier tier{0, 1000};
  const std::vector<uint64_t> rest{kNever, kNever, 20, 10};
  const LoadPlan plan = plan_load(from, {&tier, 1}, rest, 1, {});
  EXPECT_EQ(plan.load, 2u);
  EXPECT_EQ(plan.compute_all_ns, kNever);
}

// Nor where computing what is left has no end that can be told.
TEST(LoadPlan, WhatCannotBeComputedIsLoadedWhateverFollows) {
  const std::vector<uint8_t> from(3, 0);
  const PlanTier tier{0, 1000};
  const std::vector<uint64_t> rest{kNever, kNever, kNever, kNever - 1};
  const LoadPlan plan = plan_load(from, {&tier, 1}, rest, 1, {});
  EXPECT_EQ(plan.load, 3u);
  EXPECT_EQ(plan.load_all_ns, kNever);
}

TEST(LoadPlan, WithNothingThereAllIsComputed) {
  const std::vector<uint64_t> rest{700};
  const LoadPlan plan = plan_load({}, {}, rest, 4, {.overlap = true});
  EXPECT_EQ(plan.load, 0u);
  EXPECT_EQ(plan.ttft_ns, 700u);
  EXPECT_EQ(plan.load_all_ns, 700u);
}

TEST(LoadPlan, IsNeverWorseThanLoadingOrComputingAll) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; round++) {
    const size_t nr = random() % 40;
    std::vector<uint8_t> from(nr);
    for (uint8_t& tier : from) tier = static_cast<uint8_t>(random() % 3);
    std::vector<PlanTier> tiers(3);
    for (PlanTier& tier : tiers) tier = {static_cast<double>(random() % 1000), static_cast<double>(random() % 500)};
    std::vector<uint64_t> rest(nr + 1);
    rest[nr] = random() % 1000;
    for (size_t k = nr; k-- > 0;) rest[k] = rest[k + 1] + 1 + random() % 600;
    const PlanOptions options{.overlap = random() % 2 == 0, .compute_queue_ns = random() % 3000, .after_ns = 0};
    const LoadPlan plan = plan_load(from, tiers, rest, 1 + random() % 64, options);
    ASSERT_LE(plan.ttft_ns, plan.load_all_ns);
    ASSERT_LE(plan.ttft_ns, plan.compute_all_ns);
    ASSERT_LE(plan.load, plan.found);
  }
}

}  // namespace
}  // namespace neotier::kv

// SPDX-License-Identifier: Apache-2.0
// Shares by hand, oracles of recordings made by hand, plug-ins, names.
#include "score/score.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "replay/pages/oracle.h"
#include "replay/pages/recording_testing.h"
#include "replay/pages/synthetic.h"
#include "replay/synthetic.h"

namespace neotier::score {
namespace {

using pages::RecordingFile;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr uint64_t kCxl = RecordingFile::kCxlBase;

TEST(Share, ByHand) {
  EXPECT_DOUBLE_EQ(*share_of_speedup(1.1, 1.21), .5);
  EXPECT_DOUBLE_EQ(*share_of_speedup(1 / 1.21, 1.21), -1);
  EXPECT_FALSE(share_of_speedup(1.5, 1.009));
  EXPECT_DOUBLE_EQ(*share_of_rate(.2, .3, .4), .5);
  EXPECT_FALSE(share_of_rate(.2, .2, .209));
}

TEST(Share, MeansAreOfTheRowsThatHaveOne) {
  const std::vector<Mean> m = means({{"kv", "a", "", "x", .2, .3, .4, .4, .5},
                                     {"kv", "a", "", "y", .2, .1, .4, .4, -.5},
                                     {"kv", "b", "", "x", .2, .2, .2, .2, {}},
                                     {"kv", "c", "", "x", .2, .4, .4, .4, 1},
                                     {"pages", "d", "", "x", 1, 1, 1, 1, {}}});
  ASSERT_EQ(m.size(), 3u);
  EXPECT_EQ(m[0].policy, "x");
  EXPECT_DOUBLE_EQ(*m[0].share, .75);
  EXPECT_EQ(m[0].shares, 2u);
  EXPECT_EQ(m[0].rows, 3u);
  EXPECT_DOUBLE_EQ(m[0].worst, 1);
  EXPECT_DOUBLE_EQ(m[1].worst, .5);
  EXPECT_FALSE(m[2].share);
}

// A page of DRAM that is hardly used and one of CXL memory that is: what the oracle wins is their difference.
TEST(PageOracle, TwoPagesByHand) {
  RecordingFile file;
  constexpr uint64_t kFills = 40'000;
  file.line(0x1000);
  for (uint64_t i = 0; i < kFills; ++i) {
    file.line(kCxl + (i % 64) * 64);
    file.time(1000, 240'000);
  }
  const pages::Recording r = file.read();
  const hil::Oracle o = pages::solve_oracle(r, {});
  EXPECT_EQ(o.pages, 2u);
  EXPECT_EQ(o.capacity, 1u);
  // 62.5 ns a fill from CXL memory, 22.5 from DRAM: 40 ns each, less what the DRAM's page loses. The first line comes
  // without a queue, so all cost the same.
  const int64_t won = static_cast<int64_t>(kFills - 1) * 40'000;
  EXPECT_EQ(o.fixed.saved_ps, won);
  // One page up, one down: 64 lines of 85 ns and the kernel's instructions of 240 ps, each.
  const pages::Params p;
  const int64_t moves = static_cast<int64_t>(2 * 64 * 85'000 + (p.promote_instructions + p.demote_instructions) * 240);
  EXPECT_EQ(o.costed.saved_ps, won - moves);
  EXPECT_EQ(o.costed.at_most_ps, o.costed.saved_ps);
  EXPECT_EQ(o.costed.promoted, 1u);
  EXPECT_EQ(o.beyond_reach(), 0);
}

// What makes way for another page in its frame is not in DRAM with it.
TEST(PageOracle, AFrameThatIsUsedAgainCountsOnce) {
  RecordingFile file;
  for (int user = 0; user < 3; ++user) {
    file.clear(0x1000);
    for (uint64_t i = 0; i < 500; ++i) {
      file.line(0x1000 + (i % 64) * 64);
      file.time(1'000'000, 200'000'000);  // 100 ms in all
    }
  }
  const hil::Oracle o = pages::solve_oracle(file.read(), {});
  EXPECT_GE(o.pages, 2u);
  EXPECT_EQ(o.capacity, 1u);
  EXPECT_EQ(o.fixed.saved_ps, 0);
}

// One comes and goes within an epoch, one is the kernel's, one stays.
TEST(PageOracle, OnlyMovablePagesThatLastAreInIt) {
  RecordingFile file;
  for (int user = 0; user < 2; ++user) {
    file.clear(0x1000);
    file.line(0x1000);
    file.time(1000, 240'000);
  }
  file.line(0x2000, false, true);
  for (int i = 0; i < 500; ++i) file.time(1'000'000, 200'000'000);
  const hil::Oracle o = pages::solve_oracle(file.read(), {});
  EXPECT_EQ(o.pages, 1u);
  EXPECT_EQ(o.capacity, 1u);
}

TEST(Pages, NoLawBeatsWhatNoPlanCan) {
  Options options;
  options.laws = {"placebo", "payback", "fixed"};
  options.tracker = "exact";
  options.threads = 2;
  for (const char* kind : {"hot", "settled"}) {
    const pages::Recording r = pages::make_synthetic(kind, 2'000'000, 1);
    const std::vector<Row> rows = score(kind, r, options);
    ASSERT_EQ(rows.size(), 3u);
    for (const Row& row : rows) {
      EXPECT_LE(row.oracle, row.at_most);
      EXPECT_LE(row.figure, row.at_most * 1.001) << kind << ", " << row.policy;
      EXPECT_EQ(row.share.has_value(), row.oracle >= 1.01);
    }
    EXPECT_LE(rows[0].figure, 1) << "a placebo reads the device, and moves nothing";
    EXPECT_EQ(score(kind, r, options)[1].figure, rows[1].figure);
  }
}

TEST(Pages, HotPagesInCxlAreWorthMovingWhereTheyAreUsedForLong) {
  const hil::Oracle hot = pages::solve_oracle(pages::make_synthetic("hot", 6'000'000, 1), {});
  EXPECT_GT(hot.speedup(hot.costed.saved_ps), 1.1);
  const hil::Oracle settled = pages::solve_oracle(pages::make_synthetic("settled", 6'000'000, 1), {});
  EXPECT_LT(settled.speedup(settled.costed.saved_ps), 1.01);
}

TEST(Pages, ALawFromASharedLibrary) {
  Options options;
  options.laws = {NEOTIER_TEST_LAW, "neomem"};
  options.tracker = "exact";
  check(options);
  const std::vector<Row> rows = score("hot", pages::make_synthetic("hot", 2'000'000, 1), options);
  EXPECT_EQ(rows[0].policy, NEOTIER_TEST_LAW);
  EXPECT_NE(rows[0].figure, rows[1].figure);
}

TEST(Pages, WhatIsNoLawIsRefused) {
  const auto refused = [](const std::string& law) {
    return [law] {
      Options options;
      options.laws = {law};
      check(options);
    };
  };
  EXPECT_THAT(refused("best"), ThrowsMessage<std::runtime_error>(HasSubstr("expected payback, fixed, neomem")));
  EXPECT_THAT(refused("./none.so"), ThrowsMessage<std::runtime_error>(HasSubstr("cannot load law")));
  EXPECT_THAT(refused(NEOTIER_TEST_STALE_LAW),
              ThrowsMessage<std::runtime_error>(HasSubstr("another neotier_policy.h")));
  EXPECT_THAT(refused(NEOTIER_TEST_POLICY), ThrowsMessage<std::runtime_error>(HasSubstr("it exports no symbol")));
}

TEST(Kv, BaseAndBoundAreTheEndsOfTheScale) {
  Options options;
  options.kv = {"lru", "belady", NEOTIER_TEST_POLICY};
  const std::vector<Row> rows = score("chat", replay::make_synthetic({.kind = "chat", .requests = 500}), options);
  ASSERT_EQ(rows.size(), 6u);
  for (size_t room = 0; room < 2; ++room) {
    EXPECT_DOUBLE_EQ(*rows[3 * room].share, 0);
    EXPECT_DOUBLE_EQ(*rows[3 * room + 1].share, 1);
    EXPECT_LE(rows[3 * room + 2].figure, rows[3 * room + 2].oracle);
  }
  EXPECT_LT(rows[0].figure, rows[3].figure) << "more room, more hits";
}

TEST(Experts, BaseAndBoundAreTheEndsOfTheScale) {
  Options options;
  options.experts = {"lru", "belady", "learned"};
  const std::vector<Row> rows = score("routing", replay::synthetic_routing({.layers = 4}, 600, 1), options);
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[0].setting, "8 experts");
  EXPECT_DOUBLE_EQ(*rows[0].share, 0);
  EXPECT_DOUBLE_EQ(*rows[1].share, 1);
  EXPECT_GT(*rows[2].share, 0);
}

}  // namespace
}  // namespace neotier::score

// SPDX-License-Identifier: GPL-2.0-or-later
#include "hil/plugin/hot_page_source.h"

#include <gtest/gtest.h>

#include <set>

namespace neotier::hil {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kCxl = 1ull << 32;

struct Named {
  std::set<uint64_t> pages;  // numbers in the CXL tier
  HotPageSource::Report report() {
    return [this](uint64_t pa) { pages.insert((pa - kCxl) / kPage); };
  }
};

uint64_t ticks(HotPageSource& source, uint64_t n) {
  uint64_t work = 0;
  for (uint64_t i = 1; i <= n; ++i) work += source.tick(i * 100'000'000);
  return work;
}

TEST(HotPageSource, OnlyTheKnownNames) {
  Named named;
  EXPECT_EQ(make_hot_page_source("", default_params(), {kCxl, kPage, 1}, named.report()), nullptr);
  EXPECT_EQ(make_hot_page_source("oracle", default_params(), {kCxl, kPage, 1}, named.report()), nullptr);
}

TEST(Pebs, NamesTheMostMissedPagesThatFitIntoDram) {
  Named named;
  Params params = default_params();
  params.pebs_period = 1;
  // Room for four pages; four of the CXL tier are missed often, the others and DRAM's rarely.
  auto pebs = make_hot_page_source("pebs", params, {kCxl, 64 * kPage, 4}, named.report());
  for (int round = 0; round < 16; ++round) {
    for (uint64_t page = 0; page < 4; ++page) pebs->on_fill(kCxl + page * kPage + 64 * (round % 64));
  }
  for (uint64_t page = 4; page < 64; ++page) pebs->on_fill(kCxl + page * kPage);
  for (uint64_t page = 0; page < 4; ++page) pebs->on_fill(page * kPage);
  ticks(*pebs, 500);
  EXPECT_EQ(named.pages, (std::set<uint64_t>{0, 1, 2, 3}));
}

TEST(Pebs, SamplesOneMissInAPeriodAndChargesEach) {
  Named named;
  Params params = default_params();
  params.pebs_period = 10;
  params.pebs_sample_ns = 100;
  auto pebs = make_hot_page_source("pebs", params, {kCxl, 64 * kPage, 64}, named.report());
  for (int i = 0; i < 95; ++i) pebs->on_fill(kCxl);
  EXPECT_EQ(ticks(*pebs, 1), 9u * 100'000);
  EXPECT_EQ(ticks(*pebs, 1), 0u);
}

TEST(Pebs, SamplesLessWhenSamplingTakesMoreThanItsQuota) {
  Named named;
  Params params = default_params();
  params.pebs_period = 1;
  params.pebs_sample_ns = 1000;
  auto pebs = make_hot_page_source("pebs", params, {kCxl, 64 * kPage, 64}, named.report());
  uint64_t first = 0, last = 0, now = 0;
  for (int window = 0; window < 20; ++window) {
    uint64_t work = 0;
    for (int tick = 0; tick < 500; ++tick) {
      for (int i = 0; i < 100; ++i) pebs->on_fill(kCxl);
      work += pebs->tick(now += 100'000'000);
    }
    (window == 0 ? first : last) = work;
  }
  EXPECT_EQ(first, 500ull * 100 * 1'000'000);
  EXPECT_LT(last, 500ull * 100'000'000 * 4 / 100);
}

TEST(PteScan, NamesPagesAccessedSinceTheLastScan) {
  Named named;
  Params params = default_params();
  params.ptescan_ms = 100;
  params.ptescan_page_ns = 20;
  auto scan = make_hot_page_source("ptescan", params, {kCxl, 64 * kPage, 4}, named.report());
  scan->on_access(kCxl + 5 * kPage);
  scan->on_access(kCxl + 7 * kPage + 100);
  scan->on_access(3 * kPage);  // DRAM: scanned, not named
  EXPECT_EQ(ticks(*scan, 999), 0u);
  EXPECT_TRUE(named.pages.empty());
  EXPECT_EQ(scan->tick(0), 3u * 20'000);
  EXPECT_EQ(named.pages, (std::set<uint64_t>{5, 7}));
  named.pages.clear();
  scan->on_access(kCxl + 7 * kPage);
  ticks(*scan, 1000);
  EXPECT_EQ(named.pages, (std::set<uint64_t>{7}));
}

TEST(PteScan, ItsQuotaGoesToThePagesSeenMostOften) {
  Named named;
  Params params = default_params();
  params.ptescan_ms = 1;  // 65 pages a scan
  auto scan = make_hot_page_source("ptescan", params, {kCxl, 4096 * kPage, 4}, named.report());
  for (int round = 0; round < 4; ++round) {
    for (uint64_t page = 1000; page < 1065; ++page) scan->on_access(kCxl + page * kPage);
    if (round == 3) {
      for (uint64_t page = 0; page < 1000; ++page) scan->on_access(kCxl + page * kPage);
      named.pages.clear();
    }
    ticks(*scan, 10);
  }
  EXPECT_EQ(named.pages.size(), 65u);
  EXPECT_EQ(*named.pages.begin(), 1000u);
}

}  // namespace
}  // namespace neotier::hil

// SPDX-License-Identifier: Apache-2.0
// Confirmation: how many epochs have to report a page, what a gap does, who gives way.
#include "promotion/confirm.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace {

constexpr uint64_t kEpochNs = 50'000'000;
constexpr uint32_t kSetsLog2 = 14;

struct Table {
  bool report(uint32_t page, double epochs, uint32_t wanted = 2) {
    return neotier_confirmed(&table, page, static_cast<uint64_t>(epochs * kEpochNs), kEpochNs, wanted, read_ppm);
  }
  std::vector<neotier_seen> entries = std::vector<neotier_seen>(NEOTIER_SEEN_WAYS << kSetsLog2);
  neotier_seen_table table = {entries.data(), kSetsLog2};
  uint64_t read_ppm = 1'000'000;
};

TEST(Confirm, OneEpochIsEnoughWhereOneIsWanted) {
  Table table;
  EXPECT_TRUE(table.report(7, 1, 1));
  EXPECT_TRUE(table.report(7, 1, 1));
}

TEST(Confirm, ASecondReportCountsInAnotherEpochOnly) {
  Table table;
  EXPECT_FALSE(table.report(7, 1));
  EXPECT_FALSE(table.report(7, 1));
  EXPECT_TRUE(table.report(7, 2));
}

// Used once, while the device's epoch ends: two reports, wherever in the driver's own time that is.
TEST(Confirm, AUseThatSpansTheEndOfAnEpochIsOneUse) {
  for (double phase = 0; phase < 2; phase += 1. / 64) {
    Table table;
    EXPECT_FALSE(table.report(7, phase));
    EXPECT_FALSE(table.report(7, phase + .62)) << phase;
    EXPECT_TRUE(table.report(7, phase + 1)) << phase << ": and used again";
  }
}

// What is reported once in each epoch counts in each, also where it comes later in one and earlier in the next.
TEST(Confirm, WhateverTheClocksAreApartEachEpochCounts) {
  for (double phase = 0; phase < 2; phase += 1. / 64) {
    Table table;
    EXPECT_FALSE(table.report(7, phase, 3));
    EXPECT_FALSE(table.report(7, phase + .88, 3)) << phase;
    EXPECT_TRUE(table.report(7, phase + 1.76, 3)) << phase;
  }
}

// Where one report in four is read, a page that is hot in each epoch is seen in one of four.
TEST(Confirm, WhereFewReportsAreReadAPageIsWaitedForAsMuchLonger) {
  Table table;
  table.read_ppm = 250'000;
  EXPECT_FALSE(table.report(7, 1));
  EXPECT_TRUE(table.report(7, 11)) << "ten epochs, four times two and a half";
  EXPECT_FALSE(table.report(8, 1));
  EXPECT_FALSE(table.report(8, 11.2));
  table.read_ppm = 0;
  EXPECT_FALSE(table.report(9, 1));
  EXPECT_TRUE(table.report(9, 21)) << "eight times at most";
  EXPECT_FALSE(table.report(10, 1));
  EXPECT_FALSE(table.report(10, 21.2));
  table.read_ppm = 2'000'000;
  EXPECT_FALSE(table.report(11, 1));
  EXPECT_TRUE(table.report(11, 3.5)) << "never for less than two and a half";
}

TEST(Confirm, ConfirmedIsForgotten) {
  Table table;
  table.report(7, 1);
  EXPECT_TRUE(table.report(7, 2));
  EXPECT_FALSE(table.report(7, 3));
  EXPECT_TRUE(table.report(7, 4));
}

TEST(Confirm, OneEpochMayBeMissedTwoNot) {
  Table table;
  table.report(7, 1);
  EXPECT_TRUE(table.report(7, 3));
  table.report(8, 1);
  EXPECT_FALSE(table.report(8, 4));
  EXPECT_TRUE(table.report(8, 5));
}

TEST(Confirm, AsManyEpochsAsWanted) {
  Table table;
  for (int epoch = 1; epoch < 5; ++epoch) EXPECT_FALSE(table.report(7, epoch, 5));
  EXPECT_TRUE(table.report(7, 5, 5));
}

// Pages that share a set, by the hash that the table is documented to use: the product's upper bits.
std::vector<uint32_t> pages_of_one_set(size_t count) {
  std::vector<uint32_t> pages;
  for (uint32_t page = 0; pages.size() < count; ++page) {
    if (page * 0x61C88647U >> (32 - kSetsLog2) == 0) pages.push_back(page);
  }
  return pages;
}

TEST(Confirm, TheOneUnseenForLongestGivesWay) {
  const std::vector<uint32_t> pages = pages_of_one_set(NEOTIER_SEEN_WAYS + 1);
  Table table;
  for (size_t i = 0; i < NEOTIER_SEEN_WAYS; ++i) table.report(pages[i], 10 + static_cast<double>(i), 8);
  table.report(pages[0], 14, 8);
  table.report(pages[4], 14);
  EXPECT_TRUE(table.report(pages[2], 14)) << "in place";
  EXPECT_FALSE(table.report(pages[1], 14)) << "pages[1] was unseen for longest and is gone";
}

TEST(Confirm, TimeWraps) {
  Table table;
  const double wraps = double{1 << 28} / NEOTIER_SEEN_PARTS;
  table.report(7, wraps - .5);
  EXPECT_TRUE(table.report(7, wraps + .5));
}

TEST(Confirm, HalfAnEntryForEachPageWithinBounds) {
  EXPECT_EQ(neotier_seen_sets_log2(0), 10u);
  EXPECT_EQ(neotier_seen_sets_log2(8192), 10u);
  EXPECT_EQ(neotier_seen_sets_log2(32768), 12u);
  EXPECT_EQ(neotier_seen_sets_log2(uint64_t{1} << 40), 14u);
}

}  // namespace

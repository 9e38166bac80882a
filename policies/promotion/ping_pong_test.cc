// SPDX-License-Identifier: Apache-2.0
// Ping-pong: a promotion that was noted is recognised once, by what the page is.
#include "promotion/ping_pong.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace {

constexpr uint64_t kMs = 1'000'000;

struct Table {
  explicit Table(uint32_t sets_log2) : entries(size_t{NEOTIER_PING_PONG_WAYS} << sets_log2) {
    table.entries = entries.data();
    table.sets_log2 = sets_log2;
  }
  std::vector<neotier_ping_pong_entry> entries;
  neotier_ping_pong table{};
};

TEST(PingPong, AnEntryForEachPageWithinBounds) {
  EXPECT_EQ(neotier_ping_pong_sets_log2(0), 10u);
  EXPECT_EQ(neotier_ping_pong_sets_log2(4 * 4096), 10u);
  EXPECT_EQ(neotier_ping_pong_sets_log2(4 * 4097), 11u);
  EXPECT_EQ(neotier_ping_pong_sets_log2(4 * 65536), 14u);
  EXPECT_EQ(neotier_ping_pong_sets_log2(uint64_t{1} << 40), 18u);
}

TEST(PingPong, EachReturnCountsOnce) {
  Table t(10);
  const uint64_t page = neotier_page_identity(0xffff888000000001, 7);
  EXPECT_FALSE(neotier_ping_pong_check(&t.table, page));
  neotier_ping_pong_note(&t.table, page, kMs);
  EXPECT_TRUE(neotier_ping_pong_check(&t.table, page));
  EXPECT_FALSE(neotier_ping_pong_check(&t.table, page));
}

TEST(PingPong, HowLongAgoItWasNoted) {
  Table t(10);
  const uint64_t page = neotier_page_identity(1, 7);
  EXPECT_EQ(neotier_ping_pong_age(&t.table, page, 5 * kMs), NEOTIER_NEVER);
  neotier_ping_pong_note(&t.table, page, uint64_t{3} << 20);
  EXPECT_EQ(neotier_ping_pong_age(&t.table, page, uint64_t{10} << 20), uint64_t{7} << 20);
  EXPECT_EQ(neotier_ping_pong_age(&t.table, page, uint64_t{11} << 20), uint64_t{8} << 20) << "still there";
  // The clock of entries wraps.
  neotier_ping_pong_note(&t.table, page, (uint64_t{1} << 52) - 1);
  EXPECT_EQ(neotier_ping_pong_age(&t.table, page, (uint64_t{1} << 52) + (uint64_t{1} << 20)), uint64_t{2} << 20);
}

TEST(PingPong, NotedTwiceIsOneEntry) {
  Table t(10);
  const uint64_t page = neotier_page_identity(1, 7);
  neotier_ping_pong_note(&t.table, page, kMs);
  neotier_ping_pong_note(&t.table, page, 2 * kMs);
  EXPECT_TRUE(neotier_ping_pong_check(&t.table, page));
  EXPECT_FALSE(neotier_ping_pong_check(&t.table, page));
}

TEST(PingPong, ThePageIsItsMappingAndItsIndex) {
  EXPECT_NE(neotier_page_identity(1, 7), neotier_page_identity(1, 8));
  EXPECT_NE(neotier_page_identity(1, 7), neotier_page_identity(2, 7));
}

TEST(PingPong, TheOldestWayGivesWay) {
  Table t(1);
  // Same set (top bit), different signatures.
  const auto identity = [](uint64_t i) { return uint64_t{1} << 63 | (i + 1); };
  for (uint64_t i = 0; i < NEOTIER_PING_PONG_WAYS; ++i) {
    neotier_ping_pong_note(&t.table, identity(i), (10 - i) * 4 * kMs);
  }
  neotier_ping_pong_note(&t.table, identity(9), 100 * kMs);
  EXPECT_FALSE(neotier_ping_pong_check(&t.table, identity(3)));
  for (uint64_t i = 0; i < 3; ++i) EXPECT_TRUE(neotier_ping_pong_check(&t.table, identity(i))) << i;
  EXPECT_TRUE(neotier_ping_pong_check(&t.table, identity(9)));
}

TEST(PingPong, AnIdentityOfZeroIsOneAsWell) {
  Table t(1);
  EXPECT_FALSE(neotier_ping_pong_check(&t.table, 0));
  neotier_ping_pong_note(&t.table, 0, kMs);
  EXPECT_TRUE(neotier_ping_pong_check(&t.table, 0));
}

}  // namespace

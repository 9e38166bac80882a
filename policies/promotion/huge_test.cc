// SPDX-License-Identifier: Apache-2.0
// Hot pages gathered by huge folio: when a folio is worth its move, what is forgotten, which of those that wait is
// next.
#include "promotion/huge.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint32_t kThreshold = 10;

using Skipped = std::vector<std::pair<uint32_t, neotier_skip>>;

struct Folios {
  Folios() {
    huge.gathered = gathered.data();
    huge.ops = &kOps;
    huge.owner = this;
  }
  // Pages [first, first + n) of a folio, each with `count` requests.
  void report(uint32_t folio, uint32_t first, uint32_t n, uint64_t now, uint32_t count = kThreshold) {
    for (uint32_t page = first; page < first + n; ++page)
      neotier_huge_report(&huge, folio * NEOTIER_HUGE_PAGES + page, count, now, kThreshold);
  }
  // One page, as hot as makes its folio wait with this count.
  void wait(uint32_t folio, uint64_t now, uint32_t count = kThreshold) {
    report(folio, 0, 1, now, NEOTIER_HUGE_COST * count);
  }
  std::optional<neotier_hot> take(uint64_t now) {
    neotier_hot hot{};
    if (!neotier_huge_take(&huge, &hot, now)) return std::nullopt;
    return hot;
  }
  std::optional<uint32_t> folio(uint64_t now) {
    const auto hot = take(now);
    if (!hot) return std::nullopt;
    EXPECT_EQ(hot->page % NEOTIER_HUGE_PAGES, 0u);
    return hot->page / NEOTIER_HUGE_PAGES;
  }

  static neotier_skip look(void* owner, uint32_t page, bool owners) {
    const auto& refused = static_cast<Folios*>(owner)->refused;
    const auto found = refused.find({page / NEOTIER_HUGE_PAGES, owners});
    return found == refused.end() ? NR_NEOTIER_SKIP : found->second;
  }
  static void skip(void* owner, uint32_t page, neotier_skip reason) {
    static_cast<Folios*>(owner)->skipped.emplace_back(page / NEOTIER_HUGE_PAGES, reason);
  }
  static constexpr neotier_huge_ops kOps = {look, skip, nullptr, nullptr};

  std::vector<neotier_gathered> gathered = std::vector<neotier_gathered>(NEOTIER_GATHERED_ENTRIES);
  neotier_huge huge{};
  std::map<std::pair<uint32_t, bool>, neotier_skip> refused;
  Skipped skipped;
};

TEST(Huge, AsManyPagesAtTheThresholdAsTheMoveCosts) {
  Folios folios;
  folios.report(3, 100, NEOTIER_HUGE_COST - 1, kMs);
  EXPECT_EQ(folios.huge.nr, 0u);
  folios.report(3, 0, 1, kMs);
  EXPECT_EQ(folios.huge.nr, 1u);
  EXPECT_EQ(folios.folio(kMs), 3u);
  EXPECT_EQ(folios.folio(kMs), std::nullopt);
  EXPECT_TRUE(folios.skipped.empty());
}

TEST(Huge, FewerPagesThatAreHotter) {
  Folios folios;
  folios.report(0, 0, 40, kMs, 50);  // 2,000 requests, of 2,050
  EXPECT_EQ(folios.huge.nr, 0u);
  folios.report(0, 511, 1, kMs, 50);
  EXPECT_EQ(folios.huge.nr, 1u);
  EXPECT_EQ(folios.take(kMs)->count, kThreshold);
}

TEST(Huge, OnePageCountsOnceHoweverOftenItIsReported) {
  Folios folios;
  for (int i = 0; i < 10 * static_cast<int>(NEOTIER_HUGE_COST); ++i) folios.report(0, 7, 1, kMs);
  EXPECT_EQ(folios.huge.nr, 0u);
}

TEST(Huge, APageHotterThanAWholeFolioMoves512) {
  Folios folios;
  folios.report(0, 7, 1, kMs, kThreshold * NEOTIER_HUGE_COST);
  EXPECT_EQ(folios.huge.nr, 1u);
}

TEST(Huge, PagesOfNeighboursAreNotGatheredTogether) {
  Folios folios;
  folios.report(4, 400, 112, kMs);
  folios.report(5, 0, 112, kMs);
  EXPECT_EQ(folios.huge.nr, 0u);
}

TEST(Huge, WhatWasHotASecondAgoIsForgotten) {
  Folios folios;
  folios.report(0, 0, 200, kMs);
  folios.report(0, 200, 5, kMs + NEOTIER_EXPIRE_NS + 1);
  EXPECT_EQ(folios.huge.nr, 0u);
  folios.report(0, 0, 199, kMs + NEOTIER_EXPIRE_NS + 2);  // the first pages count again
  EXPECT_EQ(folios.huge.nr, 0u);
  folios.report(0, 300, 1, kMs + NEOTIER_EXPIRE_NS + 2);
  EXPECT_EQ(folios.huge.nr, 1u);
}

TEST(Huge, GatheredAnewOnceItWaits) {
  Folios folios;
  folios.wait(2, kMs);
  folios.report(2, 0, NEOTIER_HUGE_COST - 1, 2 * kMs);
  EXPECT_TRUE(folios.skipped.empty());
  folios.report(2, 300, 1, 2 * kMs);
  EXPECT_EQ(folios.skipped, (Skipped{{2, NEOTIER_SKIP_DUPLICATE}}));
  EXPECT_EQ(folios.folio(2 * kMs), 2u);
  EXPECT_EQ(folios.folio(2 * kMs), std::nullopt);
}

// Far more folios than are remembered: those begun first give way, and no pages of one count for another.
TEST(Huge, MoreFoliosThanAreRemembered) {
  Folios folios;
  const uint32_t many = 8 * NEOTIER_GATHERED_ENTRIES;
  for (uint32_t folio = 0; folio < many; ++folio) folios.report(folio, 0, NEOTIER_HUGE_COST - 1, kMs + folio);
  EXPECT_EQ(folios.huge.nr, 0u);
  folios.report(0, 300, 1, 2 * kMs);
  EXPECT_EQ(folios.huge.nr, 0u);
  folios.report(many - 1, 300, 1, 2 * kMs);
  EXPECT_EQ(folios.folio(2 * kMs), many - 1);
}

TEST(Huge, TheHottestFirst) {
  Folios folios;
  folios.wait(1, kMs, 20);
  folios.wait(2, kMs, 10);
  folios.wait(3, kMs, 40);
  EXPECT_EQ(folios.folio(kMs), 3u);
  EXPECT_EQ(folios.huge.nr, 2u);
}

TEST(Huge, WithNoPlaceLeftTheColdestGivesWay) {
  Folios folios;
  for (uint32_t folio = 0; folio < NEOTIER_HUGE_MAX; ++folio) folios.wait(folio, kMs, 20 + folio);
  EXPECT_TRUE(folios.skipped.empty());
  folios.wait(100, kMs, 12);
  EXPECT_EQ(folios.skipped, (Skipped{{100, NEOTIER_SKIP_OVERFLOW}}));
  folios.wait(101, kMs, 90);
  EXPECT_EQ(folios.skipped.back(), (std::pair{0u, NEOTIER_SKIP_OVERFLOW}));
  EXPECT_EQ(folios.huge.nr, NEOTIER_HUGE_MAX);
  EXPECT_EQ(folios.folio(kMs), 101u);
}

TEST(Huge, WhatWaitsTooLongIsDropped) {
  Folios folios;
  folios.wait(1, kMs);
  folios.wait(2, 5 * kMs);
  EXPECT_EQ(folios.folio(2 * kMs + NEOTIER_EXPIRE_NS), 2u);
  EXPECT_EQ(folios.skipped, (Skipped{{1, NEOTIER_SKIP_EXPIRED}}));
}

TEST(Huge, LookedAtWhenItComesAndWhenItIsItsTurn) {
  Folios folios;
  folios.refused[{1, true}] = NEOTIER_SKIP_MEMPOLICY;
  folios.wait(1, kMs);
  EXPECT_EQ(folios.huge.nr, 0u);
  folios.wait(2, kMs, 40);
  folios.wait(3, kMs);
  folios.refused[{2, false}] = NEOTIER_SKIP_NOT_LRU;
  EXPECT_EQ(folios.folio(kMs), 3u);
  EXPECT_EQ(folios.skipped, (Skipped{{1, NEOTIER_SKIP_MEMPOLICY}, {2, NEOTIER_SKIP_NOT_LRU}}));
}

TEST(Huge, ThoseThatWaitAreCountedOnce) {
  Folios folios;
  folios.wait(1, kMs);
  neotier_huge_wait(&folios.huge, NEOTIER_SKIP_QUOTA);
  auto hot = folios.take(kMs);
  ASSERT_TRUE(hot);
  neotier_huge_untake(&folios.huge, &*hot);
  folios.wait(2, kMs);
  neotier_huge_wait(&folios.huge, NEOTIER_SKIP_NO_ROOM);
  EXPECT_EQ(folios.skipped, (Skipped{{1, NEOTIER_SKIP_QUOTA}, {2, NEOTIER_SKIP_NO_ROOM}}));
  neotier_huge_clear(&folios.huge);
  EXPECT_EQ(folios.folio(kMs), std::nullopt);
}

}  // namespace

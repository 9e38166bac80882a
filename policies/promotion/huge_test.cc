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
constexpr uint32_t kThreshold = 10, kSetsLog2 = 10, kGathered = NEOTIER_GATHERED_WAYS << kSetsLog2;

using Skipped = std::vector<std::pair<uint32_t, neotier_skip>>;

struct Folios {
  Folios() {
    huge.gathered = gathered.data();
    huge.sets_log2 = kSetsLog2;
    huge.whole = true;
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
  static neotier_skip split(void* owner, uint32_t page) {
    auto& folios = *static_cast<Folios*>(owner);
    EXPECT_EQ(page % NEOTIER_HUGE_PAGES, 0u);
    folios.split_up.push_back(page / NEOTIER_HUGE_PAGES);
    return folios.not_split;
  }
  static constexpr neotier_huge_ops kOps = {look, skip, nullptr, nullptr, split};

  std::vector<neotier_gathered> gathered = std::vector<neotier_gathered>(kGathered);
  neotier_huge huge{};
  std::map<std::pair<uint32_t, bool>, neotier_skip> refused;
  Skipped skipped;
  std::vector<uint32_t> split_up;
  neotier_skip not_split = NR_NEOTIER_SKIP;
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
  const uint32_t many = 8 * kGathered;
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

// Ten pages at 4.5 times the threshold: ten of their own moves, and 35 for the split.
TEST(Huge, FewHotPagesThatRepayTheSplitAndTheirMovesSplitIt) {
  Folios folios;
  folios.huge.whole = false;
  folios.huge.pieces = true;
  folios.report(3, 500, 9, kMs, 45);
  EXPECT_TRUE(folios.split_up.empty());
  folios.report(3, 0, 1, kMs, 44);
  EXPECT_TRUE(folios.split_up.empty());
  folios.report(3, 1, 1, kMs, 10);
  EXPECT_TRUE(folios.split_up.empty());  // 459 of 460
  folios.report(3, 2, 1, kMs, 11);
  EXPECT_EQ(folios.split_up, (std::vector<uint32_t>{3}));
  EXPECT_EQ(folios.huge.nr, 0u);
  EXPECT_TRUE(folios.skipped.empty());
}

// Each pays for its own move, and nothing is left for the split.
TEST(Huge, PagesAtTheThresholdSplitNoFolioHoweverMany) {
  Folios folios;
  folios.huge.whole = false;
  folios.huge.pieces = true;
  folios.report(0, 0, NEOTIER_HUGE_PAGES, kMs);
  EXPECT_TRUE(folios.split_up.empty());
}

TEST(Huge, WherePagesDoNotMoveAloneNoFolioIsSplit) {
  Folios folios;
  folios.huge.whole = false;
  folios.report(0, 0, NEOTIER_HUGE_PAGES, kMs, 1000);
  folios.huge.whole = true;
  folios.report(1, 0, 40, kMs, 30);
  folios.report(1, 0, 1, kMs + NEOTIER_SPLIT_WAIT_NS, 30);
  EXPECT_TRUE(folios.split_up.empty());
}

TEST(Huge, ASplitFolioIsGatheredAnew) {
  Folios folios;
  folios.huge.whole = false;
  folios.huge.pieces = true;
  folios.not_split = NEOTIER_SKIP_BUSY;
  folios.report(1, 0, 1, kMs, 36 * kThreshold);
  EXPECT_EQ(folios.skipped, (Skipped{{1, NEOTIER_SKIP_BUSY}}));
  folios.report(1, 1, 1, 2 * kMs, kThreshold);
  EXPECT_EQ(folios.split_up.size(), 1u);
  folios.report(1, 0, 1, 2 * kMs, 36 * kThreshold);
  EXPECT_EQ(folios.split_up.size(), 2u);
}

TEST(Huge, WhereFoliosMoveWholeMorePagesAreWaitedForBeforeOneIsSplit) {
  Folios folios;
  folios.huge.pieces = true;
  folios.report(1, 0, 40, kMs, 30);
  EXPECT_TRUE(folios.split_up.empty());
  folios.report(1, 0, 1, kMs + NEOTIER_SPLIT_WAIT_NS - 1, 30);
  EXPECT_TRUE(folios.split_up.empty());
  folios.report(2, 0, 40, kMs, 30);
  folios.report(2, 40, 40, 2 * kMs, 30);  // 2,400 requests: worth its whole move
  EXPECT_EQ(folios.folio(2 * kMs), 2u);
  folios.report(1, 0, 1, kMs + NEOTIER_SPLIT_WAIT_NS, 30);
  EXPECT_EQ(folios.split_up, (std::vector<uint32_t>{1}));
}

// Whoever must not move whole for where it lies can move in pieces. What its owner says holds for pieces as well.
TEST(Huge, OneThatCannotMoveWholeIsSplit) {
  Folios folios;
  folios.huge.pieces = true;
  folios.refused[{1, true}] = NEOTIER_SKIP_ZONE;
  folios.refused[{2, true}] = NEOTIER_SKIP_MEMPOLICY;
  folios.wait(1, kMs);
  folios.wait(2, kMs);
  EXPECT_EQ(folios.split_up, (std::vector<uint32_t>{1}));
  EXPECT_EQ(folios.skipped, (Skipped{{2, NEOTIER_SKIP_MEMPOLICY}}));
}

TEST(Huge, ASmallRegionRemembersItsFoliosAlone) {
  EXPECT_EQ(neotier_gathered_sets_log2(0), 1u);
  EXPECT_EQ(neotier_gathered_sets_log2(128 * NEOTIER_HUGE_PAGES), 6u);  // two places for each folio
  EXPECT_EQ(neotier_gathered_sets_log2(129 * NEOTIER_HUGE_PAGES), 7u);
  EXPECT_EQ(neotier_gathered_sets_log2(uint64_t{1} << 40), NEOTIER_GATHERED_SETS_LOG2_MAX);
}

}  // namespace

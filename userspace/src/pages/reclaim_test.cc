// SPDX-License-Identifier: Apache-2.0
// The model of kswapd: order, second chances and aging of pages, and the rounds in which they are looked at.
#include "pages/reclaim.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "pages/rounds.h"

namespace neotier::pages {
namespace {

struct Evictor {
  explicit Evictor(uint32_t pages) : reclaim(pages) {
    for (uint32_t page = 0; page < pages; ++page) reclaim.add(page);
  }
  // The next page to leave, after as many rounds of aging as it takes.
  uint32_t next() {
    while (reclaim.size() != 0) {
      if (reclaim.low_on_cold()) {
        reclaim.age();
        ++aged;
        continue;
      }
      ++looked;
      const uint32_t page = reclaim.look();
      if (page != kNoPage) return page;
    }
    return kNoPage;
  }
  Reclaim reclaim;
  uint64_t looked = 0, aged = 0;
};

TEST(Reclaim, PagesLeaveInTheOrderInWhichTheyCame) {
  Evictor e(3);
  EXPECT_EQ(e.next(), 0u);
  EXPECT_EQ(e.next(), 1u);
  EXPECT_EQ(e.next(), 2u);
  EXPECT_EQ(e.next(), kNoPage);
  EXPECT_EQ(e.reclaim.size(), 0u);
}

TEST(Reclaim, WhatWasAccessedOutlivesWhatWasNot) {
  Evictor e(4);
  e.reclaim.accessed(0);
  e.reclaim.accessed(2);
  EXPECT_EQ(e.next(), 1u);
  EXPECT_EQ(e.next(), 3u);
  EXPECT_EQ(e.next(), 0u);
  EXPECT_EQ(e.next(), 2u);
}

TEST(Reclaim, ASecondChanceIsOne) {
  Evictor e(2);
  e.reclaim.accessed(0);
  e.reclaim.accessed(1);
  EXPECT_EQ(e.next(), 0u) << "all were accessed: the first to come leaves";
  EXPECT_EQ(e.next(), 1u);
}

TEST(Reclaim, ANewPageIsYoungerThanAnOldOne) {
  Evictor e(3);
  e.reclaim.remove(0);
  EXPECT_FALSE(e.reclaim.has(0));
  EXPECT_EQ(e.next(), 1u);
  e.reclaim.add(0);
  EXPECT_EQ(e.next(), 2u);
  EXPECT_EQ(e.next(), 0u);
}

TEST(Reclaim, WhatIsUsedAfterAgingStays) {
  Evictor e(2);
  e.reclaim.accessed(0);
  e.reclaim.accessed(1);
  while (e.reclaim.exhausted()) e.reclaim.age();
  e.reclaim.accessed(0);
  EXPECT_EQ(e.next(), 1u);
}

// At three generations: more than half are young, or less than a quarter is old.
TEST(Reclaim, AgesWhenLittleIsCold) {
  Evictor half(8), most(8);
  for (Evictor* e : {&half, &most}) e->reclaim.age();
  for (uint32_t page = 0; page < 4; ++page) half.reclaim.accessed(page);
  for (uint32_t page = 0; page < 5; ++page) most.reclaim.accessed(page);
  for (Evictor* e : {&half, &most}) e->reclaim.age();
  EXPECT_FALSE(half.reclaim.low_on_cold());
  EXPECT_TRUE(most.reclaim.low_on_cold());
  EXPECT_EQ(half.next(), 4u);
  EXPECT_EQ(half.aged, 0u);
  EXPECT_EQ(half.next(), 5u);
  EXPECT_EQ(half.aged, 1u) << "4 of 7 are young";
}

TEST(Reclaim, AgesWhenLessThanAQuarterIsOld) {
  Reclaim reclaim(8);
  for (uint32_t page = 0; page < 2; ++page) reclaim.add(page);
  reclaim.age();
  for (uint32_t page = 2; page < 8; ++page) reclaim.add(page);
  reclaim.age();
  EXPECT_FALSE(reclaim.low_on_cold()) << "2 of 8";
  EXPECT_EQ(reclaim.look(), 0u);
  EXPECT_TRUE(reclaim.low_on_cold()) << "1 of 7";
}

// A round as it is, with every other page demoted: how many pages it looks at.
uint64_t round_of(Rounds& rounds, uint64_t pages, uint64_t wanted) {
  if (!rounds.go_on(pages, wanted)) return 0;
  const uint64_t nr = rounds.left();
  for (uint64_t i = 0; i < nr; ++i) {
    rounds.look();
    if (i % 2 == 0) rounds.demote();
  }
  return nr;
}

// 20,000 pages have 15 bits, 478 less one have 9.
TEST(Rounds, TheFirstIsByWhatIsWanted) {
  Rounds few, many, most;
  EXPECT_EQ(round_of(few, 1 << 20, 64), (1u << 20) >> 12);
  EXPECT_EQ(round_of(many, 20'000, 478), 20'000u >> 6);
  EXPECT_EQ(round_of(most, 1 << 20, 1 << 13), (1u << 20) >> 7);
}

TEST(Rounds, TheNextLooksAtTwiceAsMuchWhereOneBroughtTooLittle) {
  Rounds rounds;
  EXPECT_EQ(round_of(rounds, 20'000, 478), 312u);
  EXPECT_EQ(round_of(rounds, 20'000, 478), 625u) << "312 are fewer than 478";
  EXPECT_EQ(round_of(rounds, 20'000, 478), 625u) << "625 are not";
  ASSERT_TRUE(rounds.go_on(20'000, 478));
  while (rounds.left() != 0) rounds.look();
  ASSERT_TRUE(rounds.go_on(20'000, 478));
  EXPECT_EQ(rounds.left(), 1250u) << "none was demoted";
}

TEST(Rounds, ItGivesUpAndBeginsAnew) {
  Rounds rounds;
  uint64_t nr = 0;
  while (rounds.go_on(20'000, 478)) {
    ++nr;
    rounds.end_round();
  }
  EXPECT_EQ(nr, 6u) << "priorities 6 to 1";
  EXPECT_EQ(round_of(rounds, 20'000, 478), 312u);
  rounds.sleep();
  EXPECT_EQ(round_of(rounds, 20'000, 478), 312u);
}

}  // namespace
}  // namespace neotier::pages

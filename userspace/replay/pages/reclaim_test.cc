// SPDX-License-Identifier: Apache-2.0
// The model of kswapd: order, second chances and aging of pages, and the rounds in which they are looked at.
#include "replay/pages/reclaim.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "replay/pages/rounds.h"

namespace neotier::pages {
namespace {

struct Evictor {
  explicit Evictor(uint32_t pages) : reclaim(pages) {
    for (uint32_t page = 0; page < pages; ++page) {
      reclaim.map(page);
      reclaim.add(page);
    }
  }
  // Until there are old pages.
  void settle() {
    while (reclaim.exhausted()) reclaim.age();
  }
  // The next page to leave, after as many rounds of aging as it takes.
  uint32_t next() {
    while (reclaim.size() != 0) {
      if (reclaim.low_on_cold()) {
        reclaim.age();
        ++aged;
        continue;
      }
      const uint32_t page = reclaim.take();
      sorted += page == kNoPage;
      if (page != kNoPage && reclaim.judge(page).fate == Reclaim::Fate::kLeaves) return page;
    }
    return kNoPage;
  }
  Reclaim reclaim;
  uint64_t sorted = 0, aged = 0;
};

TEST(Reclaim, PagesLeaveInTheOrderInWhichTheyCame) {
  Evictor e(3);
  EXPECT_EQ(e.next(), 0u);
  EXPECT_EQ(e.next(), 1u);
  EXPECT_EQ(e.next(), 2u);
  EXPECT_EQ(e.next(), kNoPage);
  EXPECT_EQ(e.reclaim.size(), 0u);
}

// A page comes with its Accessed bit set, and without it once it has been aged.
TEST(Reclaim, ANewPageHasASecondChance) {
  Evictor e(2);
  e.settle();
  EXPECT_EQ(e.next(), 0u);
  e.reclaim.add(0);
  EXPECT_EQ(e.next(), 1u);
  e.reclaim.add(1);
  while (e.reclaim.exhausted()) e.reclaim.age();
  EXPECT_EQ(e.reclaim.judge(e.reclaim.take()).fate, Reclaim::Fate::kInUse);
}

TEST(Reclaim, WhatWasAccessedOutlivesWhatWasNot) {
  Evictor e(4);
  e.settle();
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
  e.settle();
  e.reclaim.accessed(0);
  EXPECT_EQ(e.next(), 1u);
}

// An access makes a page as young as what has come since the last aging, and no younger.
TEST(Reclaim, WhatIsInUseHasToBeAccessedBeforeEachAging) {
  Evictor e(4);
  for (int aging = 0; aging < 2; ++aging) {
    for (uint32_t page = 0; page < 4; ++page) e.reclaim.accessed(page);
    e.reclaim.age();
  }
  e.reclaim.accessed(0);
  e.reclaim.age();
  EXPECT_EQ(e.next(), 1u);
  EXPECT_EQ(e.next(), 2u);
  EXPECT_EQ(e.next(), 3u);
  EXPECT_EQ(e.aged, 0u);
  EXPECT_EQ(e.next(), 0u);
  EXPECT_EQ(e.aged, 1u);
}

// At three generations: more than half are young, or less than a quarter is old.
TEST(Reclaim, AgesWhenLittleIsCold) {
  const auto low_on_cold = [](uint32_t old, uint32_t young) {
    Reclaim reclaim(old + young);
    for (uint32_t page = 0; page < old; ++page) reclaim.add(page);
    while (reclaim.exhausted()) reclaim.age();
    for (uint32_t page = old; page < old + young; ++page) reclaim.add(page);
    return reclaim.low_on_cold();
  };
  EXPECT_FALSE(low_on_cold(4, 4));
  EXPECT_TRUE(low_on_cold(3, 4));
}

TEST(Reclaim, AgesWhenLessThanAQuarterIsOld) {
  Reclaim reclaim(8);
  for (uint32_t page = 0; page < 2; ++page) reclaim.add(page);
  reclaim.age();
  for (uint32_t page = 2; page < 8; ++page) reclaim.add(page);
  reclaim.age();
  EXPECT_FALSE(reclaim.low_on_cold()) << "2 of 8";
  EXPECT_EQ(reclaim.judge(reclaim.take()).fate, Reclaim::Fate::kLeaves);
  EXPECT_TRUE(reclaim.low_on_cold()) << "1 of 7";
}

// Aging changes what a page belongs to; eviction finds it where it was, and moves it.
TEST(Reclaim, WhatAgingFoundAccessedIsSortedByEviction) {
  Evictor e(4);
  for (uint32_t page = 0; page < 4; ++page) e.reclaim.accessed(page);
  e.reclaim.age();
  e.reclaim.accessed(0);
  e.reclaim.accessed(1);
  e.reclaim.age();
  EXPECT_EQ(e.next(), 2u);
  EXPECT_EQ(e.sorted, 2u);
}

// Pages are taken 64 at a time, before any is judged.
TEST(Reclaim, APageThatWasTakenIsToldOfByItsNeighbours) {
  Reclaim reclaim(3);
  for (uint32_t page = 0; page < 3; ++page) reclaim.add(page);
  while (reclaim.exhausted()) reclaim.age();
  const uint32_t first = reclaim.take(), second = reclaim.take(), third = reclaim.take();
  reclaim.accessed(first);
  reclaim.accessed(second);
  EXPECT_EQ(reclaim.judge(first).neighbours.young, 2u);
  EXPECT_EQ(reclaim.judge(second).fate, Reclaim::Fate::kTold);
  reclaim.remove(third);
  EXPECT_EQ(reclaim.judge(third).fate, Reclaim::Fate::kGone);
  EXPECT_EQ(reclaim.size(), 2u);
}

// A program's pages in the other tier are in its tables as well.
TEST(Reclaim, AWalkLooksAtEntriesOfBothTiers) {
  Reclaim reclaim(4);
  for (uint32_t page = 0; page < 4; ++page) reclaim.map(page);
  for (uint32_t page = 0; page < 2; ++page) reclaim.add(page);
  reclaim.accessed(2);
  for (int aging = 0; aging < 2; ++aging) {
    const Reclaim::Entries entries = reclaim.age();
    EXPECT_EQ(entries.all, 4u);
    EXPECT_EQ(entries.accessed, aging == 0 ? 3u : 1u) << "no walk takes the bit from what is not in DRAM";
    EXPECT_EQ(entries.young, aging == 0 ? 2u : 0u);
  }
}

// Of a page that is kept, 64 around it, and no further than its table.
TEST(Reclaim, NeighboursOfAPageThatIsKeptAreKeptWithIt) {
  constexpr uint32_t kTable = 512;
  const auto kept_with = [](uint32_t page) {
    Reclaim reclaim(2 * kTable);
    reclaim.add(page);
    while (reclaim.exhausted()) reclaim.age();
    for (uint32_t other = 0; other < 2 * kTable; ++other) {
      if (other != page) reclaim.add(other);
      reclaim.accessed(other);
    }
    EXPECT_EQ(reclaim.take(), page);
    const Reclaim::Judgement judgement = reclaim.judge(page);
    EXPECT_EQ(judgement.fate, Reclaim::Fate::kInUse);
    return judgement.neighbours.young;
  };
  EXPECT_EQ(kept_with(100), 64u);
  EXPECT_EQ(kept_with(0), 64u);
  EXPECT_EQ(kept_with(kTable - 1), 64u);
}

// Fewer than one entry in eight of a table was accessed: the next walk leaves it out, until eviction finds eight of
// 64 neighbours there.
TEST(Reclaim, ATableWithLittleInUseIsLeftOutOfTheNextWalk) {
  Reclaim reclaim(1024);
  for (uint32_t page = 0; page < 1024; ++page) {
    reclaim.map(page);
    reclaim.add(page);
  }
  EXPECT_EQ(reclaim.age().young, 1024u) << "as all are new";
  for (uint32_t page = 0; page < 63; ++page) reclaim.accessed(page * 8);
  for (uint32_t page = 0; page < 64; ++page) reclaim.accessed(512 + page * 8);
  const Reclaim::Entries first = reclaim.age(), second = reclaim.age();
  EXPECT_EQ(first.all, 1024u);
  EXPECT_EQ(first.accessed, 127u);
  EXPECT_EQ(first.young, 127u);
  EXPECT_EQ(second.all, 512u) << "the second table alone";
  EXPECT_EQ(reclaim.age().all, 0u) << "nothing was accessed since";

  for (uint32_t page = 0; page < 8; ++page) reclaim.accessed(page * 8 + 1);
  ASSERT_FALSE(reclaim.exhausted());
  for (uint32_t page = kNoPage; page == kNoPage || reclaim.judge(page).fate != Reclaim::Fate::kInUse;)
    page = reclaim.take();
  EXPECT_EQ(reclaim.age().all, 512u);
}

// A round as it is, with every other page demoted: how many pages it takes from their list.
uint64_t round_of(Rounds& rounds, uint64_t pages, uint64_t wanted, uint64_t sorted = 0) {
  if (!rounds.begin(pages, wanted)) return 0;
  uint64_t nr = 0;
  while (!rounds.has_had_its_share()) {
    bool more = true;
    while (more) {
      for (uint64_t i = 0; i < sorted; ++i) rounds.look(false);
      more = rounds.look(true);
      if (nr++ % 2 == 0) rounds.demote();
    }
  }
  rounds.end_round();
  return nr;
}

// 20,000 pages have 15 bits, 478 less one have 9. Batches are whole.
TEST(Rounds, TheFirstIsByWhatIsWanted) {
  Rounds few, many, most;
  EXPECT_EQ(round_of(few, 1 << 20, 64), (1u << 20) >> 12);
  EXPECT_EQ(round_of(many, 20'000, 478), 320u) << "20,000 / 2^6 is 312";
  EXPECT_EQ(round_of(most, 1 << 20, 1 << 13), (1u << 20) >> 7);
}

TEST(Rounds, TheNextLooksAtTwiceAsMuchWhereOneTookTooLittle) {
  Rounds rounds;
  EXPECT_EQ(round_of(rounds, 20'000, 478), 320u);
  EXPECT_EQ(round_of(rounds, 20'000, 478), 640u) << "320 are fewer than 478";
  EXPECT_EQ(round_of(rounds, 20'000, 478), 640u) << "640 are not";
  ASSERT_TRUE(rounds.begin(20'000, 478));
  while (!rounds.has_had_its_share())
    while (rounds.look(true)) {
    }
  rounds.end_round();
  EXPECT_EQ(round_of(rounds, 20'000, 478), 1280u) << "none was demoted";
}

// What is moved to another list is part of a round, and not of what it took.
TEST(Rounds, PagesThatAreSortedAreLookedAtAndNotTaken) {
  Rounds rounds;
  EXPECT_EQ(round_of(rounds, 200'000, 1'000, 7), 256u) << "200,000 / 2^7 is 1562: four batches of 8 x 64";
  EXPECT_EQ(round_of(rounds, 200'000, 1'000, 7), 448u) << "256 are too few: twice the share, seven batches";
  Rounds long_batch;
  ASSERT_TRUE(long_batch.begin(1 << 20, 1 << 13));
  uint64_t nr = 1;
  while (long_batch.look(false)) ++nr;
  EXPECT_EQ(nr, 4096u);
}

TEST(Rounds, ItGivesUpAndBeginsAnew) {
  Rounds rounds;
  uint64_t nr = 0;
  for (; rounds.begin(20'000, 478); rounds.end_round()) ++nr;
  EXPECT_EQ(nr, 6u) << "priorities 6 to 1";
  EXPECT_EQ(round_of(rounds, 20'000, 478), 320u);
  rounds.sleep();
  EXPECT_EQ(round_of(rounds, 20'000, 478), 320u);
}

}  // namespace
}  // namespace neotier::pages

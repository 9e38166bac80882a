// SPDX-License-Identifier: Apache-2.0
// The model of the multi-generational LRU: order, second chances, aging.
#include "pages/reclaim.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

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

}  // namespace
}  // namespace neotier::pages

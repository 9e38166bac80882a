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
  uint32_t next() {
    for (;;) {
      const uint64_t before = walked;
      const uint32_t page = reclaim.evict(looked, walked);
      if (page != kNoPage || walked == before) return page;
    }
  }
  Reclaim reclaim;
  uint64_t looked = 0, walked = 0;
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
  EXPECT_EQ(e.reclaim.evict(e.looked, e.walked), kNoPage);
  EXPECT_EQ(e.walked, 2u) << "it has aged, and gives the program its turn";
  e.reclaim.accessed(0);
  EXPECT_EQ(e.next(), 1u);
}

TEST(Reclaim, AgingLooksAtAccessedBits) {
  Evictor e(100);
  e.next();
  EXPECT_GE(e.walked, 100u);
  EXPECT_GE(e.looked, 1u);
}

}  // namespace
}  // namespace neotier::pages

// SPDX-License-Identifier: Apache-2.0
// Huge folios that go down whole for hot ones: how many, and when no more.
#include "promotion/whole.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace {

constexpr u64 kMs = 1'000'000, kNow = 5000 * kMs;
constexpr u64 kRoom = 100 * NEOTIER_HUGE_PAGES;

struct Machine {
  explicit Machine(u32 hot) {
    huge.nr = hot;
    huge.starved = true;
  }
  u32 wanted(u64 left = NEOTIER_NO_LIMIT, u64 now = kNow) { return neotier_whole_wanted(&whole, &huge, left, now); }
  bool may(u64 now = kNow, u64 above_floor = kRoom) { return neotier_whole_may(&whole, above_floor, now); }
  void down(u64 now = kNow) { neotier_whole_down(&whole, now); }
  neotier_huge huge{};
  neotier_whole whole{};
};

TEST(Whole, OneIsWantedForEachHotOneThatFoundNoPiece) {
  Machine m(3);
  EXPECT_EQ(m.wanted(), 3u);
  EXPECT_EQ(m.wanted(2 * NEOTIER_HUGE_PAGES + 511), 2u) << "no more than may move";
  m.huge.starved = false;
  EXPECT_EQ(m.wanted(), 0u) << "there are pieces";
  m.huge.starved = true;
  neotier_huge_clear(&m.huge);
  m.huge.nr = 1;
  EXPECT_EQ(m.wanted(), 0u) << "what is forgotten waits for nothing";
}

TEST(Whole, NoMoreGoDownThanCameUpAndFour) {
  Machine m(100);
  u32 down = 0;
  for (int i = 0; i < 10; ++i)
    if (m.may()) down++, m.down();
  EXPECT_EQ(down, NEOTIER_WHOLE_OWED);
  for (u32 up = 1; up <= 50; ++up) {
    neotier_whole_up(&m.whole);
    for (int i = 0; i < 3; ++i)
      if (m.may()) down++, m.down();
    EXPECT_EQ(down, NEOTIER_WHOLE_OWED + up);
  }
}

TEST(Whole, WhatComesUpWithoutOneThatWentDownOwesNothing) {
  Machine m(1);
  for (int i = 0; i < 5; ++i) neotier_whole_up(&m.whole);
  EXPECT_TRUE(m.may());
  for (u32 i = 0; i < NEOTIER_WHOLE_OWED; ++i) m.down();
  EXPECT_FALSE(m.may());
}

TEST(Whole, NoneGoesDownWhereOthersHaveTheRoom) {
  Machine m(1);
  for (u32 i = 0; i <= NEOTIER_WHOLE_SHORT; ++i, m.down())
    EXPECT_TRUE(m.may(kNow, 0)) << "the node was short of memory, by " << i << " folios or less";
  EXPECT_EQ(neotier_whole_lost(&m.whole, NEOTIER_HUGE_PAGES, kNow), 0u);
  EXPECT_FALSE(m.may(kNow, NEOTIER_HUGE_PAGES - 1)) << "others have some of the three pieces";
  EXPECT_TRUE(m.may(kNow, NEOTIER_HUGE_PAGES));
  EXPECT_EQ(neotier_whole_lost(&m.whole, NEOTIER_HUGE_PAGES - 1, kNow), 3u);
  EXPECT_EQ(m.whole.owed, 0u);
}

TEST(Whole, WhereOthersTakeTheRoomTheNextTryIsLaterEachTime) {
  Machine m(1);
  u64 now = kNow, before = 0;
  u32 down = 0;
  for (int i = 0; i < 12; ++i) {
    for (u32 n = 0; n < NEOTIER_WHOLE_OWED; ++n, ++down) {
      EXPECT_EQ(neotier_whole_lost(&m.whole, kRoom, now), 0u) << "one more may be of use";
      m.down(now);
    }
    EXPECT_EQ(neotier_whole_lost(&m.whole, kRoom, now), NEOTIER_WHOLE_OWED);
    EXPECT_FALSE(m.may(now + m.whole.retry_ns - 1));
    EXPECT_EQ(m.wanted(NEOTIER_NO_LIMIT, now), 0u) << "nor is one looked for";
    EXPECT_TRUE(m.may(now + m.whole.retry_ns));
    EXPECT_EQ(m.wanted(NEOTIER_NO_LIMIT, now + m.whole.retry_ns), 1u);
    EXPECT_EQ(m.whole.retry_ns,
              before ? std::min<u64>(2 * before, NEOTIER_WHOLE_RETRY_MAX_NS) : NEOTIER_WHOLE_RETRY_NS);
    before = m.whole.retry_ns;
    now += m.whole.retry_ns;
  }
  EXPECT_GE(now - kNow, 200'000 * kMs) << down << " in more than three minutes";
  for (u32 n = 0; n < NEOTIER_WHOLE_OWED; ++n) m.down(now);
  neotier_whole_up(&m.whole);
  m.down(now);
  EXPECT_EQ(neotier_whole_lost(&m.whole, kRoom, now), NEOTIER_WHOLE_OWED);
  EXPECT_EQ(m.whole.retry_ns, NEOTIER_WHOLE_RETRY_NS) << "an exchange came about in between";
}

TEST(Whole, AMoveThatFailsIsNotTriedAgainAtOnce) {
  Machine m(1);
  neotier_whole_failed(&m.whole, kNow);
  EXPECT_FALSE(m.may(kNow + NEOTIER_WHOLE_RETRY_NS - 1));
  EXPECT_EQ(m.wanted(NEOTIER_NO_LIMIT, kNow + NEOTIER_WHOLE_RETRY_NS - 1), 0u);
  EXPECT_TRUE(m.may(kNow + NEOTIER_WHOLE_RETRY_NS));
  neotier_whole_failed(&m.whole, kNow);
  EXPECT_FALSE(m.may(kNow + 2 * NEOTIER_WHOLE_RETRY_NS - 1));
}

TEST(Whole, WhatIsOwedForLongIsGivenUp) {
  Machine m(1);
  EXPECT_EQ(neotier_whole_expire(&m.whole, kNow), 0u);
  for (u32 n = 1; n < NEOTIER_WHOLE_OWED; ++n) m.down(kNow - 10 * kMs);
  m.down();
  EXPECT_EQ(neotier_whole_expire(&m.whole, kNow + NEOTIER_WHOLE_OWED_NS), 0u);
  EXPECT_FALSE(m.may());
  EXPECT_EQ(neotier_whole_expire(&m.whole, kNow + NEOTIER_WHOLE_OWED_NS + 1), NEOTIER_WHOLE_OWED);
  EXPECT_TRUE(m.may());
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// Which pages of the fast node are not in use, and when they are looked at.
#include "promotion/age.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace {

constexpr u64 kMs = 1'000'000;
constexpr auto kNone = NEOTIER_AGE_LOOK_NONE, kArm = NEOTIER_AGE_LOOK_ARM, kCheck = NEOTIER_AGE_LOOK_CHECK;

struct Node {
  explicit Node(u32 nr) : frames(nr), idle(NEOTIER_AGE_FOUND), old(NEOTIER_AGE_FOUND), came(neotier_ages_came_max(nr)) {
    ages.came = came.data();
    ages.idle.frames = idle.data();
    ages.old.frames = old.data();
    ages.frames = frames.data();
    ages.nr = nr;
  }
  // A look at all frames, of which these have been accessed.
  void look(neotier_age_look which, const std::vector<u32>& accessed) {
    for (u32 frame = 0; frame < ages.nr; ++frame) {
      neotier_ages_see(&ages, frame, which, std::find(accessed.begin(), accessed.end(), frame) != accessed.end());
    }
  }
  // A pass that finds these accessed when it arms, and those in the window.
  void pass(const std::vector<u32>& before, const std::vector<u32>& in_window) {
    neotier_ages_begin(&ages);
    look(kArm, before);
    look(kCheck, in_window);
  }
  u32 victim() { return neotier_ages_victim(&ages); }
  std::vector<u8> frames;
  std::vector<u32> idle, old;
  std::vector<neotier_age_came> came;
  neotier_ages ages{};
};

TEST(Age, WhatIsNotAccessedInTheWindowIsAVictim) {
  Node node(4);
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME);
  neotier_ages_begin(&node.ages);
  node.look(kArm, {0, 1, 2, 3});
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME) << "nothing is checked yet";
  node.look(kCheck, {0, 1, 3});
  EXPECT_EQ(node.victim(), 2u);
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME) << "a victim is taken once";
}

TEST(Age, NotAccessedWhenItIsArmedFirstSaysNothing) {
  Node node(2);
  neotier_ages_begin(&node.ages);
  node.look(kArm, {});
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME) << "not accessed, but since when?";
  node.look(kCheck, {1});
  EXPECT_EQ(node.victim(), 0u);
}

TEST(Age, TheOldComeBeforeTheIdle) {
  Node node(6);
  node.pass({0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5});
  // Between the passes all but 4; in the window 2 and 5.
  node.pass({0, 1, 2, 3, 5}, {2, 5});
  EXPECT_EQ(node.victim(), 4u) << "old";
  EXPECT_EQ(node.victim(), 0u);
  EXPECT_EQ(node.victim(), 1u);
  EXPECT_EQ(node.victim(), 3u);
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME);
}

TEST(Age, PageCacheComesBeforeWhatIsMapped) {
  Node node(6);
  node.pass({}, {0, 1});
  neotier_ages_begin(&node.ages);
  // 0 and 1 are mapped, and idle. 2 was not used since it came, 3 was, and 4 goes on; 5 is used in the window.
  for (const u32 frame : {0, 1}) neotier_ages_see(&node.ages, frame, kArm, true);
  for (const u32 frame : {2, 3, 4, 5}) neotier_ages_see_cached(&node.ages, frame, kArm, frame == 3 || frame == 4);
  for (const u32 frame : {0, 1}) neotier_ages_see(&node.ages, frame, kCheck, false);
  for (const u32 frame : {2, 3, 4, 5}) neotier_ages_see_cached(&node.ages, frame, kCheck, frame > 3);
  for (const u32 frame : {2, 3, 0, 1}) EXPECT_EQ(node.victim(), frame);
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME);
}

TEST(Age, OneAccessAndAVictimIsNoneAnyMore) {
  Node node(2);
  node.pass({}, {});
  EXPECT_EQ(neotier_ages_victims(&node.ages), 2u);
  node.pass({0, 1}, {0, 1});
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME);
}

TEST(Age, AnyOfThoseThatMapAPageUsesIt) {
  Node node(4);
  node.pass({}, {0, 1, 2, 3});
  neotier_ages_begin(&node.ages);
  for (const bool second : {false, true}) {
    neotier_ages_see(&node.ages, 0, kArm, second);
    neotier_ages_see(&node.ages, 1, kArm, !second);
  }
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME);
  for (u32 frame = 2; frame < 4; ++frame) neotier_ages_see(&node.ages, frame, kArm, true);
  for (u32 frame = 0; frame < 4; ++frame) neotier_ages_see(&node.ages, frame, kCheck, frame == 2);
  for (u32 frame = 0; frame < 4; ++frame) neotier_ages_see(&node.ages, frame, kCheck, frame != 2);
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME);
}

TEST(Age, TwoThatMapAPageMakeOneVictim) {
  Node node(1);
  neotier_ages_begin(&node.ages);
  for (int i = 0; i < 2; ++i) neotier_ages_see(&node.ages, 0, kArm, true);
  EXPECT_EQ(node.ages.armed, 1u);
  for (int i = 0; i < 2; ++i) neotier_ages_see(&node.ages, 0, kCheck, false);
  EXPECT_EQ(neotier_ages_victims(&node.ages), 1u);
}

TEST(Age, EachLookGoesToAFrameOnceAPass) {
  Node node(1);
  for (int i = 0; i < 100; ++i) {
    neotier_ages_begin(&node.ages);
    EXPECT_NE(node.ages.pass, 0u);
    EXPECT_TRUE(neotier_ages_due(&node.ages, 0, kArm));
    EXPECT_FALSE(neotier_ages_due(&node.ages, 0, kCheck));
    neotier_ages_see(&node.ages, 0, kArm, true);
    EXPECT_FALSE(neotier_ages_due(&node.ages, 0, kArm));
    EXPECT_TRUE(neotier_ages_due(&node.ages, 0, kCheck));
    neotier_ages_see(&node.ages, 0, kCheck, true);
    EXPECT_FALSE(neotier_ages_due(&node.ages, 0, kArm));
    EXPECT_FALSE(neotier_ages_due(&node.ages, 0, kCheck));
  }
}

TEST(Age, WhatIsNotArmedIsNotChecked) {
  Node node(1);
  node.pass({0}, {0});
  neotier_ages_begin(&node.ages);
  neotier_ages_see(&node.ages, 0, kCheck, false);
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME);
}

TEST(Age, OfMoreThanFitsTheLastFoundAreVictims) {
  constexpr u32 kMore = 10;
  Node node(NEOTIER_AGE_FOUND + kMore);
  node.pass({}, {});
  EXPECT_EQ(neotier_ages_victims(&node.ages), NEOTIER_AGE_FOUND);
  EXPECT_EQ(node.victim(), kMore);
  // The next pass finds the others again.
  node.pass({}, {});
  std::vector<bool> taken(NEOTIER_AGE_FOUND + kMore);
  u32 nr = 0;
  for (u32 frame = node.victim(); frame != NEOTIER_NO_FRAME; frame = node.victim(), ++nr) {
    EXPECT_FALSE(taken[frame]);
    taken[frame] = true;
  }
  EXPECT_GE(nr, NEOTIER_AGE_FOUND - kMore);
}

TEST(Age, WhereThereIsNothingOnePassInEightLooks) {
  Node node(64);
  u32 looked = 0;
  for (int i = 0; i < 17; ++i) {
    neotier_ages_begin(&node.ages);
    for (u32 frame = 0; frame < 64; ++frame) {
      if (!neotier_ages_due(&node.ages, frame, kArm)) continue;
      ++looked;
      neotier_ages_forget(&node.ages, frame);
    }
  }
  EXPECT_EQ(looked, 64u + 16 * 8);
  neotier_ages_begin(&node.ages);
  neotier_ages_see(&node.ages, 3, kArm, true);
  neotier_ages_begin(&node.ages);
  EXPECT_TRUE(neotier_ages_due(&node.ages, 3, kArm)) << "a page came";
}

TEST(Age, WhatIsForgottenIsNoVictim) {
  Node node(1);
  node.pass({}, {});
  neotier_ages_forget(&node.ages, 0);
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME);
  neotier_ages_begin(&node.ages);
  node.look(kArm, {});
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME) << "it is a new page now";
}

TEST(Age, WhatWasFoundTooLongAgoIsFoundAgain) {
  Node node(2);
  node.pass({0, 1}, {1});
  neotier_ages_stale(&node.ages);
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME);
  node.pass({0, 1}, {1});
  EXPECT_EQ(node.victim(), 0u);
}

TEST(Age, WhatWasFoundBeforeTheLastTurnIsNoVictim) {
  Node node(6);
  node.pass({0, 1, 2, 3, 4, 5}, {2, 3, 4, 5});
  neotier_ages_turn(&node.ages);
  EXPECT_EQ(node.victim(), 0u) << "one turn is not enough";
  node.pass({0, 1, 2, 3, 4, 5}, {0, 1, 4, 5});
  neotier_ages_turn(&node.ages);
  EXPECT_EQ(neotier_ages_victims(&node.ages), 2u);
  EXPECT_EQ(node.victim(), 2u) << "1 was found before";
  EXPECT_EQ(node.victim(), 3u);
  // All of those of the turn have been taken.
  node.pass({0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 5});
  neotier_ages_turn(&node.ages);
  EXPECT_EQ(node.victim(), 4u);
  // The old ones as well.
  node.pass({0, 1, 2, 3}, {0, 1, 2, 3});
  EXPECT_EQ(neotier_ages_victims(&node.ages), 2u);
  for (int i = 0; i < 2; ++i) neotier_ages_turn(&node.ages);
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME);
}

TEST(Age, AVictimWhoseTurnItWasNotComesBehindTheOthers) {
  Node node(3);
  node.pass({}, {});
  EXPECT_EQ(node.victim(), 0u);
  neotier_ages_again(&node.ages, 0);
  EXPECT_EQ(node.victim(), 1u);
  EXPECT_EQ(node.victim(), 2u);
  EXPECT_EQ(node.victim(), 0u);
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME);
}

TEST(Age, WhatCameUpLatelyIsAVictimOnlyWhenItIsOld) {
  Node node(3);
  node.pass({}, {0, 1, 2});
  for (const u32 frame : {1, 2}) neotier_ages_came(&node.ages, frame, 100 * kMs);
  node.pass({0, 1, 2}, {});
  EXPECT_EQ(node.ages.found, 1u);
  EXPECT_EQ(node.victim(), 0u);
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME) << "idle for one window";
  // Then 2 is accessed, and 1 is not.
  node.pass({0, 2}, {0});
  EXPECT_EQ(node.victim(), 1u) << "old";
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME);
  // To the millisecond, and some 5 % of one.
  neotier_ages_settle(&node.ages, 200 * kMs, 298 * kMs);
  node.pass({0, 1, 2}, {});
  EXPECT_EQ(node.victim(), 0u);
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME);
  neotier_ages_settle(&node.ages, 200 * kMs, 302 * kMs);
  EXPECT_EQ(node.ages.nr_came, 0u);
  node.pass({0, 1, 2}, {});
  for (const u32 frame : {0, 1, 2}) EXPECT_EQ(node.victim(), frame);
}

TEST(Age, WhatComesToTheFrameOfAVictimIsNone) {
  Node node(2);
  node.pass({}, {});
  neotier_ages_came(&node.ages, 0, 0);
  EXPECT_EQ(node.victim(), 1u);
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME);
  neotier_ages_forget(&node.ages, 0);
  node.pass({0, 1}, {1});
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME) << "forgotten, and still lately";
}

TEST(Age, OfMoreThatCameUpThanAreNotedTheFirstOnesAreAsAnyOther) {
  const u32 most = neotier_ages_came_max(8192);
  ASSERT_EQ(most, 2048u);
  EXPECT_EQ(neotier_ages_came_max(1), NEOTIER_AGE_CAME_MIN);
  EXPECT_EQ(neotier_ages_came_max(16 * 8192 - 1), 8192u * 2);
  EXPECT_EQ(neotier_ages_came_max(0xffffffff), NEOTIER_AGE_CAME_MAX);
  Node node(8192);
  neotier_ages_begin(&node.ages);
  for (u32 frame = 0; frame < most + 3; ++frame) neotier_ages_came(&node.ages, frame, 5 * kMs);
  const auto lately = [&](u32 frame) { return (node.frames[frame] & NEOTIER_AGE_CAME) != 0; };
  for (u32 frame = 0; frame < 8192; ++frame) EXPECT_EQ(lately(frame), frame >= 3 && frame < most + 3) << frame;
  neotier_ages_settle(&node.ages, kMs, 20 * kMs);
  EXPECT_EQ(node.ages.nr_came, 0u);
  for (u32 frame = 0; frame < 8192; ++frame) EXPECT_FALSE(lately(frame)) << frame;
}

TEST(Age, AHugeFolioHasAnAgeAndIsNoVictim) {
  Node node(NEOTIER_AGE_HUGE_PAGES);
  neotier_ages_begin(&node.ages);
  neotier_ages_see_huge(&node.ages, 0, kArm, true);
  EXPECT_FALSE(neotier_ages_huge_idle(&node.ages, 0));
  neotier_ages_see_huge(&node.ages, 0, kCheck, false);
  EXPECT_TRUE(neotier_ages_huge_idle(&node.ages, 0));
  EXPECT_EQ(node.ages.found, 1u);
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME);
  neotier_ages_begin(&node.ages);
  neotier_ages_see_huge(&node.ages, 0, kArm, false);
  neotier_ages_see_huge(&node.ages, 0, kCheck, false);
  EXPECT_TRUE(neotier_ages_huge_idle(&node.ages, 0)) << "old";
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME);
  neotier_ages_see_huge(&node.ages, 0, kCheck, true);
  EXPECT_FALSE(neotier_ages_huge_idle(&node.ages, 0)) << "another that maps it uses it";
}

TEST(Age, TheBitOfAHugeFolioSaysTheSameOfAllItsPages) {
  Node node(3 * NEOTIER_AGE_HUGE_PAGES);
  neotier_ages_begin(&node.ages);
  neotier_ages_pieces(&node.ages, NEOTIER_AGE_HUGE_PAGES);
  EXPECT_EQ(neotier_ages_victims(&node.ages), NEOTIER_AGE_HUGE_PAGES);
  EXPECT_EQ(node.ages.found, NEOTIER_AGE_HUGE_PAGES);
  for (u32 i = 0; i < NEOTIER_AGE_HUGE_PAGES; ++i) EXPECT_EQ(node.victim(), NEOTIER_AGE_HUGE_PAGES + i);
  EXPECT_EQ(node.victim(), NEOTIER_NO_FRAME);
}

// 100 requests in 50 ms are one in half a ms.
TEST(AgePace, TheShortestWindowIsEightRequestsLong) {
  EXPECT_EQ(neotier_age_window(50 * kMs, 100), 4 * kMs);
  EXPECT_EQ(neotier_age_window(50 * kMs, 10), 40 * kMs);
  EXPECT_EQ(neotier_age_window(50 * kMs, 65535), kMs);
  EXPECT_EQ(neotier_age_window(4'095 * kMs, 1), 100 * kMs);
  EXPECT_EQ(neotier_age_window(50 * kMs, 0), 100 * kMs);
}

struct Pace : Node {
  explicit Pace(u32 nr) : Node(nr) {}
  neotier_age_look next(u64 now, u32 wanted = 1) { return neotier_age_next(&pace, &ages, wanted, kMs, now); }
  // Arms up to `end`, of which all are pages.
  void arm(u32 end, u64 now, u64 took = 1000) {
    for (u32 frame = pace.first; frame < end; ++frame) neotier_ages_see(&ages, frame, kArm, true);
    neotier_age_done(&pace, &ages, kArm, end, now, took);
  }
  // Checks; one page in `share` is idle.
  void check(u64 now, u32 share, u64 took = 1000) {
    for (u32 frame = pace.first; frame < pace.end; ++frame) neotier_ages_see(&ages, frame, kCheck, frame % share != 0);
    neotier_age_done(&pace, &ages, kCheck, 0, now, took);
  }
  neotier_age_pace pace{};
};

TEST(AgePace, GroupsAreArmedAndCheckedAWindowLater) {
  Pace p(100);
  EXPECT_EQ(p.next(kMs, 0), kNone) << "nobody wants any";
  ASSERT_EQ(p.next(kMs), kArm);
  EXPECT_EQ(p.pace.first, 0u);
  EXPECT_EQ(p.ages.pass, 1u);
  p.arm(60, kMs);
  EXPECT_EQ(p.next(2 * kMs - 1), kNone);
  EXPECT_EQ(p.next(2 * kMs, 0), kCheck) << "the shortest at first; wanted or not";
  p.check(2 * kMs, 1000);
  ASSERT_EQ(p.next(12 * kMs, 10), kArm);
  EXPECT_EQ(p.pace.first, 60u);
  p.arm(100, 12 * kMs);
  p.check(30 * kMs, 1000);
  ASSERT_EQ(p.next(30 * kMs, 10), kArm);
  EXPECT_EQ(p.pace.first, 0u) << "a new pass";
  EXPECT_EQ(p.ages.pass, 2u);
}

TEST(AgePace, TheWindowFollowsWhatIsFound) {
  Pace p(800);
  auto window_after = [&, now = kMs](u32 share) mutable {
    EXPECT_EQ(p.next(now += 2000 * kMs, 1000), kArm);
    p.arm(800, now);
    p.check(now, share);
    return p.pace.window_ns;
  };
  EXPECT_EQ(window_after(4), kMs);
  EXPECT_EQ(window_after(1), 2 * kMs);
  EXPECT_EQ(window_after(1), 4 * kMs);
  EXPECT_EQ(window_after(4), 4 * kMs);
  EXPECT_EQ(window_after(10), 2 * kMs);
  for (int i = 0; i < 20; ++i) window_after(1);
  EXPECT_EQ(p.next(100'000 * kMs, 1000), kArm);
  EXPECT_EQ(p.pace.window_ns, 100 * kMs) << "a tenth of a second at most";
  p.arm(800, 100'000 * kMs);
  p.check(101'000 * kMs, 1000);
  for (int i = 0; i < 20; ++i) window_after(1000);
  EXPECT_EQ(p.next(300'000 * kMs, 1000), kArm);
  EXPECT_EQ(p.pace.window_ns, kMs) << "and no shorter than the shortest";
}

TEST(AgePace, FewPagesSayNothingOfTheWindow) {
  Pace p(64);
  ASSERT_EQ(p.next(kMs, 1000), kArm);
  p.arm(63, kMs);
  p.check(kMs, 1);
  EXPECT_EQ(p.pace.window_ns, kMs);
  p.pace.end = 0;
  neotier_ages_begin(&p.ages);
  ASSERT_EQ(p.next(kMs, 1000), kArm);
  p.arm(64, kMs);
  p.check(kMs, 1);
  EXPECT_EQ(p.pace.window_ns, 2 * kMs) << "so many do";
}

TEST(AgePace, ALookIsAsLongAsWhatIsLackingAsksFor) {
  Pace p(10'000);
  auto groups = [&, now = kMs](u32 wanted, u32 end, u32 share) mutable {
    EXPECT_EQ(p.next(now += 2000 * kMs, wanted), kArm);
    const u32 asked = p.pace.groups;
    p.arm(end, now);
    p.check(now, share);
    return asked;
  };
  EXPECT_EQ(groups(100, 80, 4), 1u) << "nothing is known yet";
  // All that was found is too old by the next look.
  EXPECT_EQ(groups(100, 200, 4), NEOTIER_AGE_STOCK * 100 / 20);
  EXPECT_EQ(p.pace.yield, 3u) << "30, by all of the groups that were asked for";
  EXPECT_EQ(groups(1'000'000, 300, 1000), NEOTIER_AGE_GROUPS);
  EXPECT_EQ(groups(1'000'000, 400, 4), 1u) << "where nothing is found looks stay short";
  EXPECT_EQ(groups(1, 500, 4), 1u);
}

TEST(AgePace, NoMoreIsLookedAtThanIsPaidFor) {
  Pace p(10'000);
  ASSERT_EQ(p.next(kMs, 1000), kArm);
  p.arm(80, kMs, kMs);
  p.check(10 * kMs, 4, kMs / 2);
  // 10 ms less 1.5, at 1.5 a group.
  ASSERT_EQ(p.next(10 * kMs, 1000), kArm);
  EXPECT_EQ(p.pace.groups, 5u);
  p.arm(160, 10 * kMs, 5 * kMs);
  p.check(20 * kMs, 4, 5 * kMs);
  EXPECT_EQ(p.pace.group_ns, 2 * kMs) << "the last look's";
  EXPECT_EQ(p.next(20 * kMs, 1000), kNone) << "1.4 ms are owed";
  neotier_age_earn(&p.pace, 60);
  ASSERT_EQ(p.next(20 * kMs, 1000), kArm);
  EXPECT_EQ(p.pace.groups, 1u) << "one at least";
}

TEST(AgePace, AGroupWithoutPagesIsNotWaitedFor) {
  Pace p(100);
  ASSERT_EQ(p.next(kMs), kArm);
  neotier_age_done(&p.pace, &p.ages, kArm, 50, kMs, 1000);
  EXPECT_EQ(p.next(kMs), kArm);
  EXPECT_EQ(p.pace.first, 50u);
}

TEST(AgePace, NobodyLooksWhereThereAreEnough) {
  Pace p(4 * NEOTIER_AGE_STOCK);
  p.pass({}, {});
  EXPECT_EQ(p.next(kMs, 4), kNone);
  EXPECT_EQ(p.next(kMs, 5), kArm);
}

TEST(AgePace, VictimsAreKeptForAQuarterOfASecond) {
  Pace p(8);
  EXPECT_EQ(p.next(1000 * kMs, 0), kNone);
  p.pass({}, {});
  EXPECT_EQ(p.next(1124 * kMs, 0), kNone);
  EXPECT_EQ(p.next(1126 * kMs, 0), kNone);
  EXPECT_EQ(neotier_ages_victims(&p.ages), 8u);
  EXPECT_EQ(p.next(1250 * kMs, 0), kNone);
  EXPECT_EQ(neotier_ages_victims(&p.ages), 8u);
  EXPECT_EQ(p.next(1252 * kMs, 0), kNone);
  EXPECT_EQ(neotier_ages_victims(&p.ages), 0u);
  p.pass({}, {});
  EXPECT_EQ(neotier_ages_victims(&p.ages), 8u);
  EXPECT_EQ(p.next(1503 * kMs, 0), kNone);
  EXPECT_EQ(neotier_ages_victims(&p.ages), 0u) << "nobody was there to see the first turn";
}

TEST(AgePace, LooksTakeTheirShareAndWhatWasSavedUp) {
  Pace p(1000);
  // The first may use all that was saved, and the last of them a little more: 12 ms of 10.
  ASSERT_EQ(p.next(kMs), kArm);
  p.arm(10, kMs, 3 * kMs);
  p.check(6 * kMs, 1000, 3 * kMs);
  ASSERT_EQ(p.next(6 * kMs, 10), kArm);
  p.arm(20, 6 * kMs, 3 * kMs);
  p.check(11 * kMs, 1000, 3 * kMs);
  // .1 ms gained meanwhile.
  EXPECT_EQ(p.next(11 * kMs + 189 * kMs, 10), kNone);
  EXPECT_EQ(p.next(11 * kMs + 191 * kMs, 10), kArm);
  neotier_age_done(&p.pace, &p.ages, kCheck, 0, 202 * kMs, 2 * kMs);
  EXPECT_EQ(p.next(210 * kMs, 10), kNone);
  neotier_age_earn(&p.pace, 40);
  EXPECT_EQ(p.next(210 * kMs, 10), kNone);
  neotier_age_earn(&p.pace, 10);
  EXPECT_EQ(p.next(210 * kMs, 10), kArm) << "victims that made room pay for it";
  // A minute later no more is saved than at first.
  ASSERT_EQ(p.next(60'000 * kMs, 10), kArm);
  neotier_age_done(&p.pace, &p.ages, kCheck, 0, 60'000 * kMs, 11 * kMs);
  EXPECT_EQ(p.next(60'000 * kMs + 99 * kMs, 10), kNone);
  EXPECT_EQ(p.next(60'000 * kMs + 101 * kMs, 10), kArm);
}

// Of a node of huge folios that are in use all the time.
struct Splits : Pace {
  explicit Splits(u32 folios) : Pace(folios * NEOTIER_AGE_HUGE_PAGES) {}
  // A look that finds no other victims but these.
  void look(u64 now, u32 wanted, u32 victims = 0) {
    ASSERT_EQ(next(now, wanted), kArm);
    for (u32 frame = 0; frame < victims; ++frame) neotier_ages_see(&ages, frame, kArm, true);
    neotier_ages_see_huge(&ages, NEOTIER_AGE_HUGE_PAGES, kArm, true);
    neotier_age_done(&pace, &ages, kArm, ages.nr, now, kMs / 10);
    ASSERT_EQ(next(now + 200 * kMs, wanted), kCheck);
    for (u32 frame = 0; frame < victims; ++frame) neotier_ages_see(&ages, frame, kCheck, false);
    neotier_ages_see_huge(&ages, NEOTIER_AGE_HUGE_PAGES, kCheck, true);
    neotier_age_done(&pace, &ages, kCheck, 0, now + 200 * kMs, kMs / 10);
  }
  bool split(u64 now, bool was_idle = false) { return neotier_age_split(&pace, &ages, was_idle, now); }
  void done(u64 now, bool was_idle = false) {
    neotier_age_split_done(&pace, &ages, was_idle, now, NEOTIER_AGE_SPLIT_NS);
  }
  // A look and one split, of whose pages so many are idle.
  bool round(u64 now, u32 unused) {
    look(now, 1000);
    if (!split(now += 200 * kMs)) return false;
    done(now);
    for (u32 i = 0; i < NEOTIER_AGE_HUGE_PAGES; ++i) neotier_ages_see(&ages, NEOTIER_AGE_HUGE_PAGES + i, kArm, true);
    EXPECT_EQ(next(now, 1000), kNone) << "not before the window has passed";
    EXPECT_EQ(next(now += 200 * kMs, 1000), kCheck);
    for (u32 i = 0; i < NEOTIER_AGE_HUGE_PAGES; ++i)
      neotier_ages_see(&ages, NEOTIER_AGE_HUGE_PAGES + i, kCheck, i >= unused);
    neotier_age_done(&pace, &ages, kCheck, 0, now, kMs / 10);
    // All that was found is used up.
    while (victim() != NEOTIER_NO_FRAME) {
    }
    return true;
  }
};

TEST(AgeSplit, AFolioInUseIsSplitWhereLooksFindNothing) {
  Splits s(2);
  s.look(kMs, 1000);
  EXPECT_TRUE(s.split(201 * kMs));
}

TEST(AgeSplit, NoFolioInUseIsSplitForAFewVictims) {
  Splits s(2);
  s.look(kMs, NEOTIER_AGE_SPLIT_LEAST / NEOTIER_AGE_STOCK - 1);
  EXPECT_FALSE(s.split(201 * kMs));
  EXPECT_TRUE(s.split(201 * kMs, true)) << "one that was idle is";
}

TEST(AgeSplit, OneThatWasIdleIsSplitUntilThereAreEnough) {
  Splits s(3);
  s.look(kMs, 300);
  EXPECT_TRUE(s.split(201 * kMs, true));
  neotier_ages_pieces(&s.ages, 512);
  s.done(201 * kMs, true);
  EXPECT_TRUE(s.split(201 * kMs, true)) << "512 of 600";
  neotier_ages_pieces(&s.ages, 1024);
  s.done(201 * kMs, true);
  EXPECT_FALSE(s.split(201 * kMs, true));
  EXPECT_EQ(s.next(202 * kMs, 300), kNone) << "they are victims: nothing is armed";
}

// 400 victims for .2 ms: by far cheaper than a split.
TEST(AgeSplit, NoFolioInUseIsSplitWhereLooksFindVictims) {
  Splits s(2);
  s.look(kMs, 1000, 400);
  EXPECT_FALSE(s.split(201 * kMs));
  EXPECT_FALSE(s.split(201 * kMs, true));
}

// Cheap, and too few: 200 of 2,000 in each look. What one of them left is too old by the next.
TEST(AgeSplit, WhereLooksFindTooFewThreeInARowAreEnough) {
  for (const bool was_idle : {false, true}) {
    Splits s(2);
    u64 now = kMs;
    for (u32 i = 1; i < NEOTIER_AGE_SPLIT_LOOKS; ++i, now += 2000 * kMs) {
      s.look(now, 1000, 200);
      EXPECT_FALSE(s.split(now + 200 * kMs, was_idle)) << i;
    }
    s.look(now, 1000, 200);
    EXPECT_TRUE(s.split(now + 200 * kMs, was_idle));
    s.look(now += 2000 * kMs, 20, 200);
    EXPECT_FALSE(s.split(now + 200 * kMs, was_idle)) << "there are enough now";
    s.look(now += 2000 * kMs, 1000, 200);
    EXPECT_FALSE(s.split(now + 200 * kMs, was_idle)) << "not in a row any more";
  }
}

TEST(AgeSplit, LooksThatLeaveAFewLackingAreEnough) {
  Splits s(2);
  u64 now = kMs;
  for (u32 i = 0; i < 2 * NEOTIER_AGE_SPLIT_LOOKS; ++i, now += 2000 * kMs) {
    s.look(now, 120, 200);
    EXPECT_FALSE(s.split(now + 200 * kMs, true)) << i << ": 40 of 240";
  }
}

TEST(AgeSplit, NoMoreThanAreLackingAndPaidFor) {
  Splits few(2), many(2);
  few.look(kMs, 400);
  u32 nr = 0;
  for (; few.split(201 * kMs); ++nr) few.done(201 * kMs);
  EXPECT_EQ(nr, 3u) << "800 victims, 256 of each; 32 more are not worth one";
  many.look(kMs, 1'000'000);
  for (nr = 0; many.split(201 * kMs); ++nr) many.done(201 * kMs);
  EXPECT_GE(nr, 5u);
  EXPECT_LE(nr, 8u) << "of the 10 ms that were saved up";
}

TEST(AgeSplit, SplitsGoOnWhereTheyBringEnough) {
  Splits s(2);
  for (u64 i = 0; i < 20; ++i) EXPECT_TRUE(s.round((1 + i * 2000) * kMs, 80)) << i;
  EXPECT_LE(s.pace.split_yield, 85u);
}

// A hot program: its folios are split no more, but for one try after a second, two, four ...
TEST(AgeSplit, SplitsThatBringNothingStop) {
  Splits s(2);
  u32 splits = 0;
  for (u64 i = 0; i < 1000; ++i) splits += s.round((1 + i * 2000) * kMs, 0);
  EXPECT_LE(splits, 20u);
  EXPECT_GE(splits, 15u) << "tried again from time to time";
  EXPECT_TRUE(s.round(4'000'000 * kMs, 512)) << "after a long time";
  EXPECT_TRUE(s.round(4'002'000 * kMs, 512)) << "and one that brought all of its pages is believed";
  splits = 0;
  for (u64 i = 0; i < 40; ++i) splits += s.round((4'004'000 + i * 2000) * kMs, 0);
  EXPECT_GE(splits, 9u) << "tries begin with a second again";
}

// Pinned, say: each try costs time and brings nothing.
TEST(AgeSplit, ThoseThatFailArePaidForAndSayNothingOfTheOthers) {
  for (const bool was_idle : {false, true}) {
    Splits s(2);
    s.look(kMs, 1000);
    const u64 left = s.pace.left_ns;
    ASSERT_TRUE(s.split(201 * kMs, was_idle));
    neotier_age_split_failed(&s.pace, was_idle, 201 * kMs, 2 * kMs);
    EXPECT_EQ(s.pace.left_ns, left - 2 * kMs);
    neotier_age_split_failed(&s.pace, was_idle, 201 * kMs, left);
    EXPECT_EQ(s.pace.owed_ns, 2 * kMs);
    EXPECT_EQ(s.next(202 * kMs, 1000), kNone) << "no look before it is paid for";
    EXPECT_EQ(s.pace.split_ns, 0u);
    EXPECT_EQ(s.pace.splits, 0u);
    EXPECT_EQ(s.next(402 * kMs, 1000), kArm);
  }
}

TEST(AgeSplit, WhereSplitsBringNothingAFailedOneIsATryToo) {
  for (const bool was_idle : {false, true}) {
    Splits s(2);
    for (u64 i = 0; i < 10; ++i) s.round((1 + i * 2000) * kMs, 0);
    const u64 now = 100'000 * kMs;
    s.look(now, 1000);
    ASSERT_TRUE(s.split(now + 200 * kMs));
    neotier_age_split_failed(&s.pace, was_idle, now + 200 * kMs, kMs / 10);
    EXPECT_EQ(s.split(now + 200 * kMs), was_idle) << "it says something of its own kind only";
  }
}

TEST(AgeSplit, WhatPiecesBringSaysNothingOfTheWindow) {
  Splits s(2);
  // 40 victims for .2 ms: dearer than those of a split.
  const u64 window = (s.look(kMs, 1000, 40), s.pace.window_ns);
  EXPECT_TRUE(s.split(201 * kMs));
  s.done(201 * kMs);
  for (u32 i = 0; i < 512; ++i) neotier_ages_see(&s.ages, 512 + i, kArm, true);
  ASSERT_EQ(s.next(401 * kMs, 1000), kCheck);
  for (u32 i = 0; i < 512; ++i) neotier_ages_see(&s.ages, 512 + i, kCheck, false);
  neotier_age_done(&s.pace, &s.ages, kCheck, 0, 401 * kMs, 1000);
  EXPECT_EQ(s.pace.window_ns, window);
  EXPECT_EQ(s.pace.split_yield, (3 * NEOTIER_AGE_SPLIT_YIELD + 512) / 4);
}

}  // namespace

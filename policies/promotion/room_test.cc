// SPDX-License-Identifier: Apache-2.0
// Room: levels of a node, growth of programs, when kswapd is woken, what the reserve holds; by values worked out by
// hand.
#include "promotion/room.h"

#include <gtest/gtest.h>

namespace {

constexpr u64 kMs = 1'000'000;
constexpr u32 kFew = NEOTIER_WORTH_WAKING - 1, kSome = NEOTIER_WORTH_WAKING, kMany = NEOTIER_ENOUGH;

TEST(Room, LevelsAddUpOverZones) {
  neotier_levels levels{};
  const neotier_zone_levels dma = {100, 20, 40, 60, 50}, normal = {1000, 200, 300, 500, 0};
  neotier_levels_add(&levels, &dma);
  neotier_levels_add(&levels, &normal);
  EXPECT_EQ(levels.free, 1100u);
  EXPECT_EQ(levels.gap, 220u);
  EXPECT_EQ(levels.above_low, 10u + 700u);    // 100 - 90, 1000 - 300
  EXPECT_EQ(levels.above_floor, 20u + 750u);  // 100 - 80, 1000 - 250
}

TEST(Room, AZoneBelowItsWatermarkTakesNothingFromOthers) {
  neotier_levels levels{};
  const neotier_zone_levels low = {10, 20, 40, 60, 0}, high = {100, 0, 0, 0, 0};
  neotier_levels_add(&levels, &low);
  neotier_levels_add(&levels, &high);
  EXPECT_EQ(levels.above_low, 100u);
  EXPECT_EQ(levels.above_floor, 100u);
}

TEST(Room, HeadroomStaysFree) {
  neotier_levels levels{1000, 100, 0, 300};
  neotier_levels_headroom(&levels, 150);
  EXPECT_EQ(levels.above_low, 0u);
  EXPECT_EQ(levels.above_floor, 150u);
}

TEST(Room, FewThatWaitLeaveKswapdAsleep) {
  neotier_room room{};
  const neotier_levels target{500, 100, 100, 200};
  room.reserved = 7;
  EXPECT_TRUE(neotier_room_hold(&room, kFew));
  EXPECT_FALSE(neotier_room_hold(&room, kSome));
  EXPECT_EQ(neotier_room_pages(&room, kFew, &target), 107u);
  EXPECT_EQ(neotier_room_pages(&room, kSome, &target), 207u);
}

TEST(Room, WhileProgramsGrowFastItTakesMany) {
  neotier_room room{};
  room.growth.fast = true;
  EXPECT_TRUE(neotier_room_hold(&room, kSome));
  EXPECT_TRUE(neotier_room_hold(&room, kMany - 1));
  EXPECT_FALSE(neotier_room_hold(&room, kMany));
}

TEST(Room, GrowthIsFastWhenANapTakesMoreThanTheGap) {
  neotier_room room{};
  neotier_room_watch(&room, 10000, 100, 1000 * kMs);
  EXPECT_FALSE(room.growth.fast) << "nothing to compare with";
  neotier_room_watch(&room, 9899, 100, 1050 * kMs);
  EXPECT_TRUE(room.growth.fast) << "101 within half a nap";
  neotier_room_watch(&room, 9899, 100, 1100 * kMs);
  EXPECT_TRUE(room.growth.fast) << "101 in one nap";
  neotier_room_watch(&room, 9799, 100, 1200 * kMs);
  EXPECT_FALSE(room.growth.fast) << "100 in one nap";
  neotier_room_watch(&room, 9598, 100, 1400 * kMs);
  EXPECT_TRUE(room.growth.fast) << "201 in two naps";
}

TEST(Room, MemoryThatBecomesFreeBeginsTheNapAnew) {
  neotier_room room{};
  neotier_room_watch(&room, 1000, 100, 1000 * kMs);
  neotier_room_watch(&room, 1150, 100, 1090 * kMs);
  neotier_room_watch(&room, 1060, 100, 1100 * kMs);
  EXPECT_FALSE(room.growth.fast);
  neotier_room_watch(&room, 1040, 100, 1180 * kMs);
  EXPECT_TRUE(room.growth.fast);
}

TEST(Room, TheReserveTakesWhatWasAskedForDownToLow) {
  neotier_room room{};
  EXPECT_EQ(neotier_room_fill(&room, 50, 100), 0u) << "nobody asked";
  neotier_room_asked(&room, kMs);
  EXPECT_EQ(neotier_room_fill(&room, 50, 100), 50u);
  room.reserved = 80;
  EXPECT_EQ(neotier_room_fill(&room, 50, 100), 20u);
  room.reserved = 120;
  EXPECT_EQ(neotier_room_fill(&room, 50, 100), 0u);
}

TEST(Room, TheReserveIsGivenBackAfterASecondWithoutAPromotion) {
  neotier_room room{};
  neotier_room_asked(&room, 1000 * kMs);
  EXPECT_TRUE(neotier_room_keep(&room, 5, 100, 1500 * kMs)) << "promoted: used now";
  EXPECT_TRUE(neotier_room_keep(&room, 5, 100, 2500 * kMs));
  EXPECT_FALSE(neotier_room_keep(&room, 5, 100, 2501 * kMs));
  EXPECT_TRUE(neotier_room_keep(&room, 6, 100, 2501 * kMs));
}

TEST(Room, AReserveLargerThanAllowedIsGivenBack) {
  neotier_room room{};
  room.reserved = 101;
  EXPECT_FALSE(neotier_room_keep(&room, 1, 100, kMs));
  room.reserved = 100;
  EXPECT_TRUE(neotier_room_keep(&room, 1, 100, kMs));
}

TEST(Room, TheReserveIsASixteenthOfTheNodeAtMost) {
  EXPECT_EQ(neotier_room_most(1000, 160000), 1000u);
  EXPECT_EQ(neotier_room_most(1000, 1600), 100u);
}

TEST(Room, WhatVictimsLeftIsOwedUntilItIsUsed) {
  neotier_room room{};
  neotier_room_owe(&room, 10, 5);
  neotier_room_owe(&room, 6, 7);
  neotier_room_paid(&room, 4);
  EXPECT_EQ(room.owed, 12u);
  neotier_room_paid(&room, 100);
  EXPECT_EQ(room.owed, 0u);
  EXPECT_TRUE(neotier_room_keep(&room, 0, 100, 7 + NEOTIER_RESERVE_IDLE_NS)) << "it was owed a second ago";
  EXPECT_FALSE(neotier_room_keep(&room, 0, 100, 8 + NEOTIER_RESERVE_IDLE_NS));
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// How much of a device's ring is read in an epoch.
#include "promotion/drain.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "promotion/room.h"

namespace {

TEST(Drain, HalfARingInAnEpoch) {
  neotier_drain drain{};
  neotier_drain_begin(&drain, 100, 50, 4096, 0, NEOTIER_NO_LIMIT);
  EXPECT_EQ(neotier_drain_most(&drain, 0), 2048u);
  neotier_drain_done(&drain, 2000);
  EXPECT_FALSE(drain.left);
  EXPECT_FALSE(neotier_drain_begin(&drain, 149, 50, 4096, 0, NEOTIER_NO_LIMIT));
  EXPECT_EQ(neotier_drain_most(&drain, 0), 48u);
  neotier_drain_done(&drain, 48);
  EXPECT_TRUE(drain.left);
  EXPECT_EQ(neotier_drain_most(&drain, 0), 0u);
}

TEST(Drain, WhatIsLeftIsThrownAwayWhenTheNextEpochBegins) {
  neotier_drain drain{};
  neotier_drain_begin(&drain, 100, 50, 4096, 0, NEOTIER_NO_LIMIT);
  neotier_drain_most(&drain, 0);
  neotier_drain_done(&drain, 2048);
  EXPECT_TRUE(neotier_drain_begin(&drain, 150, 50, 4096, 0, NEOTIER_NO_LIMIT));
  EXPECT_EQ(neotier_drain_most(&drain, 0), 2048u);
}

TEST(Drain, NothingIsThrownAwayWhereTheAllowanceWasNotUsedUp) {
  neotier_drain drain{};
  neotier_drain_begin(&drain, 100, 50, 4096, 0, NEOTIER_NO_LIMIT);
  neotier_drain_most(&drain, 0);
  neotier_drain_done(&drain, 2047);
  EXPECT_FALSE(neotier_drain_begin(&drain, 150, 50, 4096, 0, NEOTIER_NO_LIMIT));
}

TEST(Drain, NothingIsReadWhileEnoughWait) {
  neotier_drain drain{};
  neotier_drain_begin(&drain, 100, 50, 4096, 0, NEOTIER_NO_LIMIT);
  EXPECT_EQ(neotier_drain_most(&drain, NEOTIER_ENOUGH), 0u);
  EXPECT_TRUE(drain.left);
  EXPECT_EQ(neotier_drain_most(&drain, NEOTIER_ENOUGH - 1), 2048u);
  EXPECT_FALSE(drain.left);
}

TEST(Drain, WhereReportsAreCountedAnEighthIsReadWhileEnoughWait) {
  neotier_drain drain{};
  neotier_drain_begin(&drain, 100, 50, 4096, 0, 5000);
  EXPECT_EQ(neotier_drain_most(&drain, NEOTIER_ENOUGH), 512u);
  neotier_drain_done(&drain, 300);
  EXPECT_EQ(neotier_drain_most(&drain, NEOTIER_ENOUGH), 212u);
  neotier_drain_done(&drain, 212);
  EXPECT_EQ(neotier_drain_most(&drain, NEOTIER_ENOUGH), 0u);
  EXPECT_TRUE(drain.left);
  EXPECT_EQ(neotier_drain_most(&drain, 0), 1536u) << "for whom there is use, the rest";
  EXPECT_EQ(neotier_drain_most(&drain, NEOTIER_ENOUGH), 0u);
  EXPECT_TRUE(neotier_drain_begin(&drain, 150, 50, 4096, 0, 5000)) << "what is left is of an epoch ago";
}

TEST(Drain, TwoReportsAreReadForAPageThatMayBePromoted) {
  for (const auto& [pages, reports] :
       {std::pair{0u, 512u}, {255u, 512u}, {300u, 600u}, {1024u, 2048u}, {5000u, 2048u}}) {
    neotier_drain drain{};
    neotier_drain_begin(&drain, 100, 50, 4096, 0, pages);
    EXPECT_EQ(neotier_drain_most(&drain, 0), reports);
  }
}

TEST(Drain, WhereNoPageIsConfirmedFewReportsAreRead) {
  neotier_drain drain{};
  u64 now = 0;
  const auto epoch = [&](u64 confirmed, u32 ring = 4096) {
    neotier_drain_begin(&drain, now += 50, 50, ring, confirmed, NEOTIER_NO_LIMIT);
    return neotier_drain_most(&drain, 0);
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(epoch(0), 2048u);
  EXPECT_EQ(epoch(0), 512u);
  EXPECT_EQ(epoch(0), 512u);
  EXPECT_EQ(epoch(1), 2048u) << "one page confirmed";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(epoch(1), 2048u);
  EXPECT_EQ(epoch(1), 512u);
  EXPECT_EQ(epoch(1, 2), 1u);
}

// A device with ticks of 10 and epochs of 5 of them, that was at tick 0 when it was time 0.
struct Phase {
  // Whether an epoch of the drain begins at each time from `from` to `to`, as 0 and 1.
  std::string begins(u64 from, u64 to) {
    std::string said;
    for (u64 now = from; now <= to; now += 10) {
      const u64 before = drain.next_ns;
      neotier_drain_begin(&drain, now, 50, 4096, 0, NEOTIER_NO_LIMIT);
      said += drain.next_ns != before ? '1' : '0';
    }
    return said;
  }
  // Whether all may be read again, likewise.
  std::string allowances(u64 from, u64 to) {
    std::string said;
    for (u64 now = from; now <= to; now += 10) {
      neotier_drain_begin(&drain, now, 50, 4096, 0, NEOTIER_NO_LIMIT);
      const u32 most = neotier_drain_most(&drain, 0);
      neotier_drain_done(&drain, most);
      said += most ? '1' : '0';
    }
    return said;
  }
  void phase(u64 now, u64 ticks, u64 epochs, u32 length = 5) {
    neotier_drain_phase(&drain, now, ticks, epochs, length, 10);
  }
  neotier_drain drain{};
};

TEST(Drain, AnEpochBeginsWithTheDevices) {
  Phase p;
  p.phase(30, 3, 0);
  EXPECT_EQ(p.begins(30, 160), "00100001000010") << "at 50, 100, 150";
  p.phase(170, 17, 3);
  EXPECT_EQ(p.drain.next_ns, 200u);
}

TEST(Drain, AnEpochThatIsDueBeginsThoughItIsToldJustThenWhereTheDeviceIs) {
  Phase p;
  p.phase(30, 3, 0);
  p.phase(50, 5, 1);
  EXPECT_EQ(p.drain.next_ns, 100u);
  EXPECT_EQ(p.allowances(50, 90), "10000");
  p.phase(101, 9, 1);
  EXPECT_EQ(p.allowances(101, 121), "010") << "the device is a little behind: once, when it has ended its epoch";
}

TEST(Drain, ALateLookMovesNoEpochAfterIt) {
  Phase p;
  p.phase(30, 3, 0);
  p.begins(90, 90);
  EXPECT_EQ(p.drain.next_ns, 100u);
  p.begins(370, 370);
  EXPECT_EQ(p.drain.next_ns, 400u);
}

TEST(Drain, WhileTheDeviceStandsStillItsEpochGoesOnLater) {
  Phase p;
  p.phase(30, 3, 0);
  p.phase(1030, 3, 0);
  EXPECT_EQ(p.drain.next_ns, 1050u);
}

TEST(Drain, AnEpochThatEndedLateMovesThoseAfterIt) {
  Phase p;
  p.phase(70, 7, 0);
  EXPECT_EQ(p.drain.next_ns, 80u) << "it is about to end";
  p.phase(100, 10, 1);
  EXPECT_EQ(p.drain.next_ns, 130u) << "it has, and the next one is as long as all";
  p.phase(140, 14, 3);
  EXPECT_EQ(p.drain.next_ns, 190u) << "earlier than it could be: no longer than one epoch from now";
}

TEST(Drain, AnotherLengthBeginsWithTheNextEpoch) {
  Phase p;
  p.phase(20, 2, 0);
  p.phase(30, 3, 0, 20);
  EXPECT_EQ(p.drain.next_ns, 50u);
  p.phase(60, 6, 1, 20);
  EXPECT_EQ(p.drain.next_ns, 250u);
  p.phase(70, 7, 1, 2);
  EXPECT_EQ(p.drain.next_ns, 250u);
}

TEST(Drain, WhateverADeviceSaysTheNextEpochIsAtMostOneAway) {
  const u64 max = ~u64{0};
  for (const u64 ticks : {u64{0}, u64{1}, max / 2, max - 1, max}) {
    for (const u64 epochs : {u64{0}, u64{1}, max / 3, max}) {
      Phase p;
      p.phase(1000, 3, 0);
      p.phase(1000, ticks, epochs);
      EXPECT_GT(p.drain.next_ns, 1000u) << ticks << ' ' << epochs;
      EXPECT_LE(p.drain.next_ns, 1050u) << ticks << ' ' << epochs;
    }
  }
}

}  // namespace

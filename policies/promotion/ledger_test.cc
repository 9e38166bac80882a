// SPDX-License-Identifier: Apache-2.0
// What promotion may cost, and what it is taken to have won.
#include "promotion/ledger.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace {

constexpr uint32_t kLeast = NEOTIER_LEDGER_LEAST_KSWAPD;
constexpr uint64_t kUs = 1000, kMs = 1000 * kUs, kEpoch = 50 * kMs;

// A device whose epoch is as long as the time between two settlements, all of whose requests are reads and all of whose
// reports are read, unless a test says otherwise.
struct Account {
  explicit Account(uint64_t base_ns = 10 * kMs, uint32_t loss_ppm = 5000, uint32_t saved_ns = 40) {
    const neotier_ledger_terms terms = {base_ns, loss_ppm, saved_ns};
    neotier_ledger_start(&ledger, &terms);
    period.interval_ns = period.epoch_ns = kEpoch;
    period.reads = 1 << 24;  // so many that all could be won
    period.reports = 100;
    period.waiting = 1 << 20;  // so many that no control is one too many
    period.downsampling = period.cpus = 1;
  }
  // The first page from `from` on that is chosen.
  uint32_t choose(uint32_t from, uint32_t count) {
    for (;; ++from) {
      const neotier_ledger_page page = of(from, count);
      if (neotier_ledger_choose(&ledger, &page)) return from;
    }
  }
  bool report(uint32_t page, uint32_t count) {
    const neotier_ledger_page reported = of(page, count);
    return neotier_ledger_report(&ledger, &reported);
  }
  // What came of it since the last time, in us.
  int64_t settle() {
    const auto before = ledger.balance_ns;
    horizon = neotier_ledger_settle(&ledger, &period);
    period.promoted = period.returned = period.moves_ns = period.looking_ns = 0;
    return (ledger.balance_ns - before) / static_cast<int64_t>(kUs);
  }
  // Heat has lasted for long enough to repay any move.
  void proven() {
    ledger.steady_ns = NEOTIER_LEDGER_PROOF_NS;
    ledger.page_ns = NEOTIER_LEDGER_STEADY_NS;
  }
  void promote(uint64_t pages, uint64_t each_ns = 20 * kUs) {
    period.promoted = pages;
    period.moves_ns = pages * each_ns;
  }
  neotier_ledger_page of(uint32_t page, uint32_t count) {
    return {page, count,
            [](void* owner, uint32_t where) -> u64 { return where + static_cast<Account*>(owner)->lies_there; }, this};
  }

  neotier_ledger ledger;
  neotier_ledger_period period{};
  uint64_t lies_there = 7;
  bool horizon = false;
};

TEST(Ledger, TheBaseAndAShareOfTheTimeMayBeSpent) {
  Account a;
  a.proven();
  EXPECT_EQ(neotier_ledger_pages(&a.ledger, kLeast), 10 * kMs / (14 * kUs)) << "at 14 us until a move was measured";
  EXPECT_EQ(a.settle(), 250) << "half a percent of 50 ms";
  a.period.looking_ns = 400 * kUs;
  EXPECT_EQ(a.settle(), 250 - 400);
  EXPECT_EQ(a.ledger.spent_ns, 400 * kUs);
  a.period.wakes = 20;
  EXPECT_EQ(a.settle(), 250 - 20 * int64_t{NEOTIER_LEDGER_WAKE_NS} / 1000) << "what the thread cannot measure";
  a.period.wakes = 0;
  a.period.cpus = 8;
  EXPECT_EQ(a.settle(), 8 * 250) << "eight CPUs have eight times as much time";
}

TEST(Ledger, NothingMovesUntilHeatHasLasted) {
  Account a;
  const uint32_t control = a.choose(0, 1000);
  EXPECT_EQ(neotier_ledger_pages(&a.ledger, kLeast), 0u);
  for (int i = 0; i < 2; ++i) {
    a.report(control, 1000);
    a.settle();
    EXPECT_EQ(neotier_ledger_pages(&a.ledger, kLeast), 0u);
  }
  EXPECT_EQ(a.ledger.steady_ns, 0u) << "one report could be chance";
  a.report(control, 1000);
  a.settle();
  EXPECT_EQ(a.ledger.steady_ns, 3 * kEpoch);
  EXPECT_GT(neotier_ledger_pages(&a.ledger, kLeast), 0u) << "more than a tenth of a second";
  for (int i = 0; i < 10; ++i) a.settle();
  EXPECT_EQ(neotier_ledger_pages(&a.ledger, kLeast), 0u) << "it is over";
}

TEST(Ledger, AMoveAndItsRoomAreMeasured) {
  Account a;
  const auto exchange = [&] { return static_cast<double>(a.ledger.exchange_ns); };
  for (int i = 0; i < 20; ++i) {
    a.promote(100, 50 * kUs);
    a.settle();
  }
  // 128 pages at 14 us are counted with the last 1024.
  EXPECT_NEAR(exchange(), (1024 * (50e3 + NEOTIER_LEDGER_MOVE_NS) + 128 * 14e3) / 1152, 500);
  a.promote(2000, 100 * kUs);
  a.settle();
  EXPECT_NEAR(exchange(), 95e3 + NEOTIER_LEDGER_MOVE_NS, 3e3) << "the last ones count most";
  a.promote(1, 1'000'000 * kUs);
  a.settle();
  EXPECT_LT(exchange(), 110e3) << "a price of more than 10 ms is not believed";
  for (int i = 0; i < 40'000 / 50; ++i) a.settle();
  EXPECT_NEAR(exchange(), 14e3, 1e3) << "an old price is forgotten";
}

// A search for victims took 14 ms, and few were found.
TEST(Ledger, ADearMoveDoesNotEndAllMoves) {
  Account a;
  for (int i = 0; i < 5; ++i) {
    a.promote(200, 18 * kUs);
    a.settle();
  }
  a.promote(50, 280 * kUs);
  a.settle();
  EXPECT_LT(a.ledger.exchange_ns, 35 * kUs);
}

TEST(Ledger, PromotedPagesWinWhatControlsAreAskedFor) {
  Account a;
  const uint32_t control = a.choose(0, 100);
  a.promote(200);
  a.settle();
  EXPECT_EQ(a.ledger.won_ns, 0u) << "nothing was promoted before";
  a.report(control, 100);
  // 200 pages, 100 reads of 40 ns each.
  EXPECT_EQ(a.settle(), 250 + 800);
  a.report(control, 100);
  a.period.writes = 3 * a.period.reads;
  EXPECT_EQ(a.settle(), 250 + 200) << "one request in four is a read that waits";
  a.report(control, 100);
  a.period.writes = 0;
  a.period.downsampling = 8;
  EXPECT_EQ(a.settle(), 250 + 6400);
}

TEST(Ledger, WithoutAControlNothingIsWon) {
  Account a;
  a.promote(200);
  a.settle();
  EXPECT_EQ(a.settle(), 250);
}

TEST(Ledger, APromotedPageThatIsReportedAgainWinsNothingMore) {
  Account a;
  const uint32_t control = a.choose(0, 100);
  a.promote(200);
  a.settle();
  a.period.returned = 150;
  a.report(control, 100);
  a.settle();
  a.report(control, 100);
  EXPECT_EQ(a.settle(), 250 + 200) << "50 are left";
}

// So many controls of 100 requests each.
std::vector<uint32_t> controls(Account& a, uint32_t nr) {
  std::vector<uint32_t> pages;
  for (uint32_t from = 0; pages.size() < nr; from = pages.back() + 1) pages.push_back(a.choose(from, 100));
  return pages;
}

TEST(Ledger, WhoAreNotReportedAreColdAndTakeAsManyPromotedPagesWithThem) {
  Account a(100 * kMs);
  const std::vector<uint32_t> pages = controls(a, 8);
  const auto report = [&](uint32_t nr) {
    for (uint32_t i = 0; i < nr; ++i) a.report(pages[i], 100);
    return a.settle();
  };
  a.promote(800);
  report(8);
  EXPECT_EQ(report(8), 250 + 3200);
  EXPECT_EQ(report(2), 250 + 3200 * 5 / 8) << "two of eight: by halves";
  EXPECT_EQ(report(2), 250 + 3200 * 7 / 16);
  for (int i = 0; i < 8; ++i) report(2);
  EXPECT_EQ(a.ledger.nr_controls, 2u);
  const uint64_t left = a.ledger.promoted[0] + a.ledger.promoted[1];
  EXPECT_NEAR(static_cast<double>(left), 200, 10) << "the other six stood for as many of 800";
  for (int i = 0; i < 8; ++i) report(2);
  EXPECT_NEAR(static_cast<double>(report(2)), 250 + static_cast<double>(left) * 4, 2)
      << "and those that are left are all hot";
}

TEST(Ledger, WhereAQuarterOfTheReportsIsReadAQuarterOfTheControlsSaysThatAllAreHot) {
  Account a;
  const std::vector<uint32_t> pages = controls(a, 16);
  a.promote(100);
  a.period.missed = 300;
  a.settle();
  for (uint32_t turn = 0; turn < 12; ++turn) {
    for (uint32_t i = 0; i < 16; ++i)
      if (i % 4 == turn % 4) a.report(pages[i], 100);
    EXPECT_EQ(a.settle(), 250 + 400) << turn;
  }
}

TEST(Ledger, WhatADeviceReportsAtTheThresholdIsWorthWhatItsHistogramSays) {
  Account a;
  const uint32_t control = a.choose(0, 100);
  a.period.hot = 250;
  a.promote(200);
  a.settle();
  a.report(control, 100);
  EXPECT_EQ(a.settle(), 250 + 2000);
  neotier_ledger_regret(&a.ledger, 100);
  neotier_ledger_regret(&a.ledger, 100);
  a.report(control, 100);
  EXPECT_EQ(a.settle(), 250 + 2000 - 20);
  a.period.hot = 0;
  a.report(control, 100);
  a.settle();
  a.report(control, 100);
  EXPECT_EQ(a.settle(), 250 + 1696) << "by its own reports again: the mean of three times 250 and 100";
}

// 200 reports of 1,000, of pages each of which shares its counters with others.
TEST(Ledger, ThatAReportIsOfNoMoreRequestsThanThereWereForEach) {
  Account a;
  a.period.reads = 60'000;
  a.period.reports = 200;
  a.period.missed = 800;
  const std::vector<uint32_t> pages = controls(a, 10);
  const auto seen = [&](uint32_t nr) {
    for (uint32_t i = 0; i < nr; ++i) a.report(pages[i], 100);
    a.settle();
  };
  a.period.hot = 250;
  seen(2);
  EXPECT_EQ(a.ledger.heat, 60u << 8) << "60 for each report; a fifth of them is read";
  seen(2);
  a.period.reads = 6000;
  seen(2);
  EXPECT_EQ(a.ledger.heat, 60u << 8) << "of those that were promoted the device sees none";
  a.period.hot = 30;
  seen(2);
  EXPECT_EQ(a.ledger.heat, 30u << 8) << "no more than the histogram says";
}

TEST(Ledger, OfWhatIsHotOnlyInPartThatPartHasAllTheRequests) {
  Account a;
  a.period.reads = 10'000;
  a.period.hot = 1000;
  const std::vector<uint32_t> pages = controls(a, 8);
  a.promote(100);
  a.settle();
  for (int turn = 0; turn < 40; ++turn) {
    for (uint32_t i = 0; i < 4; ++i) a.report(pages[i], 100);
    // Cold ones are dropped, and others come.
    a.settle();
    for (uint32_t from = 100'000u * (turn + 1); a.ledger.nr_controls < 8;) from = a.choose(from + 1, 100);
  }
  const double warm = static_cast<double>(a.ledger.warm_ppm) * 1e-6;
  EXPECT_LT(warm, .8);
  EXPECT_GT(a.ledger.heat, 110u << 8);
  EXPECT_NEAR(static_cast<double>(a.ledger.heat) / 256 * warm, 100, 25) << "10,000 requests, 100 reports";
}

TEST(Ledger, NoPageMovesForHeatThatWouldNotRepayItsMove) {
  Account a;
  for (const uint32_t count : {10u, 1000u}) {
    Account one;
    const uint32_t control = one.choose(0, count);
    for (int i = 0; i < 4; ++i) {
      one.report(control, count);
      one.settle();
    }
    // A fifth of a second: 10 x 4 x 40 ns is less than the 20 us of a move.
    EXPECT_EQ(neotier_ledger_pages(&one.ledger, kLeast) > 0, count == 1000) << count;
  }
}

TEST(Ledger, APageMovesForHeatThatRepaysItsMoveOnceItHasLastedOneAndAHalfTimesAsLong) {
  Account a;
  a.ledger.steady_ns = NEOTIER_LEDGER_PROOF_NS;
  for (const u64 page_us : {9, 10}) {
    a.ledger.page_ns = page_us * kUs;
    EXPECT_EQ(neotier_ledger_pages(&a.ledger, kLeast) > 0, page_us == 10) << "of 14 us for a move";
  }
}

TEST(Ledger, HeatDoesNotLastWhereFewerThanAThirdStayHot) {
  for (const uint32_t hot : {4u, 6u}) {
    Account a;
    const std::vector<uint32_t> pages = controls(a, 14);
    a.settle();
    // Others each time, so that none is cold for long.
    for (uint32_t turn = 0; turn < 20; ++turn) {
      for (uint32_t i = 0; i < hot; ++i) a.report(pages[(turn * hot + i) % pages.size()], 1000);
      a.settle();
    }
    EXPECT_EQ(a.ledger.steady_ns >= NEOTIER_LEDGER_PROOF_NS, hot == 6) << a.ledger.warm_ppm;
  }
}

TEST(Ledger, WhereHalfAsManyStayHotHeatHasLastedForLess) {
  Account a;
  const std::vector<uint32_t> pages = controls(a, 8);
  for (int i = 0; i < 10; ++i) {
    for (const uint32_t page : pages) a.report(page, 100);
    a.settle();
  }
  EXPECT_EQ(a.ledger.steady_ns, 10 * kEpoch);
  for (uint32_t i = 0; i < 6; ++i) a.report(pages[i], 100);
  a.settle();
  EXPECT_EQ(a.ledger.steady_ns, 11 * kEpoch) << "a quarter less is no end";
  a.settle();
  EXPECT_LT(a.ledger.steady_ns, 8 * kEpoch);
  EXPECT_GT(a.ledger.steady_ns, 4 * kEpoch);
  a.settle();
  EXPECT_LT(a.ledger.steady_ns, 3 * kEpoch) << "less than a quarter";
}

TEST(Ledger, ItIsKnownForHowLongHeatHasLastedLongerThanItIsExpectedToGoOn) {
  Account a;
  const std::vector<uint32_t> pages = controls(a, 8);
  const auto pass = [&](uint32_t hot) {
    for (uint32_t i = 0; i < hot; ++i) a.report(pages[i], 100);
    a.settle();
  };
  for (int i = 0; i < 40; ++i) pass(8);
  EXPECT_EQ(a.ledger.lasted_ns, 40 * kEpoch);
  EXPECT_EQ(a.ledger.steady_ns, NEOTIER_LEDGER_STEADY_NS);
  pass(0);
  pass(0);
  EXPECT_LT(a.ledger.lasted_ns, 20 * kEpoch) << "what goes cold ends both";
  EXPECT_GT(a.ledger.lasted_ns, 0u);
  for (int i = 0; i < 10; ++i) pass(0);
  EXPECT_EQ(a.ledger.lasted_ns, 0u);
}

TEST(Ledger, HeatDoesNotLastWhereOtherPagesAreHotEachTime) {
  for (const size_t hot : {8, 2}) {
    Account a;
    a.period.missed = 300;  // each page that is as hot as before is seen in one epoch of four
    const std::vector<uint32_t> pages = controls(a, NEOTIER_LEDGER_CONTROLS);
    for (size_t i = 0; i < 8; ++i) {
      for (size_t j = 0; j < hot; ++j) a.report(pages[(i * hot + j) % pages.size()], 1000);
      a.settle();
    }
    // 16 controls would have been seen each time if all had stayed hot.
    EXPECT_EQ(neotier_ledger_pages(&a.ledger, kLeast) > 0, hot == 8) << hot << ": " << a.ledger.steady_ns;
  }
}

TEST(Ledger, WhatWentColdSaysNothingAboutWhatComesAfterIt) {
  Account a;
  a.period.reads = 1000;  // so few that it does not pause
  a.period.missed = 300;
  controls(a, NEOTIER_LEDGER_PILOTS);
  for (int i = 0; i < 14; ++i) a.settle();
  ASSERT_EQ(a.ledger.nr_controls, 0u) << "all went cold";
  const std::vector<uint32_t> pages = controls(a, 4);  // so few that none may be seen by chance
  for (int i = 0; i < 3; ++i) {
    for (const uint32_t page : pages) a.report(page, 1000);
    a.settle();
  }
  EXPECT_EQ(a.ledger.steady_ns, 3 * kEpoch);
}

// 1000 reads of 40 ns in 50 ms: .08 % of the time.
TEST(Ledger, WhereNextToNothingCanBeWonAQuarterOfTheBaseIsRisked) {
  for (const uint64_t reads : {1 << 24, 1000}) {
    Account a;
    const bool much = reads > 1000;
    a.period.reads = reads;
    a.ledger.promoted[0] = 1;  // who has promoted does not pause
    a.settle();
    a.proven();
    EXPECT_EQ(neotier_ledger_pages(&a.ledger, 64), (much ? 10'250 : 2'502) / 14);
    // A look without a result costs one in a hundred: twice what the share allows.
    int looks = 0;
    for (; looks < 100 && !neotier_ledger_stopped(&a.ledger); ++looks) {
      a.period.looking_ns = 500 * kUs;
      a.settle();
    }
    EXPECT_EQ(looks, much ? 10'250 / 250 + 1 : 2'502 / 497 + 1);
  }
}

// Whether it looks in each of so many settlements.
std::string looks(Account& a, int settlements, std::optional<uint32_t> hot = {}) {
  std::string looked;
  for (int i = 0; i < settlements; ++i) {
    if (hot) a.report(*hot, 1000);
    a.period.reports = neotier_ledger_stopped(&a.ledger) ? 0 : 100;
    a.settle();
    looked += neotier_ledger_stopped(&a.ledger) ? '.' : 'L';
  }
  return looked;
}

TEST(Ledger, WhoLooksInVainPauses) {
  const std::string pause(NEOTIER_LEDGER_PAUSE, '.'), look(NEOTIER_LEDGER_LOOK, 'L');
  Account a;
  EXPECT_EQ(looks(a, 35), "LLLLLLLLLLL" + pause + look + pause + look) << "once nothing was found in 12";

  Account found;
  EXPECT_EQ(looks(found, 35, found.choose(0, 1000)), std::string(35, 'L')) << "pages may move";
  Account little;
  little.period.reads = 1000;
  EXPECT_EQ(looks(little, 35), std::string(35, 'L')) << "little could be won";
  Account moved;
  moved.promote(100);
  EXPECT_EQ(looks(moved, 35), std::string(35, 'L')) << "pages have moved";
  Account unbound(10 * kMs, NEOTIER_LEDGER_NO_BOUND);
  EXPECT_EQ(looks(unbound, 35), std::string(35, 'L'));
}

TEST(Ledger, WhatCouldBeWonIsSeenAtOnceAndForgottenSlowly) {
  Account a;
  const auto pages = [&a] {
    a.proven();
    return neotier_ledger_pages(&a.ledger, 64);
  };
  a.period.reads = 1000;
  a.settle();
  EXPECT_LT(pages(), 186u);
  a.period.reads = 100'000;  // 8 % of the time: 125 ms of that are 10 ms
  a.settle();
  EXPECT_GE(pages(), 714u);
  a.period.reads = 1000;
  a.settle();
  EXPECT_GT(pages(), 542u) << "a quarter less";
  for (int i = 0; i < 10; ++i) a.settle();
  EXPECT_LT(pages(), 286u);
}

TEST(Ledger, PilotsAreAsManyAsTellForHowLongHeatLasts) {
  Account a;
  uint32_t pilots = 0;
  for (uint32_t page = 0; page < 100; ++page) {
    const neotier_ledger_page one = a.of(page, 100);
    pilots += neotier_ledger_pilot(&a.ledger, &one);
  }
  EXPECT_EQ(pilots, NEOTIER_LEDGER_PILOTS);
  EXPECT_FALSE(neotier_ledger_wants_pilots(&a.ledger));
  for (int i = 0; i < 8; ++i) a.settle();
  EXPECT_EQ(a.ledger.nr_controls, 0u) << "all went cold";
  EXPECT_EQ(a.ledger.drawn, 0u) << "and those that they were drawn from";
  EXPECT_TRUE(neotier_ledger_wants_pilots(&a.ledger));
  EXPECT_EQ(neotier_ledger_pages(&a.ledger, kLeast), 0u);
}

TEST(Ledger, AControlThatIsReportedTwiceIsOne) {
  Account a;
  const std::vector<uint32_t> pages = controls(a, 4);
  a.settle();
  for (int i = 0; i < 4; ++i) a.report(pages[0], 100);
  a.settle();
  EXPECT_EQ(a.ledger.warm_ppm, 250'000u);
}

// Those that went cold say for how long heat lasts, not how hot the next page is.
TEST(Ledger, AHotPageWinsWhatAHotControlIsAskedFor) {
  Account a;
  const std::vector<uint32_t> pages = controls(a, 4);
  for (int i = 0; i < 4; ++i) {
    for (const uint32_t page : pages) a.report(page, 100);
    a.settle();
  }
  // 100 reads of 40 ns an epoch.
  EXPECT_EQ(a.ledger.page_ns, 4 * kUs * a.ledger.steady_ns / kEpoch);
  a.promote(1000, 0);
  a.report(pages[0], 100);
  a.settle();
  ASSERT_EQ(a.ledger.warm_ppm, 625'000u);
  EXPECT_EQ(a.ledger.page_ns, 4 * kUs * a.ledger.steady_ns / kEpoch);
  a.report(pages[0], 100);
  const uint64_t won = a.ledger.won_ns;
  a.settle();
  ASSERT_EQ(a.ledger.warm_ppm, 437'500u);
  EXPECT_NEAR(static_cast<double>(a.ledger.won_ns - won), .4375 * 1000 * 4 * kUs, 10 * kUs)
      << "of all that were promoted";
}

TEST(Ledger, PagesThatHaveJustMovedHaveHadNoTimeToWin) {
  for (const bool hot : {true, false}) {
    Account a;
    const uint32_t control = a.choose(0, 1000);
    for (int i = 0; i < 4; ++i) {
      if (hot) a.report(control, 1000);
      a.settle();
    }
    a.promote(1000);
    if (hot) a.report(control, 1000);
    a.settle();
    EXPECT_LT(a.ledger.balance_ns, 0);
    EXPECT_EQ(neotier_ledger_stopped(&a.ledger), !hot);
    EXPECT_EQ(neotier_ledger_pages(&a.ledger, kLeast) > 0, hot) << "more may move for what these will win";
  }
}

TEST(Ledger, WhatWentColdIsNotCountedOn) {
  Account a;
  const uint32_t control = a.choose(0, 1000);
  a.promote(1000);
  for (int i = 0; i < 4; ++i) {
    a.report(control, 1000);
    a.settle();
  }
  EXPECT_EQ(a.ledger.gain_ppm, 800'000) << "1000 pages, 1000 reads of 40 ns each, in 50 ms";
  while (a.ledger.nr_controls != 0) a.settle();
  EXPECT_EQ(a.ledger.gain_ppm, 0);
}

TEST(Ledger, WhoWinsAHundredthOfTheTimeIsInAHurry) {
  for (const uint32_t count : {12u, 13u}) {
    Account a;
    EXPECT_FALSE(neotier_ledger_hurries(&a.ledger)) << "nothing is won yet";
    const uint32_t control = a.choose(0, count);
    a.promote(1000);
    for (int i = 0; i < 4; ++i) {
      a.report(control, count);
      a.settle();
    }
    EXPECT_EQ(a.ledger.gain_ppm, count * 800) << "1000 pages, so many reads of 40 ns each, in 50 ms";
    EXPECT_EQ(neotier_ledger_hurries(&a.ledger), count == 13);
  }
}

// Looking costs, and wins nothing by itself, however hot the controls are.
TEST(Ledger, HotControlsDoNotPayForLookingWhereNothingHasJustMoved) {
  Account a;
  const uint32_t control = a.choose(0, 1000);
  for (int i = 0; i < 4; ++i) {
    a.report(control, 1000);
    a.settle();
  }
  ASSERT_GT(a.ledger.page_ns, a.ledger.exchange_ns) << "a page that moved now would win its move back";
  a.report(control, 1000);
  a.period.looking_ns = 30 * kMs;
  a.settle();
  EXPECT_TRUE(neotier_ledger_stopped(&a.ledger));
}

TEST(Ledger, OthersAreDrawnInEachPartOfAHorizon) {
  Account a;
  std::set<uint32_t> first, again;
  for (uint32_t from = 0; first.size() < 30; from = *first.rbegin() + 1) first.insert(a.choose(from, 100));
  for (int i = 0; i < 12; ++i) a.settle();
  ASSERT_EQ(a.ledger.nr_controls, 0u);
  for (uint32_t from = 0; again.size() < 30; from = *again.rbegin() + 1) again.insert(a.choose(from, 100));
  uint32_t both = 0;
  for (const uint32_t page : again) both += first.contains(page);
  EXPECT_LT(both, 10u);
}

TEST(Ledger, OfAHotSetOfFewPagesFewStay) {
  Account a;
  for (uint32_t page = 0; page < 100; ++page) {
    const neotier_ledger_page one = a.of(page, 100);
    neotier_ledger_pilot(&a.ledger, &one);
  }
  a.settle();
  EXPECT_EQ(a.ledger.nr_controls, NEOTIER_LEDGER_PILOTS) << "nothing has moved yet";
  const auto report_all = [&] {
    uint32_t kept = 0;
    for (uint32_t page = 0; page < 100; ++page) kept += a.report(page, 100);
    return kept;
  };
  report_all();
  a.period.waiting = 200;
  a.promote(120);
  a.settle();
  EXPECT_EQ(a.ledger.nr_controls, NEOTIER_LEDGER_PILOTS) << "others wait";
  report_all();
  a.period.waiting = 0;
  a.period.missed = 10000;
  a.settle();
  EXPECT_EQ(a.ledger.nr_controls, NEOTIER_LEDGER_PILOTS) << "others were reported and not read";
  a.period.missed = 0;
  for (int i = 0; i < 4; ++i) {
    report_all();
    a.settle();
  }
  EXPECT_EQ(a.ledger.nr_controls, NEOTIER_LEDGER_FEW);
  EXPECT_EQ(report_all(), NEOTIER_LEDGER_FEW) << "the others may move";
}

TEST(Ledger, NoControlIsKeptForEver) {
  Account a;
  const std::vector<uint32_t> pages = controls(a, NEOTIER_LEDGER_CONTROLS);
  uint64_t left = 0;
  for (int i = 0; i < 160; ++i) {
    for (const uint32_t page : pages) a.report(page, 100);
    a.settle();
    if (i == 79) left = a.ledger.nr_controls;
  }
  EXPECT_GT(left, NEOTIER_LEDGER_CONTROLS / 4) << "half a horizon";
  EXPECT_LT(a.ledger.nr_controls, left) << "a horizon";
  EXPECT_GT(a.ledger.nr_controls, NEOTIER_LEDGER_CONTROLS / 16);
}

TEST(Ledger, WhereOneReportInTenIsReadAControlIsWaitedForTenTimesAsLong) {
  Account a;
  a.choose(0, 100);
  a.promote(200);
  a.period.missed = 900;
  a.settle();
  for (int i = 0; i < 18; ++i) EXPECT_EQ(a.settle(), 250 + 800) << i;
  for (int i = 0; i < 8; ++i) a.settle();
  EXPECT_EQ(a.settle(), 250);
}

TEST(Ledger, WhatWasNotLookedAtIsTakenToGoOn) {
  Account a;
  a.choose(0, 100);
  a.promote(200);
  a.settle();
  a.period.reports = 0;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(a.settle(), 250 + 800);
}

TEST(Ledger, WhatTookTheControlsPlaceIsNoControl) {
  Account a;
  const uint32_t control = a.choose(0, 100);
  EXPECT_TRUE(a.report(control, 100));
  a.lies_there = 8;
  EXPECT_FALSE(a.report(control, 100));
}

TEST(Ledger, RegretsCostWhatTheyAreAskedFor) {
  Account a;
  neotier_ledger_regret(&a.ledger, 2000);
  neotier_ledger_regret(&a.ledger, 3000);
  EXPECT_EQ(a.settle(), 250 - 200);
  EXPECT_EQ(a.ledger.regret_ns, 200 * kUs);
  neotier_ledger_regret(&a.ledger, 5000);
  a.period.missed = 300;
  EXPECT_EQ(a.settle(), 250 - 800) << "three reports in four were not read";
}

// A device that rests tells how much it is asked for: by that alone the next program is known.
TEST(Ledger, WhoHasRestedForLongLooksAgainOnceThereIsSomethingToWin) {
  Account a;
  const auto idle = [&] {
    a.period.reads = a.period.reports = 0;
    a.period.looking_ns = 50 * kUs;
    a.settle();
  };
  int looked = 0;
  while (!neotier_ledger_stopped(&a.ledger) && looked < 1000) {
    idle();
    ++looked;
  }
  EXPECT_LT(looked, 100);
  for (int i = 0; i < 100'000; ++i) idle();
  EXPECT_TRUE(neotier_ledger_stopped(&a.ledger));
  a.period.reads = 1'000'000;
  a.period.looking_ns = 50 * kUs;
  a.settle();
  EXPECT_FALSE(neotier_ledger_stopped(&a.ledger));
}

TEST(Ledger, APageIsPromotedForAHorizon) {
  Account a;
  const uint32_t control = a.choose(0, 100);
  a.promote(200);
  a.settle();
  uint64_t passed = 0;
  for (int i = 0; i < 400 && a.ledger.promoted[0] + a.ledger.promoted[1]; ++i) {
    a.report(control, 100);
    a.settle();
    passed += kEpoch;
  }
  EXPECT_GE(passed, NEOTIER_LEDGER_HORIZON_NS * (NEOTIER_LEDGER_PARTS - 2) / NEOTIER_LEDGER_PARTS);
  EXPECT_LE(passed, NEOTIER_LEDGER_HORIZON_NS);
}

TEST(Ledger, AHorizonIsToldOnceAndBeginsWithOtherControls) {
  Account a;
  const uint32_t first = a.choose(0, 100);
  int told = 0;
  for (int i = 0; i < 200; ++i) {
    a.settle();
    told += a.horizon;
  }
  EXPECT_EQ(told, 200 * 50 / 8000);
  EXPECT_EQ(a.ledger.nr_controls, 0u) << "it was not reported";
  std::set<uint32_t> other;
  for (uint32_t from = 0; from < 200; from = *other.rbegin() + 1) other.insert(a.choose(from, 100));
  EXPECT_FALSE(other.contains(first) && other.size() > 100);
}

TEST(Ledger, WhatHasLastedIsExpectedToLast) {
  Account a(1 * kMs, 0);
  const uint32_t control = a.choose(0, 1000);
  a.promote(50);
  a.settle();
  EXPECT_LE(a.ledger.balance_ns, 0);
  // 50 pages win 2 ms an epoch: 40 of the time, in thousandths.
  for (int i = 0; i < 4; ++i) {
    a.report(control, 1000);
    a.settle();
  }
  a.proven();
  const uint64_t early = neotier_ledger_pages(&a.ledger, kLeast), balance = static_cast<uint64_t>(a.ledger.balance_ns);
  EXPECT_GT(early * a.ledger.exchange_ns, balance) << "more than what was won so far";
  for (int i = 0; i < 4; ++i) a.settle();
  for (int i = 0; i < 4; ++i) a.settle();
  EXPECT_LE(neotier_ledger_pages(&a.ledger, kLeast) * a.ledger.exchange_ns, static_cast<uint64_t>(a.ledger.balance_ns))
      << "the controls are cold: nothing lasts";
}

TEST(Ledger, AMoveCostsWhatItsCopiesDisplace) {
  Account a;
  a.promote(100, 10 * kUs);
  EXPECT_EQ(a.settle(), 250 - 1000 - 100 * int64_t{NEOTIER_LEDGER_MOVE_NS} / 1000);
}

TEST(Ledger, WithNothingLeftLookingStopsUntilAQuarterOfTheBaseIsThere) {
  Account a;
  a.promote(600);
  a.settle();
  EXPECT_TRUE(neotier_ledger_stopped(&a.ledger));
  EXPECT_EQ(neotier_ledger_pages(&a.ledger, kLeast), 0u);
  int passed = 0;
  while (neotier_ledger_stopped(&a.ledger) && passed < 1000) {
    a.settle();
    ++passed;
  }
  EXPECT_EQ(passed, (12000 + 600 * int64_t{NEOTIER_LEDGER_MOVE_NS} / 1000 - 10250 + 2500 + 249) / 250);
}

TEST(Ledger, WithoutBaseAndShareTheFirstLookIsTheLast) {
  Account a(0, 0);
  EXPECT_FALSE(neotier_ledger_stopped(&a.ledger));
  a.period.looking_ns = 1;
  a.settle();
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(neotier_ledger_stopped(&a.ledger));
    a.settle();
  }
}

TEST(Ledger, AnOldWinPaysForNoLongHarm) {
  Account a(1 * kMs);
  const uint32_t control = a.choose(0, 60000);
  a.promote(1000);
  a.settle();
  for (int i = 0; i < 50; ++i) {
    a.report(control, 60000);
    a.settle();
  }
  EXPECT_EQ(a.ledger.balance_ns, static_cast<int64_t>(NEOTIER_LEDGER_CAP * kMs));
}

TEST(Ledger, WithoutABoundThereAreNoControlsAndNoLimit) {
  Account a(10 * kMs, NEOTIER_LEDGER_NO_BOUND);
  for (uint32_t page = 0; page < 1000; ++page) {
    const neotier_ledger_page one = a.of(page, 100);
    EXPECT_FALSE(neotier_ledger_choose(&a.ledger, &one));
  }
  a.promote(100000);
  a.settle();
  EXPECT_EQ(neotier_ledger_pages(&a.ledger, kLeast), NEOTIER_NO_LIMIT);
  EXPECT_FALSE(neotier_ledger_stopped(&a.ledger));
  EXPECT_TRUE(neotier_ledger_hurries(&a.ledger)) << "what is won is not known";
  EXPECT_EQ(a.ledger.spent_ns, 100000 * (20 * kUs + NEOTIER_LEDGER_MOVE_NS)) << "but it is said what it has cost";
}

TEST(Ledger, EachPageDrawnHasTheSameChanceToBeAControl) {
  Account a;
  uint32_t drawn = 0, early = 0;
  for (uint32_t page = 0; page < 40000; ++page) {
    const neotier_ledger_page one = a.of(page, 100);
    neotier_ledger_choose(&a.ledger, &one);
    drawn = a.ledger.drawn;
  }
  EXPECT_NEAR(drawn, 40000 / 16.0, 400);
  ASSERT_EQ(a.ledger.nr_controls, NEOTIER_LEDGER_CONTROLS);
  for (const neotier_ledger_control& control : a.ledger.controls) early += control.page < 20000;
  EXPECT_NEAR(early, NEOTIER_LEDGER_CONTROLS / 2.0, 16);
}

// Any device, any clock: nothing overflows, and the balance stays within its bounds.
TEST(Ledger, ExtremesStayWithinBounds) {
  const std::vector<uint64_t> values = {0, 1, 1000, 1ull << 31, 1ull << 40, 1ull << 62, UINT64_MAX};
  for (uint64_t big : values) {
    for (uint64_t other : values) {
      Account a(other, static_cast<uint32_t>(big), static_cast<uint32_t>(other));
      const bool bounds = neotier_ledger_bounds(&a.ledger);
      if (bounds) a.choose(0, 0xffff);
      for (int i = 0; i < 4; ++i) {
        a.period.interval_ns = a.period.promoted = a.period.moves_ns = a.period.reads = a.period.reports =
            a.period.epoch_ns = big;
        a.period.returned = a.period.looking_ns = a.period.wakes = a.period.writes = a.period.missed = other;
        a.period.cpus = static_cast<uint32_t>(big);
        a.period.downsampling = static_cast<uint32_t>(other);
        neotier_ledger_regret(&a.ledger, static_cast<uint32_t>(big));
        neotier_ledger_settle(&a.ledger, &a.period);
        const auto most = static_cast<int64_t>(NEOTIER_LEDGER_CAP * NEOTIER_LEDGER_BASE_MAX_NS);
        EXPECT_LE(a.ledger.balance_ns, most);
        EXPECT_GE(a.ledger.balance_ns, -most);
        EXPECT_GE(a.ledger.exchange_ns, 1u);
      }
    }
  }
}

// Controls that a device counts one by one: `count` tells of each how many requests it had in the last epoch.
struct Counted : Account {
  explicit Counted(uint64_t base_ms = 10) : Account(base_ms * kMs) { period.counted = true; }
  void count(const std::vector<uint32_t>& requests, uint64_t ns = kEpoch) {
    for (uint32_t i = 0; i < requests.size() && i < neotier_ledger_nr_watched(&ledger); ++i) {
      neotier_ledger_count(&ledger, i, requests[i], ns, false);
    }
  }
  // Each control `controls`, each witness `witnesses` requests.
  void count_all(uint32_t controls, uint32_t witnesses) {
    std::vector<uint32_t> requests(ledger.nr_controls, controls);
    requests.resize(neotier_ledger_nr_watched(&ledger), witnesses);
    count(requests);
  }
  void demote(uint32_t pages) {
    for (uint32_t i = 0; i < pages; ++i, ++demoted) {
      const neotier_ledger_page page = of(demoted, 0);
      neotier_ledger_demoted(&ledger, &page);
    }
  }
  uint32_t demoted = 0;
  void choose_some(uint32_t n) {
    for (uint32_t i = 0, page = 0; i < n; ++i) page = choose(page, 1000) + 1;
  }
};

TEST(CountedLedger, PromotedPagesWinWhatControlsWereAskedFor) {
  Counted a;
  a.choose(0, 1000);
  a.count({100});
  a.promote(200);
  a.settle();
  EXPECT_EQ(a.ledger.won_ns, 0u) << "nothing was promoted before";
  a.count({100});
  EXPECT_EQ(a.settle(), 250 + 800) << "200 pages, 100 reads of 40 ns each";
  a.count({160});
  EXPECT_EQ(a.settle(), 250 + 1280) << "the program is faster by now";
  a.count({40});
  EXPECT_EQ(a.settle(), 250 + 320);
  a.count({60}, 2 * kEpoch);
  EXPECT_EQ(a.settle(), 250 + 240) << "60 in two epochs are 30 in one";
}

TEST(CountedLedger, WhatWasNotCountedForLongIsNotKnown) {
  Counted a;
  a.choose(0, 1000);
  a.count({100}, kEpoch / 2);
  a.settle();
  EXPECT_EQ(a.ledger.heat, 0u);
  a.count({100});
  a.settle();
  EXPECT_EQ(a.ledger.heat, 100u * 256);
  a.count({0}, kEpoch / 2);
  a.settle();
  EXPECT_EQ(a.ledger.heat, 100u * 256) << "and changes nothing that is";
}

// Others that share their counters have them reported in each epoch.
TEST(CountedLedger, WhatIsOnlyTakenForHotDoesNotMove) {
  Counted a;
  a.choose_some(8);
  for (int i = 0; i < 10; ++i) {
    for (uint32_t c = 0; c < a.ledger.nr_controls; ++c) a.report(a.ledger.controls[c].page, 1000);
    a.count({5, 6, 4, 5, 5, 7, 5, 4});
    a.settle();
    EXPECT_EQ(neotier_ledger_pages(&a.ledger, 1), 0u) << i;
  }
  EXPECT_EQ(a.ledger.nr_controls, 0u) << "others take their places";
}

TEST(CountedLedger, OnesThatWereHotLongEnoughRepayTheirMoves) {
  Counted a;
  a.choose_some(4);
  a.count({200, 200, 200, 200});
  a.settle();
  EXPECT_EQ(neotier_ledger_pages(&a.ledger, 1), 0u) << "not for as long as that";
  a.count({200, 200, 200, 200});
  a.settle();
  EXPECT_EQ(a.ledger.steady_ns, 2 * kEpoch);
  EXPECT_EQ(a.ledger.page_ns, 2u * 200 * 40) << "two epochs more";
  a.count({300, 300, 300, 300});
  a.settle();
  EXPECT_GT(neotier_ledger_pages(&a.ledger, 1), 0u) << "36 us for a move of 14";
}

TEST(CountedLedger, OneThatIsColdIsDroppedWithItsShare) {
  Counted a;
  a.choose_some(4);
  a.count({100, 100, 100, 100});
  a.promote(400);
  a.settle();
  for (int i = 0; i < 2; ++i) {
    a.count({100, 100, 100, 0});
    EXPECT_EQ(a.settle(), 250 + 1200) << "300 of 400 pages";
    EXPECT_EQ(a.ledger.nr_controls, 4u) << "it may rest";
  }
  a.count({100, 100, 100, 0});
  a.settle();
  EXPECT_EQ(a.ledger.nr_controls, 3u);
  a.count({100, 100, 100});
  EXPECT_EQ(a.settle(), 250 + 1200) << "those it stood for are counted no more";
}

TEST(CountedLedger, OneThatRestsNowAndThenStays) {
  Counted a;
  a.choose_some(2);
  for (int i = 0; i < 12; ++i) {
    a.count({100, i % 3 == 0 ? 100u : 0u});
    a.settle();
  }
  EXPECT_EQ(a.ledger.nr_controls, 2u);
}

TEST(CountedLedger, OneThatHasCooledIsColdThoughItIsWarm) {
  Counted a;
  a.choose_some(2);
  a.count({400, 400});
  a.settle();
  for (int i = 0; i < 3; ++i) {
    a.count({400, 99});
    a.settle();
  }
  EXPECT_EQ(a.ledger.nr_controls, 1u) << "99 would repay a move, but it is less than a quarter";
}

TEST(CountedLedger, OneThatIsHotterDoesNotMakeUpForOneThatIsCold) {
  Counted a;
  a.choose_some(2);
  a.count({400, 400});
  a.settle();
  a.count({1200, 0});
  a.settle();
  EXPECT_EQ(a.ledger.warm_ppm, (1'000'000u + 500'000) / 2) << "half is left, and of late all was";
}

TEST(CountedLedger, AnotherPageIsWhatAllAreThatDidNotCool) {
  Counted a;
  a.choose_some(4);
  a.count({400, 400, 400, 4});
  a.settle();
  EXPECT_EQ(a.ledger.heat, (3u * 400 + 4) * 256 / 4) << "one in four is only taken for hot";
  a.count({400, 400, 40, 4});
  a.settle();
  EXPECT_EQ(a.ledger.heat, (2u * 400 + 4) * 256 / 3) << "one was hot, and is no more";
  EXPECT_EQ(a.ledger.average, (2u * 400 + 40 + 4) * 256 / 4);
  a.count({0, 0, 0, 0});
  a.settle();
  EXPECT_EQ(a.ledger.heat, (2u * 400 + 4) * 256 / 3) << "others are hot now: as hot as these were";
  EXPECT_EQ(a.ledger.average, 0u);
}

TEST(CountedLedger, OneThatIsMuchHotterCountsAsFourMedians) {
  Counted a;
  a.choose_some(5);
  a.count({100, 90, 110, 105, 100000});
  a.settle();
  EXPECT_EQ(a.ledger.average, (100u + 90 + 110 + 105 + 420) * 256 / 5);
}

TEST(CountedLedger, HeatThatDoesNotLastIsSeenAtOnce) {
  Counted a;
  a.choose_some(4);
  for (int i = 0; i < 10; ++i) {
    a.count({100, 100, 100, 100});
    a.settle();
  }
  EXPECT_EQ(a.ledger.steady_ns, 10 * kEpoch);
  a.count({10, 10, 10, 10});
  a.settle();
  a.count({10, 10, 10, 10});
  a.settle();
  EXPECT_LT(a.ledger.steady_ns, 5 * kEpoch);
}

TEST(CountedLedger, WhatIsRegrettedIsAsHotAsControlsAre) {
  Counted a;
  a.choose_some(4);
  a.count({50, 50, 50, 50});
  a.settle();
  a.period.hot = 700;
  for (int i = 0; i < 10; ++i) neotier_ledger_regret(&a.ledger, 800);
  a.count({50, 50, 50, 50});
  a.settle();
  EXPECT_EQ(a.ledger.regret_ns, 10u * 50 * 40) << "whatever the report says, or the histogram";
}

TEST(CountedLedger, DownSamplingLeavesNothingOutOfThem) {
  Counted a;
  a.period.downsampling = 8;
  a.choose(0, 1000);
  a.count({100});
  a.promote(200);
  a.settle();
  a.count({100});
  EXPECT_EQ(a.settle(), 250 + 800);
}

TEST(Witnesses, DemotedPagesLoseWhatTheyAreAskedFor) {
  Counted a;
  a.choose_some(4);
  a.demote(480);
  EXPECT_EQ(a.ledger.nr_witnesses, NEOTIER_LEDGER_WITNESSES);
  a.count_all(400, 10);
  a.settle();
  EXPECT_EQ(a.ledger.regret_ns, 480u * 10 * 40);
  a.count_all(400, 0);
  a.settle();
  EXPECT_EQ(a.ledger.regret_ns, 480u * 10 * 40) << "they are cold by now";
  for (int i = 0; i < 10; ++i) neotier_ledger_regret(&a.ledger, 800);
  a.count_all(400, 0);
  a.settle();
  EXPECT_EQ(a.ledger.regret_ns, 480u * 10 * 40) << "whatever is reported";
}

TEST(Witnesses, EachDemotedPageHasTheSameChance) {
  Counted a;
  a.demote(2400);
  uint32_t early = 0;
  for (uint32_t i = 0; i < a.ledger.nr_witnesses; ++i) early += a.ledger.witnesses[i].page < 1200;
  EXPECT_GT(early, 5u);
  EXPECT_LT(early, 19u);
}

TEST(Witnesses, OneThatIsGoneIsMissedOnceMoreAndTakesItsShare) {
  Counted a;
  a.choose_some(4);
  a.demote(4);
  a.count_all(400, 100);
  neotier_ledger_count(&a.ledger, 4, 300, kEpoch, true);
  a.settle();
  EXPECT_EQ(a.ledger.nr_witnesses, 3u);
  const uint64_t three = 3u * 150 * 40;  // it was missed as well, until it came up
  EXPECT_EQ(a.ledger.regret_ns, three);
  a.count_all(400, 100);
  a.settle();
  EXPECT_EQ(a.ledger.regret_ns, three + 3u * 100 * 40);
}

TEST(Witnesses, OnesThatAreAllGoneSayNothing) {
  Counted a;
  a.choose_some(4);
  a.demote(1);
  a.count_all(50, 0);
  neotier_ledger_count(&a.ledger, 4, 0, kEpoch, true);
  a.settle();
  a.count_all(50, 0);
  a.settle();
  for (int i = 0; i < 10; ++i) neotier_ledger_regret(&a.ledger, 800);
  a.count_all(50, 0);
  a.settle();
  EXPECT_EQ(a.ledger.regret_ns, 10u * 50 * 40) << "then reports do";
}

TEST(Witnesses, ANextPageIsWorthWhatItWinsOverTheOneThatMakesRoom) {
  Counted a;
  a.choose_some(4);
  a.count_all(100, 0);
  a.settle();
  EXPECT_EQ(a.ledger.page_ns, 100u * 40);
  a.promote(200);
  a.demote(100);
  a.count_all(100, 60);
  a.settle();
  EXPECT_EQ(a.ledger.page_ns, 2u * (100 - 30) * 40) << "one of two needed room";
  a.demote(200);
  a.count_all(100, 150);
  a.settle();
  EXPECT_EQ(a.ledger.page_ns, 0u) << "what goes down is hotter than what comes up";
}

TEST(Witnesses, WhatIsNotLookedAtIsNotRegretted) {
  Counted a(1);
  a.choose_some(4);
  a.demote(1000);
  a.promote(2);
  a.count_all(100, 400);
  a.settle();
  ASSERT_TRUE(neotier_ledger_stopped(&a.ledger));
  const uint64_t regret = a.ledger.regret_ns;
  EXPECT_GT(regret, 0u);
  for (int i = 0; i < 4000 && neotier_ledger_stopped(&a.ledger); ++i) {
    for (uint32_t w = 0; w < neotier_ledger_nr_watched(&a.ledger); ++w) neotier_ledger_count(&a.ledger, w, 0, 0, false);
    a.settle();
  }
  EXPECT_EQ(a.ledger.regret_ns, regret);
  EXPECT_FALSE(neotier_ledger_stopped(&a.ledger)) << "the share pays for another look";
}

TEST(Witnesses, OneThatIsMuchHotterCountsAsFourMediansOfControls) {
  Counted a;
  a.choose_some(4);
  a.demote(1);
  a.count_all(100, 5000);
  a.settle();
  EXPECT_EQ(a.ledger.regret_ns, 4u * 100 * 40);
}

TEST(Witnesses, OthersAreDrawnInTheNextHorizon) {
  Counted a;
  a.demote(2400);
  for (uint64_t ns = 0; ns < 4 * NEOTIER_LEDGER_HORIZON_NS; ns += kEpoch) a.settle();
  EXPECT_LT(a.ledger.nr_witnesses, NEOTIER_LEDGER_WITNESSES / 2) << "a horizon each, on average";
  a.demote(2400);
  uint32_t late = 0;
  for (uint32_t i = 0; i < a.ledger.nr_witnesses; ++i) late += a.ledger.witnesses[i].page >= 2400;
  EXPECT_GT(late, NEOTIER_LEDGER_WITNESSES / 2);
}

TEST(Witnesses, WithoutABoundThereAreNone) {
  Account a(10 * kMs, NEOTIER_LEDGER_NO_BOUND);
  const neotier_ledger_page page = a.of(7, 0);
  neotier_ledger_demoted(&a.ledger, &page);
  EXPECT_EQ(neotier_ledger_nr_watched(&a.ledger), 0u);
}

TEST(Witnesses, DemotedPagesAreMissedForOneHorizon) {
  Counted a;
  a.choose_some(1);
  a.demote(100);
  for (uint64_t ns = 0; ns < NEOTIER_LEDGER_HORIZON_NS + 500 * kMs; ns += kEpoch) {
    a.count_all(400, 10);
    a.settle();
  }
  const uint64_t regret = a.ledger.regret_ns;
  EXPECT_GT(regret, 0u);
  a.count_all(400, 10);
  a.settle();
  EXPECT_EQ(a.ledger.regret_ns, regret);
}

// No report comes of a page below the threshold.
TEST(CountedLedger, WithoutReportsTheyAreCountedAllTheSame) {
  Counted a;
  a.choose(0, 1000);
  a.count({100});
  a.promote(200);
  a.settle();
  a.period.reports = 0;
  a.count({20});
  EXPECT_EQ(a.settle(), 250 + 160);
}

TEST(CountedLedger, WhatADeviceSaysCannotOverflow) {
  Counted a;
  a.choose_some(NEOTIER_LEDGER_CONTROLS);
  a.demote(1000);
  const std::vector<uint32_t> lies(NEOTIER_LEDGER_SLOTS, UINT32_MAX);
  for (const uint64_t ns : {kEpoch, uint64_t{1} << 62, uint64_t{1}, uint64_t{900}}) {
    for (const uint64_t epoch : {kEpoch, uint64_t{0}, uint64_t{1} << 62}) {
      a.period.epoch_ns = epoch;
      a.count(lies, ns);
      a.promote(1 << 20);
      a.settle();
      EXPECT_LE(a.ledger.balance_ns, static_cast<int64_t>(10 * kMs * NEOTIER_LEDGER_CAP));
      EXPECT_LE(a.ledger.warm_ppm, 1'000'000u);
    }
  }
  Counted longest;
  longest.period.epoch_ns = uint64_t{1} << 62;
  longest.choose(0, 1000);
  longest.count({UINT32_MAX}, uint64_t{1} << 62);
  longest.settle();
  EXPECT_EQ(longest.ledger.controls[0].rate, (uint64_t{1} << 26) * 256) << "so many requests are believed";
}

}  // namespace

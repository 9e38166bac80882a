// SPDX-License-Identifier: Apache-2.0
// The list of hot pages: duplicates, confirmation, the looks at a page, expiry, overflow.
#include "promotion/hotlist.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace {

constexpr uint64_t kMs = 1'000'000, kEpoch = 50 * kMs;

struct List {
  explicit List(uint32_t pages = 64) : queued(neotier_hotlist_words(pages)) {
    list.queued = queued.data();
    list.seen = {seen.data(), 14};
    list.ops = &kOps;
    list.owner = this;
    const neotier_ledger_terms terms = {10 * kMs, NEOTIER_LEDGER_NO_BOUND, 40};
    neotier_ledger_start(&list.ledger, &terms);
    neotier_hotlist_init(&list, places.data(), NEOTIER_WAITING_MAX);
  }
  void report(uint32_t page, uint64_t now, uint32_t count = 10, uint32_t confirm = 1) {
    neotier_hotlist_report(&list, page, count, now, kEpoch, confirm);
  }
  std::vector<uint32_t> take(uint32_t max, uint64_t now) {
    std::vector<uint32_t> pages;
    batch.resize(max);
    batch.resize(neotier_hotlist_take(&list, batch.data(), max, now));
    for (const neotier_hot& hot : batch) pages.push_back(hot.page);
    return pages;
  }
  void done() { neotier_hotlist_done(&list, batch.data(), static_cast<uint32_t>(batch.size())); }

  static neotier_skip look(void* owner, uint32_t page, bool owners) {
    const auto& refused = static_cast<List*>(owner)->refused;
    const auto found = refused.find({page, owners});
    return found == refused.end() ? NR_NEOTIER_SKIP : found->second;
  }
  static bool demoted(void* owner, uint32_t page) { return static_cast<List*>(owner)->back.contains(page); }
  static u64 identity(void* owner, uint32_t page) { return page + static_cast<List*>(owner)->generation; }
  static void skip(void* owner, uint32_t page, neotier_skip reason) {
    static_cast<List*>(owner)->skipped.emplace_back(page, reason);
  }
  static constexpr neotier_hotlist_ops kOps = {look, skip, demoted, identity};

  std::vector<uint64_t> queued;
  std::vector<neotier_seen> seen = std::vector<neotier_seen>(NEOTIER_SEEN_WAYS << 14);
  std::vector<neotier_waiting_place> places = std::vector<neotier_waiting_place>(NEOTIER_WAITING_MAX);
  neotier_hotlist list{};
  std::map<std::pair<uint32_t, bool>, neotier_skip> refused;
  std::set<uint32_t> back;  // pages that were demoted
  u64 generation = 1;       // of what lies everywhere
  std::vector<std::pair<uint32_t, neotier_skip>> skipped;
  std::vector<neotier_hot> batch;
};

using Pages = std::vector<uint32_t>;
using Skipped = std::vector<std::pair<uint32_t, neotier_skip>>;

TEST(Hotlist, ReportedAgainWhileItWaitsOrMovesIsADuplicate) {
  List list;
  list.report(5, kMs);
  list.report(5, kMs);
  EXPECT_EQ(list.take(10, kMs), (Pages{5}));
  list.report(5, kMs);
  EXPECT_EQ(list.skipped, (Skipped{{5, NEOTIER_SKIP_DUPLICATE}, {5, NEOTIER_SKIP_DUPLICATE}}));
  list.done();
  list.report(5, kMs);
  EXPECT_EQ(list.take(10, kMs), (Pages{5}));
}

TEST(Hotlist, UnconfirmedIsRememberedNotQueued) {
  List list;
  list.report(5, 1 * kEpoch, 10, 2);
  EXPECT_EQ(list.skipped, (Skipped{{5, NEOTIER_SKIP_UNCONFIRMED}}));
  EXPECT_EQ(list.list.waiting.nr, 0u);
  list.report(5, 2 * kEpoch, 10, 2);
  EXPECT_EQ(list.take(10, 2 * kEpoch), (Pages{5}));
}

TEST(Hotlist, APageIsLookedAtWithItsOwnersWhenItComesAndAgainBeforeItsTurn) {
  List list;
  list.refused[{5, true}] = NEOTIER_SKIP_MEMPOLICY;
  list.refused[{6, false}] = NEOTIER_SKIP_LARGE;
  list.report(5, kMs);
  list.report(6, kMs);
  list.report(7, kMs);
  EXPECT_EQ(list.take(10, kMs), (Pages{7}));
  EXPECT_EQ(list.skipped, (Skipped{{5, NEOTIER_SKIP_MEMPOLICY}, {6, NEOTIER_SKIP_LARGE}}));
  list.refused.clear();
  list.report(5, kMs);
  list.report(6, kMs);
  EXPECT_EQ(list.take(10, kMs), (Pages{5, 6})) << "what was refused may come again";
}

TEST(Hotlist, ARefusedPageTakesNoPlaceInTheBatch) {
  List list;
  list.report(5, kMs, 100);
  list.report(6, kMs, 10);
  list.refused[{5, false}] = NEOTIER_SKIP_BUSY;
  EXPECT_EQ(list.take(1, kMs), (Pages{6}));
}

TEST(Hotlist, AReportIsOldAfterASecond) {
  List list;
  list.report(5, 10 * kMs);
  list.report(6, 11 * kMs);
  EXPECT_EQ(list.take(10, 1011 * kMs), (Pages{6}));
  EXPECT_EQ(list.skipped, (Skipped{{5, NEOTIER_SKIP_EXPIRED}}));
}

TEST(Hotlist, WhatGoesBackKeepsItsTurn) {
  List list;
  for (uint32_t page = 1; page < 5; ++page) list.report(page, kMs);
  EXPECT_EQ(list.take(3, kMs), (Pages{1, 2, 3}));
  neotier_hotlist_untake(&list.list, list.batch.data() + 1, 2);
  EXPECT_EQ(list.take(3, kMs), (Pages{2, 3, 4}));
}

TEST(Hotlist, WhoHasToWaitIsCountedOnce) {
  List list;
  list.report(5, kMs);
  neotier_hotlist_wait(&list.list, NEOTIER_SKIP_QUOTA);
  list.report(6, kMs);
  neotier_hotlist_wait(&list.list, NEOTIER_SKIP_NO_ROOM);
  EXPECT_EQ(list.skipped, (Skipped{{5, NEOTIER_SKIP_QUOTA}, {6, NEOTIER_SKIP_NO_ROOM}}));
}

TEST(Hotlist, ClearedItIsAsNew) {
  List list;
  list.report(5, kMs);
  neotier_hotlist_clear(&list.list);
  EXPECT_TRUE(list.take(10, kMs).empty());
  list.report(5, kMs);
  EXPECT_EQ(list.take(10, kMs), (Pages{5}));
}

TEST(Hotlist, WhenAllPlacesAreTakenTheColdestIsDropped) {
  List list(NEOTIER_WAITING_MAX + 1);
  for (uint32_t page = 0; page < NEOTIER_WAITING_MAX; ++page) list.report(page, kMs, page == 7 ? 1 : 100);
  list.report(NEOTIER_WAITING_MAX, kMs, 200);
  EXPECT_EQ(list.skipped, (Skipped{{7, NEOTIER_SKIP_OVERFLOW}}));
  EXPECT_EQ(list.take(1, kMs), (Pages{NEOTIER_WAITING_MAX}));
  list.done();
  list.report(7, kMs, 300);
  EXPECT_EQ(list.take(1, kMs), (Pages{7}));
}

TEST(Hotlist, OneInSixteenStaysAsAControlForAsLongAsItIsTheSamePage) {
  List list(NEOTIER_WAITING_MAX);
  const neotier_ledger_terms terms = {10 * kMs, 5000, 40};
  neotier_ledger_start(&list.list.ledger, &terms);
  for (uint32_t page = 0; page < 512; ++page) list.report(page, kMs, 100);
  EXPECT_EQ(list.skipped, Skipped{}) << "who only waits is none: controls are to be as hot as the pages that move";
  const size_t taken = list.take(512, kMs).size(), controls = list.skipped.size();
  EXPECT_GT(controls, 512u / 32);
  EXPECT_LT(controls, 512u / 8);
  EXPECT_EQ(taken, 512 - controls);
  EXPECT_EQ(list.list.ledger.nr_controls, controls);
  list.done();

  const uint32_t control = list.skipped[0].first;
  EXPECT_EQ(list.skipped[0].second, NEOTIER_SKIP_CONTROL);
  list.skipped.clear();
  list.report(control, kMs, 100);
  EXPECT_EQ(list.skipped, (Skipped{{control, NEOTIER_SKIP_CONTROL}}));
  EXPECT_EQ(list.list.ledger.nr_controls, controls);
  list.generation = 1000;
  list.report(control, kMs, 100);
  EXPECT_EQ(list.list.waiting.nr, 1u) << "something else lies there, which is no control";
}

TEST(Hotlist, WhereNoneMayMoveTheHottestBecomeControlsAsManyAsAreLacking) {
  List list(NEOTIER_WAITING_MAX);
  const neotier_ledger_terms terms = {10 * kMs, 5000, 40};
  neotier_ledger_start(&list.list.ledger, &terms);
  list.refused[{70, false}] = NEOTIER_SKIP_BUSY;
  for (uint32_t page = 0; page < 100; ++page) list.report(page, kMs, page < 60 ? 10 : 1000);
  neotier_hotlist_pilots(&list.list);
  EXPECT_EQ(list.list.ledger.nr_controls, NEOTIER_LEDGER_PILOTS);
  for (uint32_t i = 0; i < NEOTIER_LEDGER_PILOTS; ++i) EXPECT_GE(list.list.ledger.controls[i].page, 60u);
  EXPECT_EQ(list.skipped.size(), NEOTIER_LEDGER_PILOTS + 1) << "one may not move, and tells nothing";
  neotier_hotlist_pilots(&list.list);
  EXPECT_EQ(list.list.waiting.nr, 100 - NEOTIER_LEDGER_PILOTS - 1) << "no more are needed";
  list.skipped.clear();
  list.report(list.list.ledger.controls[0].page, kMs, 1000);
  EXPECT_EQ(list.skipped, (Skipped{{list.list.ledger.controls[0].page, NEOTIER_SKIP_CONTROL}}));
}

TEST(Hotlist, WhereFewReportsAreReadAPageIsConfirmedLater) {
  for (const uint64_t read_ppm : {1'000'000, 125'000}) {
    List list;
    list.list.ledger.watched_ns = 1;
    list.list.ledger.seen_ppm = read_ppm;
    list.report(7, 1 * kEpoch, 10, 2);
    list.report(7, 10 * kEpoch, 10, 2);
    EXPECT_EQ(list.list.waiting.nr, read_ppm == 125'000) << read_ppm;
  }
}

TEST(Hotlist, WithoutABoundNobodyIsAControl) {
  List list;
  for (uint32_t page = 0; page < 64; ++page) list.report(page, kMs);
  neotier_hotlist_pilots(&list.list);
  EXPECT_EQ(list.list.waiting.nr, 64u);
  EXPECT_EQ(list.take(64, kMs).size(), 64u);
}

TEST(Hotlist, ReportsOfWhatWasDemotedAreRegrets) {
  List list;
  list.back = {5};
  list.report(5, kMs, 70);
  list.report(6, kMs, 1000);
  list.report(5, kMs, 30);
  EXPECT_EQ(list.list.ledger.regret_requests, 100u) << "also while it waits";
}

TEST(Hotlist, ACountBeyondSixteenBitsIsTheLargest) {
  List list;
  list.report(5, kMs, 1u << 20);
  list.take(1, kMs);
  EXPECT_EQ(list.batch[0].count, 0xffff);
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// One batch: what plan, quota and room leave of it, and what follows.
#include "promotion/promote.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

namespace {

constexpr uint64_t kNow = 1'000'000;

constexpr uint32_t kSetsLog2 = 4, kGathered = NEOTIER_GATHERED_WAYS << kSetsLog2;

struct Machine {
  Machine() {
    list.queued = queued.data();
    list.seen = {seen.data(), 14};
    list.ops = &kListOps;
    list.owner = this;
    const neotier_ledger_terms terms = {0, NEOTIER_LEDGER_NO_BOUND, 40};
    neotier_ledger_start(&list.ledger, &terms);
    neotier_hotlist_init(&list, places.data(), NEOTIER_WAITING_MAX);
    huge.gathered = gathered.data();
    huge.sets_log2 = kSetsLog2;
    huge.whole = true;
    huge.ops = &kHugeOps;
    huge.owner = this;
    promotion = {&list, batch.data(), &kOps, this, NEOTIER_NO_LIMIT};
  }
  void wait(uint32_t pages) {
    for (uint32_t page = 0; page < pages; ++page) neotier_hotlist_report(&list, page, 10, kNow, 1, 1);
  }
  neotier_next step(bool dry_run = false) { return neotier_promote_some(&promotion, 64, dry_run, kNow); }
  // So many huge folios, each worth its move by one page.
  void wait_huge(uint32_t folios) {
    for (uint32_t folio = 0; folio < folios; ++folio)
      neotier_huge_report(&huge, folio * NEOTIER_HUGE_PAGES, 10 * NEOTIER_HUGE_COST, kNow, 10);
  }
  neotier_next step_huge(uint64_t now = kNow, bool dry_run = false) {
    return neotier_promote_huge(&promotion, &huge, dry_run, now);
  }

  static Machine& of(void* owner) { return *static_cast<Machine*>(owner); }
  static const neotier_hotlist_ops kListOps;
  static const neotier_promote_ops kOps;
  static const neotier_huge_ops kHugeOps;

  std::vector<uint64_t> queued = std::vector<uint64_t>(neotier_hotlist_words(1024));
  std::vector<neotier_seen> seen = std::vector<neotier_seen>(NEOTIER_SEEN_WAYS << 14);
  std::vector<neotier_waiting_place> places = std::vector<neotier_waiting_place>(NEOTIER_WAITING_MAX);
  std::vector<neotier_hot> batch = std::vector<neotier_hot>(64);
  std::vector<neotier_gathered> gathered = std::vector<neotier_gathered>(kGathered);
  neotier_hotlist list{};
  neotier_huge huge{};
  neotier_promotion promotion{};
  uint32_t quota = 1000, failing = 0, moved = 0, woken = 0;
  u64 room = 1000;
  bool worth_waking = true, out_of_memory = false;
  std::map<neotier_skip, uint32_t> skipped;
  std::map<neotier_promote_event, uint32_t> events;
};

const neotier_hotlist_ops Machine::kListOps = {
    [](void*, uint32_t, bool) { return NR_NEOTIER_SKIP; },
    [](void* owner, uint32_t, neotier_skip reason) { ++of(owner).skipped[reason]; },
    [](void*, uint32_t) { return false; }, [](void*, uint32_t page) -> u64 { return page; }};

const neotier_promote_ops Machine::kOps = {
    [](void* owner, uint32_t pages) {
      const uint32_t granted = std::min(pages, of(owner).quota);
      of(owner).quota -= granted;
      return granted;
    },
    [](void* owner, uint32_t pages) { of(owner).quota += pages; },
    [](void* owner) { return of(owner).room; },
    [](void* owner) { return of(owner).worth_waking; },
    [](void* owner, neotier_hot* hot, uint32_t nr) {
      Machine& m = of(owner);
      if (m.out_of_memory) {
        neotier_hotlist_untake(&m.list, hot, nr);
        return -1;
      }
      neotier_hotlist_done(&m.list, hot, nr);
      m.room -= nr;
      m.moved += nr - std::min(nr, m.failing);
      return static_cast<int>(nr - std::min(nr, m.failing));
    },
    [](void* owner, neotier_promote_event event, uint32_t n) { of(owner).events[event] += n; }};

const neotier_huge_ops Machine::kHugeOps = {
    [](void*, uint32_t, bool) { return NR_NEOTIER_SKIP; },
    [](void* owner, uint32_t, neotier_skip reason) { ++of(owner).skipped[reason]; },
    [](void* owner, const neotier_hot*) {
      Machine& m = of(owner);
      if (m.out_of_memory) return -1;
      if (m.failing != 0) return 0;
      m.moved += NEOTIER_HUGE_PAGES;
      return static_cast<int>(NEOTIER_HUGE_PAGES);
    },
    [](void* owner) { ++of(owner).woken; }, nullptr};

TEST(Promote, ABatchAtATimeUntilNoneWaits) {
  Machine m;
  m.wait(100);
  EXPECT_EQ(m.step(), NEOTIER_AGAIN);
  EXPECT_EQ(m.moved, 64u);
  EXPECT_EQ(m.step(), NEOTIER_SLEEP);
  EXPECT_EQ(m.moved, 100u);
  EXPECT_EQ(m.quota, 900u);
}

TEST(Promote, NoMoreThanThePlanAllows) {
  Machine m;
  m.wait(100);
  m.promotion.left = 10;
  EXPECT_EQ(m.step(), NEOTIER_AGAIN);
  EXPECT_EQ(m.moved, 10u);
  EXPECT_EQ(m.step(), NEOTIER_SLEEP);
  EXPECT_EQ(m.moved, 10u);
  EXPECT_EQ(m.skipped[NEOTIER_SKIP_PLAN], 90u);
}

TEST(Promote, NoMoreThanTheQuota) {
  Machine m;
  m.wait(100);
  m.quota = 7;
  m.step();
  EXPECT_EQ(m.moved, 7u);
  EXPECT_EQ(m.step(), NEOTIER_SLEEP);
  EXPECT_EQ(m.skipped[NEOTIER_SKIP_QUOTA], 93u);
}

TEST(Promote, NoMoreThanTheRoomAndTheQuotaOfTheRestComesBack) {
  Machine m;
  m.wait(100);
  m.room = 5;
  EXPECT_EQ(m.step(), NEOTIER_AGAIN);
  EXPECT_EQ(m.moved, 5u);
  EXPECT_EQ(m.quota, 995u);
}

TEST(Promote, WithoutRoomKswapdIsAskedIfItIsWorthIt) {
  Machine m;
  m.wait(100);
  m.room = 0;
  EXPECT_EQ(m.step(), NEOTIER_WAIT_ROOM);
  m.worth_waking = false;
  EXPECT_EQ(m.step(), NEOTIER_SLEEP);
  EXPECT_EQ(m.events[NEOTIER_EVENT_ROOM_WAIT], 1u);
  EXPECT_EQ(m.events[NEOTIER_EVENT_ROOM_HOLD], 1u);
  EXPECT_EQ(m.skipped[NEOTIER_SKIP_NO_ROOM], 100u) << "each once";
  EXPECT_EQ(m.quota, 1000u);
}

TEST(Promote, WithoutMemoryAllGoesBack) {
  Machine m;
  m.wait(100);
  m.out_of_memory = true;
  EXPECT_EQ(m.step(), NEOTIER_WAIT_ROOM);
  EXPECT_EQ(m.list.waiting.nr, 100u);
  EXPECT_EQ(m.quota, 1000u);
  EXPECT_EQ(m.skipped[NEOTIER_SKIP_NO_MEMORY], 100u);
}

TEST(Promote, PagesThatDidNotMoveCostNoQuota) {
  Machine m;
  m.wait(10);
  m.promotion.left = 20;
  m.failing = 4;
  EXPECT_EQ(m.step(), NEOTIER_SLEEP);
  EXPECT_EQ(m.quota, 994u);
  EXPECT_EQ(m.promotion.left, 14u);
}

TEST(Promote, ADryRunTakesQuotaButNoRoom) {
  Machine m;
  m.wait(10);
  m.room = 0;
  EXPECT_EQ(m.step(true), NEOTIER_SLEEP);
  EXPECT_EQ(m.moved, 0u);
  EXPECT_EQ(m.quota, 990u);
  EXPECT_EQ(m.events[NEOTIER_EVENT_DRY_RUN], 10u);
}

TEST(PromoteHuge, OneAtATimeWithinPlanAndQuota) {
  Machine m;
  m.wait_huge(4);
  m.quota = 4 * NEOTIER_HUGE_PAGES - 1;
  m.promotion.left = 3 * NEOTIER_HUGE_PAGES - 1;
  EXPECT_EQ(m.step_huge(), NEOTIER_AGAIN);
  EXPECT_EQ(m.step_huge(), NEOTIER_AGAIN);
  EXPECT_EQ(m.step_huge(), NEOTIER_SLEEP);
  EXPECT_EQ(m.moved, 2 * NEOTIER_HUGE_PAGES);
  EXPECT_EQ(m.promotion.left, NEOTIER_HUGE_PAGES - 1);
  EXPECT_EQ(m.skipped[NEOTIER_SKIP_PLAN], 2u);
  m.promotion.left = NEOTIER_NO_LIMIT;
  EXPECT_EQ(m.step_huge(), NEOTIER_AGAIN);
  EXPECT_EQ(m.step_huge(), NEOTIER_SLEEP);
  EXPECT_EQ(m.moved, 3 * NEOTIER_HUGE_PAGES);
  EXPECT_EQ(m.quota, NEOTIER_HUGE_PAGES - 1) << "what is not enough for a folio is given back";
  EXPECT_EQ(m.skipped[NEOTIER_SKIP_QUOTA], 0u) << "counted once, for the plan";
  EXPECT_EQ(m.promotion.left, NEOTIER_NO_LIMIT);
  m.quota = NEOTIER_HUGE_PAGES;
  EXPECT_EQ(m.step_huge(), NEOTIER_SLEEP);
  EXPECT_EQ(m.huge.nr, 0u);
}

TEST(PromoteHuge, WithoutMemoryItWaitsAndIsTriedAgainLater) {
  Machine m;
  m.wait_huge(2);
  m.out_of_memory = true;
  EXPECT_EQ(m.step_huge(), NEOTIER_SLEEP);
  EXPECT_EQ(m.huge.nr, 2u);
  EXPECT_EQ(m.quota, 1000u);
  EXPECT_EQ(m.skipped[NEOTIER_SKIP_NO_ROOM], 2u);
  EXPECT_EQ(m.events[NEOTIER_EVENT_ROOM_WAIT], 1u);
  EXPECT_EQ(m.step_huge(kNow + NEOTIER_HUGE_RETRY_NS - 1), NEOTIER_SLEEP);
  EXPECT_EQ(m.woken, 1u) << "not at every step";
  EXPECT_EQ(m.step_huge(kNow + NEOTIER_HUGE_RETRY_NS), NEOTIER_SLEEP);
  EXPECT_EQ(m.woken, 2u);
  EXPECT_EQ(m.events[NEOTIER_EVENT_ROOM_WAIT], 2u);
  m.out_of_memory = false;
  EXPECT_EQ(m.step_huge(kNow + 2 * NEOTIER_HUGE_RETRY_NS), NEOTIER_AGAIN);
  EXPECT_EQ(m.moved, NEOTIER_HUGE_PAGES);
}

TEST(PromoteHuge, OneThatDidNotMoveCostsNoQuotaAndIsGone) {
  Machine m;
  m.wait_huge(1);
  m.failing = 1;
  m.promotion.left = 600;
  EXPECT_EQ(m.step_huge(), NEOTIER_SLEEP);
  EXPECT_EQ(m.huge.nr, 0u);
  EXPECT_EQ(m.quota, 1000u);
  EXPECT_EQ(m.promotion.left, 600u);
}

TEST(PromoteHuge, ADryRunTakesQuotaButMovesNothing) {
  Machine m;
  m.wait_huge(1);
  m.out_of_memory = true;
  EXPECT_EQ(m.step_huge(kNow, true), NEOTIER_SLEEP);
  EXPECT_EQ(m.moved, 0u);
  EXPECT_EQ(m.quota, 1000u - NEOTIER_HUGE_PAGES);
  EXPECT_EQ(m.events[NEOTIER_EVENT_DRY_RUN_HUGE], 1u);
}

TEST(PromoteHuge, WithNoneLeftAfterTheLookNothingIsTaken) {
  Machine m;
  m.wait_huge(1);
  EXPECT_EQ(m.step_huge(kNow + NEOTIER_EXPIRE_NS + 1), NEOTIER_SLEEP);
  EXPECT_EQ(m.skipped[NEOTIER_SKIP_EXPIRED], 1u);
  EXPECT_EQ(m.quota, 1000u);
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// Controls that a device counts one by one.
#include "promotion/watch.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace {

constexpr uint64_t kMs = 1'000'000;

// A device that counts what it was told to, and what lies in its memory.
struct Device {
  explicit Device(uint32_t nr = NEOTIER_LEDGER_SLOTS) {
    const neotier_ledger_terms terms = {10 * kMs, 5000, 40};
    neotier_ledger_start(&ledger, &terms);
    const neotier_time begin = {};
    neotier_clock_start(&clock, false, &begin);
    watch.nr = nr;
    watch.ops = &kOps;
    watch.owner = this;
  }
  // The first page from `from` on that is chosen.
  uint32_t choose(uint32_t from) {
    for (;; ++from) {
      const neotier_ledger_page page = {from, 100, kOps.identity, this};
      if (neotier_ledger_choose(&ledger, &page)) return from;
    }
  }
  void demote(uint32_t to) {
    const neotier_ledger_page page = {to, 0, kOps.identity, this};
    neotier_ledger_demoted(&ledger, &page);
  }
  void name() { neotier_watch_name(&watch, &ledger, now_ns); }
  bool count() { return neotier_watch_count(&watch, &ledger, &clock, now_ns); }
  const neotier_ledger_control& control(uint32_t i) const { return ledger.controls[i]; }
  static Device& of(void* owner) { return *static_cast<Device*>(owner); }

  static const neotier_watch_ops kOps;
  neotier_ledger ledger;
  neotier_clock clock{};
  neotier_watch watch{};
  uint64_t now_ns = 7 * kMs;
  std::vector<std::pair<uint32_t, uint32_t>> named;  // slots and pages, in order
  std::map<uint32_t, uint32_t> counts;               // by slot
  uint64_t lies_there = 7;
};

const neotier_watch_ops Device::kOps = {
    [](void* owner, uint32_t slot, uint32_t page) {
      of(owner).named.emplace_back(slot, page);
      of(owner).counts[slot] = 0;
    },
    [](void* owner, uint32_t slot) -> u32 { return of(owner).counts[slot]; },
    [](void* owner, uint32_t page) -> u64 { return page + of(owner).lies_there; },
};

TEST(Watch, EachControlIsNamedOnceAndCountedFromThenOn) {
  Device d;
  const uint32_t a = d.choose(0), b = d.choose(a + 1);
  d.name();
  d.name();
  ASSERT_EQ(d.named.size(), 2u) << "not again";
  EXPECT_EQ(d.named[0].second, a);
  EXPECT_EQ(d.named[1].second, b);
  EXPECT_NE(d.named[0].first, d.named[1].first);
  d.counts[d.control(0).slot] = 30;
  d.counts[d.control(1).slot] = 70;
  d.now_ns += 50 * kMs;
  ASSERT_TRUE(d.count());
  EXPECT_EQ(d.control(0).requests, 30u);
  EXPECT_EQ(d.control(1).requests, 70u);
  EXPECT_EQ(d.control(0).counted_ns, 50 * kMs);
  d.counts[d.control(0).slot] = 35;
  d.now_ns += 20 * kMs;
  ASSERT_TRUE(d.count());
  EXPECT_EQ(d.control(0).requests, 5u) << "since the last time";
  EXPECT_EQ(d.control(1).requests, 0u);
  EXPECT_EQ(d.control(1).counted_ns, 20 * kMs);
}

TEST(Watch, CountsWrap) {
  Device d;
  d.choose(0);
  d.name();
  d.counts[d.control(0).slot] = 0xfffffff0;
  d.count();
  d.counts[d.control(0).slot] = 0x10;
  d.now_ns += kMs;
  d.count();
  EXPECT_EQ(d.control(0).requests, 0x20u);
}

TEST(Watch, OneThatWasChosenSinceIsNotKnown) {
  Device d;
  d.choose(0);
  ASSERT_TRUE(d.count());
  EXPECT_EQ(d.control(0).counted_ns, 0u);
}

TEST(Watch, APageThatIsChosenAgainCountsFromThenOn) {
  Device d;
  const uint32_t page = d.choose(0);
  d.name();
  d.counts[0] = 1000;
  // It is dropped, and a settlement later it is chosen again, for the same slot.
  d.ledger.nr_controls = 0;
  d.ledger.slots = 0;
  d.now_ns += 100 * kMs;
  d.name();
  ASSERT_EQ(d.choose(page), page);
  d.name();
  EXPECT_EQ(d.named.size(), 2u);
  d.counts[0] += 3;
  d.now_ns += 10 * kMs;
  d.count();
  EXPECT_EQ(d.control(0).requests, 3u);
  EXPECT_EQ(d.control(0).counted_ns, 10 * kMs);
}

// All places are taken: another page takes one, and its slot.
TEST(Watch, APageThatTakesAnothersPlaceIsNamed) {
  Device d;
  uint32_t page = 0;
  for (int i = 0; i < 80; ++i) page = d.choose(page) + 1;
  d.name();
  const size_t before = d.named.size();
  EXPECT_EQ(before, NEOTIER_LEDGER_CONTROLS);
  const uint32_t another = d.choose(page);
  d.name();
  ASSERT_EQ(d.named.size(), before + 1);
  EXPECT_EQ(d.named.back().second, another);
  uint32_t i = 0;
  while (d.control(i).page != another) ++i;
  EXPECT_EQ(d.named.back().first, d.control(i).slot);
}

TEST(Watch, WhatLiesThereNowIsNotCounted) {
  Device d;
  d.choose(0);
  d.name();
  d.counts[d.control(0).slot] = 1000;
  d.lies_there = 8;
  d.now_ns += 50 * kMs;
  d.count();
  EXPECT_EQ(d.control(0).requests, 0u);
  EXPECT_EQ(d.control(0).counted_ns, 50 * kMs) << "that it is asked for no more is known";
}

// Of a page that was demoted and has come up again it is told, and that it has.
TEST(Watch, WitnessesAreCountedToo) {
  Device d;
  d.choose(0);
  d.demote(70);
  d.name();
  ASSERT_EQ(d.named.size(), 2u);
  EXPECT_EQ(d.named[1].second, 70u);
  const uint32_t slot = d.ledger.witnesses[0].slot;
  EXPECT_NE(slot, d.control(0).slot);
  d.counts[slot] = 40;
  d.now_ns += kMs;
  d.count();
  EXPECT_EQ(d.ledger.witnesses[0].requests, 40u);
  EXPECT_EQ(d.control(0).requests, 0u);
  EXPECT_FALSE(d.ledger.witnesses[0].gone);
  d.counts[slot] = 45;
  d.lies_there = 8;
  d.count();
  EXPECT_EQ(d.ledger.witnesses[0].requests, 5u);
  EXPECT_TRUE(d.ledger.witnesses[0].gone);
}

TEST(Watch, ADeviceThatStoodStillIsToldAgain) {
  Device d;
  d.choose(0);
  d.name();
  d.now_ns += kMs;
  d.count();
  EXPECT_EQ(d.control(0).counted_ns, kMs);
  neotier_watch_forget(&d.watch);
  d.counts[0] = 500;
  d.count();
  EXPECT_EQ(d.control(0).counted_ns, 0u) << "nothing is known";
  d.name();
  EXPECT_EQ(d.named.size(), 2u);
}

TEST(Watch, ADeviceThatCountsFewerIsToldOfSoMany) {
  Device d(2);
  uint32_t page = 0;
  for (int i = 0; i < 5; ++i) page = d.choose(page) + 1;
  d.name();
  EXPECT_EQ(d.named.size(), 2u);
  d.now_ns += kMs;
  ASSERT_TRUE(d.count());
  EXPECT_EQ(d.control(1).counted_ns, kMs);
  EXPECT_EQ(d.control(2).counted_ns, 0u);
}

TEST(Watch, OneThatCountsNothingIsLeftAlone) {
  Device none(0);
  none.choose(0);
  none.name();
  EXPECT_TRUE(none.named.empty());
  EXPECT_FALSE(none.count());
  Device unbounded;
  unbounded.ledger.terms.loss_ppm = NEOTIER_LEDGER_NO_BOUND;
  unbounded.name();
  EXPECT_FALSE(unbounded.count()) << "without a bound there are no controls";
}

// Whatever is chosen and dropped, no two controls have the same slot, and none has one that the device lacks.
TEST(Watch, SlotsAreTheirControlsOwn) {
  Device d;
  neotier_ledger_period period{};
  period.interval_ns = period.epoch_ns = 50 * kMs;
  period.reads = 1 << 24;
  period.waiting = 1 << 20;
  period.downsampling = period.cpus = 1;
  uint32_t page = 0;
  size_t most = 0;
  for (int i = 0; i < 400; ++i) {
    for (uint32_t n = 0; n < 50; ++n, ++page) {
      const neotier_ledger_page hot = {page, 100, Device::kOps.identity, &d};
      neotier_ledger_choose(&d.ledger, &hot);
    }
    for (uint32_t n = 0; n < 5; ++n) d.demote(1000 + 5 * i + n);
    d.name();
    for (auto& [slot, count] : d.counts) count += (slot * 7 + i) % 5 * 100;
    d.now_ns += 50 * kMs;
    period.counted = d.count();
    neotier_ledger_settle(&d.ledger, &period);
    uint64_t slots = 0;
    const auto take = [&](const neotier_ledger_control& watched) {
      ASSERT_LT(watched.slot, NEOTIER_LEDGER_SLOTS);
      ASSERT_FALSE(slots >> watched.slot & 1);
      slots |= uint64_t{1} << watched.slot;
    };
    for (uint32_t c = 0; c < d.ledger.nr_controls; ++c) take(d.control(c));
    for (uint32_t w = 0; w < d.ledger.nr_witnesses; ++w) take(d.ledger.witnesses[w]);
    ASSERT_EQ(slots, d.ledger.slots);
    most = std::max<size_t>(most, d.ledger.nr_controls);
  }
  EXPECT_GT(most, 30u);
}

}  // namespace

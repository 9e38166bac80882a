// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// Overlap, streams and chases against cases worked out by hand. 90 ns of DRAM, 250 ns of CXL memory, 240 ps an
// instruction: a window of 224 instructions fills in 53.76 ns.
#include "hil/model/streams.h"

#include <gtest/gtest.h>

#include "hil/model/hierarchy.h"

namespace neotier::hil {
namespace {

constexpr uint64_t kCxlBase = 1ull << 32, kCxlSize = 1ull << 30;

Params with_streams() {
  Params p = default_params(1);
  p.streams = 1;
  p.dram_mb_s = p.cxl_mb_s = 10'000'000;  // 6 ps a line: nobody queues
  return p;
}

struct Machine {
  explicit Machine(const Params& p = with_streams()) : params(p), h(p, kCxlBase, kCxlSize, nullptr) {}
  Params params;
  Hierarchy h;
  InstructionCounts n;
  // Stall of a load after `instructions` further ones.
  uint64_t load(uint64_t pa, uint64_t instructions = 1, uint64_t pc = 1, uint64_t va = 0) {
    n.user += instructions;
    const uint64_t before = h.now_ps(n);
    h.access(pa, va != 0 ? va : pa, false, n, pc);
    return h.now_ps(n) - before;
  }
};

// Far from each other: no stream.
uint64_t far(uint64_t i) { return 0x10'0000 + i * 0x10'1000; }

TEST(Window, IndependentMissesWithinItCostOneLatency) {
  Machine m;
  EXPECT_EQ(m.load(far(0)), 90'000u);
  // Sent ten instructions after the first, it comes as much later; so much the core has done meanwhile.
  EXPECT_EQ(m.load(far(1), 10), 0u);
  EXPECT_EQ(m.load(far(2), 213), 0u);     // the last instruction of the window
  EXPECT_EQ(m.load(far(3), 1), 90'000u);  // the next window
}

TEST(Window, HoldsAsManyMissesAsThereAreFillBuffers) {
  Machine m;
  uint64_t stall = 0;
  for (uint64_t i = 0; i < 12; ++i) stall += m.load(far(i), 1);
  EXPECT_EQ(stall, 90'000u);
  EXPECT_EQ(m.load(far(12), 1), 90'000u);
}

TEST(Window, TheSlowerTierIsWaitedForTheFasterOneIsHidden) {
  Machine m;
  EXPECT_EQ(m.load(kCxlBase), 250'000u);
  EXPECT_EQ(m.load(far(1)), 0u);
  Machine other;
  EXPECT_EQ(other.load(far(1)), 90'000u);
  EXPECT_EQ(other.load(kCxlBase), 160'000u);
  EXPECT_EQ(other.h.counters(other.n).stall_ps[kDram], 90'000u);
  EXPECT_EQ(other.h.counters(other.n).stall_ps[kCxl], 160'000u);
}

TEST(Window, HitsOfTheLowerLevelsAreHidden) {
  Machine m;
  // 32 KiB in 8 ways: nine lines of a set, so that the first is left to L2.
  for (uint64_t i = 0; i < 9; ++i) m.load(0x10'0000 + i * 0x4000, 1000);
  EXPECT_EQ(m.load(0x10'0000, 1000), 0u);
}

TEST(Queue, OverlappedMissesStillTakeTheTiersTime) {
  Params p = with_streams();
  p.cxl_mb_s = 640;  // 100 ns a line
  Machine m(p);
  EXPECT_EQ(m.load(kCxlBase), 250'000u);
  // Each is served 100 ns after the one before, and the core does an instruction in between.
  EXPECT_EQ(m.load(kCxlBase + far(1)), 100'000u - 240);
  EXPECT_EQ(m.load(kCxlBase + far(2)), 100'000u - 240);
}

TEST(Queue, AWriteBackDelaysNothingThatWasSentBeforeIt) {
  Params p = with_streams();
  p.dram_mb_s = 100'000;  // .64 ns a line
  p.l1_kib = p.l1_ways = 4;
  p.l2_kib = 64;
  p.llc_kib = 256;
  Machine m(p);
  // Every line is written, so that each miss, once the caches are full, throws a dirty line out.
  uint64_t misses = 0, stall = 0;
  for (uint64_t i = 0; i < 20'000; ++i) {
    const uint64_t one = m.load(far(i % 2000), 10);
    m.h.access(far(i % 2000), far(i % 2000), true, m.n, 2);
    if (i < 10'000) continue;
    ++misses;
    stall += one;
  }
  EXPECT_GT(m.h.counters(m.n).writebacks[kDram], misses);
  // Twelve at a time, and fewer where the queue of both is waited for.
  EXPECT_GE(stall, misses * 90'000 / 13);
  EXPECT_LE(stall, misses * 90'000 / 10);
}

TEST(Chase, ALoadOfAPointerWaitsForTheLoadThatGaveIt) {
  Machine m;
  uint64_t stall = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    stall += m.load(far(i), 3, 7, far(i));
    m.h.loaded(7, far(i), far(i + 1));
  }
  EXPECT_EQ(stall, 100 * 90'000u);
  EXPECT_EQ(m.h.counters(m.n).dependent, 99u);
}

TEST(Chase, WhatWasReadComesWhileAShootdownIsWaitedFor) {
  for (const uint64_t cpus : {1u, 16u}) {
    Params p = with_streams();
    p.shootdown_cpus = cpus;
    Machine m(p);
    m.load(far(0), 3, 7, far(0));
    m.h.loaded(7, far(0), far(1));
    m.h.shoot_down();
    EXPECT_EQ(m.load(far(1), 300, 7, far(1)), 90'000u);  // past the window: nothing is sent before the shootdown
    EXPECT_EQ(m.h.counters(m.n).dependent, cpus == 1 ? 1u : 0u);
  }
}

TEST(Chase, AFieldBehindThePointerIsTheSame) {
  Machine m;
  m.load(far(0), 1, 7);
  m.h.loaded(7, far(0), far(1));
  EXPECT_EQ(m.load(far(1) + 0x800, 1, 8), 90'000u);
}

TEST(Chase, IndicesAreFollowedOnceTheLoadHasDoneSoTwice) {
  Machine m;
  // a[i] of 8 bytes at 0x1000'0000 holds the next i; all in one tier, no two in a page.
  uint64_t index = 0, stall = 0;
  const auto next = [](uint64_t i) { return (i * 5 + 131'071) % 33'554'432; };
  for (int i = 0; i < 50; ++i) {
    const uint64_t at = 0x1000'0000 + index * 8;
    stall += m.load(at, 3, 7);
    index = next(index);
    m.h.loaded(7, at, index);
  }
  // The load's first four addresses are two differences with their values' two, and the first is the window's.
  EXPECT_GE(stall, 46 * 90'000u);
  EXPECT_LE(stall, 50 * 90'000u);
}

TEST(Chase, SeveralAtATimeOverlap) {
  Machine m;
  uint64_t stall = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    for (uint64_t chain = 0; chain < 4; ++chain) {
      const uint64_t at = far(i * 4 + chain);
      stall += m.load(at, 3, 7 + chain);
      m.h.loaded(7 + chain, at, far(i * 4 + 4 + chain));
    }
  }
  EXPECT_GE(stall, 100 * 90'000u);
  EXPECT_LE(stall, 100 * (90'000u + 3 * 3 * 240));
}

TEST(Chase, AStoreHoldsUpNobody) {
  Machine m;
  m.load(far(0), 1, 7);
  m.h.loaded(7, far(0), far(1));
  m.n.user += 1;
  const uint64_t before = m.h.now_ps(m.n);
  m.h.access(far(1), far(1), true, m.n, 8);
  EXPECT_EQ(m.h.now_ps(m.n) - before, 0u);
}

TEST(Chase, ThroughTheSecondLevelCostsItsLatencyEachTime) {
  Machine m;
  // Nine lines of an L1 set, twice round: the second time all are in L2.
  const auto at = [](uint64_t i) { return 0x10'0000 + i % 9 * 0x4000; };
  uint64_t stall = 0;
  for (uint64_t i = 0; i < 18; ++i) {
    const uint64_t one = m.load(at(i), 1, 7);
    m.h.loaded(7, at(i), at(i + 1));
    if (i >= 10) stall += one;
  }
  EXPECT_EQ(stall, 8 * (7'000u - 240));  // an instruction passes meanwhile
}

TEST(Stream, LinesOfAStreamComeAsFastAsItsPrefetcherMay) {
  Machine m;
  uint64_t demand = 0;
  for (uint64_t i = 0; i < 3; ++i) demand += m.load(kCxlBase + i * 64, 1000);
  EXPECT_EQ(demand, 3 * 250'000u);  // before two equal distances are seen, and further apart than the window
  for (uint64_t i = 3; i < 64; ++i) EXPECT_EQ(m.load(kCxlBase + i * 64, 1000), 0u) << i;
  EXPECT_EQ(m.h.counters(m.n).prefetched, 61u);
  EXPECT_EQ(m.h.counters(m.n).fills[kCxl], 64u);
  // A program that asks faster waits for a twentieth of the latency a line.
  Machine fast;
  uint64_t stall = 0;
  for (uint64_t i = 0; i < 64; ++i)
    stall += i < 4 ? (fast.load(kCxlBase + i * 64, 10), 0) : fast.load(kCxlBase + i * 64, 10);
  EXPECT_EQ(stall, 60 * (250'000u / 20 - 2'400));
}

TEST(Stream, EndsWithItsPageAndNeedsAStride) {
  StreamDetector detector;
  for (uint64_t i = 0; i < 64; ++i) EXPECT_EQ(detector.miss(i).prefetched(), i >= 3) << i;
  EXPECT_FALSE(detector.miss(64).prefetched());
  StreamDetector backward;
  for (int i = 63; i >= 0; i -= 2) EXPECT_EQ(backward.miss(static_cast<uint64_t>(i)).prefetched(), i <= 57) << i;
  StreamDetector irregular;
  for (const uint64_t line : {0, 1, 3, 6, 10, 15, 21, 28, 36, 45, 55}) EXPECT_FALSE(irregular.miss(line).prefetched());
}

TEST(Stream, ThirtyTwoPagesAreFollowedAtATime) {
  for (const uint64_t pages : {32u, 40u}) {
    StreamDetector detector;
    uint64_t prefetched = 0;
    for (uint64_t line = 0; line < 64; ++line) {
      for (uint64_t page = 0; page < pages; ++page) prefetched += detector.miss(page * 64 + line).prefetched();
    }
    EXPECT_EQ(prefetched, pages == 32 ? 32 * 61u : 0u);
  }
}

TEST(Stream, TakesBandwidth) {
  Params p = with_streams();
  p.cxl_mb_s = 640;  // 100 ns a line
  Machine m(p);
  uint64_t begin = 0;
  for (uint64_t i = 0; i < 64; ++i) {
    m.load(kCxlBase + i * 64, 1);
    if (i == 10) begin = m.h.now_ps(m.n);
  }
  EXPECT_EQ(m.h.now_ps(m.n) - begin, 53 * 100'000u);
}

TEST(Kernel, HasACostOfItsOwn) {
  Params p = default_params(1);
  EXPECT_EQ(Hierarchy(p, kCxlBase, kCxlSize, nullptr).now_ps({100, 10}), 110 * 240u);
  p.kernel_base_ps = 480;
  EXPECT_EQ(Hierarchy(p, kCxlBase, kCxlSize, nullptr).now_ps({100, 10}), 100 * 240u + 10 * 480u);
}

}  // namespace
}  // namespace neotier::hil

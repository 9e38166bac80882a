// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// The TLB, the walk of page tables and what both cost, against cases worked out by hand.
#include "hil/model/tlb.h"

#include <gtest/gtest.h>

#include <map>

#include "hil/model/hierarchy.h"

namespace neotier::hil {
namespace {

constexpr uint64_t kCxlBase = 1ull << 32, kCxlSize = 1ull << 30;
constexpr uint64_t kRoot = 0x1000;
constexpr uint64_t kMiB = 1 << 20;

// Page tables as a guest writes them. Tables are made as they are needed, from 0x2000 on.
class Tables final : public PhysicalMemory {
 public:
  bool read(uint64_t pa, uint64_t& value) const override {
    if (pa >= kEnd) return false;
    const auto at = words_.find(pa);
    value = at == words_.end() ? 0 : at->second;
    return true;
  }
  void map(uint64_t va, uint64_t pa, PageSize size, bool global = false) {
    uint64_t table = kRoot;
    for (int level = 3; level > size; --level) {
      uint64_t& entry = words_[table + ((va >> (12 + 9 * level)) & 511) * 8];
      if (entry == 0) entry = (next_ += 0x1000) | 7;
      table = entry & ~uint64_t{0xfff};
    }
    words_[table + ((va >> (12 + 9 * size)) & 511) * 8] =
        pa | 7 | (size == kPage4K ? 0 : 0x80) | (global ? 0x100 : 0) | 1ull << 63;
  }
  void unmap(uint64_t va) { words_[walk_tables(*this, kRoot, va).entries.at(3)] = 0; }
  static constexpr uint64_t kEnd = 1ull << 31;

 private:
  std::map<uint64_t, uint64_t> words_;
  uint64_t next_ = kRoot;
};

TEST(Walk, FindsPagesOfEachSizeAndCountsTheEntriesRead) {
  Tables tables;
  tables.map(0x7000'1234'5000, 0xabc'd000, kPage4K);
  tables.map(0x7000'4000'0000, 0x4000'0000, kPage2M);
  tables.map(0xffff'8880'0000'0000, 0, kPage1G, true);
  const Translation small = walk_tables(tables, kRoot | 0x18, 0x7000'1234'5678);
  EXPECT_TRUE(small.present);
  EXPECT_EQ(small.size, kPage4K);
  EXPECT_EQ(small.pa, 0xabc'd678u);
  EXPECT_EQ(small.nr_entries, 4);
  EXPECT_FALSE(small.global);
  EXPECT_EQ(small.entries[0], kRoot + (0x7000'1234'5678 >> 39 & 511) * 8);
  const Translation large = walk_tables(tables, kRoot, 0x7000'401f'ffff);
  EXPECT_EQ(large.size, kPage2M);
  EXPECT_EQ(large.pa, 0x401f'ffffu);
  EXPECT_EQ(large.nr_entries, 3);
  const Translation huge = walk_tables(tables, kRoot, 0xffff'8880'1234'5678);
  EXPECT_EQ(huge.size, kPage1G);
  EXPECT_EQ(huge.pa, 0x1234'5678u);
  EXPECT_TRUE(huge.global);
  EXPECT_EQ(huge.nr_entries, 2);
  EXPECT_FALSE(walk_tables(tables, kRoot, 0x7000'1234'6000).present);
  EXPECT_FALSE(walk_tables(tables, Tables::kEnd, 0x7000'1234'5000).present);  // tables that are nowhere
}

Translation page(PageSize size, bool global = false) {
  Translation t;
  t.present = true;
  t.size = size;
  t.global = global;
  return t;
}

TEST(Tlb, HasSixtyFourSmallPagesInTheFirstLevelAndTheRestInTheSecond) {
  Tlb tlb(default_params(2));
  for (uint64_t i = 0; i < 65; ++i) {
    ASSERT_EQ(tlb.find(i << 12), Tlb::Level::kNone);
    tlb.fill(i << 12, page(kPage4K));
  }
  // Page 64 went into the set of page 0, which has four ways: 0, 16, 32, 48. Page 0 was the oldest.
  EXPECT_EQ(tlb.find(16 << 12), Tlb::Level::kFirst);
  EXPECT_EQ(tlb.find(0), Tlb::Level::kSecond);
  EXPECT_EQ(tlb.find(0), Tlb::Level::kFirst);
  EXPECT_TRUE(tlb.hit(0x123));
}

TEST(Tlb, TheSecondLevelForgetsTheOldestOfItsSet) {
  Tlb tlb(default_params(2));  // 128 sets of 12
  for (uint64_t i = 0; i < 13; ++i) tlb.fill(i * 128 << 12, page(kPage4K));
  EXPECT_EQ(tlb.find(0), Tlb::Level::kNone);
  EXPECT_NE(tlb.find(128 << 12), Tlb::Level::kNone);
}

TEST(Tlb, FlushesKeepWhatIsGlobalUnlessToldToDropAll) {
  Tlb tlb(default_params(2));
  tlb.fill(0x1000, page(kPage4K));
  tlb.fill(0xffff'8880'0000'0000, page(kPage2M, true));
  tlb.flush(false);
  EXPECT_FALSE(tlb.hit(0x1000));
  EXPECT_EQ(tlb.find(0x1000), Tlb::Level::kNone);
  EXPECT_EQ(tlb.find(0xffff'8880'0010'0000), Tlb::Level::kFirst);
  tlb.flush(true);
  EXPECT_EQ(tlb.find(0xffff'8880'0010'0000), Tlb::Level::kNone);
}

TEST(Tlb, InvalidatesOnePageOfWhateverSizeEvenAGlobalOne) {
  Tlb tlb(default_params(2));
  tlb.fill(0x1000, page(kPage4K));
  tlb.fill(0x2000, page(kPage4K));
  tlb.fill(0x4000'0000, page(kPage2M, true));
  tlb.invalidate(0x1fff);
  tlb.invalidate(0x4012'3000);
  EXPECT_EQ(tlb.find(0x1000), Tlb::Level::kNone);
  EXPECT_EQ(tlb.find(0x2000), Tlb::Level::kFirst);
  EXPECT_FALSE(tlb.hit(0x4000'0000));
  EXPECT_EQ(tlb.find(0x4000'0000), Tlb::Level::kNone);
}

TEST(Tlb, UpperLevelsAreSparedUntilAFlush) {
  Tlb tlb(default_params(2));
  EXPECT_EQ(tlb.spared(0, page(kPage4K)), 0);
  EXPECT_EQ(tlb.spared(0x1000, page(kPage4K)), 3);    // the same 2 MiB
  EXPECT_EQ(tlb.spared(2 * kMiB, page(kPage4K)), 2);  // the same GiB
  EXPECT_EQ(tlb.spared(4 * kMiB, page(kPage2M)), 2);
  EXPECT_EQ(tlb.spared(1024 * kMiB, page(kPage2M)), 0);
  tlb.flush(false);
  EXPECT_EQ(tlb.spared(0x1000, page(kPage4K)), 0);
}

// A machine with the TLB alone, no overlap: every cost is on the bill.
struct Machine {
  Tables tables;
  Params params = [] {
    Params p = default_params(1);
    p.tlb = 1;
    p.mlp = 1;
    return p;
  }();
  Hierarchy h{params, kCxlBase, kCxlSize, nullptr, &tables};
  uint64_t took(uint64_t va, uint64_t pa) {
    const uint64_t before = h.now_ps({});
    h.access(pa, va, false, {});
    return h.now_ps({}) - before;
  }
};

TEST(TlbCost, AWalkReadsItsEntriesThroughTheCaches) {
  Machine m;
  const Params& p = m.params;
  const uint64_t dram = p.dram_ns * 1000, second = p.tlb_l2_ps;
  for (uint64_t i = 0; i < 4096; ++i) m.tables.map(0x1000'0000 + (i << 12), 0x4000'0000 + (i << 12), kPage4K);
  m.h.set_address_space(kRoot);
  // Four entries, each in a line of its own, and the data. The first tier's queue is free again by then.
  EXPECT_EQ(m.took(0x1000'0000, 0x4000'0000), second + 4 * dram + dram);
  EXPECT_EQ(m.took(0x1000'0008, 0x4000'0008), 0u);
  // The next page: its entry is in the first one's line, the upper levels are spared.
  EXPECT_EQ(m.took(0x1000'1000, 0x4000'1000), second + dram);
  // The ninth: another line of the same table.
  EXPECT_EQ(m.took(0x1000'8000, 0x4000'8000), second + dram + dram);
  EXPECT_EQ(m.h.counters({}).walks[kPage4K], 3u);
  // Data that is in the first level still needs its translation: the walk's line is there, and costs the look alone.
  m.h.invalidate_page(0x1000'1000);
  EXPECT_EQ(m.took(0x1000'1000, 0x4000'1000), second);
  EXPECT_EQ(m.h.counters({}).walks[kPage4K], 4u);
}

TEST(TlbCost, HugePagesSpareWalks) {
  Machine m;
  for (uint64_t i = 0; i < 32; ++i) m.tables.map(0x4000'0000 + i * 2 * kMiB, 0x4000'0000 + i * 2 * kMiB, kPage2M);
  m.h.set_address_space(kRoot);
  for (int pass = 0; pass < 2; ++pass) {
    for (uint64_t at = 0x4000'0000; at < 0x4000'0000 + 64 * kMiB; at += 4096) m.took(at, at);
  }
  EXPECT_EQ(m.h.counters({}).walks[kPage2M], 32u);
  EXPECT_EQ(m.h.counters({}).walks[kPage4K], 0u);
}

TEST(TlbCost, SmallPagesBeyondTheTlbWalkEachTime) {
  Machine m;
  for (uint64_t i = 0; i < 16384; ++i) m.tables.map(0x4000'0000 + (i << 12), 0x4000'0000 + (i << 12), kPage4K);
  m.h.set_address_space(kRoot);
  // In order, over and over: LRU keeps none of them.
  for (int pass = 0; pass < 2; ++pass) {
    for (uint64_t at = 0x4000'0000; at < 0x4000'0000 + 64 * kMiB; at += 4096) m.took(at, at);
  }
  EXPECT_EQ(m.h.counters({}).walks[kPage4K], 2 * 16384u);
}

TEST(TlbCost, APageThatIsGoneSinceIsNotCharged) {
  Machine m;
  m.tables.map(0x1000, 0x5000, kPage4K);
  m.h.set_address_space(kRoot);
  m.tables.unmap(0x1000);
  EXPECT_EQ(m.took(0x1000, 0x5000), m.params.tlb_l2_ps + m.params.dram_ns * 1000);
  EXPECT_EQ(m.h.counters({}).walks[kPage4K], 0u);
}

TEST(TlbCost, TablesInTheSlowTierCostMore) {
  // The tables lie where the slow tier is.
  Tables tables;
  Params p = default_params(1);
  p.tlb = 1;
  p.mlp = 1;
  Hierarchy h(p, 0, 0x10'0000, nullptr, &tables);
  tables.map(0x1000'0000, 0x4000'0000, kPage4K);
  h.set_address_space(kRoot);
  h.access(0x4000'0000, 0x1000'0000, false, {});
  EXPECT_EQ(h.now_ps({}), p.tlb_l2_ps + 4 * p.cxl_ns * 1000 + p.dram_ns * 1000);
  EXPECT_EQ(h.counters({}).fills[kCxl], 4u);
}

TEST(Shootdown, CostsPerFurtherProcessor) {
  for (uint64_t cpus : {1u, 16u}) {
    Params p = default_params(2);
    p.shootdown_cpus = cpus;
    Hierarchy h(p, kCxlBase, kCxlSize, nullptr);
    h.shoot_down();
    h.shoot_down();
    EXPECT_EQ(h.now_ps({}), 2 * (cpus - 1) * 500'000);
    EXPECT_EQ(h.counters({}).shootdowns, 2u);
  }
}

}  // namespace
}  // namespace neotier::hil

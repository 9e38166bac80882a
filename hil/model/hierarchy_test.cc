// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// The cache and timing model against cases worked out by hand and against a slow, obvious model of one cache.
#include "hil/model/hierarchy.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <vector>

namespace neotier::hil {
namespace {

constexpr uint64_t kCxlBase = 1ull << 32;
constexpr uint64_t kCxlSize = 1ull << 30;

struct Recorder : DeviceSink {
  std::vector<std::pair<uint64_t, bool>> requests;
  void request(uint64_t dpa, bool is_write) override { requests.emplace_back(dpa, is_write); }
};

Params small() {
  Params p = default_params(1);
  p.l1_kib = 4;  // 16 sets of 4
  p.l1_ways = 4;
  p.l2_kib = 64;
  p.l2_ways = 4;
  p.llc_kib = 256;
  p.llc_ways = 4;
  p.mlp = 1;
  return p;
}

// Lists instead of packed words: slow and plainly LRU.
class PlainCache {
 public:
  PlainCache(uint64_t sets, size_t ways) : sets_(sets), ways_(ways) {}
  bool touch(uint64_t line, bool dirty) {
    auto& set = content_[line % sets_];
    for (auto it = set.begin(); it != set.end(); ++it) {
      if (it->first != line) continue;
      auto entry = *it;
      entry.second |= dirty;
      set.erase(it);
      set.push_front(entry);
      return true;
    }
    return false;
  }
  std::optional<std::pair<uint64_t, bool>> insert(uint64_t line, bool dirty) {
    auto& set = content_[line % sets_];
    set.emplace_front(line, dirty);
    if (set.size() <= ways_) return std::nullopt;
    auto victim = set.back();
    set.pop_back();
    return victim;
  }

 private:
  uint64_t sets_;
  size_t ways_;
  std::map<uint64_t, std::deque<std::pair<uint64_t, bool>>> content_;
};

TEST(Cache, EqualsAPlainLruModelUnderRandomAccesses) {
  for (uint32_t ways : {4u, 8u, 16u}) {
    Cache cache(64 * 32 * ways, ways);
    PlainCache plain(32, ways);
    std::mt19937_64 random(ways);
    for (int i = 0; i < 200000; ++i) {
      const uint64_t line = random() % (32 * ways * 2) + (random() % 4 << 30);
      const bool dirty = random() % 3 == 0;
      const bool hit = cache.touch(line, dirty ? uint32_t{kLineDirty} : 0);
      ASSERT_EQ(hit, plain.touch(line, dirty)) << "access " << i << " ways " << ways;
      if (hit) continue;
      const auto victim = cache.insert(line, dirty ? uint32_t{kLineDirty} : 0);
      const auto expected = plain.insert(line, dirty);
      ASSERT_EQ(victim.valid, expected.has_value());
      if (expected) {
        ASSERT_EQ(victim.line, expected->first);
        ASSERT_EQ((victim.flags & kLineDirty) != 0, expected->second);
      }
    }
  }
}

TEST(Hierarchy, AMissCostsTheLatencyOfItsTierAndAHitNothing) {
  Recorder device;
  const Params p = small();
  Hierarchy h(p, kCxlBase, kCxlSize, &device);
  h.access(0x1000, 0, false, {});
  EXPECT_EQ(h.now_ps({}), p.dram_ns * 1000);
  h.access(kCxlBase + 0x40, 0, false, {});
  EXPECT_EQ(h.now_ps({}), (p.dram_ns + p.cxl_ns) * 1000);
  h.access(kCxlBase + 0x78, 0, false, {});
  EXPECT_EQ(h.now_ps({}), (p.dram_ns + p.cxl_ns) * 1000);
  const neotier_counters c = h.counters({6, 4});
  EXPECT_EQ(c.fills[kDram], 1u);
  EXPECT_EQ(c.fills[kCxl], 1u);
  EXPECT_EQ(c.accesses, 3u);
  EXPECT_EQ(c.modelled_ps, (p.dram_ns + p.cxl_ns) * 1000 + 10 * p.base_ps);
  ASSERT_EQ(device.requests.size(), 1u);
  EXPECT_EQ(device.requests[0], std::make_pair(uint64_t{0x40}, false));
}

TEST(Hierarchy, OverlapDividesStalls) {
  Params p = small();
  p.mlp = 5;
  Hierarchy h(p, kCxlBase, kCxlSize, nullptr);
  h.access(kCxlBase, 0, false, {});
  EXPECT_EQ(h.now_ps({}), p.cxl_ns * 1000 / 5);
}

TEST(Hierarchy, LinesQueueForATiersBandwidth) {
  Params p = small();
  p.cxl_mb_s = 100;  // 640 ns a line, more than the latency
  Hierarchy h(p, kCxlBase, kCxlSize, nullptr);
  h.access(kCxlBase, 0, false, {});
  EXPECT_EQ(h.now_ps({}), 250'000u);
  // Arrives at 250 ns, the tier is free at 640 ns.
  h.access(kCxlBase + 64, 0, false, {});
  EXPECT_EQ(h.now_ps({}), 250'000u + (640'000 - 250'000) + 250'000);
}

TEST(Hierarchy, ADirtyLineReachesTheDeviceOnceItLeavesTheLastLevel) {
  Recorder device;
  Hierarchy h(small(), kCxlBase, kCxlSize, &device);
  h.access(kCxlBase, 0, true, {});
  // Lines of the same set at every level, enough to push the first one out of all three.
  const uint64_t stride = 256 * 1024 / 4;
  for (uint64_t i = 1; i <= 16; ++i) h.access(kCxlBase + i * stride, 0, false, {});
  size_t writes = 0;
  for (const auto& [dpa, is_write] : device.requests) {
    if (!is_write) continue;
    ++writes;
    EXPECT_EQ(dpa, 0u);
  }
  EXPECT_EQ(writes, 1u);
  EXPECT_EQ(h.counters({}).writebacks[kCxl], 1u);
}

TEST(Hierarchy, MarkedHotPagesAreChargedAsDramAndStillReachTheDevice) {
  Recorder device;
  const Params p = small();
  Hierarchy h(p, kCxlBase, kCxlSize, &device);
  h.set_hot(0x7000'0000, 128, {uint64_t{1} << 5, 0});
  h.access(kCxlBase, 0x7000'0000 + 5 * 4096, true, {});
  EXPECT_EQ(h.now_ps({}), p.dram_ns * 1000);
  h.access(kCxlBase + 0x10000, 0x7000'0000 + 6 * 4096, false, {});
  EXPECT_EQ(h.now_ps({}), (p.dram_ns + p.cxl_ns) * 1000);
  EXPECT_EQ(device.requests.size(), 2u);
  const uint64_t stride = 256 * 1024 / 4;
  for (uint64_t i = 1; i <= 16; ++i) h.access(kCxlBase + i * stride, 0, false, {});
  EXPECT_EQ(h.counters({}).writebacks[kDram], 1u);
  EXPECT_EQ(h.counters({}).writebacks[kCxl], 0u);
}

TEST(Hierarchy, RegisterAccessesCostARoundTripOrAPost) {
  const Params p = default_params();
  Hierarchy h(p, kCxlBase, kCxlSize, nullptr);
  h.mmio(0, false, false);
  EXPECT_EQ(h.now_ps({}), p.mmio_read_ns * 1000);
  h.mmio(0, true, false);
  EXPECT_EQ(h.now_ps({}), (p.mmio_read_ns + p.mmio_write_ns) * 1000);
}

TEST(Hierarchy, StreamingLoadsOfALineCostOneRoundTrip) {
  Hierarchy h(default_params(), kCxlBase, kCxlSize, nullptr);
  for (uint64_t pa = 0x1000; pa < 0x1080; pa += 16) h.mmio(pa, false, true);
  EXPECT_EQ(h.counters({}).bar_reads, 2u);
  h.mmio(0x1070, false, true);  // the buffer still has it
  EXPECT_EQ(h.counters({}).bar_reads, 2u);
  h.mmio(0x1070, true, false);  // and lost it to another access
  h.mmio(0x1070, false, true);
  EXPECT_EQ(h.counters({}).bar_reads, 3u);
  for (uint64_t pa = 0x1000; pa < 0x1040; pa += 8) h.mmio(pa, false, false);
  EXPECT_EQ(h.counters({}).bar_reads, 11u);
}

// Figures of version 1, as the model had them when it was the only one: 400,000 accesses, random and in order, to both
// tiers.
TEST(Hierarchy, VersionOneRepeatsItsFiguresToTheDigit) {
  struct Sum : DeviceSink {
    uint64_t hash = 1469598103934665603;
    void request(uint64_t dpa, bool is_write) override { hash = (hash ^ (dpa | (is_write ? 1 : 0))) * 0x100000001b3; }
  } sum;
  Params p = default_params(1);
  p.llc_kib = 1024;
  p.cxl_mb_s = 4000;
  Hierarchy h(p, kCxlBase, 64 << 20, &sum);
  std::mt19937_64 random(7);
  uint64_t n = 0, at = 0;
  const auto counts = [&n] { return InstructionCounts{n - n / 4, n / 4}; };
  for (int i = 0; i < 400000; ++i) {
    const uint64_t x = random();
    n += 1 + (x & 7);
    const uint64_t pa = x >> 3 & 1 ? (x >> 4 & 1 ? kCxlBase : 0) + ((x >> 5) % (16 << 20) & ~uint64_t{7})
                                   : kCxlBase + (at += 8) % (64 << 20);
    h.access(pa, pa, x >> 60 < 5, counts());
    if (i % 4096 == 0) h.mmio(0, x >> 59 & 1, false);
  }
  const neotier_counters c = h.counters(counts());
  EXPECT_EQ(c.instructions, 1797660u);
  EXPECT_EQ(c.modelled_ps, 10235026468u);
  EXPECT_EQ(c.l1_misses, 224647u);
  EXPECT_EQ(c.l2_misses, 218230u);
  EXPECT_EQ(c.fills[kDram], 96968u);
  EXPECT_EQ(c.fills[kCxl], 119499u);
  EXPECT_EQ(c.writebacks[kDram], 27087u);
  EXPECT_EQ(c.writebacks[kCxl], 47280u);
  EXPECT_EQ(c.stall_ps[kCxl], 7558984178u);
  EXPECT_EQ(sum.hash, 0xe6693b3aca184efdu);
}

TEST(Params, DefaultsAreValidAndBadOnesAreNamed) {
  for (uint32_t version = 1; version <= kModelVersions; ++version) EXPECT_FALSE(check_params(default_params(version)));
  Params p = default_params();
  EXPECT_FALSE(set_param(p, "cxl_ns", "430"));
  EXPECT_EQ(p.cxl_ns, 430u);
  EXPECT_TRUE(set_param(p, "cxl_ns", "430x"));
  EXPECT_TRUE(set_param(p, "cxl_ns", "0"));
  EXPECT_TRUE(set_param(p, "nonsense", "1"));
  EXPECT_FALSE(set_param(p, "tlb_l2", "1540"));
  EXPECT_TRUE(check_params(p));
  EXPECT_FALSE(set_param(p, "tlb_l2", "3072"));
  EXPECT_FALSE(check_params(p));
  EXPECT_FALSE(set_param(p, "llc_kib", "5000"));
  EXPECT_TRUE(check_params(p));
}

}  // namespace
}  // namespace neotier::hil

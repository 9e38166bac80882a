// SPDX-License-Identifier: GPL-2.0-or-later
#include "hil/plugin/timeline.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace neotier::hil {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMs = 1'000'000'000;  // ps
constexpr uint64_t kCxl = uint64_t{4} << 30;

uint64_t sum(const Json& values) {
  uint64_t total = 0;
  for (const auto& value : values) total += value.get<uint64_t>();
  return total;
}

// A machine that only counts.
struct Machine {
  Timeline timeline;
  neotier_counters c{};
  DeviceCounters device;

  void at(uint64_t ms) { c.modelled_ps = ms * kMs; }
  void access(uint64_t hpa, unsigned times = 1, bool is_write = false) {
    const bool cxl = hpa >= kCxl;
    for (unsigned i = 0; i < times; ++i) {
      ++(is_write ? c.writebacks : c.fills)[cxl];
      timeline.line(hpa, cxl, is_write);
    }
  }
  void tick() { timeline.tick(c, device); }
};

TEST(Timeline, StepsAddUpToTheCountersOfTheRegion) {
  Machine m;
  m.at(500);
  m.c.instructions = 77;
  m.c.fills[0] = 1000;  // before the region
  m.timeline.begin(m.c, m.device);
  for (uint64_t ms = 500; ms < 500 + 3000; ++ms) {
    m.at(ms);
    m.access(0x1000, 2);
    m.access(kCxl + 0x5000, 3);
    m.access(kCxl + 0x5000, 1, true);
    m.c.instructions += 10;
    m.tick();
  }
  m.at(500 + 3000);
  m.timeline.end(m.c, m.device);
  const Json t = m.timeline.json()["timeline"];
  EXPECT_EQ(sum(t["dram_fills"]), 6000u);
  EXPECT_EQ(sum(t["cxl_fills"]), 9000u);
  EXPECT_EQ(sum(t["cxl_writebacks"]), 3000u);
  EXPECT_EQ(sum(t["instructions"]), 30000u);
  EXPECT_EQ(t["end_ns"], 3'000'000'000u);
  // 3000 ms do not fit into 512 steps of 1, 2 or 4 ms.
  EXPECT_EQ(t["step_ns"], 8'000'000u);
  ASSERT_EQ(t["cxl_fills"].size(), 376u);
  for (size_t i = 0; i < 375; ++i) EXPECT_EQ(t["cxl_fills"][i], 24u) << i;
  EXPECT_FALSE(t.contains("promoted")) << "nobody told";
  uint64_t heat = 0;
  for (const auto& row : t["heat"]["rows"]) heat += sum(row["fills"]);
  EXPECT_EQ(heat, 15000u) << "write-backs are no heat";
}

TEST(Timeline, AnIdleStretchIsStepsOfNothing) {
  Machine m;
  m.timeline.begin(m.c, m.device);
  m.access(0x1000);
  m.tick();
  m.at(10);
  m.access(0x1000);
  m.tick();
  m.timeline.end(m.c, m.device);
  const Json fills = m.timeline.json()["timeline"]["dram_fills"];
  ASSERT_EQ(fills.size(), 11u);
  EXPECT_EQ(fills[0], 1);
  EXPECT_EQ(fills[5], 0);
  EXPECT_EQ(fills[10], 1);
}

TEST(Timeline, PagesAreCountedByTier) {
  Machine m;
  m.timeline.begin(m.c, m.device);
  for (uint64_t page = 0; page < 99; ++page) m.access(kCxl + page * 4096 + 64 * (page % 7));
  m.access(kCxl + 50 * 4096, 901, true);
  m.access(0x200000, 5);
  m.timeline.end(m.c, m.device);
  const Json p = m.timeline.json()["pages"];
  EXPECT_EQ(p["cxl"]["touched"], 99);
  EXPECT_EQ(p["cxl"]["reads"], 99);
  EXPECT_EQ(p["cxl"]["writes"], 901);
  EXPECT_DOUBLE_EQ(p["cxl"]["concentration"]["1"], 0.902);
  EXPECT_EQ(p["dram"]["touched"], 1);
  EXPECT_EQ(p["all"]["touched"], 100);
  EXPECT_EQ(p["top"].size(), 16u);
  EXPECT_EQ(p["top"][0]["address"], kCxl + 50 * 4096);
  EXPECT_EQ(p["top"][1]["tier"], "dram");
}

TEST(Timeline, MovesAreSinceTheRegionBegan) {
  Machine m;
  m.timeline.moved(100, 7);
  m.timeline.begin(m.c, m.device);
  m.tick();
  m.at(3);
  m.timeline.moved(150, 8);
  m.tick();
  m.timeline.end(m.c, m.device);
  Json t = m.timeline.json()["timeline"];
  EXPECT_EQ(t["promoted"], (Json{0, 0, 0, 50}));
  EXPECT_EQ(t["demoted"], (Json{0, 0, 0, 1}));
  m.timeline.moved(166, 9);
  t = m.timeline.json()["timeline"];
  EXPECT_EQ(t["promoted"], (Json{0, 0, 0, 66})) << "what is told after the end belongs to the last step";
  EXPECT_EQ(t["demoted"], (Json{0, 0, 0, 2}));
}

// An epoch with exact counts 40, 30, 20, 10 on pages 0 to 3.
struct Epochs : Machine {
  explicit Epochs(bool reads = true, bool writes = false) {
    device.threshold = 20;
    device.counts_reads = reads;
    device.counts_writes = writes;
    timeline.begin(c, device);
    access(kCxl + 9 * 4096, 500);  // in the epoch that had begun before the region: not judged
    timeline.reported(kCxl + 8 * 4096);
    next();
    for (uint64_t page = 0; page < 4; ++page) access(kCxl + page * 4096, static_cast<unsigned>(40 - 10 * page));
  }
  void next() {
    c.modelled_ps += kMs;
    ++device.epochs;
    tick();
  }
  Json reports() {
    timeline.end(c, device);
    return timeline.json()["reports"];
  }
};

TEST(Timeline, ReportsOfTheHottestAreRight) {
  Epochs m;
  for (int page : {0, 1, 2}) m.timeline.reported(kCxl + page * 4096 + 64);
  m.timeline.reported(kCxl);  // twice
  m.next();
  const Json r = m.reports();
  EXPECT_EQ(r["reported"], 5) << "every entry counts, judged or not";
  EXPECT_EQ(r["judged_epochs"], 1);
  EXPECT_EQ(r["judged_units"], 3);
  EXPECT_DOUBLE_EQ(r["precision"], 1);
  EXPECT_DOUBLE_EQ(r["recall"], 1);
  EXPECT_DOUBLE_EQ(r["weighted"], 1);
}

TEST(Timeline, WrongAndMissingReportsShow) {
  Epochs m;
  for (int page : {0, 3, 7}) m.timeline.reported(kCxl + page * 4096);  // 10, and one never touched
  m.next();
  const Json r = m.reports();
  EXPECT_EQ(r["hot_units"], 3);
  EXPECT_DOUBLE_EQ(r["precision"], 1.0 / 3);
  EXPECT_DOUBLE_EQ(r["recall"], 1.0 / 3);
  EXPECT_DOUBLE_EQ(r["weighted"], 50.0 / 90);
}

TEST(Timeline, TruthIsOfWhatTheDeviceCounts) {
  Epochs m(false, true);
  m.access(kCxl + 6 * 4096, 25, true);
  m.timeline.reported(kCxl + 6 * 4096);
  m.next();
  const Json r = m.reports();
  EXPECT_EQ(r["hot_units"], 1);
  EXPECT_DOUBLE_EQ(r["precision"], 1);
}

TEST(Timeline, LargeUnitsAreSumsOfTheirPages) {
  Epochs m;
  m.device.unit_shift = 21;
  m.access(kCxl + (uint64_t{2} << 20), 99);  // less than the four small ones together
  m.timeline.reported(kCxl);
  m.next();
  const Json r = m.reports();
  EXPECT_EQ(r["hot_units"], 2);
  EXPECT_DOUBLE_EQ(r["precision"], 1);
  EXPECT_DOUBLE_EQ(r["recall"], 0.5);
}

TEST(Timeline, DropsSurviveAResetOfTheDevice) {
  Machine m;
  m.device.lost_ring = 10;
  m.timeline.begin(m.c, m.device);
  m.device.lost_ring = 15;
  m.tick();
  m.device.lost_ring = 2;
  m.tick();
  m.timeline.end(m.c, m.device);
  EXPECT_EQ(m.timeline.json()["reports"]["lost"]["ring"], 7);
}

TEST(Heatmap, MergesUntilItFitsAndLosesNothing) {
  Heatmap map(10);
  uint64_t added = 0;
  for (uint64_t column = 0; column < 1000; ++column) {
    map.advance(column * 10);
    for (uint64_t page = 0; page < 64; ++page) {
      map.add(true, page * 97 + column, 1 + page % 3);
      map.add(false, page, 1);
      added += 2 + page % 3;
    }
  }
  EXPECT_LE(map.rows().size(), Heatmap::kRows);
  EXPECT_LE(map.columns(), Heatmap::kColumns);
  EXPECT_EQ(map.step_ps(), 80u);
  uint64_t total = 0;
  for (const auto& [bin, cells] : map.rows()) total += std::accumulate(cells.begin(), cells.end(), uint64_t{0});
  EXPECT_EQ(total, added);
}

}  // namespace
}  // namespace neotier::hil

// SPDX-License-Identifier: Apache-2.0
#include "kernel/why.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

namespace neotier::kernel {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Counters = std::map<std::string, uint64_t>;

Snapshot module_with(const Counters& stats, const std::map<std::string, std::string>& knobs = {},
                     const std::string& state = "running") {
  Snapshot snapshot;
  std::map<std::string, std::string> all = {{"enabled", "1"}, {"dry_run", "0"}, {"room", "exchange"}};
  for (const auto& [name, value] : knobs) all[name] = value;
  for (const auto& [name, value] : all) snapshot.knobs.push_back({name, value, {}, find_knob(name)});
  Device device{.name = "device0",
                .knobs = {{"device0/threshold", "17", {}, find_knob("device0/threshold")}},
                .info = {{"state", state}, {"node", "1"}, {"target_node", "0"}},
                .histogram = {}};
  snapshot.devices.push_back(device);
  snapshot.stats = stats;
  return snapshot;
}

std::string summary(const Snapshot& now) { return why(module_with({}), now, 2).summary; }

TEST(Why, WhatMovesIsTold) {
  const Why answer =
      why(module_with({{"promoted", 100}, {"demoted", 50}, {"reported", 1000}, {"skipped_quota", 9}}),
          module_with({{"promoted", 612}, {"demoted", 51}, {"reported", 3000}, {"skipped_quota", 9}}), 2);
  EXPECT_EQ(answer.summary, "512 pages came up (1.0 MiB/s), 1 page went down for them.");
  EXPECT_EQ(answer.reported, 2000u);
  EXPECT_TRUE(answer.causes.empty()) << "nothing of that was meanwhile";
}

TEST(Why, WhatIsOffComesFirst) {
  const Counters busy = {{"reads", 10000}, {"reported", 500}, {"skipped_no_room", 400}, {"dry_run_pages", 77}};
  Snapshot none = module_with(busy);
  none.devices.clear();
  EXPECT_THAT(summary(none), StartsWith("The module serves no device"));
  EXPECT_THAT(summary(module_with(busy, {{"enabled", "0"}, {"dry_run", "1"}}, "off")), HasSubstr("enabled is 0"));
  EXPECT_THAT(summary(module_with(busy, {}, "failed")), HasSubstr("have failed"));
  EXPECT_THAT(summary(module_with(busy, {}, "paused")), HasSubstr("are paused"));
  EXPECT_THAT(summary(module_with(busy, {}, "resting")), HasSubstr("loss_ppm"));
  EXPECT_THAT(summary(module_with(busy, {{"dry_run", "1"}})), HasSubstr("77 pages would have been"));
}

TEST(Why, WithoutRequestsAndWithoutHotPages) {
  EXPECT_THAT(summary(module_with({})), StartsWith("Nobody asks"));
  EXPECT_THAT(summary(module_with({{"reads", 5}})), HasSubstr("threshold asks for (device0 17)"));
  EXPECT_THAT(summary(module_with({{"reads", 5}, {"reported", 1}})), HasSubstr("1 page reported as hot"));
}

TEST(Why, TheLargestCauseIsTheAnswer) {
  const Counters stats = {{"reads", 9000},       {"reported", 1200},           {"skipped_large", 900},
                          {"skipped_pinned", 3}, {"skipped_unconfirmed", 200}, {"skipped_strange", 7}};
  const Why answer = why(module_with({}), module_with(stats), 2);
  EXPECT_THAT(answer.summary, HasSubstr("part of a huge page"));
  EXPECT_THAT(answer.hint, HasSubstr("promote_huge 1"));
  ASSERT_EQ(answer.causes.size(), 4u);
  EXPECT_EQ(answer.causes[0].counter, "skipped_large");
  EXPECT_EQ(answer.causes[1].reports, 200u);
  EXPECT_EQ(answer.causes[2].text, "for another reason") << "of a newer module";
  EXPECT_EQ(to_json(answer)["causes"][3]["counter"], "skipped_pinned");
}

TEST(Why, RoomThatNobodyMakes) {
  const Counters waiting = {{"reads", 9000}, {"reported", 400}, {"skipped_no_room", 400}, {"room_waits", 20}};
  Counters kept = waiting;
  kept["kept_unevictable"] = 3000;
  kept["kept_owner"] = 2;
  kept["kept_writeback"] = 2;
  EXPECT_THAT(why(module_with({}), module_with(kept), 2).hint,
              HasSubstr("3,000 pages of the target node that should have made room stayed: locked in memory"));
  EXPECT_THAT(why(module_with({}), module_with(waiting), 2).hint, HasSubstr("in use"));
  Snapshot kswapd = module_with(waiting, {{"room", "kswapd"}});
  EXPECT_THAT(why(module_with({}), kswapd, 2).hint, HasSubstr("room exchange"));
  kswapd.idle_kswapd = {1};
  EXPECT_THAT(summary(kswapd), StartsWith("Nothing came up")) << "of another node";
  kswapd.idle_kswapd = {0};
  EXPECT_THAT(summary(kswapd), StartsWith("No room: kswapd of node 0 has given up"));
  Snapshot exchange = module_with(waiting);
  exchange.idle_kswapd = {0};
  EXPECT_THAT(summary(exchange), StartsWith("Nothing came up")) << "exchange needs none";
}

TEST(Why, CountersOfAModuleThatWasLoadedAgain) {
  EXPECT_EQ(why(module_with({{"promoted", 1000}}), module_with({{"promoted", 8}}), 1).promoted, 8u);
}

TEST(Why, NodesWhoseKswapdHasGivenUp) {
  EXPECT_EQ(kswapd_gave_up("Node 0, zone      DMA\n  per-node stats\n  node_unreclaimable:  0\n"
                           "Node 0, zone    DMA32\n  node_unreclaimable:  1\nNode 12, zone   Normal\n"
                           "  node_unreclaimable:  16\nNode 2, zone Normal\n  node_unreclaimable:  0\n"),
            (std::set<int>{0, 12}));
  EXPECT_TRUE(kswapd_gave_up("").empty());
  EXPECT_TRUE(kswapd_gave_up("  node_unreclaimable:  1\nNode x\n  node_unreclaimable:  1\nNode 1\n node_unreclaimable:")
                  .empty());
}

// Whatever the module counts has its words here.
TEST(Why, ReasonsAreThoseOfTheAbi) {
  std::ifstream abi(NEOTIER_SOURCE_DIR "/docs/abi/sysfs-kernel-neotier");
  std::string line;
  size_t found = 0;
  while (std::getline(abi, line)) {
    for (const std::string prefix : {"stats/skipped_", "stats/kept_"}) {
      const size_t at = line.starts_with("What:") ? line.find(prefix) : std::string::npos;
      if (at == std::string::npos) continue;
      found++;
      EXPECT_NE(text_of_reason(line.substr(at + prefix.size())), "") << line;
    }
  }
  EXPECT_GT(found, 40u);
}

}  // namespace
}  // namespace neotier::kernel

// SPDX-License-Identifier: Apache-2.0
#include "cli/top/render.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "util/temporary_folder.h"

namespace neotier::top {
namespace {

nlohmann::json status(uint64_t hits, uint64_t misses, uint64_t bytes, int pid = 5) {
  return {
      {"daemon", {{"pid", pid}, {"uptime_s", 61}, {"max_clients", 8}, {"counters", {{"requests", hits + misses}}}}},
      {"clients", {{{"id", 1}, {"name", "serving"}, {"pid", 77}, {"uid", 1000}, {"requests", hits}, {"pins", 3}}}},
      {"engine",
       {{"objects", 12},
        {"max_objects", 1000},
        {"pins", 3},
        {"counters", {{"hits", hits}, {"misses", misses}, {"moved_bytes", bytes}}},
        {"tiers",
         {{{"name", "dram"},
           {"kind", "dram"},
           {"in_service", true},
           {"used_bytes", 3 << 20},
           {"load", {{"count", 10}, {"p50_ns", 3000}, {"p99_ns", 1200000}}},
           {"capacity_bytes", 4 << 20}},
          {{"name", "ssd"}, {"kind", "ssd"}, {"in_service", false}, {"used_bytes", 0}, {"capacity_bytes", 1 << 30}}}},
        {"links",
         {{{"from", "dram"}, {"to", "ssd"}, {"bytes_per_s", 1e9}, {"latency_ns", 25000.0}, {"bytes", bytes}}}}}}};
}

Sample sample(double time_s, nlohmann::json daemon) {
  Sample made;
  made.time_s = time_s;
  made.daemon = std::move(daemon);
  return made;
}

kernel::Snapshot module_with(uint64_t promoted) {
  kernel::Snapshot snapshot;
  snapshot.knobs = {{"enabled", "1", {}, kernel::find_knob("enabled")},
                    {"quota_mb_per_s", "4", {}, kernel::find_knob("quota_mb_per_s")},
                    {"policy", "payback", {"payback", "fixed"}, kernel::find_knob("policy")}};
  snapshot.stats = {{"promoted", promoted}, {"tried", promoted}};
  snapshot.devices.push_back(
      {"device0",
       {{"device0/threshold", "10", {}, kernel::find_knob("device0/threshold")}},
       {{"state", "running"}, {"node", "1"}, {"target_node", "0"}, {"hot_units", "7"}, {"occupancy", "90"}},
       {{1, 500}, {2, 40}}});
  return snapshot;
}

TEST(TopFigures, RatesAreOfTheTimeBetweenTwoSamples) {
  const Figures f = make_figures(sample(10, status(100, 50, 0)), sample(12, status(190, 60, 4000000)));
  EXPECT_DOUBLE_EQ(f.rates.at("hits"), 45);
  EXPECT_DOUBLE_EQ(f.rates.at("misses"), 5);
  EXPECT_DOUBLE_EQ(f.hit_rate, 0.9);
  EXPECT_DOUBLE_EQ(f.links.at(0).flow, 2e6);
  EXPECT_DOUBLE_EQ(f.clients.at(0).requests, 45);
}

TEST(TopFigures, WithoutAnEarlierSampleOrWithAnotherDaemonThereAreNoRates) {
  EXPECT_EQ(make_figures({}, sample(12, status(190, 60, 1))).hit_rate, -1);
  const Figures other = make_figures(sample(10, status(100, 50, 0)), sample(12, status(190, 60, 1, 6)));
  EXPECT_EQ(other.hit_rate, -1);
  EXPECT_EQ(other.rates.at("hits"), 0);
  // Counters that went back are no rate either.
  EXPECT_EQ(make_figures(sample(10, status(500, 50, 0)), sample(12, status(190, 60, 1))).rates.at("hits"), 0);
}

TEST(TopFigures, WhatADaemonSaysIsNotTrusted) {
  for (const char* text :
       {"{}", "[]", "3", "{\"engine\":{\"tiers\":{\"a\":1},\"counters\":[1]},\"clients\":\"x\"}",
        "{\"engine\":{\"tiers\":[1,{\"name\":5}],\"links\":[null],\"counters\":{\"hits\":-1}},\"clients\":[7]}",
        "{\"daemon\":{\"pid\":1e300}}"}) {
    const Figures f = make_figures(sample(1, nlohmann::json::parse(text)), sample(2, nlohmann::json::parse(text)));
    History history;
    history.add(f);
    EXPECT_FALSE(render(f, history, "/s", Look()).empty()) << text;
    EXPECT_FALSE(to_json(f, "/s").dump().empty());
  }
  nlohmann::json evil = status(1, 1, 1);
  evil["clients"][0]["name"] = "\033]0;x\007\nname";
  EXPECT_EQ(make_figures({}, sample(1, evil)).clients[0].name, "?]0;x??name");
}

TEST(TopRender, FitsEveryTerminal) {
  Sample before = sample(10, status(100, 50, 0)), now = sample(12, status(190, 60, 4000000));
  for (int i = 0; i < 100; i++) now.daemon["clients"].push_back(now.daemon["clients"][0]);
  before.kernel = module_with(0);
  now.kernel = module_with(2048);
  const Figures f = make_figures(before, now);
  History history;
  for (int i = 0; i < 50; i++) history.add(f);
  for (const bool tune : {false, true}) {
    for (const size_t width : {1, 20, 80, 132, 300}) {
      for (const size_t height : {2, 5, 10, 24, 60}) {
        Look look;
        look.width = width;
        look.height = height;
        look.tune = tune;
        look.selected = 3;
        const auto lines = render(f, history, "/run/neotier/neotierd.sock", look);
        ASSERT_EQ(lines.size(), height);
        for (const Line& line : lines) {
          size_t sum = 0;
          for (const Span& span : line) sum += columns(span.text);
          ASSERT_LE(sum, width) << width << "x" << height;
        }
      }
    }
  }
}

TEST(TopRender, HelpIsWholeOn80By24) {
  Look narrow, wide;
  narrow.help = wide.help = true;
  wide.width = 200;
  EXPECT_EQ(plain(render({}, History(), "/s", narrow)), plain(render({}, History(), "/s", wide)));
}

TEST(TopRender, ShowsWhatMatters) {
  Sample before = sample(10, status(100, 50, 0)), now = sample(12, status(190, 60, 4000000));
  before.kernel = module_with(0);
  now.kernel = module_with(2048);
  const Figures f = make_figures(before, now);
  const std::string text = plain(render(f, History(), "/s", Look()));
  for (const char* wanted :
       {"neotierd 5, up 1m01s, /s", " 75.0 %     3 MiB of     4 MiB", "OUT OF SERVICE", "90.0 % hit", "50/s uses",
        "2.00MB/s", "payback, quota 4 MiB/s (100 % used)", "device0 node 1 > 0  threshold 10  7 of 90 pages hot",
        "2,048 pages came up (4.0 MiB/s)", "serving", "q quit"})
    EXPECT_NE(text.find(wanted), std::string::npos) << wanted << "\n" << text;
}

TEST(TopRender, SaysWhereTheKernelPutATiersPages) {
  nlohmann::json daemon = status(1, 1, 1);
  daemon["engine"]["tiers"][0]["sampled_nodes"] = {{{"node", 0}, {"bytes", 1 << 20}},
                                                   {{"node", 1}, {"bytes", 3 << 20}}};
  const Figures f = make_figures({}, sample(1, daemon));
  const std::string text = plain(render(f, History(), "/s", Look()));
  EXPECT_NE(text.find("node 0: 1 MiB  node 1: 3 MiB  (a sample)"), std::string::npos) << text;
  EXPECT_EQ(to_json(f, "/s")["daemon"]["tiers"][0]["sampled_nodes"][1]["bytes"], 3 << 20);
  EXPECT_TRUE(to_json(f, "/s")["daemon"]["tiers"][1]["sampled_nodes"].empty());
}

TEST(TopRender, AWideTerminalHasWhatLoadsTake) {
  const Figures f = make_figures(sample(10, status(100, 50, 0)), sample(12, status(190, 60, 4000000)));
  Look look;
  look.width = 120;
  EXPECT_NE(plain(render(f, History(), "/s", look)).find("loads 3.0 us, p99 1.2 ms"), std::string::npos);
}

TEST(TopRender, BarsAndSparklines) {
  EXPECT_EQ(bar(0.5, 4, true), "██··");
  EXPECT_EQ(bar(0.53, 4, true), "██▏·");
  EXPECT_EQ(bar(7, 2, true), "██");
  EXPECT_EQ(bar(0.5, 4, false), "[##..]");
  EXPECT_EQ(sparkline({1, 2, 4, 8}, 3, true), "▃▅█");
  EXPECT_EQ(sparkline({0, 0}, 4, true), "  ▁▁");
  EXPECT_EQ(sparkline({0.5}, 1, true, 1), "▅");
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(999.4), "999");
  EXPECT_EQ(short_number(999.6), "1.00k");
  EXPECT_EQ(short_number(12345678), "12.3M");
}

TEST(KernelModule, ReadsAndWritesATreeThatItDoesNotTrust) {
  const TemporaryFolder folder;
  const std::filesystem::path& root = folder.path();
  const auto write = [&](const char* file, const std::string& text) {
    std::ofstream(root / file, std::ios::binary) << text;
  };
  const kernel::Module module(root);
  EXPECT_FALSE(module.read());
  EXPECT_THROW(module.set("enabled", "1"), std::runtime_error);
  std::filesystem::create_directories(root / "stats");
  std::filesystem::create_directories(root / "device0");
  std::filesystem::create_directories(root / "device10");
  std::filesystem::create_directories(root / "devices");
  write("enabled", "1\n");
  write("policy", "payback [neomem] fixed\n");
  write("stats/promoted", "12\n");
  write("stats/bad", "12x\n");
  write("stats/long", std::string(100000, '1'));
  write("device0/threshold", "\033[2J5\n");
  write("device0/histogram", "1 5\n2 6\n");
  std::filesystem::create_symlink("/etc/passwd", root / "batch");
  const auto snapshot = module.read();
  ASSERT_TRUE(snapshot);
  EXPECT_EQ(snapshot->stats, (std::map<std::string, uint64_t>{{"promoted", 12}}));
  ASSERT_EQ(snapshot->knobs.size(), 2u) << "a link is not followed";
  EXPECT_EQ(snapshot->knobs[1].text, "neomem");
  EXPECT_EQ(snapshot->knobs[1].choices, (std::vector<std::string>{"payback", "neomem", "fixed"}));
  ASSERT_EQ(snapshot->devices.size(), 2u);
  EXPECT_EQ(snapshot->devices[0].knobs[0].text, " [2J5");
  EXPECT_EQ(snapshot->devices[0].histogram.at(1), (std::pair<uint64_t, uint64_t>{2, 6}));
  module.set("enabled", "0");
  EXPECT_EQ(module.get("enabled"), "0");
  for (const auto& [knob, value] : std::vector<std::pair<std::string, std::string>>{{"enabled", "2"},
                                                                                    {"enabled", ""},
                                                                                    {"enabled", "1\n1"},
                                                                                    {"nothing", "1"},
                                                                                    {"device0/../enabled", "1"},
                                                                                    {"../x", "1"},
                                                                                    {"stats/promoted", "1"},
                                                                                    {"batch", "5"},
                                                                                    {"device10/threshold", "1"}})
    EXPECT_THROW(module.set(knob, value), std::runtime_error) << knob;
  EXPECT_EQ(module.get("enabled"), "0");
}

// The table of knobs against the interface's own description.
TEST(KernelModule, KnobsAreThoseOfTheAbi) {
  std::ifstream abi(NEOTIER_SOURCE_DIR "/docs/abi/sysfs-kernel-neotier");
  std::string line, path;
  size_t writable = 0;
  while (std::getline(abi, line)) {
    if (line.starts_with("What:")) path = line.substr(line.find("neotier/") + 8);
    if (path.empty() || line.find("(RW)") == std::string::npos) continue;
    writable++;
    const bool of_device = path.starts_with("device<n>/");
    EXPECT_NE(kernel::find_knob(of_device ? "device0/" + path.substr(10) : path), nullptr) << path;
  }
  EXPECT_EQ(writable, kernel::knobs().size());
}

}  // namespace
}  // namespace neotier::top

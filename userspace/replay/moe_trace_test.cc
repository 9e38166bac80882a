// SPDX-License-Identifier: Apache-2.0
// Recorded routing: reference figures, analysis, bad files; options out of range; sweeps.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "replay/jobs.h"
#include "replay/moe_analyse.h"
#include "replay/moe_replay.h"
#include "util/temporary_folder.h"

namespace neotier::replay {
namespace {

namespace fs = std::filesystem;

placement::PolicyRef policy(const std::string& name) { return placement::find_policy(name, NEOTIER_EXPERTS); }
placement::PolicyRef predictor(const std::string& name) {
  return placement::find_policy(name, NEOTIER_EXPERTS | NEOTIER_PREDICTOR);
}

// What `act` throws, which must be one line; empty if it throws nothing.
std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const std::runtime_error& error) {
    std::string text = error.what();
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  }
  return "";
}

// ---- the recorded trace

std::optional<RoutingTrace> recorded() {
  const char* data = std::getenv("NEOTIER_DATA");
  const fs::path folder =
      (data ? fs::path(data) : fs::path(NEOTIER_SOURCE_DIR) / "../shared/data") / "gpt-oss-20b-routing";
  if (!fs::exists(folder / "routes.u8")) return std::nullopt;
  return RoutingTrace::load(folder);
}

// Declares `all`.
#define RECORDED_OR_SKIP()     \
  const auto all = recorded(); \
  if (!all) GTEST_SKIP() << "skipped: no gpt-oss-20b-routing in $NEOTIER_DATA or ../shared/data"

TEST(MoeRecorded, ReferenceFigures) {
  RECORDED_OR_SKIP();
  const std::map<std::string, std::vector<double>> reference = {{"lru", {.5520, .6521, .8020, .8968}},
                                                                {"lfu", {.5415, .6305, .7682, .8629}},
                                                                {"lfu-decay", {.5836, .6888, .8325, .9146}},
                                                                {"belady-forced", {.6578, .7720, .8924, .9501}}};
  for (const auto& [name, rates] : reference) {
    for (size_t i = 0; i < rates.size(); i++) {
      MoeOptions options;
      options.experts_per_layer = std::vector<uint32_t>{6, 8, 12, 16}[i];
      EXPECT_NEAR(replay(*all, policy(name), nullptr, options).hit_rate(), rates[i], 0.00005)
          << name << " at " << options.experts_per_layer;
    }
  }
}

// The odd half was not looked at while the policy was made.
TEST(MoeRecorded, OursOnTheHeldOutHalf) {
  RECORDED_OR_SKIP();
  const RoutingTrace trace = all->half(1);
  MoeOptions options;
  const MoeResult lru = replay(trace, policy("lru"), nullptr, options);
  EXPECT_GE(replay(trace, policy("learned"), nullptr, options).hit_rate(), .73);
  const MoeResult ahead = replay(trace, policy("learned"), predictor("learned"), options);
  EXPECT_GE(ahead.stall_free_rate(), .90);
  EXPECT_LE(ahead.bytes, 2 * lru.bytes);
  options.layer_ms = 2;
  options.link_gb_s = 12.5;
  EXPECT_GE(replay(trace, policy("learned"), predictor("learned"), options).stall_free_rate(), .90);
}

TEST(MoeRecorded, Analysis) {
  RECORDED_OR_SKIP();
  const RoutingAnalysis a = analyse(*all, 8);
  EXPECT_EQ(a.tokens, 106359u);
  EXPECT_NEAR(a.sch.back().second, .7720, .00005);
  EXPECT_NEAR(a.overlap[0].second, .4366, .005);  // of all sequences; half of them are here
  EXPECT_NEAR(a.distinct[0].second, 4, 1e-12);
  EXPECT_NEAR(a.random, .125, 1e-12);
}

TEST(MoeAnalysis, ByHand) {
  // One layer of 4 experts, 1 a token: 0 0 1 0 | 1 1.
  const RoutingTrace trace = RoutingTrace::from({1, 4, 1}, {0, 0, 1, 0, 1, 1}, {4, 2});
  const RoutingAnalysis a = analyse(trace, 1);
  EXPECT_DOUBLE_EQ(a.top_tenth, 0.5);  // one expert: 3 of 6
  EXPECT_DOUBLE_EQ(a.top_half, 1);
  EXPECT_DOUBLE_EQ(a.entropy, 0.5);                // 1 bit of 2
  EXPECT_DOUBLE_EQ(a.gini, 0.5);                   // half the experts take all, equally
  EXPECT_DOUBLE_EQ(a.overlap[0].second, 2.0 / 4);  // 0-0, 1-1 of 4 neighbours
  EXPECT_DOUBLE_EQ(a.srp[0].second, 5.0 / 6);      // segments of 8: 3 of 4, 2 of 2
  EXPECT_DOUBLE_EQ(a.distinct[0].second, 1);
}

// ---- bad input

class RoutingFiles : public testing::Test {
 protected:
  void SetUp() override {
    write("index.csv", "seq,offset_tokens,n_tokens,note\n0,0,2,\"a, b\"\n2,2,1,\n");
    write("routes.u8", std::string("\0\1\1\0\0\2\1\2\2\0\1\0", 12));  // 3 tokens x 2 layers x 2 of 3
  }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  std::string load_error() {
    return error_of([&] { RoutingTrace::load(folder_, {2, 3, 2}); });
  }

  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

TEST_F(RoutingFiles, GoodOnesLoad) {
  const RoutingTrace trace = RoutingTrace::load(folder_, {2, 3, 2});
  ASSERT_EQ(trace.sequences().size(), 2u);
  EXPECT_EQ(trace.tokens(), 3u);
  EXPECT_EQ(trace.sequences()[1].first_token, 2u);
  EXPECT_EQ(trace.experts(1, 1)[0], 1);
  EXPECT_EQ(trace.half(1).tokens(), 1u);
}

TEST_F(RoutingFiles, BadOnesAreOneLine) {
  const auto says = [&](const std::string& text) {
    EXPECT_NE(load_error().find(text), std::string::npos) << load_error();
  };
  const std::string index = "seq,offset_tokens,n_tokens\n";
  write("index.csv", index + "0,0,x\n");
  says("index.csv:2: n_tokens is 'x'");
  write("index.csv", index + "0,0\n");
  says("index.csv:2: n_tokens is ''");
  write("index.csv", index + "0,-1,1\n");
  says("offset_tokens is '-1'");
  write("index.csv", index + "0,0,0\n");
  says("0 tokens");
  write("index.csv", index);
  says("no sequence");
  write("index.csv", "a,b\n0,0\n");
  says("no column 'offset_tokens'");
  write("index.csv", "");
  says("no column");
  write("index.csv", index + "0,2,2\n");
  says("goes past the end (3 tokens)");
  write("index.csv", index + "0,18446744073709551615,2\n");
  says("goes past the end");
  write("index.csv", index + "0,0,3\n");
  write("routes.u8", std::string("\0\1\1", 3));
  says("no whole number of tokens");
  write("routes.u8", std::string("\0\1\1\3\0\2\1\2\2\0\1\0", 12));
  says("expert 3 at token 0, layer 1");
  write("routes.u8", std::string("\0\1\1\0\2\2\1\2\2\0\1\0", 12));
  says("expert 2 twice at token 1, layer 0");
  fs::remove(folder_ / "routes.u8");
  says("cannot read");
  fs::create_directory(folder_ / "routes.u8");
  says("cannot read");
  fs::remove(folder_ / "index.csv");
  says("cannot read");
}

TEST(MoeOptionsTest, OutOfRangeIsOneLine) {
  const RoutingTrace trace = RoutingTrace::from({4, 24, 1}, std::vector<uint8_t>(80), {20});
  const auto says = [&](const std::function<void(MoeOptions&)>& change, const std::string& text) {
    MoeOptions options;
    options.lookahead = 3;
    change(options);
    const std::string error = error_of([&] { replay(trace, policy("lru"), nullptr, options); });
    EXPECT_NE(error.find(text), std::string::npos) << error;
  };
  says([](MoeOptions& o) { o.experts_per_layer = 0; }, "--experts-per-layer 0");
  says([](MoeOptions& o) { o.experts_per_layer = 25; }, "1 to 24");
  says([](MoeOptions& o) { o.batch = 0; }, "--batch");
  says([](MoeOptions& o) { o.layer_ms = -1; }, "--layer-ms");
  says([](MoeOptions& o) { o.layer_ms = std::nan(""); }, "--layer-ms");
  says([](MoeOptions& o) { o.link_gb_s = 0; }, "--link-gb-s");
  says([](MoeOptions& o) { o.link_us = -1; }, "--link-us");
  says([](MoeOptions& o) { o.expert_bytes = 0; }, "--expert-bytes");
  says([](MoeOptions& o) { o.lookahead = 4; }, "--lookahead");
  EXPECT_NE(error_of([] { policy("nonsense"); }).find("unknown policy 'nonsense'; known: "), std::string::npos);
  EXPECT_NE(error_of([] { predictor("lru"); }).find("unknown predictor 'lru'"), std::string::npos);
  EXPECT_EQ(error_of([] { policy("nonsense"); }).find("affinity"), std::string::npos);
}

// ---- sweeps

TEST(Jobs, GoOnWhereTheyStopped) {
  const TemporaryFolder folder;
  const fs::path store = folder / "store";
  std::atomic<bool> cancel = false;
  std::atomic<int> ran = 0;
  std::vector<Job> jobs;
  for (int i = 0; i < 6; i++) {
    jobs.push_back({"job " + std::to_string(i), [&, i](const std::atomic<bool>& stop) {
                      ran++;
                      if (i == 3) cancel = true;  // Ctrl-C while it runs
                      while (i == 3 && !stop) usleep(1000);
                      return nlohmann::ordered_json(i * i);
                    }});
  }
  const auto run = [&](const std::string& identity) {
    ran = 0;
    return run_jobs(jobs, identity, store, 1, cancel, [](size_t, size_t) {});
  };
  {
    std::ofstream out(store);  // one line cut short
    out << R"({"sweep":"a"})"
        << "\n"
        << R"({"key":"job 0","result":0})"
        << "\n"
        << R"({"key":"job 1","result":1)";
  }
  EXPECT_NE(error_of([&] { run("a"); }).find("4 of 6 runs are in"), std::string::npos);
  EXPECT_EQ(ran, 3) << "jobs 1 to 3";
  cancel = false;
  EXPECT_EQ(run("a").at("job 5"), 25);
  EXPECT_EQ(ran, 2);
  EXPECT_EQ(run("a").size(), 6u);
  EXPECT_EQ(ran, 0);
  jobs.erase(jobs.begin() + 3);
  run("b");
  EXPECT_EQ(ran, 5) << "another identity starts anew";
  jobs[2].run = [](const std::atomic<bool>&) -> nlohmann::ordered_json { throw std::runtime_error("job 2 is bad"); };
  EXPECT_EQ(error_of([&] { run("c"); }), "job 2 is bad");
}

TEST(Jobs, OfOneKeyRunOnce) {
  const TemporaryFolder folder;
  const std::atomic<bool> cancel = false;
  std::atomic<int> ran = 0;
  const Job job = {"named twice", [&](const std::atomic<bool>&) { return nlohmann::ordered_json(++ran); }};
  const auto results =
      run_jobs({job, job}, "a", folder / "store", 2, cancel, [](size_t, size_t all) { EXPECT_EQ(all, 1u); });
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(results.at("named twice"), 1);
}

}  // namespace
}  // namespace neotier::replay

// SPDX-License-Identifier: Apache-2.0
#include "hil/run_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "hil/timeline_charts.h"
#include "util/temporary_folder.h"

namespace fs = std::filesystem;

namespace neotier::hil {
namespace {

using report::Json;

LoadedRun run(const char* policy, int seed, double ns, const Json& more = Json::object()) {
  Json json = {{"program", {"/bin/a", "two words"}},
               {"policy", policy},
               {"seed", seed},
               {"dram_bytes", 64 << 20},
               {"cxl_bytes", 128 << 20},
               {"thp", "never"},
               {"modelled_ns", ns}};
  json.update(more);
  return {"x.json", json};
}

TEST(RunView, SeedsAreOneLineAndBoundsStandAtTheEnds) {
  const std::vector<LoadedRun> runs = {run("none", 1, 4e9), run("neotier", 1, 2e9), run("neotier", 2, 3e9),
                                       run("all-dram", 1, 1e9)};
  const auto groups = group_runs(runs);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].title, "a 'two words'");
  ASSERT_EQ(groups[0].policies.size(), 3u);
  EXPECT_EQ(groups[0].policies[0].label, "all-dram");
  EXPECT_EQ(groups[0].policies[2].label, "none");
  const auto spread = groups[0].find("neotier")->spread("/modelled_ns", 1e-9);
  ASSERT_TRUE(spread);
  EXPECT_DOUBLE_EQ(spread->mean, 2.5);
  EXPECT_DOUBLE_EQ(spread->low, 2);
  EXPECT_DOUBLE_EQ(spread->high, 3);
  EXPECT_FALSE(groups[0].find("neotier")->spread("/nothing"));
}

TEST(RunView, RunsOfOneNameAreOneProgram) {
  const std::vector<LoadedRun> runs = {
      run("none", 1, 4e9, {{"program", {"x", "--seed", "1"}}, {"name", "x, with seeds"}}),
      run("none", 2, 2e9, {{"program", {"x", "--seed", "2"}}, {"name", "x, with seeds"}}),
      run("none", 1, 1e9, {{"program", {"x", "--seed", "1"}}, {"name", 7}})};
  const auto groups = group_runs(runs);
  ASSERT_EQ(groups.size(), 2u) << "a name that is no text is none";
  EXPECT_EQ(groups[0].title, "x, with seeds");
  EXPECT_EQ(groups[0].policies[0].runs.size(), 2u);
  EXPECT_EQ(groups[1].title, "x --seed 1");
}

TEST(RunView, OtherSettingsAreAnotherGroupAndOtherKnobsAnotherLine) {
  const std::vector<LoadedRun> runs = {run("none", 1, 1), run("none", 1, 1, {{"dram_bytes", 96 << 20}}),
                                       run("neotier", 1, 1), run("neotier", 1, 1, {{"knobs", {"policy=neomem"}}})};
  const auto groups = group_runs(runs);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_NE(groups[0].title, groups[1].title) << "the reader must see which is which";
  ASSERT_EQ(groups[0].policies.size(), 3u);
  EXPECT_EQ(groups[0].policies[1].label, "neotier policy=neomem");
}

TEST(RunView, DevicesOfOtherSizesAreOtherLines) {
  const auto with = [](const Json& bits) {
    return run("neotier", 1, 1, {{"profiler", {{"asked_bits_per_page", bits}}}});
  };
  const std::vector<LoadedRun> runs = {with(4.5), with(2.25), with("full")};
  const auto groups = group_runs(runs);
  ASSERT_EQ(groups.size(), 1u);
  ASSERT_EQ(groups[0].policies.size(), 3u);
  std::vector<std::string> labels;
  for (const PolicyRuns& policy : groups[0].policies) labels.push_back(policy.label);
  EXPECT_THAT(labels, testing::UnorderedElementsAre("neotier", "neotier device-bits-per-page=2.25",
                                                    "neotier device-bits-per-page=full"));
}

TEST(RunView, WhatIsNotDrawnSaysWhy) {
  const TemporaryFolder library;
  fs::create_directories(library.path() / "report");
  for (const char* file : {"echarts.min.js", "LICENSE", "NOTICE"})
    std::ofstream(library.path() / "report" / file) << " ";
  setenv("NEOTIER_BUILD", library.path().c_str(), 1);
  const auto text = [](const std::vector<LoadedRun>& runs) {
    report::Page page("title", "lead");
    for (const Group& group : group_runs(runs)) timeline_charts(page, group);
    return page.html();
  };
  EXPECT_NE(text({run("none", 1, 1)}).find("compare --moves --json FILE"), std::string::npos) << "nothing over time";
  const Json timeline = {{"step_ns", 1e6},           {"end_ns", 2e6},      {"cxl_fills", {1, 2}},
                         {"cxl_writebacks", {1, 2}}, {"promoted", {0, 0}}, {"demoted", {0, 0}}};
  const std::string still = text({run("neotier", 1, 1, {{"timeline", timeline}, {"remark", "it fits in DRAM"}})});
  EXPECT_NE(still.find("no policy here moved a page. neotier: it fits in DRAM."), std::string::npos);
  EXPECT_NE(still.find("does not mark windows"), std::string::npos);
  unsetenv("NEOTIER_BUILD");
}

TEST(RunView, ARunThatDiedBelongsToItsProgram) {
  const std::vector<LoadedRun> runs = {run("none", 1, 1, {{"params", {{"mlp", 4}}}}),
                                       run("numab", 1, 1, {{"verdict", "the guest's kernel died"}})};
  const auto groups = group_runs(runs);
  ASSERT_EQ(groups.size(), 1u);
  const auto& numab = groups[0].policies[0].policy == "numab" ? groups[0].policies[0] : groups[0].policies[1];
  EXPECT_EQ(numab.verdicts.size(), 1u);
  EXPECT_EQ(groups[0].find("numab"), nullptr) << "no figures, no comparison";
}

TEST(RunView, ARunWhoseProgramFailedHasNoFigures) {
  const std::vector<LoadedRun> runs = {run("none", 1, 1), run("numab", 1, 1, {{"exit_status", 1}})};
  const auto groups = group_runs(runs);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].find("numab"), nullptr);
}

TEST(RunView, ValuesOfAnotherTypeAreNotThere) {
  const Json json = {{"a", {{"b", "text"}}}, {"list", {1, "2"}}, {"n", 5}};
  EXPECT_FALSE(number_at(json, "/a/b"));
  EXPECT_FALSE(number_at(json, "/n/deeper"));
  EXPECT_FALSE(number_at(json, "/list/7"));
  EXPECT_FALSE(numbers_at(json, "/list"));
  EXPECT_EQ(text_at(json, "/a"), "-");
  EXPECT_EQ(text_at(json, "/n"), "5");
}

}  // namespace
}  // namespace neotier::hil

// SPDX-License-Identifier: Apache-2.0
#include "daemon/config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace neotier::daemon {
namespace {

const std::string kTier = "[[tier]]\nkind = \"dram\"\nsize = \"64M\"\n";

std::vector<std::string> errors_of(const std::string& text) {
  try {
    (void)parse_config(text, "f.toml");
  } catch (const ConfigError& error) {
    return error.lines();
  }
  return {};
}

TEST(Config, TakesEveryKeyOfTheExample) {
  const Config config = load_config(NEOTIER_SOURCE_DIR "/docs/neotierd.toml");
  EXPECT_EQ(config.socket_path, "/run/neotier/neotierd.sock");
  EXPECT_EQ(config.metrics_host, "127.0.0.1");
  EXPECT_EQ(config.metrics_port, 9464);
  EXPECT_NE(config.tiers.find("ssd/ssd="), std::string::npos) << config.tiers;
}

TEST(Config, WhatIsCommentedOutInTheExampleIsRightToo) {
  std::ifstream in(NEOTIER_SOURCE_DIR "/docs/neotierd.toml");
  std::string text, line;
  // "#key = value" is an example; "# Words" is a comment.
  while (std::getline(in, line)) {
    text += (line.size() > 1 && line[0] == '#' && line[1] != ' ' ? line.substr(1) : line) + "\n";
  }
  EXPECT_EQ(errors_of(text), std::vector<std::string>{});
}

TEST(Config, ARemoteTier) {
  const Config config = parse_config(
      "[[tier]]\nkind = \"remote\"\nsize = \"64M\"\nurl = \"rediss://kv@[::1]:7000,b/0\"\ncluster = false\n"
      "password_file = \"/p\"\nca = \"/c\"\nnamespace = \"m/bf16\"\ntimeout_ms = 5\nttl_s = 0\n",
      "f");
  EXPECT_EQ(config.tiers,
            "remote/remote=67108864:promote=yes:url=[rediss://kv@[::1]:7000,b/0]:password_file=/p:ca=/c:cluster=no:"
            "namespace=m/bf16:timeout_ms=5:ttl_s=0");
  // What is wrong with a URL is not shown: it may hold a password. Nor does one reach into the next option.
  for (const char* url : {"redis://kv:sesame@h]:ttl_s=[1", "redis://kv:sesame@[h", "redis://kv:sesame@h\\n"}) {
    const std::vector<std::string> errors =
        errors_of(std::string("[[tier]]\nkind = \"remote\"\nsize = \"64M\"\nurl = \"") + url + "\"\n");
    ASSERT_EQ(errors.size(), 1u) << url;
    EXPECT_EQ(errors[0].find("sesame"), std::string::npos) << errors[0];
    EXPECT_NE(errors[0].find("f.toml:4: [[tier]].url: expected redis://"), std::string::npos) << errors[0];
  }
}

TEST(Config, Values) {
  const Config config = parse_config(
      "[[tier]]\nname = \"near\"\nkind = \"dram\"\nsize = \"64M\"\nnode = 1\nhuge = \"no\"\n"
      "[[tier]]\nkind = \"ssd\"\nsize = 1073741824\nfile = \"/var/x\"\nbackground = \"10M\"\n"
      "[engine]\nmax_objects = 5\npromote_heat = 0\nhigh_watermark = 0.8\nlow_watermark = 0.7\nwrite_back = true\n"
      "[socket]\npath = \"/tmp/x\"\nmode = \"0600\"\nmax_clients = 3\nmax_message = \"1M\"\n"
      "[client]\npinned_bytes = \"8M\"\n[metrics]\nlisten = \"[::1]:0\"\n"
      "[kernel]\nenabled = true\npolicy = \"payback\"\n[kernel.device0]\nthreshold = 7\n",
      "f");
  EXPECT_EQ(
      config.tiers,
      "near/dram=67108864:promote=yes:node=1:huge=no,ssd/ssd=1073741824:background=10485760:promote=yes:file=/var/x");
  EXPECT_EQ(config.engine.max_objects, 5u);
  EXPECT_EQ(config.engine.knobs.promote_heat, 0u);
  EXPECT_EQ(config.engine.knobs.high_watermark, 0.8);
  EXPECT_TRUE(config.engine.knobs.write_back);
  EXPECT_EQ(config.socket_mode, 0600u);
  EXPECT_EQ(config.limits.max_clients, 3u);
  EXPECT_EQ(config.limits.max_message, 1u << 20);
  EXPECT_EQ(config.limits.pinned_bytes, 8u << 20);
  EXPECT_EQ(config.metrics_host, "::1");
  const std::vector<std::pair<std::string, std::string>> knobs = {
      {"enabled", "1"}, {"policy", "payback"}, {"device0/threshold", "7"}};
  std::vector<std::pair<std::string, std::string>> found = config.kernel;
  std::sort(found.begin(), found.end());
  std::vector<std::pair<std::string, std::string>> wanted = knobs;
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(found, wanted);
}

TEST(Config, WhoMovesACxlTier) {
  const std::string cxl = "[[tier]]\nkind = \"cxl\"\nsize = \"64M\"\n";
  EXPECT_EQ(parse_config(cxl + "node = 1\nmode = \"kernel\"\n", "f").tiers,
            "cxl/cxl=67108864:promote=yes:node=1:mode=kernel");
  EXPECT_EQ(parse_config(cxl, "f").tiers, "cxl/cxl=67108864:promote=yes");
  const auto only = [](const std::string& text, const char* wanted) {
    const std::vector<std::string> errors = errors_of(text);
    ASSERT_EQ(errors.size(), 1u) << ::testing::PrintToString(errors);
    EXPECT_EQ(errors[0].substr(0, std::string(wanted).size()), wanted);
  };
  only(cxl + "mode = \"move\"\n", "f.toml:4: [[tier]].mode: expected one of bind, kernel, found \"move\"");
  only(cxl + "mode = 1\n", "f.toml:4: [[tier]].mode: expected one of bind, kernel, found 1");
  only(cxl + "huge = \"explicit\"\nmode = \"kernel\"\n",
       "f.toml:4: [[tier]].huge: expected no or transparent with mode = \"kernel\", found \"explicit\"");
  only("[[tier]]\nkind = \"dram\"\nsize = \"64M\"\nmode = \"kernel\"\n",
       "f.toml:4: [[tier]].mode: expected one of kind, name, size, policy, object, background, promote, node, huge, "
       "found an "
       "unknown key");
}

// Nobody has to set a limit for one client not to starve the others.
TEST(Config, DefaultsLeaveSomethingToOthers) {
  const Config config = parse_config(kTier, "f");
  EXPECT_EQ(config.limits.pinned_bytes, 8u << 20);
  EXPECT_EQ(config.limits.user_pinned_bytes, 32u << 20);
  EXPECT_GT(config.limits.max_lease_ms, 0u);
  EXPECT_LT(config.limits.most_of_a_user(), config.limits.max_clients);
  EXPECT_TRUE(config.engine.discard);
  EXPECT_FALSE(parse_config(kTier + "[engine]\ndiscard = false\n", "f").engine.discard);
  EXPECT_EQ(parse_config(kTier + "[client]\npinned_bytes = \"1M\"\n", "f").limits.pinned_bytes, 1u << 20);
}

struct Wrong {
  const char* text;   // after one good tier, which is lines 1 to 3
  const char* error;  // its beginning
};

class ConfigErrors : public ::testing::TestWithParam<Wrong> {};

TEST_P(ConfigErrors, NameFileLineKeyAndWhatWasExpected) {
  const std::vector<std::string> errors = errors_of(kTier + GetParam().text);
  ASSERT_EQ(errors.size(), 1u) << ::testing::PrintToString(errors);
  EXPECT_EQ(errors[0].substr(0, std::string(GetParam().error).size()), GetParam().error);
  EXPECT_EQ(errors[0].find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    All, ConfigErrors,
    ::testing::Values(
        Wrong{"\n[engine]\nmax_objects = \"many\"\n",
              "f.toml:6: [engine].max_objects: expected an integer from 1 to 4294967294, found \"many\""},
        Wrong{"[engine]\nmax_objects = 0\n", "f.toml:5: [engine].max_objects: expected an integer from 1 to"},
        Wrong{"[engine]\nmax_objects = -1\n", "f.toml:5: [engine].max_objects: expected an integer from 1 to"},
        Wrong{"[engine]\nhigh_watermark = 1.5\n",
              "f.toml:5: [engine].high_watermark: expected a number above 0 and up to 1, found 1.5"},
        Wrong{"[engine]\nlow_watermark = 0.99\n",
              "f.toml:5: [engine].low_watermark: expected at most high_watermark (0.95), found 0.99"},
        Wrong{"[engine]\nhigh_watermark = 0.5\n",
              "f.toml:5: [engine].low_watermark: expected at most high_watermark (0.5), found 0.9"},
        Wrong{"[engine]\nwrite_back = 1\n", "f.toml:5: [engine].write_back: expected true or false, found 1"},
        Wrong{"[engine]\n\n\ncolour = 1\n", "f.toml:7: [engine].colour: expected one of max_objects, seed,"},
        Wrong{"[colour]\n",
              "f.toml:4: colour: expected one of tier, engine, socket, client, metrics, log, kernel, found"},
        Wrong{"[[tier]]\nkind = \"tape\"\nsize = \"1G\"\n",
              "f.toml:5: [[tier]].kind: expected one of dram, cxl, gpu, ssd, remote, found \"tape\""},
        Wrong{"[[tier]]\nkind = \"cxl\"\n", "f.toml:4: [[tier]].size: expected a size, as \"8G\", found nothing"},
        Wrong{"[[tier]]\nkind = \"cxl\"\nsize = \"8Q\"\n",
              "f.toml:6: [[tier]].size: expected a size from 1 MiB to 8 TiB"},
        Wrong{"[[tier]]\nsize = \"8M\"\n",
              "f.toml:4: [[tier]].kind: expected dram, cxl, gpu, ssd or remote, found nothing"},
        Wrong{"[[tier]]\nkind = \"ssd\"\nsize = \"64M\"\n", "f.toml:4: [[tier]].file: expected an absolute path"},
        Wrong{"[[tier]]\nkind = \"ssd\"\nsize = \"64M\"\nfile = \"x\"\n",
              "f.toml:7: [[tier]].file: expected an absolute"},
        Wrong{"[[tier]]\nkind = \"cxl\"\nsize = \"64M\"\nfile = \"/x\"\n",
              "f.toml:7: [[tier]].file: expected one of kind,"},
        Wrong{"[[tier]]\nkind = \"cxl\"\nsize = \"64M\"\nname = \"a,b\"\n",
              "f.toml:7: [[tier]].name: expected 1 to 31"},
        Wrong{"[socket]\nmode = \"0999\"\n",
              "f.toml:5: [socket].mode: expected an octal mode as \"0660\", found \"0999\""},
        Wrong{"[socket]\nmode = 660\n", "f.toml:5: [socket].mode: expected an octal mode as \"0660\", found 660"},
        Wrong{"[socket]\npath = \"here\"\n", "f.toml:5: [socket].path: expected an absolute path"},
        Wrong{"[socket]\nmax_message = \"1K\"\n",
              "f.toml:5: [socket].max_message: expected a size from 64 KiB to 2 GiB"},
        Wrong{"[socket]\nin_flight_bytes = \"1M\"\n",
              "f.toml:5: [socket].in_flight_bytes: expected at least max_message (67108864), found 1048576"},
        Wrong{"[socket]\nmax_clients = 2.5\n",
              "f.toml:5: [socket].max_clients: expected an integer from 1 to 4096, found 2.5"},
        Wrong{"[metrics]\nlisten = \"0.0.0.0:9464\"\n",
              "f.toml:5: [metrics].listen: expected a loopback address and a port, as \"127.0.0.1:9464\""},
        Wrong{"[metrics]\nlisten = \"127.0.0.1\"\n", "f.toml:5: [metrics].listen: expected a loopback"},
        Wrong{"[metrics]\nlisten = \"127.0.0.1:99999\"\n", "f.toml:5: [metrics].listen: expected a loopback"},
        Wrong{"[kernel]\nquota_mb_per_s = -5\n",
              "f.toml:5: [kernel].quota_mb_per_s: expected a number from 0 to 1048576 (MiB/s), found -5"},
        Wrong{"[kernel]\nspeed = 1\n", "f.toml:5: [kernel].speed: expected one of enabled, dry_run, policy,"},
        Wrong{"[kernel.device0]\nspeed = 1\n", "f.toml:5: [kernel.device0].speed: expected one of threshold,"},
        Wrong{"[kernel]\nbatch = []\n", "f.toml:5: [kernel].batch: expected a number or a string, found an array"},
        Wrong{"[engine]\nmax_objects = \n", "f.toml:5: expected TOML: "},
        Wrong{"[engine\n", "f.toml:4: expected TOML: "}));

TEST(Config, EngineHasToBeATableAndTiersHaveToBeThere) {
  EXPECT_EQ(errors_of("engine = 5\n" + kTier)[0], "f.toml:1: engine: expected a table [engine], found 5");
  EXPECT_EQ(errors_of("\n[engine]\nseed = 1\n").size(), 1u);
  EXPECT_NE(errors_of("")[0].find("[[tier]]: expected one table for each tier"), std::string::npos);
}

TEST(Config, AllErrorsAtOnce) {
  const auto errors = errors_of(kTier + "[socket]\nmode = 1\nmax_clients = 0\n[client]\npins = \"x\"\n");
  ASSERT_EQ(errors.size(), 3u);
  EXPECT_EQ(errors[0].substr(0, 9), "f.toml:5:");
  EXPECT_EQ(errors[1].substr(0, 9), "f.toml:6:");
  EXPECT_EQ(errors[2].substr(0, 9), "f.toml:8:");
}

TEST(Config, AFileThatIsNotThere) { EXPECT_THROW((void)load_config("/no/such/file.toml"), ConfigError); }

TEST(Config, WhatCannotChangeIsNamedAndKept) {
  const Config before = parse_config(kTier + "[socket]\nmax_clients = 4\n", "f");
  Config after =
      parse_config("[[tier]]\nkind = \"dram\"\nsize = \"32M\"\n[socket]\nmax_clients = 5\nworkers = 9\n", "f");
  const auto lines = keep_fixed(before, after);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].substr(0, 8), "[[tier]]");
  EXPECT_EQ(lines[1].substr(0, 16), "[socket].workers");
  EXPECT_EQ(after.tiers, before.tiers);
  EXPECT_EQ(after.workers, before.workers);
  EXPECT_EQ(after.limits.max_clients, 5u);
}

}  // namespace
}  // namespace neotier::daemon

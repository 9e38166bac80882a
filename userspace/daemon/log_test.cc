// SPDX-License-Identifier: Apache-2.0
#include "daemon/log.h"

#include <gtest/gtest.h>

#include "daemon/config.h"

namespace neotier::daemon {
namespace {

struct Said {
  std::string text;
  Log log;
  explicit Said(bool journal = false) : log(journal, [this](const std::string& line) { text += line; }) {}
  void four() {
    log.say(LogLevel::kError, "a");
    log.say(LogLevel::kWarning, "b");
    log.say(LogLevel::kInfo, "c");
    log.say(LogLevel::kDebug, "d");
  }
};

TEST(Log, LinesBeginAsTheirReaderWantsThem) {
  Said said;
  said.four();
  EXPECT_EQ(said.text, "neotierd: error: a\nneotierd: warning: b\nneotierd: c\n");
  Said journal(true);
  journal.log.set_level(LogLevel::kDebug);
  journal.four();
  EXPECT_EQ(journal.text, "<3>a\n<4>b\n<6>c\n<7>d\n");
}

TEST(Log, NothingBelowTheLevelIsSaid) {
  Said said;
  said.log.set_level(LogLevel::kError);
  said.four();
  EXPECT_EQ(said.text, "neotierd: error: a\n");
  EXPECT_FALSE(said.log.says(LogLevel::kWarning));
  bool made = false;
  said.log.event(LogLevel::kWarning, LogEvent::kCutOff, 0, [&] {
    made = true;
    return std::string("x");
  });
  EXPECT_FALSE(made);
}

TEST(Log, NobodyFillsTheJournal) {
  Said said;
  const auto event = [&](uint64_t now_ns, LogEvent kind = LogEvent::kCutOff) {
    said.text.clear();
    said.log.event(LogLevel::kWarning, kind, now_ns, [] { return std::string("x"); });
    return said.text;
  };
  const std::string line = "neotierd: warning: x\n";
  for (uint32_t i = 0; i < Log::kMostOfAKind; i++) EXPECT_EQ(event(1000 + i), line);
  for (int i = 0; i < 500; i++) EXPECT_EQ(event(2000), "");
  EXPECT_EQ(event(2000, LogEvent::kTimeout), line) << "each kind for itself";
  EXPECT_EQ(event(1000 + Log::kMinuteNs - 1), "");
  EXPECT_EQ(event(1000 + Log::kMinuteNs), "neotierd: warning: x (and 501 like this before that were not said)\n");
  for (uint32_t i = 1; i < Log::kMostOfAKind; i++) EXPECT_EQ(event(3000 + Log::kMinuteNs), line);
  EXPECT_EQ(event(3000 + Log::kMinuteNs), "");
}

TEST(Log, WhatClientsSendStaysOnItsLine) {
  Said said;
  said.log.say(LogLevel::kInfo, "a\nb\x1b[2J\x7f");
  EXPECT_EQ(said.text, "neotierd: a\\x0ab\\x1b[2J\\x7f\n");
}

TEST(Log, WithoutMemoryForTheWordsNothingIsSaid) {
  Said said;
  said.log.event(LogLevel::kError, LogEvent::kNoMemory, 0, []() -> std::string { throw std::bad_alloc(); });
  EXPECT_EQ(said.text, "");
}

TEST(Log, TheConfigurationHasItsLevel) {
  const std::string tier = "[[tier]]\nkind = \"dram\"\nsize = \"8M\"\n";
  EXPECT_EQ(parse_config(tier, "f").log, LogLevel::kInfo);
  EXPECT_EQ(parse_config(tier + "[log]\nlevel = \"debug\"\n", "f").log, LogLevel::kDebug);
  EXPECT_EQ(parse_config(tier + "[log]\nlevel = \"error\"\n", "f").log, LogLevel::kError);
  try {
    (void)parse_config(tier + "[log]\nlevel = \"loud\"\n", "f");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "f:5: [log].level: expected one of error, warning, info, debug, found \"loud\"");
  }
}

}  // namespace
}  // namespace neotier::daemon

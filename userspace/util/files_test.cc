// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>

#include "util/input_file.h"
#include "util/output_file.h"
#include "util/temporary_folder.h"

namespace neotier {
namespace {

namespace fs = std::filesystem;

template <typename Act>
std::string error_of(Act act) {
  try {
    act();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

class FilesTest : public ::testing::Test {
 protected:
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  void put(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  std::string get(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(folder_ / name).rdbuf();
    return text.str();
  }
  void SetUp() override { fs::create_directory(folder_); }

  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_ / "d";
};

TEST_F(FilesTest, AnOutputIsThereWithItsCommitAndAsAWhole) {
  put("a", "former");
  {
    OutputFile out("--json", folder_ / "a");
    out.write("half");
    EXPECT_EQ(get("a"), "former");
    EXPECT_EQ(entries(), 1u);
  }
  EXPECT_EQ(get("a"), "former");
  OutputFile out("--json", folder_ / "a");
  out.finish("whole");
  EXPECT_EQ(get("a"), "whole");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FilesTest, AnOutputKeepsModeAndLink) {
  put("a", "former");
  fs::permissions(folder_ / "a", fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("a", folder_ / "link");
  write_file(folder_ / "link", "whole");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(get("a"), "whole");
  EXPECT_EQ(fs::status(folder_ / "a").permissions(), fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("new", folder_ / "dangling");
  write_file(folder_ / "dangling", "x");
  EXPECT_EQ(get("new"), "x");
}

TEST_F(FilesTest, WhatCannotBeWrittenIsSaidAtOnce) {
  EXPECT_EQ(error_of([&] { OutputFile("--json", folder_ / "no" / "a"); }),
            "--json: no folder " + (folder_ / "no").string());
  EXPECT_EQ(error_of([&] { OutputFile("--json", folder_); }),
            "--json: cannot write " + folder_.string() + ": it is a folder");
  EXPECT_EQ(error_of([] { OutputFile("", "/dev/full"); }), "cannot write /dev/full: No space left on device");
  OutputFile("", "").finish("nowhere");
  OutputFile("", "/dev/null").finish("gone");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(FilesTest, AnOutputTakesAnotherFile) {
  put("b", "bytes");
  OutputFile out("", folder_ / "a");
  out.take(folder_ / "b");
  EXPECT_FALSE(fs::exists(folder_ / "a"));
  out.commit();
  EXPECT_EQ(get("a"), "bytes");
  EXPECT_EQ(entries(), 1u);
}

// Where there are no files without a name, and between giving one and the last: the next writer of that name clears.
TEST_F(FilesTest, WhatADeadWriterLeftIsRemovedAndNothingElse) {
  put("a.neotier-abcdef.part", "left");
  put("a.neotier-abcdef.part.bak", "foreign");
  put("b.neotier-abcdef.part", "of another output");
  OutputFile("", folder_ / "a").finish("whole");
  EXPECT_FALSE(fs::exists(folder_ / "a.neotier-abcdef.part"));
  EXPECT_EQ(entries(), 3u);
}

TEST_F(FilesTest, AnInputSaysWhatIsWrongWithIt) {
  put("empty", "");
  put("a", std::string("x\0y", 3));
  EXPECT_EQ(read_input_file(folder_ / "a"), std::string("x\0y", 3));
  EXPECT_NE(error_of([&] { read_input_file(folder_ / "none"); }).find(": no such file"), std::string::npos);
  EXPECT_NE(error_of([&] { read_input_file(folder_); }).find(": it is a folder"), std::string::npos);
  EXPECT_NE(error_of([&] { read_input_file(folder_ / "empty"); }).find(": it is empty"), std::string::npos);
}

TEST_F(FilesTest, AFolderWhoseOwnerWasKilledGoesWithTheNextOne) {
  fs::create_directory(folder_ / "neotier-x.foreig");  // no lock in it: not ours to remove
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    TemporaryFolder left("neotier-x", folder_);
    std::ofstream(left / "content") << "x";
    (void)!write(ready[1], "r", 1);
    for (;;) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  { const TemporaryFolder beside("neotier-x", folder_); }
  EXPECT_EQ(entries(), 2u) << "its owner lives";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
  auto next = std::make_unique<TemporaryFolder>("neotier-x", folder_);
  EXPECT_EQ(entries(), 2u);
  next->keep();
  next.reset();
  { const TemporaryFolder after("neotier-x", folder_); }
  EXPECT_EQ(entries(), 2u) << "one was kept";
}

}  // namespace
}  // namespace neotier

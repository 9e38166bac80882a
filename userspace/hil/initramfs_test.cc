// SPDX-License-Identifier: Apache-2.0
#include "hil/initramfs.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>

#include "util/temporary_folder.h"

namespace neotier::hil {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr uint64_t kMiB = 1ull << 20;

struct Entry {
  uint32_t mode = 0, modified = 0;
  std::string content;
};

// What the kernel would unpack: by the format's own description, not by the code under test.
std::map<std::string, Entry> unpack(const Initramfs& archive, const fs::path& folder) {
  archive.write(folder / "archive.cpio");
  std::ifstream in(folder / "archive.cpio", std::ios::binary);
  std::ostringstream whole;
  whole << in.rdbuf();
  const std::string bytes = whole.str();
  std::map<std::string, Entry> entries;
  size_t at = 0;
  const auto field = [&](size_t index) {
    return static_cast<uint32_t>(std::stoul(bytes.substr(at + 6 + 8 * index, 8), nullptr, 16));
  };
  while (bytes.compare(at, 6, "070701") == 0) {
    const uint32_t size = field(6), name_size = field(11);
    const std::string name = bytes.substr(at + 110, name_size - 1);
    if (name == "TRAILER!!!") return entries;
    const size_t content = (at + 110 + name_size + 3) / 4 * 4;
    EXPECT_TRUE(entries.emplace("/" + name, Entry{field(1), field(5), bytes.substr(content, size)}).second)
        << name << " twice";
    EXPECT_TRUE(fs::path("/" + name).parent_path() == "/" || entries.contains(fs::path("/" + name).parent_path()))
        << name << " before its folder";
    at = (content + size + 3) / 4 * 4;
  }
  ADD_FAILURE() << "no trailer";
  return entries;
}

std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

class InitramfsTest : public testing::Test {
 protected:
  fs::path file(const std::string& name, std::string_view content, mode_t mode = 0644) {
    fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << content;
    chmod(path.c_str(), mode);
    return path;
  }
  std::map<std::string, Entry> entries() { return unpack(archive_, out_.path()); }

  TemporaryFolder folder_, out_;
  Initramfs archive_{64 * kMiB};
};

TEST_F(InitramfsTest, AnEmptyFileGoesAlong) {
  archive_.add_file(file("empty", ""), "/at/empty");
  EXPECT_EQ(entries().at("/at/empty").content, "");
}

TEST_F(InitramfsTest, BytesAndModesStayAsTheyAre) {
  const std::string bytes("a\0b\r\n\xff", 6);
  archive_.add_file(file("data", bytes, 0640), "/data");
  EXPECT_EQ(entries().at("/data").content, bytes);
  EXPECT_EQ(entries().at("/data").mode, S_IFREG | 0640u);
}

TEST_F(InitramfsTest, AFolderGoesAlongWithItsLinksAndWithoutItsSockets) {
  file("tree/a/one", "1");
  file("tree/none", "");
  fs::create_directory(folder_ / "tree/empty");
  fs::create_symlink("nowhere", folder_ / "tree/dangling");
  fs::create_symlink(".", folder_ / "tree/a/loop");
  ASSERT_EQ(mkfifo((folder_ / "tree/fifo").c_str(), 0600), 0);
  archive_.add_tree(folder_ / "tree", "/t");
  const auto found = entries();
  EXPECT_EQ(found.at("/t/a/one").content, "1");
  EXPECT_EQ(found.at("/t/none").mode, S_IFREG | 0644u);
  EXPECT_EQ(found.at("/t/empty").mode, S_IFDIR | 0755u);
  EXPECT_EQ(found.at("/t/dangling").content, "nowhere");
  EXPECT_EQ(found.at("/t/a/loop").mode & S_IFMT, static_cast<uint32_t>(S_IFLNK)) << "not followed";
  EXPECT_FALSE(found.contains("/t/fifo"));
}

TEST_F(InitramfsTest, WhatCannotGoAlongIsNamed) {
  EXPECT_THAT(message_of([&] { archive_.add_tree("/dev/null", "/x"); }),
              HasSubstr("/dev/null is neither a file nor a folder"));
  EXPECT_EQ(message_of([&] { archive_.add_tree(folder_ / "gone", "/x"); }),
            "no such file: " + (folder_ / "gone").string());
}

TEST_F(InitramfsTest, AFileThatCannotBeReadIsNamed) {
  if (geteuid() == 0) GTEST_SKIP() << "skipped: root can read everything";
  const fs::path secret = file("secret", "x", 0);
  EXPECT_EQ(message_of([&] { archive_.add_file(secret, "/x"); }),
            "cannot read " + secret.string() + ": Permission denied");
}

TEST_F(InitramfsTest, AHugeFileIsRefusedBeforeItIsRead) {
  const fs::path huge = file("huge", "");
  fs::resize_file(huge, uint64_t{1} << 40);  // sparse: reading it would end nowhere
  file("some", std::string(2 * kMiB, 'x'));
  archive_.add_file(folder_ / "some", "/some");
  const std::string message = message_of([&] { archive_.add_file(huge, "/huge"); });
  EXPECT_THAT(message, HasSubstr("at most 64 MiB; the largest: /huge (1048576 MiB), /some (2 MiB)"));
  EXPECT_EQ(message_of([&] { archive_.add_named(huge, false); }).substr(0, 30), message.substr(0, 30));
}

TEST_F(InitramfsTest, ANamedFileGoesAlongWithTheLinksOnTheWayToItAndItsTime) {
  const fs::path real = file("lib-1.2/module.py", "pass");
  const timespec times[2] = {{1'600'000'000, 0}, {1'600'000'000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, real.c_str(), times, 0), 0);
  fs::create_symlink("lib-1.2", folder_ / "lib");
  fs::create_symlink(folder_ / "lib" / "module.py", folder_ / "entry");
  archive_.add_named(folder_ / "." / "lib-1.2" / ".." / "entry", false);
  const auto found = entries();
  EXPECT_EQ(found.at(folder_ / "entry").content, (folder_ / "lib" / "module.py").string());
  EXPECT_EQ(found.at(folder_ / "lib").content, "lib-1.2");
  EXPECT_EQ(found.at(real).content, "pass");
  EXPECT_EQ(found.at(real).modified, 1'600'000'000u);
}

TEST_F(InitramfsTest, NamedPathsThatLeadNowhereAreLeftOut) {
  fs::create_symlink("b", folder_ / "a");
  fs::create_symlink("a", folder_ / "b");
  fs::create_symlink("missing", folder_ / "dangling");
  ASSERT_EQ(mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  for (const char* name : {"a", "fifo", "vanished", "vanished/deeper", "dangling"})
    archive_.add_named(folder_ / name, false);
  archive_.add_named("/proc/self/status", false);
  archive_.add_named("/dev/null", false);
  const auto found = entries();
  EXPECT_EQ(found.at(folder_ / "dangling").content, "missing");
  EXPECT_FALSE(found.contains(folder_ / "fifo"));
  EXPECT_FALSE(found.contains(folder_ / "vanished"));
  EXPECT_FALSE(found.contains("/proc/self/status"));
  EXPECT_FALSE(found.contains("/dev"));
}

TEST_F(InitramfsTest, AFolderThatIsThereHidesALinkOfTheSameName) {
  file("usr/bin/tool", "x");
  fs::create_symlink("usr/bin", folder_ / "bin");
  archive_.add_directory(folder_ / "bin");
  archive_.add_named(folder_ / "bin/tool", false);
  EXPECT_EQ(entries().at(folder_ / "bin/tool").content, "x");
}

TEST_F(InitramfsTest, ANamedProgramLiesWhereItsLinksLead) {
  const fs::path script = file("real/script", "#!/bin/sh\n", 0755);
  fs::create_symlink("real", folder_ / "code");
  archive_.add_named(folder_ / "code/script", true);
  EXPECT_EQ(archive_.add_program(folder_ / "code/script"), folder_ / "code/script");
  const auto found = entries();
  EXPECT_EQ(found.at(folder_ / "code").content, "real");
  EXPECT_EQ(found.at(script).content, "#!/bin/sh\n");
  EXPECT_EQ(found.contains("/bin"), true) << "its interpreter's folder";
  EXPECT_EQ(S_ISLNK(found.at("/bin").mode), fs::is_symlink("/bin"));
  EXPECT_EQ(S_ISLNK(found.at("/lib64").mode), fs::is_symlink("/lib64"));
}

TEST_F(InitramfsTest, AScriptBringsItsInterpreter) {
  const fs::path inner = file("inner", "#!/bin/sh\n", 0755);
  const fs::path outer = file("outer", "#! " + inner.string() + " -x\n", 0755);
  EXPECT_EQ(archive_.add_program(outer), outer);
  const auto found = entries();
  EXPECT_TRUE(found.contains(inner));
  EXPECT_TRUE(found.contains("/bin/sh"));
  EXPECT_TRUE(found.contains("/lib64/ld-linux-x86-64.so.2")) << "the shell's own loader";
}

TEST_F(InitramfsTest, EnvBringsWhatItWouldFind) {
  const fs::path script = file("script", "#!/usr/bin/env -S cat -u\n", 0755);
  archive_.add_program(script);
  const auto found = entries();
  EXPECT_TRUE(found.contains("/usr/bin/env"));
  EXPECT_TRUE(found.contains("/usr/bin/cat") || found.contains("/bin/cat"));
  const fs::path broken = file("broken", "#!/usr/bin/env no-such-interpreter\n", 0755);
  EXPECT_THAT(message_of([&] { archive_.add_program(broken); }), HasSubstr("'no-such-interpreter'"));
  const fs::path itself = file("itself", "", 0755);
  file("itself", "#!" + itself.string() + "\n", 0755);
  archive_.add_program(itself);  // ends
}

TEST_F(InitramfsTest, AShimStandsForTheProgramThatItsManagerNames) {
  const fs::path real = file("versions/3/bin/tool", "", 0755);
  const fs::path shim = file("shims/tool", "#!/bin/sh\nexec pyenv exec tool\n", 0755);
  EXPECT_EQ(resolve_shim(shim), shim) << "no manager";
  file("bin/pyenv", "#!/bin/sh\necho " + real.string() + "\n", 0755);
  EXPECT_EQ(resolve_shim(shim), real);
  file("bin/pyenv", "#!/bin/sh\necho not installed; exit 1\n", 0755);
  EXPECT_EQ(resolve_shim(shim), shim);
  EXPECT_EQ(resolve_shim("/bin/sh"), "/bin/sh");
}

}  // namespace
}  // namespace neotier::hil

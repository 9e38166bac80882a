// SPDX-License-Identifier: Apache-2.0
#include "hil/report.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "hil/initramfs.h"
#include "util/progress.h"
#include "util/size.h"
#include "util/temporary_folder.h"

namespace neotier::hil {
namespace {

Mark phase(const char* name, uint64_t ns) { return {.name = name, .modelled_ns = ns}; }
Mark window(uint64_t ns) { return {.name = "", .modelled_ns = ns}; }

RunResult run_with(const char* policy, uint64_t ns, std::vector<Mark> marks) {
  RunResult run;
  run.options.policy = policy;
  run.modelled_ns = ns;
  run.marks = std::move(marks);
  return run;
}

TEST(Report, PhaseLastsUntilTheNextPhase) {
  const RunResult run = run_with("none", 100, {phase("a", 10), window(20), phase("b", 35), phase("c", 40)});
  EXPECT_EQ(phase_ns(run, "a"), 25u);
  EXPECT_EQ(phase_ns(run, "b"), 5u);
  EXPECT_EQ(phase_ns(run, "c"), std::nullopt);
  EXPECT_EQ(phase_ns(run, "d"), std::nullopt);
}

TEST(Report, RecoveryIsTheTimeUntilAWindowIsAsFastAsTheSettledOnes) {
  // Settled windows take 10; after the jump 30, 20, then 11.
  const RunResult run = run_with("neotier", 200,
                                 {phase("settled", 0), window(10), window(20), phase("jump", 20), window(50),
                                  window(70), window(81), phase("end", 81)});
  EXPECT_EQ(recovery_ns(run), 50u);
  const RunResult never =
      run_with("none", 200, {phase("settled", 0), window(10), phase("jump", 10), window(40), phase("end", 40)});
  EXPECT_EQ(recovery_ns(never), std::nullopt);
  EXPECT_EQ(recovery_ns(run_with("none", 1, {})), std::nullopt);
}

TEST(Report, TableShowsTheShareOfTheGapRecovered) {
  const std::string text = table({run_with("none", 2'000'000'000, {}), run_with("neotier", 1'100'000'000, {}),
                                  run_with("ideal", 1'000'000'000, {})});
  EXPECT_NE(text.find("90.0 %"), std::string::npos) << text;
  EXPECT_NE(text.find("1.82x"), std::string::npos) << text;
}

TEST(Report, TableIsNoWiderThanATerminal) {
  RunResult run = run_with("numab-fast", 99'999'000'000,
                           {phase("settled", 0), window(10), phase("jump", 10), window(40), phase("end", 40)});
  run.options.oracle = true;
  run.share_won = -1.5;
  run.end.fills[0] = run.end.fills[1] = 99'999'999'999;
  Oracle oracle;
  oracle.pages = 10'000'000;
  oracle.capacity = 1'000'000;
  oracle.epoch_ns = 50'000'000;
  oracle.modelled_ns = 99'999'000'000;
  run.oracle = oracle;
  std::istringstream lines(table({run_with("none", 99'999'000'000, {}), run, run_with("ideal", 1, {})}));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
}

TEST(Report, JsonSaysWhatTheProfilerIsMadeOf) {
  RunResult run = run_with("neotier", 5, {});
  run.options.cxl_bytes = 192 << 20;
  auto profiler = to_json(run)["profiler"];
  EXPECT_EQ(profiler["asked_bits_per_page"], 4.5);
  EXPECT_EQ(profiler["bits_per_page"], 4.0);
  EXPECT_EQ(profiler["sketch"]["counters"], 4096);
  run.options.device_bits_per_page.reset();
  profiler = to_json(run)["profiler"];
  EXPECT_EQ(profiler["asked_bits_per_page"], "full");
  EXPECT_EQ(profiler["bits_per_page"], 512.0);
  run.options.device_bits_per_page = 0.01;
  run.options.cxl_bytes = 64 << 20;
  EXPECT_THROW(profiler_state(run.options), std::runtime_error);
}

TEST(Report, JsonHasThePromisedKeysAndAVerdictHasNoFigures) {
  RunResult run = run_with("neotier", 5, {});
  run.end.fills[0] = 3;
  run.end.fills[1] = 4;
  const auto json = to_json(run);
  for (const char* key :
       {"program", "policy", "machine", "kernel", "seed", "thp", "shift", "dram_bytes", "cxl_bytes", "instructions",
        "modelled_ns", "guest_ns", "llc_misses", "promoted_pages", "demoted_pages", "exit_status", "profiler"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["llc_misses"]["cxl"], 4);
  run.verdict = "the guest's kernel died";
  EXPECT_FALSE(to_json(run).contains("modelled_ns"));
  EXPECT_NE(table({run}).find("died"), std::string::npos);
}

TEST(Policy, SettingsAreWhatTheNameSays) {
  const auto has = [](const std::vector<std::string>& lines, const std::string& text) {
    for (const std::string& line : lines) {
      if (line.find(text) != std::string::npos) return true;
    }
    return false;
  };
  const PolicyMachine machine{Thp::kNever, 1 << 26, 1 << 30, {{{0, 1 << 28}}, {{1ull << 32, 1 << 29}}}};
  const auto none = policy_settings(find_policy("none"), machine, {"quota_mb_per_s=5"});
  EXPECT_TRUE(has(none, "numa_balancing 0"));
  EXPECT_TRUE(has(none, "demotion_enabled 0"));
  EXPECT_FALSE(has(none, "module"));
  EXPECT_FALSE(has(none, "quota"));
  const auto ours = policy_settings(find_policy("neotier"), machine, {"quota_mb_per_s=5"});
  EXPECT_TRUE(has(ours, "numa_balancing 0"));
  EXPECT_TRUE(has(ours, "demotion_enabled 0"));
  EXPECT_TRUE(has(ours, "late /sys/kernel/neotier/quota_mb_per_s 5"));
  EXPECT_EQ(kernel_arguments(Thp::kAlways), "transparent_hugepage=always");
  EXPECT_FALSE(has(ours, "neotier/room"));
  EXPECT_FALSE(has(ours, "watermark_boost_factor"));
  const auto kswapd = policy_settings(find_policy("neotier"), machine, {"room=exchange", "room=kswapd"});
  EXPECT_TRUE(has(kswapd, "numa/demotion_enabled 1"));
  EXPECT_TRUE(has(kswapd, "watermark_boost_factor"));
  EXPECT_TRUE(has(policy_settings(find_policy("neotier"), machine, {"room=kswapd", "room=exchange"}),
                  "numa/demotion_enabled 0"));
  EXPECT_TRUE(has(policy_settings(find_policy("pebs"), machine, {}), "numa/demotion_enabled 1"));
  const auto stock = policy_settings(find_policy("numab"), machine, {});
  EXPECT_TRUE(has(stock, "numa_balancing 2"));
  EXPECT_FALSE(has(stock, "scan_period"));
  EXPECT_TRUE(has(policy_settings(find_policy("numab-fast"), machine, {}), "scan_period_min_ms"));
  EXPECT_THROW(policy_settings(find_policy("neotier"), machine, {"../x=1"}), std::runtime_error);
  EXPECT_TRUE(has(policy_settings(find_policy("all-cxl"), machine, {}), "mempolicy bind 1"));
  EXPECT_TRUE(has(policy_settings(find_policy("interleave"), machine, {}), "mempolicy interleave"));
  const auto damon = policy_settings(find_policy("damon"), machine, {});
  EXPECT_TRUE(has(damon, "kdamonds/0/contexts/0/targets/0/regions/0/start 4294967296"));
  EXPECT_TRUE(has(damon, "kdamonds/0/contexts/0/targets/0/regions/0/end 4831838208"));
  EXPECT_TRUE(has(damon, "kdamonds/1/contexts/0/schemes/0/action migrate_cold"));
  EXPECT_TRUE(has(damon, "kdamonds/1/state on"));
  EXPECT_TRUE(has(damon, "ask /sys/kernel/mm/damon/admin/kdamonds/1/state update_schemes_stats"));
  EXPECT_TRUE(damon.back().starts_with("stats damon_cold /sys/kernel/mm/damon/admin/kdamonds/1/"));
  const auto pebs = policy_settings(find_policy("pebs"), machine, {});
  EXPECT_TRUE(has(pebs, "device0/threshold 1"));
  EXPECT_TRUE(has(pebs, "confirm_epochs 1"));
  EXPECT_TRUE(has(pebs, "loss_ppm 1000000"));
  const auto placebo = policy_settings(find_policy("placebo"), machine, {});
  EXPECT_TRUE(has(placebo, "late /sys/kernel/neotier/dry_run 1"));
  EXPECT_FALSE(has(ours, "dry_run"));
  EXPECT_FALSE(find_policy("placebo").moves());
  EXPECT_EQ(placebo.size(), policy_settings(find_policy("neotier"), machine, {}).size() + 1) << "all else alike";
}

// The program can have a quarter of node 0: so are the kernel's shares of it. Node 1 is twice node 0.
TEST(Policy, SettingsFollowTheDramThatTheProgramCanHave) {
  const PolicyMachine machine{Thp::kNever, 64 << 20, 1 << 30, {{{0, 1 << 28}}, {{1ull << 32, 1 << 29}}}};
  const auto value = [&](std::string_view policy, const std::string& file) -> std::string {
    for (const std::string& line : policy_settings(find_policy(policy), machine, {})) {
      if (const size_t at = line.find(file + " "); at != std::string::npos) return line.substr(at + file.size() + 1);
    }
    return "not set";
  };
  for (const std::string_view policy : {"none", "numab", "numab-fast", "damon", "neotier", "placebo"}) {
    EXPECT_EQ(value(policy, "min_free_kbytes"), "491") << policy;  // 64 MiB / 400, and as much for each 256 MiB more
    EXPECT_EQ(value(policy, "percpu_pagelist_high_fraction"), "1024") << policy;
    EXPECT_EQ(value(policy, "compaction_proactiveness"), "0") << policy;
  }
  EXPECT_EQ(value("none", "watermark_scale_factor"), "3") << "2.5, rounded";
  for (const std::string_view policy : {"numab", "neotier", "placebo"}) {
    EXPECT_EQ(value(policy, "watermark_scale_factor"), "3") << policy;
  }
  for (const std::string_view policy : {"numab-fast", "damon", "pebs"}) {
    EXPECT_EQ(value(policy, "watermark_scale_factor"), "25") << policy;
    EXPECT_EQ(value(policy, "watermark_boost_factor"), "0") << policy;
  }
  EXPECT_EQ(value("neotier", "reserve_pages"), "163");
  EXPECT_EQ(value("neotier", "batch"), "16");
  EXPECT_EQ(value("none", "reserve_pages"), "not set");
}

TEST(ShellLine, CommandsThatAreNotThere) {
  const std::vector<std::string> none;
  EXPECT_EQ(commands_not_found("/bin/sh: 1: redis-cli: not found\r\n"), std::vector<std::string>{"redis-cli"});
  EXPECT_EQ(commands_not_found("x\nsh: line 12: a: command not found\nsh: 3: b: not found"),
            (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(commands_not_found("curl: 1: page: not found\nkey redis-cli: not found\n"), none);
  EXPECT_EQ(commands_not_found("sh: 1: \x1b[2J: not found\n"), none) << "a guest may say what it likes";
  EXPECT_EQ(commands_not_found("sh: 1: " + std::string(100000, 'a') + ": not found\n"), none);
}

TEST(ShellLine, IsOneArgumentWithASpecialCharacter) {
  EXPECT_TRUE(is_shell_line({"sleep 1; echo x"}));
  EXPECT_TRUE(is_shell_line({"cat<file"}));
  EXPECT_FALSE(is_shell_line({"sleep", "1"}));
  EXPECT_FALSE(is_shell_line({"/bin/true"}));
}

TEST(ShellLine, ProgramsStandWhereCommandsMay) {
  const auto names = [](const std::string& line) {
    std::string text;
    for (const auto& path : shell_programs(line)) text += path.filename().string() + " ";
    return text;
  };
  EXPECT_EQ(names("gcc x & while true; do ls -l | sort > git; done"), "gcc true ls sort ");
  EXPECT_EQ(names("A=1 env B=2 nice ls; echo 'cat; sed'"), "env nice ls echo ");
  EXPECT_EQ(names("(ls) && { sed p; }; \"awk\" x"), "ls sed awk ");
  EXPECT_EQ(names("no-such-program-here x; ls ls"), "ls ");
  EXPECT_EQ(names(""), "");
}

// A second of which `stall_ms` were spent waiting for `cxl` of the fills.
RunResult counted(const char* policy, uint64_t ns, uint64_t dram, uint64_t cxl, uint64_t stall_ms, uint64_t promoted,
                  std::map<std::string, int64_t> guest = {}) {
  RunResult run = run_with(policy, ns, {});
  run.end.fills[0] = dram;
  run.end.fills[1] = cxl;
  run.end.stall_ps[1] = stall_ms * 1'000'000'000;
  run.promoted_pages = promoted;
  run.guest = std::move(guest);
  return run;
}

bool begins(const std::string& text, std::string_view with) { return text.starts_with(with); }

TEST(WhyNothing, IsAskedOnlyWhereNothingHappened) {
  const RunResult none = counted("none", 1'000'000'000, 10, 1000, 500, 0);
  EXPECT_EQ(why_nothing(none, nullptr), "") << "it moves none";
  EXPECT_EQ(why_nothing(counted("neotier", 800'000'000, 900, 100, 50, 500), &none), "");
  EXPECT_EQ(why_nothing(counted("neotier", 1'200'000'000, 900, 100, 50, 500), &none), "") << "the table shows it";
  EXPECT_EQ(why_nothing(counted("neotier", 800'000'000, 900, 100, 50, 500), nullptr), "");
}

TEST(WhyNothing, NamesTheReasonThatWasCounted) {
  const uint64_t second = 1'000'000'000;
  const auto why = [&](const RunResult& none, std::map<std::string, int64_t> guest, uint64_t promoted = 0) {
    std::string text = why_nothing(counted("neotier", second, 10, 1000, 500, promoted, std::move(guest)), &none);
    EXPECT_LT(text.size(), 200u) << "one line";
    return text;
  };
  EXPECT_TRUE(
      begins(why(counted("none", second, 100'000, 1000, 1, 0), {}), "nothing to gain: the program fits in DRAM"));
  EXPECT_TRUE(begins(why(counted("none", second, 100, 1000, 1, 0), {}), "nothing to gain: CXL misses cost"));
  const RunResult slow = counted("none", second, 10, 1000, 500, 0);
  EXPECT_TRUE(begins(why(slow, {{"neotier.decisions", 1}}), "too short: it ran for 1.00 s"));
  EXPECT_TRUE(begins(why(slow, {{"neotier.decisions", 20}, {"neotier.reported", 7}}),
                     "nothing was hot enough to repay its move in 1.00 s: 7 pages"));
  EXPECT_EQ(why(slow,
                {{"neotier.decisions", 20},
                 {"neotier.room_waits", 3},
                 {"neotier.room_holds", 9},
                 {"neotier.skipped_no_room", 900},
                 {"neotier.drained", 5000}},
                20),
            "no room: 900 hot pages waited for free DRAM, 20 were promoted; of 12 stops, 9 left kswapd asleep: too few "
            "waited, or the program grew fast; a larger --dram");
  EXPECT_EQ(
      why(slow,
          {{"neotier.decisions", 20},
           {"neotier.age_looks", 4000},
           {"neotier.age_found", 30},
           {"neotier.room_holds", 9},
           {"neotier.skipped_no_room", 900}},
          20),
      "no room: 900 hot pages waited for others to make room, 20 were promoted; 30 pages of the DRAM were found not "
      "in use; a larger --dram");
  // Reports of pages that were not confirmed are no sign of it.
  EXPECT_TRUE(begins(why(slow,
                         {{"neotier.decisions", 20},
                          {"neotier.room_waits", 3},
                          {"neotier.skipped_no_room", 20},
                          {"neotier.drained", 5000}},
                         900),
                     "nothing was hot enough"));
  const RunResult kernel = counted("numab", second, 10, 1000, 500, 0);
  EXPECT_TRUE(begins(why_nothing(kernel, &slow), "too short"));
}

TEST(Progress, NoLineIsLongerThanItsPlace) {
  EXPECT_EQ(Progress::fitted("short", 10), "short");
  EXPECT_EQ(Progress::fitted("exactly ten", 11), "exactly ten");
  EXPECT_EQ(Progress::fitted("0123456789", 8), "01234...");
}

TEST(Size, ReadsWhatPeopleWrite) {
  EXPECT_EQ(parse_size("4096"), 4096u);
  EXPECT_EQ(parse_size("256M"), 256u << 20);
  EXPECT_EQ(parse_size("1GiB"), 1u << 30);
  EXPECT_THROW(parse_size(""), std::invalid_argument);
  EXPECT_THROW(parse_size("M"), std::invalid_argument);
  EXPECT_THROW(parse_size("-1"), std::invalid_argument);
  EXPECT_THROW(parse_size("99999999999999999999"), std::invalid_argument);
  EXPECT_EQ(format_size(256u << 20), "256 MiB");
}

TEST(Initramfs, IsAnArchiveThatCpioReads) {
  Initramfs archive;
  archive.add_text("/a/b/hello", "world\n", 0644);
  archive.add_symlink("/a/link", "b/hello");
  const std::string program = archive.add_program("/bin/sh");
  EXPECT_EQ(program, "/bin/sh");
  const TemporaryFolder folder;
  archive.write(folder / "x.cpio");
  const auto listed = run_command({"/bin/sh", "-c", "cpio -itv < " + (folder / "x.cpio").string()});
  EXPECT_EQ(listed.exit_code, 0) << listed.output;
  EXPECT_NE(listed.output.find(" a/b/hello"), std::string::npos);
  EXPECT_NE(listed.output.find("a/link -> b/hello"), std::string::npos);
  EXPECT_NE(listed.output.find("libc.so.6"), std::string::npos) << "the shell's library is taken along";
  EXPECT_EQ(run_command({"/bin/sh", "-c",
                         "cd " + folder.path().string() + " && cpio -id --quiet a/b/hello < x.cpio && cat a/b/hello"})
                .output,
            "world\n");
  EXPECT_THROW(archive.add_file("/no/such/file", "/x"), std::runtime_error);
}

}  // namespace
}  // namespace neotier::hil

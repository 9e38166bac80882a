// SPDX-License-Identifier: Apache-2.0
// neotier hil run | compare | params | policies
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "hil/report.h"
#include "hil/run.h"
#include "util/files.h"
#include "util/interrupt.h"
#include "util/json.h"
#include "util/progress.h"
#include "util/size.h"
#include "util/temporary_folder.h"

namespace fs = std::filesystem;

namespace neotier::cli {

namespace {

using hil::Installation;
using hil::Run;
using hil::RunOptions;
using hil::RunResult;

// Runs of this length on `none` are enough to see how fast a program's instructions are, past its start.
constexpr uint64_t kCalibrationInstructions = 1'600'000'000;
constexpr uint32_t kCalibrationShift = 1;

struct Arguments {
  RunOptions run;
  std::string dram = "256M", cxl = "512M", thp = "never", machine = "numa";
  std::vector<std::string> model, files, policies;
  int shift = -1;
  uint64_t jobs = std::max(1u, std::thread::hardware_concurrency());
  std::string json, directory;
  std::string device_bits = fmt::format("{}", hil::kDeviceBitsPerPage);
};

// A folder for logs that goes away unless something in it is worth keeping.
class WorkDirectory {
 public:
  explicit WorkDirectory(const std::string& wanted) {
    if (!wanted.empty()) {
      path_ = wanted;
      fs::create_directories(path_);
      return;
    }
    temporary_.emplace("neotier-hil");
    path_ = temporary_->path();
  }
  const fs::path& path() const { return path_; }
  void keep() {
    if (temporary_) temporary_->keep();
  }

 private:
  std::optional<TemporaryFolder> temporary_;
  fs::path path_;
};

struct Job {
  RunOptions options;
  uint32_t shift;
  uint64_t calibrate = 0;
};

// Runs all jobs, `parallel` at a time, in this thread; results in the jobs' order. Throws std::runtime_error on Ctrl-C.
std::vector<std::unique_ptr<Run>> run_all(const Installation& installation, const std::vector<Job>& jobs,
                                          uint64_t parallel, const fs::path& directory) {
  std::vector<std::unique_ptr<Run>> runs(jobs.size());
  std::vector<size_t> active;
  size_t next = 0;
  Progress progress;
  while (next < jobs.size() || !active.empty()) {
    while (next < jobs.size() && active.size() < parallel) {
      const Job& job = jobs[next];
      const std::string name = fmt::format("{}-{}{}", next, job.options.policy, job.calibrate ? "-calibration" : "");
      runs[next] = std::make_unique<Run>(installation, job.options, job.shift, directory / name, job.calibrate);
      active.push_back(next++);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (interrupted()) progress.clear();
    throw_if_interrupted();
    std::string line;
    std::erase_if(active, [&](size_t i) { return runs[i]->poll(); });
    for (size_t i : active) {
      line += fmt::format("{}{}: {}", line.empty() ? "" : " | ",
                          jobs[i].calibrate ? "calibrating on none" : jobs[i].options.policy, runs[i]->progress());
    }
    if (!line.empty()) progress.show(fmt::format("[{}/{}] {}", next - active.size(), jobs.size(), line));
  }
  progress.clear();
  return runs;
}

RunOptions finish_options(Arguments& arguments) {
  RunOptions& options = arguments.run;
  options.timeline |= options.moves;
  if (options.program.empty())
    throw std::runtime_error("no PROGRAM; name it after '--', for example: neotier hil run -- /bin/true");
  options.dram_bytes = parse_size(arguments.dram);
  options.cxl_bytes = parse_size(arguments.cxl);
  options.thp = arguments.thp == "always"    ? hil::Thp::kAlways
                : arguments.thp == "madvise" ? hil::Thp::kMadvise
                                             : hil::Thp::kNever;
  for (const std::string& setting : arguments.model) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) {
      throw std::runtime_error(
          fmt::format("--model '{}': expected NAME=VALUE; `neotier hil params` lists them", setting));
    }
    if (auto error = set_param(options.params, setting.substr(0, equals), setting.substr(equals + 1))) {
      throw std::runtime_error(*error);
    }
  }
  for (const std::string& file : arguments.files) {
    const size_t colon = file.find(':');
    if (colon == std::string::npos || colon + 1 >= file.size() || file[colon + 1] != '/') {
      throw std::runtime_error(fmt::format("--file '{}': expected HOST:/GUEST", file));
    }
    options.files.emplace_back(file.substr(0, colon), file.substr(colon + 1));
  }
  if (arguments.machine == "cxl") options.machine.kind = hil::MachineKind::kCxl;
  if (arguments.device_bits == "full") {
    options.device_bits_per_page.reset();
  } else if (options.device_bits_per_page = hil::parse_bits_per_page(arguments.device_bits);
             !options.device_bits_per_page) {
    throw std::runtime_error(fmt::format("--device-bits-per-page '{}': expected a number of {} to {}, or full",
                                         arguments.device_bits, hil::kMinDeviceBitsPerPage,
                                         hil::kMaxDeviceBitsPerPage));
  }
  hil::check_machine(options);
  hil::profiler_state(options);
  if (arguments.shift >= 0) options.shift = static_cast<uint32_t>(arguments.shift);
  return options;
}

uint32_t choose_shift(const Installation& installation, const RunOptions& options, const fs::path& directory) {
  if (options.shift) return *options.shift;
  Job job{options, kCalibrationShift, kCalibrationInstructions};
  job.options.policy = "none";
  job.options.fault = "none";
  auto runs = run_all(installation, {job}, 1, directory);
  // A calibrating run is cut short, so only one that ended by itself can have failed.
  if (const auto shift = runs[0]->calibrated_shift()) return *shift;
  throw std::runtime_error(fmt::format("calibration on policy none failed: {}", runs[0]->result().verdict));
}

void prepare(const Arguments& arguments) {
  catch_interrupts();
  if (!arguments.json.empty()) require_folder("--json", arguments.json);
  if (!arguments.run.record.empty()) require_folder("--output", arguments.run.record);
  if ((arguments.run.timeline || arguments.run.moves) && arguments.json.empty()) {
    throw std::runtime_error("--timeline goes into the figures: name a file for them with --json");
  }
}

// What a person should know of a run that came to its end, one line each; nothing where all is as usual.
void print_notes(const RunResult& result) {
  const std::string& policy = result.options.policy;
  if (result.exit_status > 128) {
    const int signal = result.exit_status - 128;
    fmt::print(stderr, "neotier: policy {}: the program ended with status {} (signal {}, {})\n", policy,
               result.exit_status, signal, strsignal(signal));
  } else if (result.exit_status != 0) {
    fmt::print(stderr, "neotier: policy {}: the program ended with status {}{}\n", policy, result.exit_status,
               result.exit_status == 127 ? " (not found; --with PROGRAM takes a further program along)" : "");
  }
  if (!result.left_running.empty()) {
    fmt::print(stderr,
               "neotier: policy {}: still running when the program had ended: {}; the figures end with the program (a "
               "daemon has to stay in the foreground, or be waited for in a shell line)\n",
               policy, result.left_running);
  }
}

int run_command(Arguments& arguments) {
  prepare(arguments);
  const RunOptions options = finish_options(arguments);
  hil::find_policy(options.policy);
  const Installation installation = Installation::find(options.kernel);
  WorkDirectory work(arguments.directory);
  const uint32_t shift = choose_shift(installation, options, work.path());
  auto runs = run_all(installation, {{options, shift}}, 1, work.path());
  const RunResult result = runs[0]->result();
  if (!arguments.json.empty()) write_file(arguments.json, pretty(to_json(result)));
  std::fputs(result.output.c_str(), stdout);
  if (!result.verdict.empty()) {
    work.keep();
    throw std::runtime_error(result.verdict);
  }
  std::fputs(hil::table({result}).c_str(), stderr);
  print_notes(result);
  return result.exit_status;
}

int compare_command(Arguments& arguments) {
  prepare(arguments);
  const RunOptions options = finish_options(arguments);
  for (const std::string& policy : arguments.policies) hil::find_policy(policy);
  const Installation installation = Installation::find(options.kernel);
  WorkDirectory work(arguments.directory);
  const uint32_t shift = choose_shift(installation, options, work.path());
  std::vector<Job> jobs;
  for (const std::string& policy : arguments.policies) {
    jobs.push_back({options, shift});
    jobs.back().options.policy = policy;
  }
  auto runs = run_all(installation, jobs, arguments.jobs, work.path());
  std::vector<RunResult> results;
  for (auto& run : runs) results.push_back(run->result());
  runs.clear();
  if (!arguments.json.empty()) {
    nlohmann::ordered_json json;
    json["runs"] = nlohmann::ordered_json::array();
    for (const RunResult& result : results) json["runs"].push_back(to_json(result));
    write_file(arguments.json, pretty(json));
  }
  std::fputs(hil::table(results).c_str(), stdout);
  int status = 0;
  for (const RunResult& result : results) {
    if (!result.verdict.empty() || result.exit_status != 0) {
      work.keep();
      status = 1;
    }
    if (!result.verdict.empty()) {
      fmt::print(stderr, "neotier: policy {}: {}\n", result.options.policy, result.verdict);
    } else {
      print_notes(result);
    }
  }
  return status;
}

int params_command(bool json) {
  if (json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const hil::ParamInfo& info : hil::param_table()) {
      list.push_back({{"name", info.name},
                      {"default", info.value},
                      {"min", info.min},
                      {"max", info.max},
                      {"unit", info.unit},
                      {"source", info.source}});
    }
    fmt::print("{}\n", list.dump(2));
    return 0;
  }
  for (const hil::ParamInfo& info : hil::param_table()) {
    fmt::print("{:<14} {:>8}  {:<18} {}\n", info.name, info.value, info.unit, info.source);
  }
  return 0;
}

void add_machine_options(CLI::App& command, Arguments& a) {
  command.add_option("--dram", a.dram, "DRAM that is free when the program starts")->capture_default_str();
  command.add_option("--cxl", a.cxl, "CXL memory")->capture_default_str();
  command.add_option("--machine", a.machine, "numa: fast, for figures; cxl: true CXL topology, slow, for function")
      ->capture_default_str()
      ->check(CLI::IsMember({"numa", "cxl"}));
  command.add_option("--cxl-devices", a.run.machine.devices, "cxl: type-3 devices, interleaved")
      ->capture_default_str()
      ->check(CLI::IsMember({1, 2, 4}));
  command
      .add_option("--cxl-granularity", a.run.machine.granularity, "cxl: bytes of a device before the next one's turn")
      ->capture_default_str()
      ->check(CLI::IsMember({256, 512, 1024, 2048, 4096, 8192, 16384}));
  command.add_flag("--interrupts", a.run.machine.interrupts, "the device interrupts by MSI-X; the driver uses it");
  command.add_option("--kernel", a.run.kernel, "series of the guest's kernel; 6.1: promotion alone, no figures")
      ->capture_default_str()
      ->check(CLI::IsMember(std::vector<std::string>(hil::kKernels.begin(), hil::kKernels.end())));
  command.add_option("--thp", a.thp, "transparent huge pages")
      ->capture_default_str()
      ->check(CLI::IsMember({"never", "madvise", "always"}));
  command.add_option("--seed", a.run.seed, "seed of the machine, and NEOTIER_SEED for the program")
      ->capture_default_str()
      ->check(CLI::Range(0u, 0xffffffffu));
  command.add_option("--shift", a.shift, "guest ns an instruction = 2^SHIFT; default: calibrated on policy none")
      ->check(CLI::Range(0, 10));
  command.add_option("--name", a.run.name, "the program's name in figures and reports; runs of one name are compared");
  command.add_option("--roi-after", a.run.roi_after, "measure from the moment TEXT appears on the program's output");
  command.add_option("--roi-until", a.run.roi_until, "end the run when TEXT appears in the measured region");
  command.add_option("--model", a.model, "NAME=VALUE of the timing model (see `neotier hil params`)")
      ->allow_extra_args(false);
  command.add_option("--knob", a.run.knobs, "KEY=VALUE of /sys/kernel/neotier, where the module is loaded")
      ->allow_extra_args(false);
  command.add_option("--sysctl", a.run.sysctls, "NAME=VALUE, a sysctl of the guest, under every policy")
      ->allow_extra_args(false);
  command.add_option("--file", a.files, "HOST:/GUEST, a file or a folder to take along")->allow_extra_args(false);
  command.add_option("--with", a.run.with, "a further program to take along, with its libraries")
      ->allow_extra_args(false);
  command.add_option("--env", a.run.env, "NAME=VALUE, a variable of the program's environment")
      ->allow_extra_args(false);
  command.add_option("--cwd", a.run.cwd, "folder of the guest that the program starts in");
  command.add_option("--stdin", a.run.stdin_file, "file that the program reads as its standard input");
  command.add_option("--timeout", a.run.timeout_s, "seconds of this machine after which a run is given up")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1000000u));
  command.add_option("--json", a.json, "write the figures to FILE");
  command.add_flag(
      "--timeline", a.run.timeline,
      "figures over modelled time, page hotness and the device's accuracy, into --json; changes no figure");
  command.add_flag("--moves", a.run.moves,
                   "--timeline with pages promoted and demoted, read in the guest every 100 ms: figures move as with "
                   "another seed");
  command.add_option("--logs", a.directory, "keep console and QEMU logs in this folder");
  command.add_option("--device", a.run.device, "device in the loop: the Verilated RTL or its golden model")
      ->capture_default_str()
      ->check(CLI::IsMember({"rtl", "model"}));
  command
      .add_option(
          "--device-bits-per-page", a.device_bits,
          "size of the device's sketch: at most so many bits for each 4 KiB page of its memory; full: as built, "
          "2 x 512K counters")
      ->capture_default_str();
  command.add_option("--device-hash-seed", a.run.device_hash_seed, "which family of hash functions the device uses")
      ->capture_default_str()
      ->check(CLI::Range(0u, hil::device_hash_seeds() - 1));
  command.add_option("--fault", a.run.fault, "a device that misbehaves, for tests of the driver")
      ->capture_default_str()
      ->check(CLI::IsMember({"none", "magic", "version", "units", "tail"}));
  command
      .add_option("program", a.run.program,
                  "PROGRAM and its arguments, after '--'; a single argument with a space in it is a line for the "
                  "guest's shell")
      ->required();
}

}  // namespace

void add_hil(CLI::App& app, int& status) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* hil = app.add_subcommand("hil", "the emulated CXL server, with NeoProf's RTL in the loop");
  hil->require_subcommand(1);

  CLI::App* run = hil->add_subcommand("run", "run a program under one policy");
  run->footer(
      "example:\n  neotier hil run --policy neotier --dram 192M --cxl 384M -- build/bin/gups --table 480 --hot 64 "
      "--updates 20000000");
  run->add_option("--policy", arguments->run.policy, "placement policy (see `neotier hil policies`)")
      ->capture_default_str();
  add_machine_options(*run, *arguments);
  run->callback([arguments, &status] { status = run_command(*arguments); });

  CLI::App* record = hil->add_subcommand("record", "run a program and record the memory requests as a trace");
  record->footer(
      "example:\n  neotier hil record --policy none --dram 96M --cxl 192M -o gups.u64.zst -- build/bin/gups --table "
      "240 "
      "--hot 32 --updates 20000000\n  neotier trace info gups.u64.zst");
  record->add_option("--policy", arguments->run.policy, "placement policy (see `neotier hil policies`)")
      ->capture_default_str();
  record
      ->add_option("-o,--output", arguments->run.record,
                   "FILE, written when the program has ended: .zst compresses, .csv is text, else bare 8-byte records")
      ->required();
  record->add_flag("--all-memory", arguments->run.record_all,
                   "requests to DRAM too, not only to the CXL memory device");
  add_machine_options(*record, *arguments);
  record->callback([arguments, &status] { status = run_command(*arguments); });

  add_hil_report(*hil, status);

  CLI::App* compare = hil->add_subcommand("compare", "run a program under several policies");
  compare->footer(
      "example:\n  neotier hil compare --policies none,numab,neotier,ideal --json out.json -- build/bin/gups --table "
      "480 --hot 64 --updates 20000000");
  compare->add_option("--policies", arguments->policies, "policies, separated by commas")->delimiter(',')->required();
  compare->add_option("--jobs", arguments->jobs, "machines to run at once")
      ->capture_default_str()
      ->check(CLI::Range(1u, 256u));
  add_machine_options(*compare, *arguments);
  compare->callback([arguments, &status] { status = compare_command(*arguments); });

  CLI::App* params = hil->add_subcommand("params", "the timing model's parameters, defaults and their sources");
  auto as_json = std::make_shared<bool>(false);
  params->add_flag("--json", *as_json, "as JSON");
  params->callback([as_json, &status] { status = params_command(*as_json); });

  CLI::App* policies = hil->add_subcommand("policies", "the placement policies");
  policies->callback([&status] {
    for (const hil::Policy& policy : hil::policies()) fmt::print("{:<11} {}\n", policy.name, policy.text);
    status = 0;
  });
}

}  // namespace neotier::cli

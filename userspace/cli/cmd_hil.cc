// SPDX-License-Identifier: Apache-2.0
// neotier hil run | compare | params | policies
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/words.h"
#include "hil/checks.h"
#include "hil/initramfs.h"
#include "hil/report.h"
#include "hil/run.h"
#include "util/files.h"
#include "util/host_memory.h"
#include "util/interrupt.h"
#include "util/json.h"
#include "util/output_file.h"
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

using hil::Rehearsal;

constexpr uint64_t kMiB = 1ull << 20;

struct Arguments {
  RunOptions run;
  std::string dram, cxl, thp = "never", machine = "numa", rehearsal = "auto";
  std::optional<bool> tty;
  bool oracle = false, no_oracle = false;
  std::vector<std::string> model, files, policies;
  int shift = -1;
  uint64_t jobs = 0;  // 0: as many as there are processors and memory for
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
  WorkDirectory(const WorkDirectory&) = delete;
  WorkDirectory& operator=(const WorkDirectory&) = delete;
  const fs::path& path() const { return path_; }
  // A message names a log of the run in this folder of it: that stays, what else is here goes.
  void keep(const fs::path& run) {
    if (!temporary_) return;
    kept_.insert(run.filename());
    temporary_->keep();
  }
  ~WorkDirectory() {
    if (kept_.empty()) return;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(path_, ignored)) {
      if (!kept_.contains(entry.path().filename())) fs::remove_all(entry.path(), ignored);
    }
  }

 private:
  std::optional<TemporaryFolder> temporary_;
  fs::path path_;
  std::set<fs::path> kept_;
};

struct Job {
  RunOptions options;
  Run::Kind kind = Run::Kind::kFigures;
};

std::string_view activity(const Job& job) {
  switch (job.kind) {
    case Run::Kind::kRehearsal:
      return "rehearsing";
    case Run::Kind::kFigures:
      break;
  }
  return job.options.policy;
}

std::string duration(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} s", seconds);
  return seconds < 6000 ? fmt::format("{:.0f} min", seconds / 60) : fmt::format("{:.1f} h", seconds / 3600);
}

// How far all jobs are, from the instructions that one is expected to have.
class Estimate {
 public:
  Estimate(uint64_t expected, size_t jobs) : expected_(expected), jobs_(jobs) {}
  // A run that has ended says better what the others will have.
  void learn(uint64_t instructions) { expected_ = std::max<uint64_t>(1, instructions); }
  bool known() const { return expected_ != 0; }
  double share(uint64_t instructions) const {
    return std::min(0.99, static_cast<double>(instructions) / static_cast<double>(expected_));
  }
  // Seconds until all are done, or nothing while it cannot be known. `done`: jobs done, with the parts of those that
  // run.
  std::optional<double> left(double done) const {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    if (!known() || done < 0.02) return std::nullopt;
    return seconds * (static_cast<double>(jobs_) - done) / done;
  }

 private:
  uint64_t expected_;
  size_t jobs_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// Runs all jobs, `parallel` at a time, in this thread; results in the jobs' order. Throws std::runtime_error on Ctrl-C.
std::vector<std::unique_ptr<Run>> run_all(const Installation& installation, const std::vector<Job>& jobs,
                                          uint64_t parallel, const fs::path& directory, uint64_t expected = 0) {
  std::vector<std::unique_ptr<Run>> runs(jobs.size());
  std::vector<size_t> active;
  size_t next = 0;
  Progress progress;
  Estimate estimate(expected, jobs.size());
  while (next < jobs.size() || !active.empty()) {
    while (next < jobs.size() && active.size() < parallel) {
      const Job& job = jobs[next];
      const std::string name =
          job.kind == Run::Kind::kFigures ? fmt::format("{}-{}", next, job.options.policy) : std::string(activity(job));
      runs[next] = std::make_unique<Run>(installation, job.options, directory / name, job.kind);
      active.push_back(next++);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (interrupted()) progress.clear();
    throw_if_interrupted();
    std::string line;
    std::erase_if(active, [&](size_t i) {
      if (!runs[i]->poll()) return false;
      if (jobs[i].kind == Run::Kind::kFigures) estimate.learn(runs[i]->instructions());
      return true;
    });
    double done = static_cast<double>(next - active.size());
    for (size_t i : active) {
      for (const std::string& command : runs[i]->missing_commands()) {
        progress.clear();
        fmt::print(stderr,
                   "neotier: {}: the program's shell finds no '{}'{}; if the program waits for it: Ctrl-C ends this\n",
                   activity(jobs[i]), command,
                   jobs[i].kind == Run::Kind::kRehearsal ? " on this machine, so install it"
                                                         : " in the guest; --with takes programs along");
      }
      const uint64_t instructions = runs[i]->instructions();
      const bool in_parts = estimate.known() && instructions != 0;
      if (in_parts) done += estimate.share(instructions);
      line += fmt::format("{}{}: {}", line.empty() ? "" : " | ", activity(jobs[i]),
                          in_parts ? fmt::format("{:.0f} %", 100 * estimate.share(instructions)) : runs[i]->progress());
    }
    if (line.empty()) continue;
    const std::optional<double> left = estimate.left(done);
    progress.show(fmt::format("[{}/{}] {}{}", next - active.size(), jobs.size(),
                              left ? fmt::format("about {} left; ", duration(*left)) : "", line));
  }
  progress.clear();
  return runs;
}

// `policies`: what is run, `machines` at a time.
RunOptions finish_options(Arguments& arguments, const std::vector<std::string>& policies, uint64_t machines) {
  RunOptions& options = arguments.run;
  options.timeline |= options.moves;
  if (options.program.empty())
    throw std::runtime_error("no PROGRAM; name it after '--', for example: neotier hil run -- /bin/true");
  if (!arguments.dram.empty()) options.dram_bytes = parse_size(arguments.dram);
  if (!arguments.cxl.empty()) options.cxl_bytes = parse_size(arguments.cxl);
  hil::check_sizes(options);
  // Whoever waits for a text needs each line as it comes, which most programs write to a terminal only.
  options.tty = arguments.tty.value_or(!options.roi_after.empty() || !options.roi_until.empty());
  options.thp = arguments.thp == "always"    ? hil::Thp::kAlways
                : arguments.thp == "madvise" ? hil::Thp::kMadvise
                                             : hil::Thp::kNever;
  options.params = hil::default_params(options.model_version);
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
  if (!arguments.cxl.empty())
    hil::layout(options.machine, options.dram_bytes, options.cxl_bytes);  // before a rehearsal
  hil::profiler_state(options);
  for (const std::string& policy : policies) hil::find_policy(policy);
  hil::check_knobs(options, policies);
  hil::check_sysctls(options);
  hil::check_memory(options, machines);
  const bool has_none = std::find(policies.begin(), policies.end(), "none") != policies.end();
  if (arguments.oracle && !has_none) {
    throw std::runtime_error("--oracle is computed from a run of policy none: name that one too");
  }
  if (arguments.oracle && !hil::tells_pages(options)) {
    throw std::runtime_error(fmt::format("--oracle needs --machine numa and --kernel {}", hil::kKernels.front()));
  }
  // Where several policies are compared, what they could have won belongs to it.
  options.oracle =
      (arguments.oracle || policies.size() > 1) && !arguments.no_oracle && has_none && hil::tells_pages(options);
  if (arguments.shift >= 0) options.shift = static_cast<uint32_t>(arguments.shift);
  return options;
}

// Most that a program may use in a rehearsal, where its sizes were not given.
uint64_t rehearsal_bytes() {
  const uint64_t available =
      static_cast<uint64_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return std::clamp<uint64_t>(available / 2, 512 * kMiB, 8192 * kMiB);
}

// Variables of this process that say where a program finds its files and how it writes: what it would have here.
std::vector<std::string> inherited_environment(const std::vector<std::string>& given) {
  static constexpr std::string_view kNames[] = {"PATH",        "HOME",      "LANG",     "LANGUAGE", "TZ",
                                                "VIRTUAL_ENV", "NODE_PATH", "PERL5LIB", "RUBYLIB",  "JAVA_HOME"};
  static constexpr std::string_view kPrefixes[] = {"LC_", "LD_LIBRARY_", "PYTHON", "PYENV_", "OMP_"};
  std::vector<std::string> inherited;
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view text(*variable);
    const std::string_view name = text.substr(0, text.find('='));
    const bool wanted = std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
                        std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                                    [&](std::string_view prefix) { return name.starts_with(prefix); });
    if (wanted && text.find('\n') == std::string_view::npos) inherited.emplace_back(text);
  }
  std::sort(inherited.begin(), inherited.end());
  inherited.insert(inherited.end(), given.begin(), given.end());  // the later one counts
  return inherited;
}

// What the person piped in, as a file that every run reads from its beginning. A terminal, and what is not there to be
// read (a service's, /dev/null), are no input.
void take_standard_input(RunOptions& options, const fs::path& directory) {
  struct stat st;
  if (stat(options.stdin_file.c_str(), &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3)) {
    options.stdin_file.clear();  // /dev/null
    return;
  }
  if (!options.stdin_file.empty() || fstat(0, &st) != 0 || !(S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode))) return;
  fs::create_directories(directory);
  const fs::path file = directory / "stdin";
  std::ofstream out(file, std::ios::binary);
  char piece[65536];
  uint64_t bytes = 0;
  bool said = false;
  for (;;) {
    pollfd ready{0, POLLIN, 0};
    const int n = poll(&ready, 1, 2000);
    throw_if_interrupted();
    if (n == 0 && !said) {
      note("waiting for the end of standard input (the program gets it; --stdin /dev/null: none)");
      said = true;
    }
    if (n <= 0) continue;
    const ssize_t got = read(0, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::runtime_error(fmt::format("cannot read standard input: {}", std::strerror(errno)));
    if (got == 0) break;
    bytes += static_cast<uint64_t>(got);
    if (bytes > hil::kMostFileBytes) {
      throw std::runtime_error(fmt::format("standard input is too large: the guest holds it in memory, at most {} MiB",
                                           hil::kMostFileBytes / kMiB));
    }
    out.write(piece, got);
  }
  if (!out.flush()) throw std::runtime_error(fmt::format("cannot write {}: is the disk full?", file.string()));
  if (bytes != 0) options.stdin_file = file;
}

// Sizes that make tiering matter for a program that uses `peak` bytes, where they were not given.
void choose_sizes(const Arguments& arguments, RunOptions& options, uint64_t peak) {
  if (!arguments.dram.empty() && !arguments.cxl.empty()) return;
  const auto up = [](uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; };
  if (arguments.dram.empty()) options.dram_bytes = std::max(hil::kLeastDramBytes, up(peak / 3, 4 * kMiB));
  if (arguments.cxl.empty()) {
    const uint64_t rest = peak > options.dram_bytes ? peak - options.dram_bytes : 0;
    options.cxl_bytes = hil::next_capacity(options.machine, up(rest + rest / 4 + 32 * kMiB, 64 * kMiB));
  }
  note(fmt::format("the program uses {} MiB at most: --dram {}M --cxl {}M (give them to choose)", up(peak, kMiB) / kMiB,
                   options.dram_bytes / kMiB, options.cxl_bytes / kMiB));
}

// The program's own last lines, as it left them on standard error or else on standard output.
void print_last_lines(const std::string& output, const std::string& error) {
  constexpr size_t kLines = 5, kColumns = 200;
  std::vector<std::string> lines;
  for (const std::string* text : {&error, &output}) {
    std::istringstream stream(text->size() > 65536 ? text->substr(text->size() - 65536) : *text);
    for (std::string line; std::getline(stream, line);) {
      for (char& c : line) c = (c >= ' ' && c != 127) || c == '\t' ? c : ' ';
      if (line.find_first_not_of(' ') != std::string::npos) lines.push_back(line.substr(0, kColumns));
    }
    if (!lines.empty()) break;
  }
  for (size_t i = lines.size() > kLines ? lines.size() - kLines : 0; i < lines.size(); ++i) {
    fmt::print(stderr, "  | {}\n", lines[i]);
  }
}

void print_end(std::string_view where, int status) {
  std::string meaning;
  if (status > 128) meaning = fmt::format(" (signal {}, {})", status - 128, strsignal(status - 128));
  if (status == 127) meaning = " (not found; --with PROGRAM takes a further program along)";
  fmt::print(stderr, "neotier: {}: the program ended with status {}{}\n", where, status, meaning);
}

// What a run of the program needs, and what is known of it before figures are made.
struct Preparation {
  RunOptions options;
  uint64_t instructions = 0;  // 0: not known
  int status = 0;             // the program's in its rehearsal
};

// Rehearses as asked for. Throws std::runtime_error in one line.
Preparation prepare_run(const Arguments& arguments, RunOptions options, WorkDirectory& work, bool measure_failing) {
  Preparation prepared;
  take_standard_input(options, work.path());
  const bool rehearse = arguments.rehearsal == "yes" || (arguments.rehearsal == "auto" && !options.shift);
  if (rehearse) {
    options.env = inherited_environment(options.env);
    if (options.cwd.empty()) options.cwd = fs::current_path();
    Job job{options, Run::Kind::kRehearsal};
    job.options.policy = "none";
    job.options.fault = "none";
    job.options.machine = {};
    job.options.timeline = job.options.moves = false;
    job.options.device_bits_per_page.reset();  // no device is looked at
    job.options.record.clear();
    if (arguments.dram.empty() || arguments.cxl.empty())
      job.options.dram_bytes = rehearsal_bytes();
    else
      job.options.dram_bytes += job.options.cxl_bytes;
    job.options.cxl_bytes = 64 * kMiB;
    auto runs = run_all(Installation::find(), {job}, 1, work.path());
    Rehearsal rehearsal = runs[0]->rehearsal();
    if (!rehearsal.verdict.empty()) {
      work.keep(work.path() / activity(job));
      print_last_lines(rehearsal.output, rehearsal.error);
      throw std::runtime_error(fmt::format("in the rehearsal: {}", rehearsal.verdict));
    }
    prepared.status = rehearsal.exit_status;
    if (rehearsal.exit_status != 0) {
      print_end("rehearsal, with this machine's files", rehearsal.exit_status);
      print_last_lines(rehearsal.output, rehearsal.error);
    }
    options.named = std::move(rehearsal.named);
    prepared.instructions = rehearsal.instructions;
    if (prepared.status == 0 || measure_failing) choose_sizes(arguments, options, rehearsal.peak_bytes);
  }
  prepared.options = options;
  return prepared;
}

// What the command writes: opened before a machine boots.
struct Outputs {
  OutputFile json, record;
  std::optional<TemporaryFolder> recording;  // beside the trace's file, so that it can be moved there

  explicit Outputs(Arguments& arguments) : json("--json", arguments.json), record("--output", arguments.run.record) {
    if ((arguments.run.timeline || arguments.run.moves) && !json)
      throw std::runtime_error("--timeline goes into the figures: name a file for them with --json");
    if (!arguments.directory.empty()) require_output_folder("--logs", arguments.directory);
    if (!record) return;
    const fs::path file = arguments.run.record;
    recording.emplace("neotier-recording", record.regular() ? fs::absolute(file).parent_path() : fs::path());
    arguments.run.record = recording->path() / file.filename();
  }
};

// What a person should know of a run that came to its end, one line each; nothing where all is as usual.
// `shown`: the program's output has been printed whole.
void print_notes(const RunResult& result, const Preparation& prepared, bool shown) {
  const bool rehearsed = !prepared.options.named.empty();
  const std::string where = fmt::format("policy {}", result.options.policy);
  if (result.exit_status != 0) {
    print_end(where, result.exit_status);
    if (!shown) print_last_lines(result.output, result.error);
    if (!rehearsed) {
      fmt::print(stderr,
                 "neotier: if it misses files: --rehearsal yes takes along what it uses, --file HOST:/GUEST more\n");
    } else if (prepared.status == 0) {
      fmt::print(stderr,
                 "neotier: in its rehearsal, with all of this machine's files, it ended with status 0: --file "
                 "HOST:/GUEST takes further ones along\n");
    }
  }
  if (result.lost_output != 0) {
    fmt::print(stderr,
               "neotier: {}: {} bytes of the program's output were dropped: more than 1 GiB, or the disk is full\n",
               where, result.lost_output);
  }
  if (!result.left_running.empty()) {
    fmt::print(
        stderr,
        "neotier: {}: still running when the program had ended: {}; the figures end with the program (a daemon has to "
        "stay in the foreground, or be waited for in a shell line)\n",
        where, result.left_running);
  }
}

bool succeeded(const RunResult& result) { return result.verdict.empty() && result.exit_status == 0; }

void print_whole(const std::string& text, std::FILE* to) { std::fwrite(text.data(), 1, text.size(), to); }

int run_command(Arguments& arguments) {
  if (arguments.run.record_timed && arguments.run.policy != "none") {
    throw std::runtime_error(
        fmt::format("--timed: a replay moves the pages, so in the recording they have to stay: --policy none, not {}",
                    arguments.run.policy));
  }
  if (arguments.run.record_timed && arguments.run.model_version != 1) {
    throw std::runtime_error("--timed: a replay's time is that of version 1 of the model: --model-version 1");
  }
  catch_interrupts();
  Outputs outputs(arguments);
  const RunOptions options = finish_options(arguments, {arguments.run.policy}, 1);
  const Installation installation = Installation::find(options.kernel);
  WorkDirectory work(arguments.directory);
  const Preparation prepared = prepare_run(arguments, options, work, true);
  hil::check_memory(prepared.options, 1);
  auto runs = run_all(installation, {{prepared.options}}, 1, work.path(), prepared.instructions);
  RunResult result = runs[0]->result();
  if (succeeded(result)) result.remark = hil::why_nothing(result, nullptr);
  print_whole(result.output, stdout);
  std::fflush(stdout);
  print_whole(result.error, stderr);
  if (!result.verdict.empty()) {
    work.keep(result.console_log.parent_path());
    fmt::print(stderr, "neotier: {}\n", result.verdict);
  } else {
    std::fputs(hil::table({result}).c_str(), stderr);
    print_notes(result, prepared, true);
    if (!result.remark.empty()) note(fmt::format("policy {}: {}", result.options.policy, result.remark));
    if (outputs.record) {
      outputs.record.take(prepared.options.record);
      outputs.record.commit();
    }
  }
  if (outputs.json) outputs.json.finish(pretty(to_json(result)));
  return result.verdict.empty() ? result.exit_status : 1;
}

int compare_command(Arguments& arguments) {
  catch_interrupts();
  Outputs outputs(arguments);
  const RunOptions options =
      finish_options(arguments, arguments.policies,
                     std::min<uint64_t>(std::max<uint64_t>(arguments.jobs, 1), arguments.policies.size()));
  const Installation installation = Installation::find(options.kernel);
  WorkDirectory work(arguments.directory);
  const Preparation prepared = prepare_run(arguments, options, work, false);
  if (prepared.status != 0) {
    fmt::print(stderr, "neotier: nothing was compared: figures are of a program that ends with status 0\n");
    return 1;
  }
  if (arguments.jobs == 0) {
    arguments.jobs =
        std::clamp<uint64_t>(host_memory_bytes() / (prepared.options.dram_bytes + prepared.options.cxl_bytes), 1,
                             std::max(1u, std::thread::hardware_concurrency()));
  }
  hil::check_memory(prepared.options, std::min<uint64_t>(arguments.jobs, arguments.policies.size()));
  std::vector<Job> jobs;
  for (const std::string& policy : arguments.policies) {
    jobs.push_back({prepared.options});
    jobs.back().options.policy = policy;
    jobs.back().options.oracle &= policy == "none";
  }
  auto runs = run_all(installation, jobs, arguments.jobs, work.path(), prepared.instructions);
  std::vector<RunResult> results, whole;
  for (auto& run : runs) results.push_back(run->result());
  runs.clear();
  const auto none = std::find_if(results.begin(), results.end(), [](const RunResult& result) {
    return succeeded(result) && result.options.policy == "none";
  });
  for (RunResult& result : results) {
    if (!succeeded(result)) continue;
    result.remark = hil::why_nothing(result, none == results.end() ? nullptr : &*none);
    const hil::Policy& policy = hil::find_policy(result.options.policy);
    const bool places = !policy.all_dram && !policy.all_cxl && !policy.ideal;
    if (places && none != results.end() && none->oracle) {
      result.share_won = none->oracle->share_won(result.modelled_ns);
    }
    whole.push_back(result);
  }
  if (!whole.empty()) std::fputs(hil::table(whole).c_str(), stdout);
  std::fflush(stdout);
  for (const RunResult& result : results) {
    if (!result.verdict.empty()) {
      work.keep(result.console_log.parent_path());
      fmt::print(stderr, "neotier: policy {}: {}\n", result.options.policy, result.verdict);
      print_last_lines(result.output, result.error);
    } else {
      print_notes(result, prepared, false);
    }
  }
  // Where one reason holds for all, it is said once.
  std::map<std::string, std::string> reasons;
  for (const RunResult& result : whole) {
    if (result.remark.empty()) continue;
    std::string& policies = reasons[result.remark];
    policies += fmt::format("{}{}", policies.empty() ? "" : ", ", result.options.policy);
  }
  for (const auto& [why, policies] : reasons) note(fmt::format("policy {}: {}", policies, why));
  if (outputs.json) {
    nlohmann::ordered_json json;
    json["runs"] = nlohmann::ordered_json::array();
    for (const RunResult& result : results) json["runs"].push_back(to_json(result));
    outputs.json.finish(pretty(json));
  }
  return whole.size() == results.size() ? 0 : 1;
}

void add_model_version(CLI::App& command, uint32_t& version) {
  command
      .add_option("--model-version", version,
                  "Which defaults the timing model has. 1: no TLB, one overlap for all misses. 2: TLB, streams, the "
                  "kernel's cost")
      ->capture_default_str()
      ->check(CLI::Range(1u, hil::kModelVersions));
}

int params_command(uint32_t version, const std::string& file) {
  OutputFile json("--json", file);
  if (json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const hil::ParamInfo& info : hil::param_table()) {
      list.push_back({{"name", info.name},
                      {"default", info.values.at(version - 1)},
                      {"min", info.min},
                      {"max", info.max},
                      {"unit", info.unit},
                      {"source", info.source}});
    }
    json.finish(pretty(list));
    return 0;
  }
  for (const hil::ParamInfo& info : hil::param_table()) {
    fmt::print("{:<14} {:>8}  {:<18} {}\n", info.name, info.values.at(version - 1), info.unit, info.source);
  }
  return 0;
}

int policies_command(const std::string& file) {
  OutputFile json("--json", file);
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const hil::Policy& policy : hil::policies()) {
    list.push_back({{"name", policy.name}, {"text", policy.text}, {"module", policy.module}});
    if (!json) fmt::print("{:<11} {}\n", policy.name, policy.text);
  }
  if (json) json.finish(pretty(list));
  return 0;
}

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const hil::Policy& policy : hil::policies()) names.emplace_back(policy.name);
  return names;
}

std::vector<std::string> param_names() {
  std::vector<std::string> names;
  for (const hil::ParamInfo& info : hil::param_table()) names.emplace_back(info.name);
  return names;
}

void add_machine_options(CLI::App& command, Arguments& a) {
  command
      .add_option("--dram", a.dram,
                  "DRAM that is free when the program starts. Without it: a third of what the program used in its "
                  "rehearsal, or 256M where there was none")
      ->type_name("SIZE");
  command.add_option("--cxl", a.cxl, "CXL memory. Without it: room for the rest, or 512M without a rehearsal")
      ->type_name("SIZE");
  command
      .add_option(
          "--rehearsal", a.rehearsal,
          "Run the program once before the figures are made, on this machine's files, which it cannot change. That "
          "shows which files it uses, and how much memory. auto: yes, unless --shift is given")
      ->capture_default_str()
      ->check(one_of("way", {"auto", "yes", "no"}));
  command
      .add_option("--machine", a.machine,
                  "Which machine: numa is fast, and for figures; cxl has the true topology of CXL; it is slow, and for "
                  "tests of function")
      ->capture_default_str()
      ->check(one_of("machine", {"numa", "cxl"}));
  command
      .add_option("--cxl-devices", a.run.machine.devices, "With --machine cxl: how many type-3 devices, interleaved")
      ->capture_default_str()
      ->check(CLI::IsMember({1, 2, 4}));
  command
      .add_option("--cxl-granularity", a.run.machine.granularity,
                  "With --machine cxl: bytes of one device before it is the next one's turn")
      ->capture_default_str()
      ->check(CLI::IsMember({256, 512, 1024, 2048, 4096, 8192, 16384}));
  command.add_flag("--interrupts", a.run.machine.interrupts,
                   "The device interrupts by MSI-X, and the driver uses that");
  command.add_option("--kernel", a.run.kernel, "Series of the guest's kernel. 6.1 promotes, and has no figures")
      ->capture_default_str()
      ->check(one_of("kernel", {hil::kKernels.begin(), hil::kKernels.end()}));
  command.add_option("--thp", a.thp, "Transparent huge pages in the guest")
      ->capture_default_str()
      ->check(one_of("setting", {"never", "madvise", "always"}));
  command.add_option("--seed", a.run.seed, "Seed of the machine. The program finds it in NEOTIER_SEED")
      ->capture_default_str()
      ->check(CLI::Range(0u, 0xffffffffu));
  command
      .add_option("--shift", a.shift,
                  "An instruction takes 2^N ns of the guest's time. Without it: as long as in the model")
      ->check(CLI::Range(0, 10));
  command.add_option("--name", a.run.name, "The program's name in figures and reports. Runs of one name are compared");
  command.add_option("--roi-after", a.run.roi_after,
                     "Measure from the moment when TEXT appears in the program's output");
  command.add_option("--roi-until", a.run.roi_until,
                     "End the run when TEXT appears in the program's output while it is measured");
  add_model_version(command, a.run.model_version);
  const auto repeated = [&command](const char* name, std::vector<std::string>& values, const char* type,
                                   const char* text) {
    return command.add_option(name, values, text)->allow_extra_args(false)->type_name(type);
  };
  repeated("--model", a.model, "NAME=VALUE",
           "A parameter of the timing model; `neotier hil params` lists them. May be repeated")
      ->check(one_of_keys("parameter", param_names()));
  repeated("--knob", a.run.knobs, "NAME=VALUE",
           "A knob of neotier.ko, where a policy loads it; `neotier kernel knobs` lists them. May be repeated");
  repeated("--sysctl", a.run.sysctls, "NAME=VALUE", "A sysctl of the guest, under every policy. May be repeated");
  repeated("--file", a.files, "HOST:/GUEST", "A file or a folder of this machine to take along. May be repeated");
  repeated("--with", a.run.with, "PROGRAM", "A further program to take along, with its libraries. May be repeated");
  repeated("--env", a.run.env, "NAME[=VALUE]",
           "A variable of the program's environment; without VALUE as it is here. May be repeated");
  command
      .add_option("--cwd", a.run.cwd,
                  "Folder of the guest that the program starts in. Without it: this one where there is a rehearsal, "
                  "else /")
      ->type_name("FOLDER");
  command
      .add_option("--stdin", a.run.stdin_file,
                  "File that the program reads as its standard input. Without it: what is piped in")
      ->type_name("FILE");
  command.add_flag(
      "--tty,!--no-tty", a.tty,
      "The program's output is a terminal, or pipes. Without it: a terminal with --roi-after or --roi-until");
  command.add_option("--timeout", a.run.timeout_s, "Seconds of this machine after which a run is given up")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1000000u));
  add_json(command, a.json);
  command.add_flag(
      "--timeline", a.run.timeline,
      "Put figures over modelled time, page hotness and the device's accuracy into --json. Changes no figure");
  command.add_flag(
      "--moves", a.run.moves,
      "As --timeline, with the pages promoted and demoted, which are read in the guest every 100 ms: figures "
      "move as with another seed");
  CLI::Option* oracle = command.add_flag(
      "--oracle", a.oracle,
      "Compute what the best placement would have won, from the run of policy none. A comparison with that policy does "
      "so by itself");
  command.add_flag("--no-oracle", a.no_oracle, "Do not compute it")->excludes(oracle);
  command.add_option("--oracle-epoch", a.run.oracle_epoch_ms, "Modelled ms in which the oracle leaves pages alone")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1000000u));
  command
      .add_option("--oracle-move-ns", a.run.oracle_move_ns,
                  "Modelled ns that the kernel takes to move a page, beside copying it")
      ->capture_default_str()
      ->check(CLI::Range(0u, 1000000000u));
  command.add_option("--logs", a.directory, "Keep the logs of console and QEMU in this folder")->type_name("FOLDER");
  command.add_option("--device", a.run.device, "Device in the loop: the Verilated RTL, or its golden model")
      ->capture_default_str()
      ->check(one_of("device", {"rtl", "model"}));
  command
      .add_option(
          "--device-bits-per-page", a.device_bits,
          "Size of the device's sketch: at most so many bits for each 4 KiB page of its memory. full: as built, "
          "2 x 512K counters")
      ->capture_default_str();
  command.add_option("--device-hash-seed", a.run.device_hash_seed, "Which family of hash functions the device uses")
      ->capture_default_str()
      ->check(CLI::Range(0u, hil::device_hash_seeds() - 1));
  command.add_option("--fault", a.run.fault, "A device that misbehaves, for tests of the driver")
      ->capture_default_str()
      ->check(one_of("fault", {"none", "magic", "version", "units", "tail", "no-clock"}));
  command
      .add_option("PROGRAM", a.run.program,
                  "The program and its arguments, after '--'. A single word with a space in it is a line for the "
                  "guest's shell")
      ->required();
}

}  // namespace

void add_hil(CLI::App& app, int& status) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* hil = app.add_subcommand("hil", "Run programs on the emulated CXL server, with NeoProf's RTL in the loop");
  hil->group(kServer);
  hil->footer(
      "example:\n  neotier hil compare --policies none,neotier --json out.json -- PROGRAM\n  neotier hil report "
      "out.json -o out.html");

  CLI::App* run = hil->add_subcommand("run", "Run a program under one policy");
  run->footer(
      "example:\n  neotier hil run --policy neotier --dram 192M --cxl 384M -- build/bin/gups --table 480 --hot 64 "
      "--updates 20000000");
  run->add_option("--policy", arguments->run.policy, "Placement policy; `neotier hil policies` says what each is")
      ->capture_default_str()
      ->check(one_of("policy", policy_names()));
  add_machine_options(*run, *arguments);
  run->callback([arguments, &status] { status = run_command(*arguments); });

  CLI::App* record = hil->add_subcommand("record", "Run a program and record its memory requests as a trace");
  record->footer(
      "examples:\n  neotier hil record --policy none --dram 96M --cxl 192M -o gups.u64.zst -- build/bin/gups --table "
      "240 "
      "--hot 32 --updates 20000000\n  neotier trace info gups.u64.zst");
  record->add_option("--policy", arguments->run.policy, "Placement policy; `neotier hil policies` says what each is")
      ->capture_default_str()
      ->check(one_of("policy", policy_names()));
  record
      ->add_option(
          "-o,--output", arguments->run.record,
          "The trace, written when the program has ended. .zst compresses, .csv is text, any other name gets bare "
          "8-byte records")
      ->type_name("FILE")
      ->required();
  record->add_flag("--timed", arguments->run.record_timed,
                   "Make a recording for `neotier replay`: requests to both tiers, with time and Accessed bits");
  record->add_flag("--all-memory", arguments->run.record_all,
                   "Record requests to DRAM too, not only to the CXL memory device");
  add_machine_options(*record, *arguments);
  record->callback([arguments, &status] { status = run_command(*arguments); });

  add_hil_report(*hil, status);

  CLI::App* compare = hil->add_subcommand("compare", "Run a program under several policies and print one table");
  compare->footer(
      "example:\n  neotier hil compare --policies none,numab,neotier,ideal --json out.json -- build/bin/gups --table "
      "480 --hot 64 --updates 20000000");
  compare
      ->add_option("--policies", arguments->policies,
                   "Policies, separated by commas; `neotier hil policies` says what each is")
      ->delimiter(',')
      ->allow_extra_args(false)  // else a "--" right after it would not begin PROGRAM
      ->check(one_of("policy", policy_names()))
      ->required();
  compare
      ->add_option("--jobs", arguments->jobs,
                   "Machines to run at once. Without it: as many as there are processors and memory for")
      ->check(CLI::Range(1u, 256u));
  add_machine_options(*compare, *arguments);
  compare->callback([arguments, &status] { status = compare_command(*arguments); });

  CLI::App* params = hil->add_subcommand("params", "Print the timing model's parameters, their defaults and sources");
  auto file = std::make_shared<std::string>();
  params->footer("example:\n  neotier hil params --model-version 2");
  add_json(*params, *file);
  const auto version = std::make_shared<uint32_t>(hil::kDefaultModelVersion);
  add_model_version(*params, *version);
  params->callback([file, version, &status] { status = params_command(*version, *file); });

  CLI::App* policies = hil->add_subcommand("policies", "Print the placement policies and what each is");
  policies->footer("example:\n  neotier hil policies");
  add_json(*policies, *file);
  policies->callback([file, &status] { status = policies_command(*file); });
}

}  // namespace neotier::cli

// SPDX-License-Identifier: Apache-2.0
// One run of a program on the emulated machine, from its initramfs to its figures.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hil/machine.h"
#include "hil/model/device_size.h"
#include "hil/model/params.h"
#include "hil/oracle.h"
#include "hil/policy.h"
#include "neotier/mailbox.h"
#include "util/process.h"

namespace neotier::hil {

// Series of the kernels that a guest can boot; the first is the default, and has everything.
constexpr std::array<std::string_view, 2> kKernels = {"6.12", "6.1"};

// Where the installation's pieces lie: beside the executable, in the build tree.
struct Installation {
  std::filesystem::path plugin, clock, init, module, kernel_image, kernel_modules;
  std::string kernel_release;
  // `kernel`: one of kKernels. Throws std::runtime_error naming what is missing and the command that makes it.
  static Installation find(const std::string& kernel = std::string(kKernels.front()));
};

struct NamedPath {
  std::filesystem::path path;  // of the host, absolute
  bool executed = false;
};

struct RunOptions {
  std::string policy = "neotier";
  MachineOptions machine;
  std::string kernel{kKernels.front()};
  uint64_t dram_bytes = 256ull << 20;  // free when the program starts
  uint64_t cxl_bytes = 512ull << 20;
  Thp thp = Thp::kNever;
  uint64_t seed = 1;
  std::optional<uint32_t> shift;  // an instruction takes 2^shift ns of the guest's time; unset: what it takes modelled
  std::string roi_after, roi_until;
  uint32_t model_version = kDefaultModelVersion;  // whose defaults `params` began with
  Params params = default_params();
  std::vector<std::string> knobs;    // KEY=VALUE of /sys/kernel/neotier
  std::vector<std::string> sysctls;  // NAME=VALUE, for every policy, after the policy's own settings
  std::vector<std::pair<std::string, std::string>> files;  // host file or folder, guest path
  std::vector<std::string> with;                           // further programs that are taken along with their libraries
  std::vector<std::string> env;                            // NAME=VALUE
  std::string cwd;                                         // in the guest
  std::string stdin_file;                                  // of the host; empty: the program reads an empty input
  bool tty = false;  // the program's output is a terminal, on which most programs write each line as it comes
  std::vector<NamedPath> named;  // what a rehearsal saw the program name
  std::string device = "rtl", fault = "none";
  std::optional<double> device_bits_per_page =
      kDeviceBitsPerPage;         // of the sketch, at most; unset: the device as built
  uint32_t device_hash_seed = 0;  // below device_hash_seeds()
  bool timeline = false;          // samples over the region of interest; changes no figure
  bool moves = false;             // and pages promoted and demoted, which the guest has to read: it does
  std::filesystem::path record;   // trace of what the memory device sees; empty: none
  bool record_all = false;        // of both tiers
  bool record_timed = false;      // a recording for `neotier replay`: of both tiers, with time
  // Of policy none: what the best placement would have won, from counts of each page in epochs of modelled time.
  bool oracle = false;
  uint64_t oracle_epoch_ms = 50;
  uint64_t oracle_move_ns = 3000;    // the kernel's part of moving a page; docs/decisions/0028-oracle.md
  uint64_t timeout_s = 3600;         // of the host; a guest still running then has a verdict, not figures
  std::vector<std::string> program;  // and its arguments; or one shell line, see is_shell_line()
  std::string name;                  // of the program, for tables and pages; empty: its command line
};

// Least DRAM that a guest can live with, and most of either tier.
constexpr uint64_t kLeastDramBytes = 16ull << 20;
constexpr uint64_t kLeastCxlBytes = 64ull << 20;
constexpr uint64_t kMostTierBytes = 1ull << 40;

// Throws std::runtime_error in one line where options of the machine contradict each other.
void check_machine(const RunOptions& options);
// Whether the kinds of pages can be told on this machine: their places in memory and the kernel's structures are known.
bool tells_pages(const RunOptions& options);
// Likewise where a tier is too small or too large.
void check_sizes(const RunOptions& options);

// What each CXL device's profiler is made of. Throws std::runtime_error in one line where the budget is too small for
// any.
DeviceState profiler_state(const RunOptions& options);

// Whether PROGRAM is a line for the guest's shell: a single argument that has a space or a shell's special character in
// it and is no file's name.
bool is_shell_line(const std::vector<std::string>& program);
// Those that a shell complained of: "sh: 1: NAME: not found".
std::vector<std::string> commands_not_found(const std::string& said);

// What a rehearsal of a program tells.
struct Rehearsal {
  std::string verdict;  // empty: the program ran to its end; else one line
  int exit_status = -1;
  std::string output, error;     // the program's
  std::vector<NamedPath> named;  // sorted
  uint64_t peak_bytes = 0;       // most memory in use at a time, files left out
  uint64_t instructions = 0;     // of the region of interest
  double host_seconds = 0;       // of it
};

struct Mark {
  std::string name;  // of a phase; empty for a window
  uint64_t value = 0;
  uint64_t instructions = 0, modelled_ns = 0;  // since ROI begin
  uint64_t fills[2] = {0, 0};
};

struct RunResult {
  RunOptions options;
  std::string verdict;  // empty: the program ran to its end; else one line
  std::string kernel_release, qemu_version;
  int exit_status = -1;  // as a shell would say: 128 + signal for a signal; -1 without an end
  uint64_t guest_ns = 0, modelled_ns = 0, idle_ns = 0;
  uint64_t free_bytes[2] = {0, 0};
  neotier_counters begin{}, end{};
  std::vector<neotier_device_counters> devices;  // requests over the ROI, by the order of their root ports
  neotier_region region{};                       // machine cxl
  std::vector<Mark> marks;
  std::map<std::string, int64_t> guest;  // counters of the guest's kernel and of neotier.ko over the ROI
  uint64_t promoted_pages = 0, demoted_pages = 0;
  nlohmann::ordered_json watched;  // keys timeline, pages and reports of docs/hil.md; null unless asked for
  std::optional<neotier_page_counts_header> by_kind;  // sums of fills by kind of page, where the machine tells them
  std::optional<Oracle> oracle;                       // where it was asked for
  std::optional<double> share_won;                    // of the oracle of `none`; see Oracle::share_won()
  std::string left_running;   // names of processes that were still there when the program had ended
  std::string output, error;  // the program's; with a terminal all of it is in `output`
  uint64_t lost_output = 0;   // bytes of it beyond the limit of 1 GiB, or that found no room on the disk
  std::filesystem::path console_log;
  std::string remark;       // what a reader of its figures should know; see why_nothing()
  double host_seconds = 0;  // of the ROI: says how fast the simulation is, and differs from run to run
};

// A machine that is running. Owned by one thread, which also has to outlive it (its QEMU dies with that thread).
class Run {
 public:
  // What a machine is started for.
  enum class Kind {
    kFigures,
    kRehearsal,  // the program runs uninstrumented, on this machine's own files, which it cannot change
  };

  Run(const Installation& installation, RunOptions options, const std::filesystem::path& directory,
      Kind kind = Kind::kFigures);
  ~Run();

  // Looks after the machine; true once it has ended. Call it a few times a second.
  bool poll();
  // For people: what it is doing now, one line.
  std::string progress() const;
  // Commands that a shell has said are not there, each once.
  std::vector<std::string> missing_commands();
  // Instructions of the region of interest that have run.
  uint64_t instructions() const;
  // Valid once poll() has said true.
  RunResult result();
  // Once poll() has said true, only of a rehearsal.
  Rehearsal rehearsal();

 private:
  const neotier_mailbox& mailbox() const { return *bars_->mailbox(); }
  std::string verdict();
  void read_watched(RunResult& result);
  void read_pages(RunResult& result);

  Installation installation_;
  RunOptions options_;
  Kind kind_;
  std::filesystem::path directory_;
  std::optional<Bars> bars_;
  std::optional<Child> qemu_;
  uint64_t started_ns_ = 0;
  bool timed_out_ = false;
  std::map<std::string, uint64_t> complaints_read_;  // bytes, by file
  std::set<std::string> missing_;
  bool ended_ = false;
};

}  // namespace neotier::hil

// SPDX-License-Identifier: Apache-2.0
#include "hil/run.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <regex>
#include <span>
#include <sstream>
#include <stdexcept>

#include "hil/initramfs.h"
#include "trace/recording.h"
#include "util/size.h"

namespace fs = std::filesystem;

namespace neotier::hil {

namespace {

constexpr uint64_t kMiB = 1ull << 20;
constexpr const char* kGuestStdin = "/neotier/stdin";
// What lies over the host's files in a rehearsal (hil/guest/rehearse.c).
constexpr const char* kOver = "/neotier/over";

uint64_t steady_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Node 0 is the DRAM that stays free plus what kernel, its page array and the unpacked initramfs may take; the guest's
// init takes the surplus away again.
uint64_t node0_bytes(uint64_t dram_bytes, uint64_t initramfs_bytes) {
  const uint64_t bytes = dram_bytes + dram_bytes / 32 + 2 * initramfs_bytes + 160 * kMiB;
  return (bytes + 64 * kMiB - 1) / (64 * kMiB) * (64 * kMiB);
}

constexpr size_t kConfigBytes = 16384;
// A seed's own file takes so many pages that others are free when the program starts.
constexpr uint64_t kSeedPages = 256, kSeedStep = 83, kPageBytes = 4096;

// In the order in which they are loaded. cxl_core and cxl_port are built into Debian's kernel.
constexpr std::array kShareModules = {"fs/netfs/netfs.ko.xz", "net/9p/9pnet.ko.xz", "net/9p/9pnet_virtio.ko.xz",
                                      "fs/9p/9p.ko.xz", "fs/overlayfs/overlay.ko.xz"};
constexpr std::array kCxlModules = {"drivers/dax/device_dax.ko.xz", "drivers/dax/kmem.ko.xz",
                                    "drivers/dax/dax_cxl.ko.xz",    "drivers/cxl/cxl_acpi.ko.xz",
                                    "drivers/cxl/cxl_mem.ko.xz",    "drivers/cxl/cxl_pci.ko.xz"};

std::string guest_path_of(std::string_view kernel_module) {
  return fmt::format("/neotier/{}", fs::path(kernel_module).filename().string());
}

std::string cxl_config(const MachineOptions& machine) {
  std::string text = fmt::format("cxl_devices {}\ncxl_granularity {}\n", machine.devices, machine.granularity);
  for (const std::string_view name : kCxlModules) text += fmt::format("cxl_module {}\n", guest_path_of(name));
  return text;
}

void check_lines(const std::vector<std::string>& texts, std::string_view what) {
  for (const std::string& text : texts) {
    if (text.find('\n') != std::string::npos) {
      throw std::runtime_error(fmt::format("{} contains a line break, which the guest cannot be given", what));
    }
  }
}

// Node 0's memory below the hole under 4 GiB and above it, and node 1's.
PolicyMachine policy_machine(const RunOptions& options, const Layout& map, uint64_t dram) {
  PolicyMachine machine{options.thp, dram, options.dram_bytes + options.cxl_bytes, {}};
  machine.node[0].push_back({0, map.below_4g});
  if (map.node0 > map.below_4g) machine.node[0].push_back({4096 * kMiB, map.node0 - map.below_4g});
  machine.node[1].push_back({map.numa_base, map.slow});
  return machine;
}

// NAME=VALUE of --env; a bare NAME has the value that it has here.
std::string environment_variable(const std::string& variable) {
  const size_t equals = variable.find('=');
  if (equals != std::string::npos && equals != 0) return variable;
  const char* value = equals == 0 || variable.empty() ? nullptr : std::getenv(variable.c_str());
  if (!value) {
    throw std::runtime_error(
        fmt::format("--env '{}': expected NAME=VALUE, or the NAME of a variable that is set here", variable));
  }
  return fmt::format("{}={}", variable, value);
}

std::string guest_config(const RunOptions& options, const Policy& policy, const Layout& map,
                         const std::vector<std::string>& arguments, bool rehearsal) {
  const uint64_t dram = policy.all_dram ? options.dram_bytes + options.cxl_bytes : options.dram_bytes;
  std::string text;
  if (rehearsal) {
    for (const std::string_view name : kShareModules) text += fmt::format("share_module {}\n", guest_path_of(name));
    text += "rehearse 1\n";
  } else {
    text += fmt::format("dram_bytes {}\n", dram);
  }
  if (options.machine.kind == MachineKind::kCxl) text += cxl_config(options.machine);
  std::vector<std::string> knobs;
  if (options.machine.interrupts) {
    for (uint32_t i = 0; i < options.machine.devices; ++i) knobs.push_back(fmt::format("device{}/irq=1", i));
  }
  knobs.insert(knobs.end(), options.knobs.begin(), options.knobs.end());
  for (const std::string& line : policy_settings(policy, policy_machine(options, map, dram), knobs)) {
    text += line + "\n";
  }
  for (const std::string& sysctl : options.sysctls) text += sysctl_setting(sysctl) + "\n";
  if (options.tty) text += "tty 1\n";
  if (options.moves) {
    const auto tell = [&text](std::string_view what, std::span<const MoveCounter> counters) {
      for (const MoveCounter& counter : counters) {
        if (!counter.bytes) text += fmt::format("{} {}\n", what, counter.key);
      }
    };
    tell("promoted", promotion_counters(policy));
    tell("demoted", demotion_counters());
  }
  check_lines({options.roi_after, options.roi_until}, "--roi-after or --roi-until");
  if (!options.roi_after.empty()) text += fmt::format("roi_after {}\n", options.roi_after);
  if (!options.roi_until.empty()) text += fmt::format("roi_until {}\n", options.roi_until);
  text += "env PATH=/bin:/usr/bin:/sbin:/usr/sbin\nenv HOME=/tmp\nenv TERM=dumb\n";
  text += fmt::format("env NEOTIER_SEED={}\n", options.seed);
  check_lines(options.env, "--env");
  for (const std::string& variable : options.env) text += fmt::format("env {}\n", environment_variable(variable));
  check_lines({options.cwd}, "--cwd");
  if (!options.cwd.empty()) text += fmt::format("cwd {}\n", options.cwd);
  if (!options.stdin_file.empty()) text += fmt::format("stdin {}\n", kGuestStdin);
  check_lines(arguments, "an argument of PROGRAM");
  for (const std::string& argument : arguments) text += fmt::format("arg {}\n", argument);
  return text;
}

// All but /neotier.conf, and PROGRAM's arguments as the guest has to call it. Every policy gets the same files, so that
// node 0 looks the same under each. In a rehearsal only what differs from the host's files lies there.
std::pair<Initramfs, std::vector<std::string>> build_initramfs(const Installation& installation,
                                                               const RunOptions& options, bool rehearsal) {
  Initramfs archive;
  const std::string over = rehearsal ? kOver : "";
  // With a rehearsal /bin may be a link, as it is on the host.
  for (const char* directory : {"/proc", "/sys", "/dev", "/tmp", "/bin", "/etc"}) {
    if (options.named.empty() || directory != std::string_view("/bin")) archive.add_directory(directory);
  }
  archive.add_device("/dev/console", 5, 1);
  archive.add_text(over + "/etc/passwd", "root:x:0:0:root:/tmp:/bin/sh\n", 0644);
  archive.add_text(over + "/etc/group", "root:x:0:\n", 0644);
  archive.add_text(over + "/etc/hosts", "127.0.0.1 localhost\n", 0644);
  archive.add_file(installation.init, "/init");
  if (fs::exists(installation.module)) archive.add_file(installation.module, "/neotier/neotier.ko");
  const auto add_kernel_modules = [&](const auto& names) {
    for (const std::string_view name : names) {
      archive.add_file(installation.kernel_modules / name, guest_path_of(name));
    }
  };
  if (options.machine.kind == MachineKind::kCxl) add_kernel_modules(kCxlModules);
  if (rehearsal) add_kernel_modules(kShareModules);

  // Before all else of the host's: links on the way stay links, since a program may ask where it really lies.
  for (const NamedPath& named : options.named) archive.add_named(named.path, named.executed);
  archive.add_directory("/bin");
  const bool is_line = is_shell_line(options.program);
  std::vector<std::string> arguments = options.program;
  // A rehearsal has the host's files; they are gone through all the same, to find early what will not do.
  Initramfs unused;
  Initramfs& programs = rehearsal ? unused : archive;
  if (is_line) {
    arguments = {programs.add_program("/bin/sh"), "-c", options.program.front()};
    for (const fs::path& program : shell_programs(options.program.front())) programs.add_program(program);
  } else {
    arguments.front() = programs.add_program(resolve_shim(find_program(options.program.front())));
  }
  for (const std::string& program : options.with) programs.add_program(find_program(program));
  for (const auto& [host, guest] : options.files) {
    if (fs::is_regular_file(host) && access(host.c_str(), X_OK) == 0 && !host.ends_with(".ko"))
      programs.add_program(host);
    // Folders of the host that are links stay so: what lies over one must not hide what is in it.
    const fs::path at(guest);
    archive.add_tree(host,
                     over.empty() ? guest : over + (fs::weakly_canonical(at.parent_path()) / at.filename()).string());
  }
  if (!options.stdin_file.empty()) archive.add_file(options.stdin_file, kGuestStdin);
  if (rehearsal) return {std::move(archive), std::move(arguments)};
  for (const std::string& folder : {options.cwd, std::string("/tmp")}) {
    if (!folder.empty()) archive.add_directory(fs::path(folder).lexically_normal());
  }
  if (is_line) archive.add_busybox();
  return {std::move(archive), std::move(arguments)};
}

constexpr const char* kOutput = "output.log";
constexpr const char* kError = "error.log";
constexpr const char* kFiles = "files.log";
constexpr const char* kWatched = "watched.json";
constexpr const char* kPageCounts = "pages.counts";

// QEMU takes a doubled comma for a comma.
std::string escape_commas(std::string text) {
  for (size_t at = 0; (at = text.find(',', at)) != std::string::npos; at += 2) text.insert(at, 1, ',');
  return text;
}

std::string watch_arguments(const RunOptions& options, const fs::path& directory) {
  if (!options.timeline && options.record.empty()) return "";
  std::string text = fmt::format(",timeline={}", escape_commas(fs::absolute(directory / kWatched)));
  if (!options.record.empty()) {
    text += fmt::format(",record={},record_all={},record_timed={}", escape_commas(fs::absolute(options.record)),
                        options.record_all ? 1 : 0, options.record_timed ? 1 : 0);
  }
  return text;
}

// What a recording says of the machine's settings, which a replay needs.
std::string recording_arguments(const MemorySettings& memory) {
  using trace::Field;
  std::string text;
  for (const auto& [field, value] : {std::pair{Field::kDramPresentPages, memory.present_pages},
                                     {Field::kMinFreeKib, memory.min_free_kib},
                                     {Field::kWatermarkScale, memory.scale},
                                     {Field::kTieringWatermarkScale, memory.tiering_scale},
                                     {Field::kReservePages, memory.reserve_pages},
                                     {Field::kBatchPages, memory.batch}}) {
    text += fmt::format(",recording={}:{}", static_cast<unsigned>(field), value);
  }
  return text;
}

// The last line of the console log that says why a kernel died, or nothing.
std::string last_words(const std::string& console) {
  for (const char* text : {"Kernel panic - not syncing", "BUG:", "Oops:", "general protection fault"}) {
    const size_t at = console.rfind(text);
    if (at == std::string::npos) continue;
    return console.substr(at, console.find_first_of("\r\n", at) - at);
  }
  return "";
}

}  // namespace

std::vector<std::string> commands_not_found(const std::string& said) {
  // dash: "/bin/sh: 1: NAME: not found"; bash: "sh: line 1: NAME: command not found".
  static const std::regex kComplaint("^\\S*sh: (?:line )?[0-9]+: ([-+@./\\w]+): (?:command )?not found$");
  std::vector<std::string> commands;
  std::istringstream lines(said);
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    std::smatch found;
    if (line.size() < 300 && std::regex_match(line, found, kComplaint)) commands.push_back(found[1]);
  }
  return commands;
}

bool is_shell_line(const std::vector<std::string>& program) {
  return program.size() == 1 && program.front().find_first_of(" \t;|&<>()$`") != std::string::npos &&
         !fs::exists(program.front());
}

Installation Installation::find(const std::string& kernel) {
  Installation found;
  const fs::path bin = fs::read_symlink("/proc/self/exe").parent_path();
  const char* build = std::getenv("NEOTIER_BUILD");
  const fs::path root = build ? fs::path(build) : bin.parent_path();
  found.plugin = bin / "neotier-plugin.so";
  found.clock = bin / "neotier-clock.so";
  found.init = bin / "neotier-init";
  found.module = root / (kernel == kKernels.front() ? "kmod" : fmt::format("kmod-{}", kernel)) / "neotier.ko";
  for (const fs::path& piece : {found.plugin, found.clock, found.init}) {
    if (!fs::exists(piece)) {
      throw std::runtime_error(
          fmt::format("{} is missing: the emulated server is not installed, it runs from a clone of NeoTier's "
                      "repository; run 'make "
                      "build' there, and its build/bin/neotier",
                      piece.string()));
    }
  }
  const fs::path kernels = root / "guest-kernel";
  if (fs::is_directory(kernels)) {
    for (const auto& entry : fs::directory_iterator(kernels)) {
      const std::string release = entry.path().filename();
      const fs::path image = entry.path() / "boot" / ("vmlinux-" + release);
      if (!release.starts_with(kernel + ".") || !fs::exists(image)) continue;
      found.kernel_image = image;
      found.kernel_modules = entry.path() / "lib" / "modules" / release / "kernel";
      found.kernel_release = release;
    }
  }
  if (found.kernel_image.empty()) {
    throw std::runtime_error(fmt::format(
        "no guest kernel {} in {}; run 'scripts/bootstrap' (or set NEOTIER_BUILD to a build folder that has one)",
        kernel, kernels.string()));
  }
  return found;
}

void check_machine(const RunOptions& options) {
  const MachineOptions& machine = options.machine;
  if (machine.kind == MachineKind::kNuma &&
      (machine.devices != 1 || machine.granularity != MachineOptions{}.granularity)) {
    throw std::runtime_error("--cxl-devices and --cxl-granularity are of --machine cxl");
  }
  if (machine.kind == MachineKind::kCxl && options.params.tlb != 0) {
    throw std::runtime_error(
        "--machine cxl: the model's page walks read memory that QEMU does not share there; use --model-version 1 or "
        "--model tlb=0");
  }
  if (machine.kind == MachineKind::kCxl && options.kernel != kKernels.front()) {
    throw std::runtime_error(fmt::format(
        "--machine cxl needs kernel {}: Debian's {} cannot make system memory of a CXL region (no DEV_DAX_CXL)",
        kKernels.front(), options.kernel));
  }
}

bool tells_pages(const RunOptions& options) {
  return options.machine.kind == MachineKind::kNuma && options.kernel == kKernels.front();
}

DeviceState profiler_state(const RunOptions& options) {
  if (!options.device_bits_per_page) return device_state(full_log2_width());
  const auto width = log2_width_within(*options.device_bits_per_page, options.cxl_bytes / options.machine.devices);
  if (!width) {
    throw std::runtime_error(
        fmt::format("--device-bits-per-page {}: too few for the smallest profiler of {} MiB of CXL memory; give more",
                    *options.device_bits_per_page, options.cxl_bytes / options.machine.devices / kMiB));
  }
  return device_state(*width);
}

void check_sizes(const RunOptions& options) {
  const auto outside = [](uint64_t bytes, uint64_t least) { return bytes < least || bytes > kMostTierBytes; };
  if (outside(options.dram_bytes, kLeastDramBytes) || outside(options.cxl_bytes, kLeastCxlBytes)) {
    throw std::runtime_error(fmt::format("--dram must be between {}M and 1024G, --cxl between {}M and 1024G",
                                         kLeastDramBytes / kMiB, kLeastCxlBytes / kMiB));
  }
}

Run::Run(const Installation& installation, RunOptions options, const fs::path& directory, Kind kind)
    : installation_(installation), options_(std::move(options)), kind_(kind), directory_(directory) {
  const Policy& policy = find_policy(options_.policy);
  if (policy.module && !fs::exists(installation_.module)) {
    throw std::runtime_error(
        fmt::format("policy '{}' needs {}; run 'make build'", options_.policy, installation_.module.string()));
  }
  if (options_.machine.kind == MachineKind::kCxl && (policy.damon || !policy.source.empty())) {
    throw std::runtime_error(fmt::format(
        "policy '{}' has to know where the CXL memory lies before the guest has made its region: use --machine "
        "numa",
        options_.policy));
  }
  if (auto error = check_params(options_.params)) throw std::runtime_error(*error);
  check_sizes(options_);
  fs::create_directories(directory_);
  const bool rehearsal = kind_ == Kind::kRehearsal;
  auto [archive, arguments] = build_initramfs(installation_, options_, rehearsal);
  const uint64_t dram = options_.dram_bytes + (policy.all_dram ? options_.cxl_bytes : 0);
  const bool true_cxl = options_.machine.kind == MachineKind::kCxl;
  const uint64_t page_array = true_cxl ? options_.cxl_bytes / 32 : 0;
  const uint64_t cxl =
      policy.all_cxl ? next_capacity(options_.machine, options_.cxl_bytes + options_.dram_bytes) : options_.cxl_bytes;
  const Layout map = layout(options_.machine, node0_bytes(dram + page_array, archive.bytes()), cxl);
  std::string config = guest_config(options_, policy, map, arguments, rehearsal);
  // As long under every policy, or the kernel unpacks it in another time, and other pages of each node are in use.
  config.resize((config.size() + kConfigBytes - 1) / kConfigBytes * kConfigBytes, '\n');
  archive.add_text("/neotier.conf", config, 0644);
  archive.add_text("/neotier.seed", std::string(options_.seed * kSeedStep % kSeedPages * kPageBytes, 's'), 0644);
  archive.write(directory_ / "initramfs.cpio");

  bars_.emplace(options_.machine.devices, options_.machine.interrupts);
  started_ns_ = steady_ns();
  std::string plugin =
      fmt::format(",device={},log2_width={},hash_seed={},fault={},ideal={}", options_.device,
                  profiler_state(options_).log2_width, options_.device_hash_seed, options_.fault, policy.ideal ? 1 : 0);
  if (!policy.source.empty()) {
    plugin += fmt::format(",source={},dram_bytes={}", policy.source, options_.dram_bytes);
  }
  for (const auto& [stream, file] : {std::pair{"output", kOutput}, {"error", kError}, {"files", kFiles}}) {
    plugin += fmt::format(",{}={}", stream, escape_commas(fs::absolute(directory_ / file)));
  }
  plugin += watch_arguments(options_, directory_);
  if (options_.record_timed) plugin += recording_arguments(memory_settings(policy_machine(options_, map, dram)));
  if (kind_ == Kind::kFigures && tells_pages(options_)) {
    plugin += fmt::format(",pages={},pages_epoch_us={}", escape_commas(fs::absolute(directory_ / kPageCounts)),
                          options_.oracle ? options_.oracle_epoch_ms * 1000 : 0);
  }
  if (rehearsal) options_.params.tlb = 0;  // nothing is modelled
  std::optional<GuestRam> ram;
  if (options_.params.tlb != 0) ram.emplace(map);
  const QemuPlan plan{.machine = options_.machine,
                      .layout = map,
                      .params = options_.params,
                      .shift = options_.shift,
                      .seed = options_.seed,
                      .kernel_image = installation_.kernel_image,
                      .initramfs = directory_ / "initramfs.cpio",
                      .console_log = directory_ / "console.log",
                      .kernel_arguments = kernel_arguments(options_.thp),
                      .plugin = installation_.plugin,
                      .plugin_options = plugin,
                      .share_files = rehearsal,
                      .ram = ram ? &*ram : nullptr};
  std::vector<std::string> environment;
  if (!rehearsal) environment.push_back(fmt::format("LD_PRELOAD={}", installation_.clock.string()));
  std::vector<int> inherited = bars_->inherited();
  if (ram) inherited.insert(inherited.end(), ram->nodes().begin(), ram->nodes().end());
  qemu_.emplace(qemu_command(plan, *bars_), directory_ / "qemu.log", inherited, environment);
  bars_->started();
}

Run::~Run() {
  qemu_.reset();
  bars_.reset();
  std::error_code ignored;
  fs::remove(directory_ / "initramfs.cpio", ignored);
}

bool Run::poll() {
  if (ended_) return true;
  if (qemu_->ended()) {
    ended_ = true;
  } else if (steady_ns() - started_ns_ > options_.timeout_s * 1'000'000'000) {
    timed_out_ = true;
    qemu_->kill();
    ended_ = true;
  }
  return ended_;
}

std::string Run::progress() const {
  const neotier_mailbox& box = mailbox();
  switch (box.roi_state) {
    case 0:
      return box.state == NEOTIER_STATE_OFF ? "booting" : "setting up";
    case 1: {
      const double modelled =
          static_cast<double>(box.now.modelled_ps - std::min(box.begin.modelled_ps, box.now.modelled_ps)) * 1e-12;
      const double giga =
          static_cast<double>(box.now.instructions - std::min(box.begin.instructions, box.now.instructions)) * 1e-9;
      return fmt::format("running: {:.2f} s modelled, {:.1f} G instructions", modelled, giga);
    }
    default:
      return "done";
  }
}

std::vector<std::string> Run::missing_commands() {
  // What a shell says of it comes early, if at all.
  constexpr size_t kMost = 64 << 10;
  std::vector<std::string> fresh;
  for (const char* name : {kError, kOutput}) {
    std::error_code none;
    const uint64_t size = fs::file_size(directory_ / name, none);
    if (none || size > kMost || size == complaints_read_[name]) continue;
    complaints_read_[name] = size;
    for (std::string& command : commands_not_found(read_text(directory_ / name))) {
      if (missing_.insert(command).second) fresh.push_back(std::move(command));
    }
  }
  return fresh;
}

uint64_t Run::instructions() const {
  const neotier_mailbox& box = mailbox();
  if (box.roi_state == 0) return 0;
  const uint64_t now = box.roi_state == 2 ? box.end.instructions : box.now.instructions;
  return now > box.begin.instructions ? now - box.begin.instructions : 0;
}

Rehearsal Run::rehearsal() {
  const auto box = std::make_unique<neotier_mailbox>(mailbox());
  Rehearsal r;
  r.verdict = verdict();
  r.exit_status = box->term_signal != 0 ? 128 + box->term_signal : box->exit_code;
  r.output = read_text(directory_ / kOutput);
  r.error = read_text(directory_ / kError);
  r.peak_bytes = box->peak_bytes;
  r.instructions = instructions();
  r.host_seconds = static_cast<double>(box->host_ns[1] - box->host_ns[0]) * 1e-9;
  std::map<fs::path, bool> named;
  std::istringstream lines(read_text(directory_ / kFiles));
  for (std::string line; std::getline(lines, line, '\0');) {
    if (line.size() < 2 || line[1] != '/') continue;
    const fs::path path = line.substr(1);
    // What it writes anew needs only its folder.
    named[line[0] == 'w' ? path.parent_path() : path] |= line[0] == 'x';
  }
  for (const auto& [path, executed] : named) r.named.push_back({path, executed});
  return r;
}

std::string Run::verdict() {
  const neotier_mailbox& box = mailbox();
  const std::string log = fmt::format("; console log: {}", (directory_ / "console.log").string());
  const auto message = [&] { return std::string(box.message, strnlen(box.message, sizeof box.message)); };
  if (timed_out_) {
    return fmt::format("no end within {} s ({}); --timeout allows more{}", options_.timeout_s, progress(), log);
  }
  if (box.state == NEOTIER_STATE_FAILED) return message() + log;
  if (box.state == NEOTIER_STATE_DONE) {
    if (box.oom_kills != 0)
      return fmt::format("the guest ran out of memory and killed {} processes{}", box.oom_kills, log);
    if (box.host_ns[0] == 0) {
      return fmt::format(
          "'{}' (--roi-after) never appeared on the program's output, so nothing was measured; it ended "
          "with status {}{}",
          options_.roi_after, box.term_signal != 0 ? 128 + box.term_signal : box.exit_code, log);
    }
    return "";
  }
  const std::string words = last_words(read_text(directory_ / "console.log"));
  if (!words.empty()) return fmt::format("the guest's kernel died: {}{}", words, log);
  const int status = qemu_->wait_status();
  std::string why = read_text(directory_ / "qemu.log");
  if (why.size() > 300) why = why.substr(why.size() - 300);
  std::replace(why.begin(), why.end(), '\n', ' ');
  return fmt::format("QEMU ended ({} {}) before the program did: {}{}", WIFEXITED(status) ? "exit" : "signal",
                     WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), why, log);
}

void Run::read_watched(RunResult& result) {
  const fs::path file = directory_ / kWatched;
  result.watched = nlohmann::ordered_json::parse(read_text(file), nullptr, false);
  std::error_code ignored;
  fs::remove(file, ignored);
  const bool recorded = options_.record.empty() || fs::exists(options_.record);
  if (!result.watched.is_discarded() && recorded) return;
  std::string why = read_text(directory_ / "qemu.log");
  std::replace(why.begin(), why.end(), '\n', ' ');
  result.verdict = fmt::format("nothing was {}: {}", recorded ? "sampled" : "recorded", why);
}

void Run::read_pages(RunResult& result) {
  const fs::path file = directory_ / kPageCounts;
  try {
    if (options_.oracle) {
      const PageCounts counts = read_page_counts(file);
      result.by_kind = counts.header;
      result.oracle =
          solve_oracle(counts, {options_.params, options_.oracle_move_ns, options_.oracle_move_ns, result.modelled_ns});
    } else {
      result.by_kind = read_page_sums(file);
    }
  } catch (const std::exception& error) {
    std::string why = read_text(directory_ / "qemu.log");
    std::replace(why.begin(), why.end(), '\n', ' ');
    result.verdict = fmt::format("{} {}", error.what(), why);
  }
}

RunResult Run::result() {
  // A copy: the guest, or a stray process, could still write to what is mapped.
  const auto box = std::make_unique<neotier_mailbox>(mailbox());
  RunResult r;
  r.options = options_;
  r.kernel_release = installation_.kernel_release;
  r.console_log = directory_ / "console.log";
  r.output = read_text(directory_ / kOutput);
  r.error = read_text(directory_ / kError);
  r.lost_output = box->lost_output;
  r.verdict = verdict();
  if (!r.verdict.empty()) return r;

  r.left_running = std::string(box->message, strnlen(box->message, sizeof box->message));
  for (char& c : r.left_running) c = c >= ' ' && c < 127 ? c : '?';
  r.exit_status = box->term_signal != 0 ? 128 + box->term_signal : box->exit_code;
  r.begin = box->begin;
  r.end = box->end;
  r.guest_ns = box->guest_ns[1] - box->guest_ns[0];
  const uint64_t modelled_ns = (r.end.modelled_ps - r.begin.modelled_ps) / 1000;
  const uint64_t busy_ns =
      options_.shift ? (r.end.instructions - r.begin.instructions) << *options_.shift : modelled_ns;
  r.idle_ns = r.guest_ns > busy_ns ? r.guest_ns - busy_ns : 0;
  r.modelled_ns = modelled_ns + r.idle_ns;
  for (int node = 0; node < 2; ++node) r.free_bytes[node] = box->free_bytes[node];
  r.host_seconds = static_cast<double>(box->host_ns[1] - box->host_ns[0]) * 1e-9;
  for (uint32_t i = 0; i < std::min<uint32_t>(box->nr_marks, NEOTIER_MARKS); ++i) {
    const neotier_mark_record& record = box->mark[i];
    if (record.instructions < r.begin.instructions) continue;  // before the region of interest
    Mark mark;
    if (record.kind == 2) {
      char name[9] = {};
      std::memcpy(name, &record.value, 8);
      for (char* c = name; *c; ++c) *c = *c >= ' ' && *c < 127 ? *c : '?';
      mark.name = name;
    } else {
      mark.value = record.value;
    }
    mark.instructions = record.instructions - r.begin.instructions;
    mark.modelled_ns = (record.modelled_ps - r.begin.modelled_ps) / 1000;
    for (int tier = 0; tier < 2; ++tier) mark.fills[tier] = record.fills[tier] - r.begin.fills[tier];
    r.marks.push_back(mark);
  }
  std::istringstream report(std::string(box->report, strnlen(box->report, sizeof box->report)));
  std::string key;
  for (int64_t value; report >> key >> value;) r.guest[key] = value;
  const auto sum = [&](std::span<const MoveCounter> counters) {
    int64_t total = 0;
    for (const MoveCounter& counter : counters) {
      if (auto it = r.guest.find(std::string(counter.key)); it != r.guest.end()) {
        total += counter.bytes ? it->second / 4096 : it->second;
      }
    }
    return static_cast<uint64_t>(std::max<int64_t>(total, 0));
  };
  for (uint32_t i = 0; i < options_.machine.devices; ++i) {
    r.devices.push_back(
        {box->device[1][i].reads - box->device[0][i].reads, box->device[1][i].writes - box->device[0][i].writes});
  }
  r.region = box->region;
  r.promoted_pages = sum(promotion_counters(find_policy(options_.policy)));
  r.demoted_pages = sum(demotion_counters());
  if (options_.timeline || !options_.record.empty()) read_watched(r);
  if (kind_ == Kind::kFigures && tells_pages(options_)) read_pages(r);
  return r;
}

}  // namespace neotier::hil

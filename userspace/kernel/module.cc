// SPDX-License-Identifier: Apache-2.0
#include "kernel/module.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <stdexcept>

#include "kernel/why.h"
#include "neotier_policy.h"
#include "util/prometheus.h"

namespace neotier::kernel {

namespace {

constexpr size_t kMostBytes = 4096;
constexpr uint64_t kNumbers = UINT64_MAX;
constexpr size_t kMostEntries = 16;
constexpr const char* kRange = "start-end";

std::optional<uint64_t> number_of(std::string_view text) {
  int base = 10;
  if (text.starts_with("0x")) {
    base = 16;
    text.remove_prefix(2);
  }
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  size_t at = 0;
  while ((at = text.find_first_not_of(" \t", at)) != std::string::npos) {
    const size_t end = std::min(text.find_first_of(" \t", at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

bool is_device(std::string_view name) {
  if (!name.starts_with("device") || name.size() > 16) return false;
  name.remove_prefix(6);
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "a [b] c": all of them, and the one in brackets.
Value value_of(std::string path, const std::string& text, const Knob* knob) {
  Value value{std::move(path), text, {}, knob};
  for (std::string word : words_of(text)) {
    if (word.size() > 2 && word.front() == '[' && word.back() == ']') {
      word = word.substr(1, word.size() - 2);
      value.text = word;
    }
    value.choices.push_back(std::move(word));
  }
  if (value.text == text) value.choices.clear();
  return value;
}

bool is_number(const std::string& text) { return number_of(text).has_value(); }

bool is_range(const std::string& text) {
  const size_t dash = text.find('-');
  if (dash == std::string::npos) return false;
  const auto first = number_of(std::string_view(text).substr(0, dash));
  const auto last = number_of(std::string_view(text).substr(dash + 1));
  return first && last && *first <= *last;
}

std::vector<std::pair<uint64_t, uint64_t>> histogram_of(const std::string& text) {
  std::vector<std::pair<uint64_t, uint64_t>> bins;
  const std::vector<std::string> words = words_of(text);
  for (size_t i = 0; i + 1 < words.size(); i += 2) {
    bins.emplace_back(number_of(words[i]).value_or(0), number_of(words[i + 1]).value_or(0));
  }
  return bins;
}

}  // namespace

const std::vector<Knob>& knobs() {
  // Names, ranges and units are those of docs/abi/sysfs-kernel-neotier.
  static const std::vector<Knob> table = {
      {"enabled", false, 0, 1, "0 or 1", "devices count, hot pages are promoted"},
      {"dry_run", false, 0, 1, "0 or 1", "everything but the move"},
      {"policy", false, 0, 0, "", "sets the threshold and how many pages to promote"},
      {"quota_mb_per_s", false, 0, 1u << 20, "MiB/s", "most that is promoted in a second"},
      {"period_us", false, 100, 60000000, "us", "between two looks at a device's hotlist"},
      {"decide_interval_ms", false, 1, 60000, "ms", "between two decisions of the policy"},
      {"headroom_pages", false, 0, 2147483647, "pages", "of the target node that promotion leaves free"},
      {"room", false, 0, 0, "", "who makes room on a full target node"},
      {"reserve_pages", false, 0, 1u << 20, "pages", "kept free for pages to be promoted"},
      {"batch", false, 1, 512, "pages", "migrated together"},
      {"promote_huge", false, 0, 2, "0 to 2",
       "0: huge folios stay; 1: those in ZONE_MOVABLE move whole; 2: others too"},
      {"split_huge", false, 0, 1, "0 or 1", "huge folios are split where pages of theirs alone should move"},
      {"page_cache", false, 0, 1, "0 or 1", "pages of files and shared memory move, too"},
      {"confirm_epochs", false, 1, 8, "epochs", "that have to report a page before it is promoted"},
      {"p_start_ppm", false, 1, 1000000, "ppm", "neomem: share of pages called hot, where it starts"},
      {"p_min_ppm", false, 1, 1000000, "ppm", "neomem: its lower bound"},
      {"p_max_ppm", false, 1, 1000000, "ppm", "neomem: its upper bound"},
      {"saved_ns", false, 1, 100000, "ns", "payback: what a request saves on the target node"},
      {"payback_ms", false, 1, 60000, "ms", "payback: a move repays itself within this time"},
      {"loss_ppm", false, 0, 1000000, "ppm",
       "of the time, that promoting and looking may lose at most; 1000000: no bound"},
      {"loss_base_ms", false, 0, 10000, "ms", "that it may lose besides"},
      {"log_interval_s", false, 0, 31 * 24 * 3600, "s",
       "between two lines in the kernel's log that say what was won and lost; 0: none"},
      {"exclude_cgroups", false, 0, kNumbers, "", "ids of cgroups whose pages stay where they are"},
      {"include_cgroups", false, 0, kNumbers, "", "ids of the only cgroups whose pages move; empty: all"},
      {"exclude_pids", false, 0, kNumbers, "", "processes whose pages stay where they are"},
      {"include_pids", false, 0, kNumbers, "", "the only processes whose pages move; empty: all"},
      {"exclude_nodes", false, 0, kNumbers, "", "from and to which nothing moves"},
      {"exclude_ranges", false, 0, kNumbers, kRange, "physical addresses whose pages stay where they are"},
      {"include_ranges", false, 0, kNumbers, kRange, "the only physical addresses whose pages move; empty: all"},
      {"threshold", true, 1, UINT32_MAX, "requests", "within an epoch that make a page hot"},
      {"epoch_us", true, 1, UINT32_MAX, "us", "after which counts start again"},
      {"mode", true, 0, 0, "", "when pages are reported"},
      {"track", true, 0, 0, "", "reads, writes or all"},
      {"downsampling", true, 1, 32768, "a power of 2", "one request in so many is counted"},
      {"random_downsampling", true, 0, 1, "0 or 1", "chosen at random"},
      {"decay_shift", true, 0, 15, "bits", "counts are shifted by, instead of cleared"},
      {"irq", true, 0, 1, "0 or 1", "the device interrupts"},
      {"fill_level", true, 1, 65535, "entries", "of the hotlist that make it interrupt"},
  };
  return table;
}

const Knob* find_knob(std::string_view path) {
  const size_t slash = path.find('/');
  const bool of_device = slash != std::string_view::npos;
  if (of_device && !is_device(path.substr(0, slash))) return nullptr;
  const std::string_view name = of_device ? path.substr(slash + 1) : path;
  for (const Knob& knob : knobs()) {
    if (knob.of_device == of_device && name == knob.name) return &knob;
  }
  return nullptr;
}

std::vector<std::string> known_words(const Knob& knob) {
  const std::string_view name = knob.name;
  if (name == "policy") {
    std::vector<std::string> names;
    for (const neotier_policy* const* policy = neotier_policies; *policy; policy++) names.emplace_back((*policy)->name);
    return names;
  }
  if (name == "room") return {"kswapd", "exchange"};
  if (name == "mode") return {"epoch", "always_on"};
  if (name == "track") return {"reads", "writes", "all"};
  return {};
}

std::string expected_value(const Knob& knob, std::string_view value) {
  if (value.size() > 256 || value.find_first_of("\n\r") != std::string_view::npos) return "one line";
  if (knob.max == kNumbers) {
    const std::vector<std::string> entries = words_of(std::string(value));
    const bool ranges = knob.unit == std::string_view(kRange);
    const bool good =
        entries.size() <= kMostEntries && std::all_of(entries.begin(), entries.end(), ranges ? is_range : is_number);
    return good ? "" : fmt::format("up to {} {}", kMostEntries, ranges ? "ranges of addresses, start-end" : "numbers");
  }
  if (*knob.unit == 0) return value.empty() ? "a word" : "";
  const std::optional<uint64_t> number = number_of(value);
  if (number && *number >= knob.min && *number <= knob.max) return "";
  return fmt::format("a number from {} to {} ({})", knob.min, knob.max, knob.unit);
}

std::optional<std::string> Module::contents(const std::filesystem::path& file) const {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return std::nullopt;
  std::string text(kMostBytes, 0);
  const ssize_t got = ::read(fd, text.data(), text.size());
  close(fd);
  if (got < 0) return std::nullopt;
  text.resize(static_cast<size_t>(got));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
  }
  return text;
}

bool Module::present() const {
  std::error_code error;
  return std::filesystem::is_directory(root_ / "stats", error);
}

std::optional<Snapshot> Module::read() const {
  if (!present()) return std::nullopt;
  Snapshot snapshot;
  snapshot.idle_kswapd = kswapd_gave_up();
  const auto add = [&](std::vector<Value>& to, const std::string& folder, bool of_device) {
    for (const Knob& knob : knobs()) {
      if (knob.of_device != of_device) continue;
      if (const auto text = contents(root_ / folder / knob.name))
        to.push_back(value_of(folder.empty() ? knob.name : folder + "/" + knob.name, *text, &knob));
    }
  };
  add(snapshot.knobs, "", false);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root_ / "stats", error)) {
    const auto text = contents(entry.path());
    const auto number = text ? number_of(*text) : std::nullopt;
    if (number && snapshot.stats.size() < 256) snapshot.stats[entry.path().filename()] = *number;
  }
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(root_, error)) {
    const std::string name = entry.path().filename();
    if (is_device(name) && names.size() < 64) names.push_back(name);
  }
  std::sort(names.begin(), names.end(),
            [](const auto& a, const auto& b) { return a.size() != b.size() ? a.size() < b.size() : a < b; });
  for (const std::string& name : names) {
    Device device;
    device.name = name;
    add(device.knobs, name, true);
    for (const auto& entry : std::filesystem::directory_iterator(root_ / name, error)) {
      const std::string file = entry.path().filename();
      if (find_knob(fmt::format("{}/{}", name, file)) || device.info.size() >= 64) continue;
      const auto text = contents(entry.path());
      if (text && file == "histogram") {
        device.histogram = histogram_of(*text);
      } else if (text) {
        device.info[file] = *text;
      }
    }
    snapshot.devices.push_back(std::move(device));
  }
  return snapshot;
}

std::string Module::get(std::string_view path) const {
  const Knob* knob = find_knob(path);
  const auto text = knob ? contents(root_ / path) : std::nullopt;
  return text ? value_of("", *text, knob).text : "";
}

void Module::set(const std::string& path, const std::string& value) const {
  const Knob* knob = find_knob(path);
  if (!knob) throw std::runtime_error(fmt::format("no knob '{}'; `neotier kernel show` lists them", path));
  if (const std::string expected = expected_value(*knob, value); !expected.empty())
    throw std::runtime_error(fmt::format("{}: expected {}, found '{}'", path, expected, value));
  const std::filesystem::path file = root_ / path;
  if (!present())
    throw std::runtime_error(fmt::format("neotier.ko is not loaded ({} is not there); {}", root_.string(), kHowToLoad));
  const int fd = open(file.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_TRUNC);
  if (fd < 0) {
    const int error = errno;
    throw std::runtime_error(fmt::format("{}: {}{}", file.string(), std::strerror(error),
                                         error == EACCES || error == EPERM ? "; be root" : ""));
  }
  const std::string line = value + "\n";
  const ssize_t put = write(fd, line.data(), line.size());
  const int error = errno;
  close(fd);
  if (put == static_cast<ssize_t>(line.size())) return;
  const auto now = value_of("", contents(file).value_or(""), knob);
  throw std::runtime_error(
      fmt::format("{}: the module refuses '{}' ({}){}", file.string(), value, std::strerror(error),
                  now.choices.empty() ? "" : fmt::format("; there are: {}", fmt::join(now.choices, ", "))));
}

std::string prometheus_text(const Snapshot& snapshot) {
  PrometheusText text;
  for (const auto& [name, value] : snapshot.stats) {
    text.one("kernel_" + name + "_total", "counter", "stats/" + name + " of neotier.ko", value);
  }
  const auto per_device = [&](const std::string& name, const auto& get) {
    bool first = true;
    for (const Device& device : snapshot.devices) {
      const std::optional<uint64_t> number = get(device);
      if (!number) continue;
      if (first) text.head("kernel_" + name, "gauge", "device<n>/" + name + " of neotier.ko");
      first = false;
      text.value("kernel_" + name, fmt::format("device=\"{}\"", device.name), *number);
    }
  };
  for (const char* name : {"error_bound", "occupancy", "hot_units", "hotlist_size"}) {
    per_device(name, [&](const Device& device) {
      const auto it = device.info.find(name);
      return it == device.info.end() ? std::nullopt : number_of(it->second);
    });
  }
  per_device("threshold", [&](const Device& device) -> std::optional<uint64_t> {
    for (const Value& value : device.knobs) {
      if (value.path.ends_with("/threshold")) return number_of(value.text);
    }
    return std::nullopt;
  });
  for (const Value& value : snapshot.knobs) {
    if (const auto number = value.knob->unit[0] ? number_of(value.text) : std::nullopt)
      text.one("kernel_" + value.path, "gauge", value.knob->help, *number);
  }
  return text.take();
}

}  // namespace neotier::kernel

// SPDX-License-Identifier: Apache-2.0
// neotier.ko as userspace sees it: the only file that knows its sysfs paths. docs/abi/sysfs-kernel-neotier defines
// them.
//
// What a file says is untrusted text: at most 4 KiB of it is read and control characters are dropped. Thread safety:
// all calls from any thread; the module may go at any moment, then things read as absent.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace neotier::kernel {

inline constexpr const char* kSysfsRoot = "/sys/kernel/neotier";
// How it is loaded, as part of a sentence.
inline constexpr const char* kHowToLoad =
    "as root: modprobe neotier (package neotier-dkms), or insmod build/kmod/neotier.ko (after `make build`)";

// A file that can be written.
struct Knob {
  const char* name;
  bool of_device;     // in each device<n>/
  uint64_t min, max;  // where it is a number
  const char* unit;   // empty: a word, or a list
  const char* help;
};

const std::vector<Knob>& knobs();
// "quota_mb_per_s", "device0/threshold". NULL: none of that name.
const Knob* find_knob(std::string_view path);
// The words that a knob of this build's module takes; empty: it takes a number or a list.
std::vector<std::string> known_words(const Knob& knob);
// What is wrong with the value, as "a number 0 to 1"; empty: nothing that can be seen from here.
std::string expected_value(const Knob& knob, std::string_view value);

struct Value {
  std::string path;  // below the root
  std::string text;  // one line; of a choice, what is in force
  std::vector<std::string> choices;
  const Knob* knob = nullptr;
};

struct Device {
  std::string name;  // device0
  std::vector<Value> knobs;
  std::map<std::string, std::string> info;  // the files that are only read, without the histogram
  std::vector<std::pair<uint64_t, uint64_t>> histogram;
};

struct Snapshot {
  std::vector<Value> knobs;
  std::vector<Device> devices;
  std::map<std::string, uint64_t> stats;
  std::set<int> idle_kswapd;  // nodes, of the machine: kernel/why.h
};

class Module {
 public:
  explicit Module(std::filesystem::path root = kSysfsRoot) : root_(std::move(root)) {}
  bool present() const;
  // Nothing while the module is not loaded.
  std::optional<Snapshot> read() const;
  // One knob, "" while it is not there.
  std::string get(std::string_view path) const;
  // Throws std::runtime_error with one line: no such knob, out of range, not permitted, refused by the module.
  void set(const std::string& path, const std::string& value) const;
  const std::filesystem::path& root() const { return root_; }

 private:
  std::optional<std::string> contents(const std::filesystem::path& file) const;
  std::filesystem::path root_;
};

// All counters, and what each device says in numbers, in Prometheus' text format.
std::string prometheus_text(const Snapshot& snapshot);

}  // namespace neotier::kernel

// SPDX-License-Identifier: Apache-2.0
#include "hil/checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <stdexcept>
#include <string_view>

#include "hil/policy.h"
#include "kernel/module.h"
#include "util/host_memory.h"
#include "util/known.h"
#include "util/size.h"

namespace neotier::hil {

namespace {

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  throw std::runtime_error(fmt::format(text, std::forward<Args>(args)...));
}

void check_knob(const std::string& setting, uint32_t devices) {
  const size_t equals = setting.find('=');
  if (equals == std::string::npos || equals == 0)
    refuse("--knob '{}': expected KEY=VALUE, a file of /sys/kernel/neotier", setting);
  const std::string key = setting.substr(0, equals), value = setting.substr(equals + 1);
  const kernel::Knob* knob = kernel::find_knob(key);
  if (!knob) {
    std::vector<std::string> known;
    for (const kernel::Knob& k : kernel::knobs())
      known.push_back(k.of_device ? fmt::format("device0/{}", k.name) : k.name);
    refuse("--knob '{}': {}", setting, no_such("knob", key, known));
  }
  if (knob->of_device) {
    uint32_t device = 0;
    const std::string_view number = std::string_view(key).substr(6, key.find('/') - 6);
    (void)std::from_chars(number.data(), number.data() + number.size(), device);
    if (device >= devices)
      refuse("--knob '{}': this machine has {} device{}, the last is device{}", setting, devices,
             devices == 1 ? "" : "s", devices - 1);
  }
  const std::vector<std::string> words = kernel::known_words(*knob);
  if (!words.empty() && std::find(words.begin(), words.end(), value) == words.end())
    refuse("--knob '{}': {}", setting, no_such(knob->name, value, words));
  if (const std::string expected = kernel::expected_value(*knob, value); !expected.empty())
    refuse("--knob '{}': expected {}", setting, expected);
}

}  // namespace

void check_knobs(const RunOptions& options, const std::vector<std::string>& policies) {
  if (options.knobs.empty()) return;
  for (const std::string& knob : options.knobs) check_knob(knob, options.machine.devices);
  if (std::none_of(policies.begin(), policies.end(), [](const std::string& name) { return find_policy(name).module; }))
    refuse("--knob '{}': without effect, policy {} does not load neotier.ko", options.knobs.front(),
           fmt::join(policies, ", "));
}

void check_sysctls(const RunOptions& options) {
  static constexpr std::array<std::string_view, 8> kTrees = {"abi",    "debug", "dev",  "fs",
                                                             "kernel", "net",   "user", "vm"};
  for (const std::string& sysctl : options.sysctls) {
    (void)sysctl_setting(sysctl);
    const std::string name = sysctl.substr(0, sysctl.find('='));
    const std::string tree = name.substr(0, name.find_first_of("./"));
    if (std::find(kTrees.begin(), kTrees.end(), tree) == kTrees.end() || tree.size() + 1 >= name.size())
      refuse("--sysctl '{}': no sysctl '{}'; their names begin with {}.", sysctl, name, fmt::join(kTrees, "., "));
    if (sysctl.back() == '=') refuse("--sysctl '{}': a value is missing", sysctl);
    if (sysctl.find('\n') != std::string::npos) refuse("--sysctl '{}': a value is one line", name);
  }
}

void check_memory(const RunOptions& options, uint64_t machines) {
  const uint64_t all = host_memory_bytes(), one = options.dram_bytes + options.cxl_bytes;
  if (one > all)
    refuse("--dram {} and --cxl {}: this machine has {} of memory in all", format_size(options.dram_bytes),
           format_size(options.cxl_bytes), format_size(all));
  if (one > all / machines)
    refuse("--jobs {}: so many machines of {} do not fit into this machine's {} of memory; --jobs {} do", machines,
           format_size(one), format_size(all), all / one);
}

}  // namespace neotier::hil

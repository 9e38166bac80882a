// SPDX-License-Identifier: Apache-2.0
// neotier kernel show | get | set
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/top/figures.h"
#include "kernel/module.h"
#include "util/json.h"
#include "util/known.h"
#include "util/output_file.h"

namespace neotier::cli {

namespace {

struct Arguments {
  std::string sysfs = kernel::kSysfsRoot;
  std::string json, knob, value;
};

void print_knobs(const std::vector<kernel::Value>& values) {
  for (const kernel::Value& v : values) {
    fmt::print("{:<28} {:<12} {:<12} {}{}\n", v.path, v.text, v.knob->unit, v.knob->help,
               v.choices.empty() ? "" : fmt::format(" ({})", fmt::join(v.choices, ", ")));
  }
}

[[noreturn]] void refuse_absent(const Arguments& a) {
  throw std::runtime_error(
      fmt::format("neotier.ko is not loaded ({} is not there); {}. `neotier kernel knobs` lists its knobs without it",
                  a.sysfs, kernel::kHowToLoad));
}

// What a knob takes: a range, or the words that the policies and rooms of this build have.
std::string taken(const kernel::Knob& knob) {
  std::string unit = knob.unit;
  const std::vector<std::string> words = kernel::known_words(knob);
  if (!words.empty()) return fmt::format("{}", fmt::join(words, ", "));
  if (unit.empty() || unit == "start-end") return fmt::format("a list{}", unit.empty() ? "" : " of " + unit);
  if (std::isdigit(static_cast<unsigned char>(unit[0]))) return unit;  // "0 or 1"
  return fmt::format("{} to {} {}", knob.min, knob.max, unit);
}

// Without the module: what this build knows of it.
int knobs_command(const Arguments& a) {
  OutputFile out("--json", a.json);
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const kernel::Knob& knob : kernel::knobs()) {
    const std::string name = fmt::format("{}{}", knob.of_device ? "deviceN/" : "", knob.name);
    list.push_back({{"name", name}, {"takes", taken(knob)}, {"text", knob.help}});
    if (!out) fmt::print("{:<28} {}\n{:<28} {}\n", name, taken(knob), "", knob.help);
  }
  if (out) out.finish(pretty(list));
  return 0;
}

const kernel::Knob& knob_of(const std::string& path) {
  if (const kernel::Knob* knob = kernel::find_knob(path)) return *knob;
  std::vector<std::string> names;
  const size_t slash = path.find('/');
  for (const kernel::Knob& knob : kernel::knobs())
    names.push_back(knob.of_device ? (slash == std::string::npos ? "device0" : path.substr(0, slash)) + "/" + knob.name
                                   : std::string(knob.name));
  const std::string meant = nearest(path, names);
  throw std::runtime_error(fmt::format("no knob '{}'; {}`neotier kernel knobs` lists them", path,
                                       meant.empty() ? "" : fmt::format("did you mean '{}'? ", meant)));
}

int show_command(const Arguments& a) {
  OutputFile out("--json", a.json);
  const auto snapshot = kernel::Module(a.sysfs).read();
  if (!snapshot) refuse_absent(a);
  if (out) {
    top::Sample sample;
    sample.kernel = snapshot;
    out.finish(pretty(top::to_json(top::make_figures({}, sample), "")["kernel"]));
    return 0;
  }
  print_knobs(snapshot->knobs);
  for (const kernel::Device& device : snapshot->devices) {
    print_knobs(device.knobs);
    for (const auto& [name, text] : device.info) fmt::print("{:<28} {}\n", device.name + "/" + name, text);
  }
  for (const auto& [name, value] : snapshot->stats) fmt::print("{:<28} {}\n", "stats/" + name, value);
  return 0;
}

int get_command(const Arguments& a) {
  const kernel::Module module(a.sysfs);
  knob_of(a.knob);
  if (!module.present()) refuse_absent(a);
  const std::string value = module.get(a.knob);
  if (value.empty() && a.knob.find('/') != std::string::npos)
    throw std::runtime_error(fmt::format("{}: no such device; `neotier kernel show` lists them", a.knob));
  fmt::print("{}\n", value);
  return 0;
}

int set_command(const Arguments& a) {
  const kernel::Module module(a.sysfs);
  const kernel::Knob& knob = knob_of(a.knob);
  if (const auto words = kernel::known_words(knob); !words.empty() && std::ranges::find(words, a.value) == words.end())
    throw std::runtime_error(fmt::format("{}: {}", a.knob, no_such("value", a.value, words)));
  const std::string before = module.get(a.knob);
  module.set(a.knob, a.value);
  fmt::print("{}: {} (was {})\n", a.knob, module.get(a.knob), before);
  return 0;
}

}  // namespace

void add_kernel(CLI::App& app, int& status) {
  auto a = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("kernel", "Show and tune neotier.ko, the kernel module");
  command->group(kMachine);
  command->footer("examples:\n  neotier kernel knobs\n  neotier kernel set quota_mb_per_s 256");
  command->add_option("--sysfs", a->sysfs, "The module's folder")->capture_default_str()->type_name("FOLDER");
  CLI::App* knobs = command->add_subcommand("knobs", "Print every knob and what it takes; needs no module");
  knobs->footer("example:\n  neotier kernel knobs");
  add_json(*knobs, a->json);
  knobs->callback([a, &status] { status = knobs_command(*a); });
  CLI::App* show = command->add_subcommand("show", "Print the knobs, devices and counters of the loaded module");
  show->footer("examples:\n  neotier kernel show\n  neotier kernel show --json -");
  add_json(*show, a->json);
  show->callback([a, &status] { status = show_command(*a); });
  CLI::App* get = command->add_subcommand("get", "Print the value of a knob");
  get->footer("example:\n  neotier kernel get device0/threshold");
  get->add_option("KNOB", a->knob, "The knob, as `neotier kernel knobs` names it; of a device device0/NAME")
      ->required();
  get->callback([a, &status] { status = get_command(*a); });
  CLI::App* set = command->add_subcommand("set", "Change a knob; needs root");
  set->footer("examples:\n  neotier kernel set quota_mb_per_s 256\n  neotier kernel set device0/threshold 20");
  set->add_option("KNOB", a->knob, "The knob, as `neotier kernel knobs` names it; of a device device0/NAME")
      ->required();
  set->add_option("VALUE", a->value, "A number, or one of the words that the knob takes")->required();
  set->callback([a, &status] { status = set_command(*a); });
}

}  // namespace neotier::cli

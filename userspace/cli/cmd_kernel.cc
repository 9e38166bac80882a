// SPDX-License-Identifier: Apache-2.0
// neotier kernel knobs | show | why | get | set
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/top/figures.h"
#include "kernel/module.h"
#include "kernel/why.h"
#include "util/json.h"
#include "util/known.h"
#include "util/output_file.h"

namespace neotier::cli {

namespace {

struct Arguments {
  std::string sysfs = kernel::kSysfsRoot;
  std::string json, knob, value;
  double seconds = 2;
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

int why_command(const Arguments& a) {
  OutputFile out("--json", a.json);
  const kernel::Module module(a.sysfs);
  const auto before = module.read();
  if (!before) refuse_absent(a);
  std::this_thread::sleep_for(std::chrono::duration<double>(a.seconds));
  const auto now = module.read();
  if (!now) throw std::runtime_error("neotier.ko was unloaded meanwhile");
  const kernel::Why why = kernel::why(*before, *now, a.seconds);
  if (out) {
    nlohmann::ordered_json json = {{"seconds", a.seconds}};
    json.update(kernel::to_json(why));
    out.finish(pretty(json));
    return 0;
  }
  fmt::print("{}\n", why.summary);
  if (!why.hint.empty()) fmt::print("Try: {}\n", why.hint);
  if (!why.causes.empty()) fmt::print("\nOf what was reported as hot in {:g} s did not move, or not yet:\n", a.seconds);
  for (const kernel::Cause& cause : why.causes) {
    fmt::print("{:>10}  {} ({})\n", cause.reports, cause.text, cause.counter);
    if (!cause.hint.empty() && cause.hint != why.hint) fmt::print("{:>10}  {}\n", "", cause.hint);
  }
  return 0;
}

}  // namespace

void add_kernel(CLI::App& app, int& status) {
  auto a = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("kernel", "Show and tune neotier.ko, the kernel module");
  command->group(kMachine);
  command->footer("examples:\n  neotier kernel knobs\n  neotier kernel why\n  neotier kernel set quota_mb_per_s 256");
  command->add_option("--sysfs", a->sysfs, "The module's folder")->capture_default_str()->type_name("FOLDER");
  CLI::App* knobs = command->add_subcommand("knobs", "Print every knob and what it takes; needs no module");
  knobs->footer("example:\n  neotier kernel knobs");
  add_json(*knobs, a->json);
  knobs->callback([a, &status] { status = knobs_command(*a); });
  CLI::App* show = command->add_subcommand("show", "Print the knobs, devices and counters of the loaded module");
  show->footer("examples:\n  neotier kernel show\n  neotier kernel show --json -");
  add_json(*show, a->json);
  show->callback([a, &status] { status = show_command(*a); });
  CLI::App* reasons =
      command->add_subcommand("why", "Say why pages move, or do not: what the counters did for a while");
  reasons->footer("examples:\n  neotier kernel why\n  neotier kernel why --seconds 60 --json -");
  reasons->add_option("--seconds", a->seconds, "How long to look")
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
  add_json(*reasons, a->json);
  reasons->callback([a, &status] { status = why_command(*a); });
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

// SPDX-License-Identifier: Apache-2.0
// neotier kernel show | get | set
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

#include "cli/commands.h"
#include "cli/top/figures.h"
#include "kernel/module.h"
#include "util/json.h"

namespace neotier::cli {

namespace {

struct Arguments {
  std::string sysfs = kernel::kSysfsRoot;
  bool json = false;
  std::string knob, value;
};

void print_knobs(const std::vector<kernel::Value>& values) {
  for (const kernel::Value& v : values) {
    fmt::print("{:<28} {:<12} {:<12} {}{}\n", v.path, v.text, v.knob->unit, v.knob->help,
               v.choices.empty() ? "" : fmt::format(" ({})", fmt::join(v.choices, ", ")));
  }
}

int show_command(const Arguments& a) {
  const auto snapshot = kernel::Module(a.sysfs).read();
  if (!snapshot)
    throw std::runtime_error(
        fmt::format("neotier.ko is not loaded ({} is not there); insmod build/kmod/neotier.ko", a.sysfs));
  if (a.json) {
    top::Sample sample;
    sample.kernel = snapshot;
    std::fputs(pretty(top::to_json(top::make_figures({}, sample), "")["kernel"]).c_str(), stdout);
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
  if (!kernel::find_knob(a.knob))
    throw std::runtime_error(fmt::format("no knob '{}'; `neotier kernel show` lists them", a.knob));
  if (!module.present())
    throw std::runtime_error(
        fmt::format("neotier.ko is not loaded ({} is not there); insmod build/kmod/neotier.ko", a.sysfs));
  const std::string value = module.get(a.knob);
  if (value.empty() && a.knob.find('/') != std::string::npos)
    throw std::runtime_error(fmt::format("{}: no such device; `neotier kernel show` lists them", a.knob));
  fmt::print("{}\n", value);
  return 0;
}

int set_command(const Arguments& a) {
  const kernel::Module module(a.sysfs);
  const std::string before = module.get(a.knob);
  module.set(a.knob, a.value);
  fmt::print("{}: {} (was {})\n", a.knob, module.get(a.knob), before);
  return 0;
}

}  // namespace

void add_kernel(CLI::App& app, int& status) {
  auto a = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("kernel", "what neotier.ko does, and its knobs");
  command->require_subcommand(1);
  command->add_option("--sysfs", a->sysfs, "the module's folder")->capture_default_str();
  CLI::App* show = command->add_subcommand("show", "knobs, devices and counters");
  show->footer("examples:\n  neotier kernel show\n  neotier kernel show --json");
  show->add_flag("--json", a->json, "as JSON");
  show->callback([a, &status] { status = show_command(*a); });
  CLI::App* get = command->add_subcommand("get", "prints the value of a knob");
  get->footer("example:\n  neotier kernel get device0/threshold");
  get->add_option("KNOB", a->knob, "as `neotier kernel show` names it")->required();
  get->callback([a, &status] { status = get_command(*a); });
  CLI::App* set = command->add_subcommand("set", "changes a knob; needs root");
  set->footer("examples:\n  neotier kernel set quota_mb_per_s 256\n  neotier kernel set device0/threshold 20");
  set->add_option("KNOB", a->knob, "as `neotier kernel show` names it")->required();
  set->add_option("VALUE", a->value, "a number, or a word")->required();
  set->callback([a, &status] { status = set_command(*a); });
}

}  // namespace neotier::cli

// SPDX-License-Identifier: Apache-2.0
// neotier replay
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/words.h"
#include "replay/pages/recording.h"
#include "replay/pages/replay.h"
#include "util/cpu_clock.h"
#include "util/json.h"
#include "util/output_file.h"
#include "util/parallel.h"

namespace neotier::cli {

namespace {

struct Arguments {
  std::string file;
  std::vector<std::string> policies = {"none", "placebo", "neotier"};
  std::vector<std::string> params;
  std::string law = "payback", tracker = "device", json;
  unsigned threads = 0;
};

struct Run {
  pages::Job job;
  pages::Result result;
  double cpu_seconds = 0;
};

void print(const pages::Recording& recording, const std::vector<Run>& runs) {
  using trace::Field;
  const double recorded = static_cast<double>(recording.field(Field::kEndModelledNs));
  const uint64_t fills = recording.fills[0] + recording.fills[1];
  fmt::print("recorded: {:.3f} modelled s, {} fills, {} pages\n", recorded / 1e9, fills, recording.pages.size());
  fmt::print("{:<11} {:>10} {:>9} {:>12} {:>12} {:>9} {:>9} {:>9} {:>8} {:>10}\n", "policy", "modelled s", "speed-up",
             "DRAM misses", "CXL misses", "promoted", "demoted", "reports", "kernel %", "M fills/s");
  for (const Run& run : runs) {
    const pages::Result& r = run.result;
    const double ns = static_cast<double>(r.modelled_ns);
    fmt::print("{:<11} {:>10.3f} {:>8.3f}x {:>12} {:>12} {:>9} {:>9} {:>9} {:>8.2f} {:>10.1f}\n", run.job.policy,
               ns / 1e9, recorded / ns, r.fills[0], r.fills[1], r.promoted, r.demoted, r.reports,
               100 * static_cast<double>(r.kernel_ns) / ns, static_cast<double>(fills) / 1e6 / run.cpu_seconds);
  }
}

int replay(Arguments a) {
  OutputFile json("--json", a.json);
  std::vector<Run> runs;
  for (const std::string& policy : a.policies) {
    Run run;
    run.job.policy = policy;
    run.job.law = a.law;
    run.job.tracker = a.tracker;
    for (const std::string& param : a.params) pages::set_param(run.job.params, param);
    pages::check(run.job);
    runs.push_back(run);
  }
  const pages::Recording recording = pages::read_recording(a.file);
  parallel_for(runs.size(), a.threads != 0 ? a.threads : std::max(1u, std::thread::hardware_concurrency()),
               [&](size_t i) {
                 const double start = cpu_seconds();
                 runs[i].result = pages::replay(recording, runs[i].job);
                 runs[i].cpu_seconds = cpu_seconds() - start;
               });
  print(recording, runs);
  if (json) {
    nlohmann::ordered_json all;
    all["recording"] = {{"file", a.file},
                        {"modelled_ns", recording.field(trace::Field::kEndModelledNs)},
                        {"llc_misses", {{"dram", recording.fills[0]}, {"cxl", recording.fills[1]}}},
                        {"pages", recording.pages.size()}};
    for (const Run& run : runs) all["runs"].push_back(pages::to_json(run.job, run.result));
    json.finish(pretty(all));
  }
  return 0;
}

std::vector<std::string> param_names() {
  std::vector<std::string> names;
  for (const pages::ParamInfo& info : pages::param_table()) names.emplace_back(info.name);
  return names;
}

std::string footer() {
  std::string text =
      "examples:\n"
      "  neotier hil record --timed --policy none --shift 1 --dram 96M --cxl 192M -o gups.rec.zst -- build/bin/gups "
      "--table 240 --hot 32 --updates 20000000\n"
      "  neotier replay gups.rec.zst --policy none,placebo,neotier --json replay.json\n"
      "  neotier replay gups.rec.zst --policy neotier --tracker exact --param payback_ms=200\n\npolicies:\n";
  for (const pages::PolicyInfo& policy : pages::policies())
    text += fmt::format("  {:<9} {}\n", policy.name, policy.text);
  text += "\nparameters (--param NAME=VALUE), with their defaults:\n";
  const pages::Params defaults;
  for (const pages::ParamInfo& info : pages::param_table()) {
    const uint64_t value = defaults.*info.field;
    text += fmt::format("  {:<21} {:>9}  {}\n", info.name,
                        value == pages::kOfMachine ? "recorded" : std::to_string(value), info.text);
  }
  return text;
}

}  // namespace

void add_replay(CLI::App& app, int& status) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* replay_command =
      app.add_subcommand("replay", "Place the pages of a recording by the module's own decisions");
  replay_command->group(kServer);
  std::vector<std::string> policies;
  for (const pages::PolicyInfo& policy : pages::policies()) policies.emplace_back(policy.name);
  replay_command->footer(footer());
  replay_command->add_option("RECORDING", arguments->file, "A recording of `neotier hil record --timed --policy none`")
      ->required();
  replay_command->add_option("--policy", arguments->policies, "Policies, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(one_of("policy", policies))
      ->capture_default_str();
  replay_command
      ->add_option("--law", arguments->law,
                   "Promotion law of neotier and placebo: payback, fixed, neomem, or a shared library")
      ->capture_default_str();
  replay_command
      ->add_option("--tracker", arguments->tracker,
                   "What counts: device (the profiler's golden model), exact (each page), or pebs (one request in 199)")
      ->check(one_of("tracker", {"device", "exact", "pebs"}))
      ->capture_default_str();
  replay_command->add_option("--param", arguments->params, "A parameter, of those below. May be repeated")
      ->allow_extra_args(false)
      ->type_name("NAME=VALUE")
      ->check(one_of_keys("parameter", param_names()));
  replay_command->add_option("--threads", arguments->threads, "Policies to replay at a time; 0: as many as processors")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  add_json(*replay_command, arguments->json);
  replay_command->callback([arguments, &status] { status = replay(*arguments); });
}

}  // namespace neotier::cli

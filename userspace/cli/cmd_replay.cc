// SPDX-License-Identifier: Apache-2.0
// neotier replay
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/words.h"
#include "replay/pages/extend.h"
#include "replay/pages/recording.h"
#include "replay/pages/replay.h"
#include "util/cpu_clock.h"
#include "util/json.h"
#include "util/output_file.h"
#include "util/parallel.h"
#include "util/progress.h"
#include "util/size.h"

namespace neotier::cli {

namespace {

struct Arguments {
  std::string file;
  std::vector<std::string> policies = {"none", "placebo", "neotier"};
  std::vector<std::string> params, sizes;
  std::string law = "payback", tracker = "device", json, page;
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

void print(const std::vector<pages::Size>& sizes) {
  fmt::print("{:<10} {:>7} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>9} {:>10}\n", "CXL memory", "devices",
             "M requests", "hot pages", "threshold", "ring full", "unread", "seen used", "CPU", "wrong", "M/s");
  for (const pages::Size& s : sizes) {
    const pages::Audit& audit = s.result.extended.audit;
    fmt::print("{:<10} {:>7} {:>10.1f} {:>9} {:>9} {:>7.2f} % {:>7.1f} % {:>7.1f} % {:>5.2f} % {:>7.1f} % {:>8.1f}\n",
               format_size(s.bytes), s.devices, static_cast<double>(audit.requests) / 1e6,
               audit.hot / std::max<uint64_t>(1, audit.epochs), s.result.threshold, 100 * s.ring_lost(),
               100 * s.unread(), 100 * s.seen_used(), 100 * s.cpu_used(), 100 * s.wrong(),
               static_cast<double>(audit.requests) / 1e6 / s.cpu_seconds);
  }
  fmt::print("Of one device, but CPU, which is of all. Hot pages: in an epoch, by exact counts.\n");
  for (const pages::Full& limit : pages::limits()) {
    const auto full =
        std::find_if(sizes.begin(), sizes.end(), [&](const pages::Size& s) { return limit.share(s) > limit.most; });
    fmt::print("{} ({}): {}\n", limit.what, limit.limit,
               full == sizes.end() ? "at none of these sizes" : "from " + format_size(full->bytes));
  }
}

int extend(const Arguments& a) {
  OutputFile json("--json", a.json), page("--output", a.page);
  pages::Job job;
  job.policy = "placebo";
  job.law = a.law;
  job.tracker = a.tracker;
  // With a bound the module would look less where nothing is won, and nothing is here.
  job.params.loss_ppm = NEOTIER_LEDGER_NO_BOUND;
  for (const std::string& param : a.params) pages::set_param(job.params, param);
  pages::check(job);
  std::set<uint64_t> bytes;
  for (const std::string& size : a.sizes) bytes.insert(parse_size(size));
  const pages::Recording recording = pages::read_recording(a.file);
  std::vector<pages::Size> sizes;
  for (const uint64_t size : bytes) {
    sizes.push_back(pages::plan_size(recording, size));
    // With one tenant there is nothing to extend, and nothing is counted.
    if (sizes.back().tenants < 2)
      throw std::runtime_error(fmt::format("--extend {}: expected more than was recorded", format_size(size)));
  }
  Progress progress;
  const auto start = std::chrono::steady_clock::now();
  pages::extend(
      recording, job, sizes, a.threads != 0 ? a.threads : std::max(1u, std::thread::hardware_concurrency()),
      [&](size_t done, size_t all) {
        const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
        progress.show(fmt::format("{} of {} sizes, about {:.0f} s left", done, all,
                                  passed.count() * static_cast<double>(all - done) / static_cast<double>(done)));
      });
  progress.clear();
  print(sizes);
  if (json) {
    nlohmann::ordered_json all;
    all["recording"] = a.file;
    for (const pages::Size& size : sizes) all["sizes"].push_back(pages::to_json(size));
    json.finish(pretty(all));
  }
  if (page) page.finish(pages::make_page(std::filesystem::path(a.file).filename(), sizes));
  return 0;
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
      "  neotier replay gups.rec.zst --policy neotier --tracker exact --param payback_ms=200\n"
      "  neotier replay gups.rec.zst --extend 1G,16G,64G,1024G -o sizes.html\n\npolicies:\n";
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
  CLI::Option* policy = replay_command->add_option("--policy", arguments->policies, "Policies, separated by commas")
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
  CLI::Option* extended =
      replay_command
          ->add_option(
              "--extend", arguments->sizes,
              "Sizes of CXL memory, filled with programs like the recorded one: what of profiler and module is "
              "full first. Nothing is moved")
          ->delimiter(',')
          ->type_name("SIZE,SIZE")
          ->allow_extra_args(false);
  extended->excludes(policy);
  add_output(*replay_command, arguments->page, "With --extend: the HTML page with plots to write")->needs(extended);
  add_json(*replay_command, arguments->json);
  replay_command->callback(
      [arguments, &status] { status = arguments->sizes.empty() ? replay(*arguments) : extend(*arguments); });
}

}  // namespace neotier::cli

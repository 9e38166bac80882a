// SPDX-License-Identifier: Apache-2.0
// neotier status | tiers
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/help.h"
#include "engine/engine.h"
#include "engine/metrics.h"
#include "engine/tiers/make_tiers.h"
#include "engine/tiers/scratch_tiers.h"
#include "util/interrupt.h"
#include "util/json.h"
#include "util/output_file.h"
#include "util/size.h"

namespace neotier::cli {

namespace {

struct Arguments {
  std::string tiers, json;
  uint64_t max_objects = 1 << 20;
  bool prometheus = false;
};

engine::EngineStatus open_and_ask(const Arguments& arguments) {
  catch_interrupts();  // so that a file made for the measurement goes
  engine::EngineConfig config;
  config.max_objects = arguments.max_objects;
  const engine::ScratchTiers tiers(arguments.tiers);
  const auto say = [](const std::string& line) { note(line + "; it goes again"); };
  engine::Engine opened(config, engine::make_tiers(tiers.text(), say));
  throw_if_interrupted();
  return opened.status();
}

std::string speed(double bytes_per_s) { return fmt::format("{:.2f} GB/s", bytes_per_s * 1e-9); }

int tiers_command(const Arguments& arguments) {
  OutputFile out("--json", arguments.json);
  const engine::EngineStatus status = open_and_ask(arguments);
  if (out) {
    nlohmann::ordered_json json;
    json["tiers"] = engine::to_json(status)["tiers"];
    json["links"] = engine::to_json(status)["links"];
    out.finish(pretty(json));
    return 0;
  }
  fmt::print("{:<12} {:<9} {:>10} {:>10} {:>9} {:>12} {:>12} {:>10} {:>10}  {}\n", "tier", "kind", "capacity", "used",
             "objects", "read", "write", "read us", "write us", "policy");
  for (const engine::TierStatus& t : status.tiers) {
    fmt::print("{:<12} {:<9} {:>10} {:>10} {:>9} {:>12} {:>12} {:>10.1f} {:>10.1f}  {}{}{}\n", t.info.name,
               engine::to_string(t.info.kind), format_size(t.info.capacity_bytes), format_size(t.usage.used_bytes),
               t.objects, speed(t.read_bytes_per_s), speed(t.write_bytes_per_s), t.read_latency_ns * 1e-3,
               t.write_latency_ns * 1e-3, t.policy, t.info.stand_in ? ", a stand-in" : "",
               t.in_service ? "" : ", out of service");
  }
  fmt::print(
      "from and to the caller's memory, by probes of 4 KiB and 1 MiB just now; `neotier bench tiers` measures\n");
  return 0;
}

int status_command(const Arguments& arguments) {
  OutputFile out("--json", arguments.json);
  const engine::EngineStatus status = open_and_ask(arguments);
  if (out) {
    out.finish(pretty(engine::to_json(status)));
  } else if (arguments.prometheus) {
    std::fputs(engine::prometheus_text(status).c_str(), stdout);
  } else {
    for (const engine::TierStatus& t : status.tiers) {
      fmt::print("{:<12} {}{}: {} of {} used, {} objects, policy {}\n", t.info.name,
                 t.in_service ? "in service" : "out of service", t.info.stand_in ? ", a stand-in" : "",
                 format_size(t.usage.used_bytes), format_size(t.info.capacity_bytes), t.objects, t.policy);
      for (const engine::NodeBytes& n : t.nodes)
        fmt::print("{:<12} about {} of it on node {}\n", "", format_size(n.bytes), n.node);
    }
    fmt::print("objects: {} of {}; {:.0f} bytes of index and policies each when full\n", status.objects,
               status.max_objects, status.overhead_bytes_per_object);
    for (const engine::LinkStatus& l : status.links) {
      fmt::print("link {} to {}: {:.1f} us, {}\n", l.from, l.to, l.latency_ns * 1e-3, speed(l.bytes_per_s));
    }
  }
  return 0;
}

void add_options(CLI::App& command, Arguments& a) {
  command.add_option("--tiers", a.tiers, "Tiers of gpu, dram, cxl, ssd, the fastest first, separated by commas")
      ->type_name("KIND=SIZE[:OPTION=VALUE...],...")
      ->required();
  command.add_option("--max-objects", a.max_objects, "Objects that the index has room for")
      ->capture_default_str()
      ->check(CLI::Range(uint64_t{1}, uint64_t{UINT32_MAX} - 1));
  add_json(command, a.json);
}

}  // namespace

void add_engine(CLI::App& app, int& status) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* tiers =
      app.add_subcommand("tiers", "Print the tiers that a configuration makes on this machine, and their speed");
  tiers->group(kMachine);
  tiers->footer(
      "examples:\n  neotier tiers --tiers dram=1G,cxl=4G\n  neotier tiers --tiers "
      "dram=64M,ssd=1G:file=kv.tier --json "
      "-\nOptions of a tier: file=PATH (ssd), node=N (dram, cxl), device=N (gpu), huge=no|transparent|explicit, "
      "mode=bind|kernel (cxl), "
      "url=[redis://HOST:PORT], password_file=PATH, namespace=WORDS and others (remote), "
      "policy=NAME, object=SIZE, background=SIZE, promote=yes|no. NAME/KIND=SIZE names a tier.");
  add_options(*tiers, *arguments);
  tiers->callback([arguments, &status] { status = tiers_command(*arguments); });

  CLI::App* state =
      app.add_subcommand("status", "Print an engine over these tiers: what it holds, its links, its counters");
  state->group(kMachine);
  state->footer(
      "examples:\n  neotier status --tiers dram=1G,ssd=1G:file=kv.tier\n  neotier status --tiers dram=1G "
      "--prometheus\nA program that runs has its own: neotier_metrics() of neotier.h.");
  add_options(*state, *arguments);
  state->add_flag("--prometheus", arguments->prometheus, "Print all metrics, as Prometheus text");
  state->callback([arguments, &status] { status = status_command(*arguments); });
}

}  // namespace neotier::cli

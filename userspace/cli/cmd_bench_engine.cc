// SPDX-License-Identifier: Apache-2.0
// neotier bench engine, and the memory tiers' part of neotier bench tiers
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "bench/engine_bench.h"
#include "bench/memory_bench.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "engine/metrics.h"
#include "engine/tiers/make_tiers.h"
#include "engine/tiers/scratch_tiers.h"
#include "util/interrupt.h"
#include "util/json.h"
#include "util/output_file.h"
#include "util/progress.h"

namespace neotier::cli {

namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  engine::EngineBenchOptions bench;
  std::string json;
};

int engine_command(Arguments& arguments) {
  catch_interrupts();
  OutputFile out("--json", arguments.json);
  Progress progress;
  arguments.bench.progress = [&](const std::string& text) { progress.show(text); };
  arguments.bench.stop = [] { return interrupted(); };
  const engine::EngineFigures f = engine::bench_engine(arguments.bench);
  progress.clear();
  fmt::print(
      "{} objects in three tiers of no bytes, policy {}, random keys; processor time of one thread\n"
      "lookup            {:8.0f} ns\nuse, but the bytes{:8.0f} ns\nmiss              {:8.0f} ns\n"
      "look-ups          {:8.2f} M/s by one thread, {:.2f} x that by two, undisturbed\n"
      "a KV store's      {:8.2f} M/s blocks by one thread, {:.2f} x that by two\n"
      "  of new requests {:8.2f} M/s blocks by one thread, {:.2f} x that by two\n"
      "plan, a victim    {:8.0f} ns\nmove, all of it   {:8.0f} ns\n"
      "bytes an object   {:8.1f} (record {}); resident {:.1f}\n",
      f.objects, f.policy, f.index_ns, f.use_ns, f.miss_ns, f.lookups.per_s / 1e6, f.lookups.of_two,
      f.kv_lookups.per_s / 1e6, f.kv_lookups.of_two, f.kv_requests.per_s / 1e6, f.kv_requests.of_two, f.plan_ns,
      f.move_ns, f.bytes_per_object, f.record_bytes, f.resident_bytes_per_object);
  if (out) {
    const Json json = {{"objects", f.objects},
                       {"operations", arguments.bench.operations},
                       {"policy", f.policy},
                       {"seed", arguments.bench.seed},
                       {"lookup_ns", f.index_ns},
                       {"use_ns", f.use_ns},
                       {"miss_ns", f.miss_ns},
                       {"lookups_per_s", f.lookups.per_s},
                       {"lookups_of_two_threads", f.lookups.of_two},
                       {"kv_blocks_looked_up_per_s", f.kv_lookups.per_s},
                       {"kv_blocks_looked_up_of_two_threads", f.kv_lookups.of_two},
                       {"kv_blocks_requested_per_s", f.kv_requests.per_s},
                       {"kv_blocks_requested_of_two_threads", f.kv_requests.of_two},
                       {"plan_ns", f.plan_ns},
                       {"move_ns", f.move_ns},
                       {"bytes_per_object", f.bytes_per_object},
                       {"resident_bytes_per_object", f.resident_bytes_per_object},
                       {"record_bytes", f.record_bytes}};
    out.finish(pretty(json));
  }
  return 0;
}

Json to_json(const engine::MemoryFigures& f) {
  Json json = {
      {"name", f.info.name},  {"stand_in", f.info.stand_in},          {"notes", f.notes},
      {"threads", f.threads}, {"read_latency_ns", f.read_latency_ns}, {"write_latency_ns", f.write_latency_ns}};
  json["copies"] = Json::array();
  for (const engine::CopyFigure& c : f.copies) {
    json["copies"].push_back({{"piece_bytes", c.piece_bytes},
                              {"write_bytes_per_s", c.write_bytes_per_s},
                              {"read_bytes_per_s", c.read_bytes_per_s},
                              {"memcpy_bytes_per_s", c.memcpy_bytes_per_s},
                              {"write_vs_memcpy", c.write_vs_memcpy()},
                              {"read_vs_memcpy", c.read_vs_memcpy()}});
  }
  return json;
}

}  // namespace

Json bench_memory_tiers(uint64_t set_bytes, const std::string& tiers) {
  Progress progress;
  engine::MemoryBenchOptions options;
  options.set_bytes = set_bytes;
  options.progress = [&](const std::string& text) { progress.show(text); };
  options.stop = [] { return interrupted(); };
  Json json;
  json["memory"] = Json::array();
  for (const engine::TierKind kind : {engine::TierKind::kDram, engine::TierKind::kCxl}) {
    engine::MemoryTierOptions tier;
    tier.name = kind == engine::TierKind::kDram ? "dram" : "cxl";
    tier.kind = kind;
    const engine::MemoryFigures f = engine::bench_memory(tier, options);
    progress.clear();
    fmt::print("{}: {}\n  4 KiB: read {:.1f} us, write {:.1f} us\n", f.info.name, f.notes, f.read_latency_ns * 1e-3,
               f.write_latency_ns * 1e-3);
    for (const engine::CopyFigure& c : f.copies) {
      fmt::print(
          "  {:>4} KiB: write {:6.2f} GB/s ({:.2f} of memcpy), read {:6.2f} GB/s ({:.2f}), memcpy {:6.2f} GB/s\n",
          c.piece_bytes >> 10, c.write_bytes_per_s * 1e-9, c.write_vs_memcpy(), c.read_bytes_per_s * 1e-9,
          c.read_vs_memcpy(), c.memcpy_bytes_per_s * 1e-9);
    }
    json["memory"].push_back(to_json(f));
  }
  const engine::MovePagesFigures pages = engine::bench_move_pages(options);
  if (!pages.not_run.empty()) {
    fmt::print("move_pages: not run: {}\n", pages.not_run);
    json["move_pages"] = {{"not_run", pages.not_run}};
  } else {
    fmt::print("move_pages from node {} to {}: {:.2f} GB/s; memcpy there {:.2f} GB/s\n", pages.from, pages.to,
               pages.bytes_per_s * 1e-9, pages.memcpy_bytes_per_s * 1e-9);
    json["move_pages"] = {{"from_node", pages.from},
                          {"to_node", pages.to},
                          {"bytes_per_s", pages.bytes_per_s},
                          {"memcpy_bytes_per_s", pages.memcpy_bytes_per_s}};
  }
  if (tiers.empty()) return json;
  engine::EngineConfig config;
  config.max_objects = 1000;
  const engine::ScratchTiers scratch(tiers);
  engine::Engine opened(config, engine::make_tiers(scratch.text()));
  const engine::EngineStatus status = opened.status();
  json["tiers"] = engine::to_json(status)["tiers"];
  json["links"] = engine::to_json(status)["links"];
  fmt::print("links, by probes of 4 KiB and 1 MiB from submission to completion:\n");
  for (const engine::LinkStatus& l : status.links) {
    fmt::print("  {:>6} to {:<6} {:8.1f} us {:8.2f} GB/s\n", l.from, l.to, l.latency_ns * 1e-3, l.bytes_per_s * 1e-9);
  }
  for (const engine::TierStatus& t : status.tiers) {
    if (t.info.stand_in) fmt::print("  {}: a stand-in, in this machine's ordinary memory\n", t.info.name);
  }
  return json;
}

void add_bench_engine(CLI::App& bench, int& status) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* engine =
      bench.add_subcommand("engine", "Measure what index, policies, planner and mover cost at many objects");
  engine->footer("example:\n  neotier bench engine --objects 10000000 --json engine.json");
  engine->add_option("--objects", arguments->bench.objects, "Objects in the index; 10 M take 1 GB")
      ->capture_default_str()
      ->check(CLI::Range(uint64_t{10000}, uint64_t{1000000000}));
  engine->add_option("--operations", arguments->bench.operations, "Operations of each kind that are timed")
      ->capture_default_str()
      ->check(CLI::Range(uint64_t{1000}, uint64_t{1000000000}));
  engine
      ->add_option("--policy", arguments->bench.policy,
                   "Placement policy of each tier; `neotier kv policies` lists them")
      ->capture_default_str();
  engine->add_option("--seed", arguments->bench.seed, "Seed of keys and index")
      ->capture_default_str()
      ->check(CLI::Range(uint64_t{1}, UINT64_MAX));
  add_json(*engine, arguments->json);
  engine->callback([arguments, &status] { status = engine_command(*arguments); });
}

}  // namespace neotier::cli

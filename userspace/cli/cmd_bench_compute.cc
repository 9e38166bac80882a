// SPDX-License-Identifier: Apache-2.0
// neotier bench compute
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "bench/compute_bench.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "util/interrupt.h"
#include "util/json.h"
#include "util/output_file.h"
#include "util/progress.h"

namespace neotier::cli {

namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  compute::BenchOptions bench;
  std::string json;
};

Json to_json(const Arguments& a, const compute::BenchResult& r) {
  const compute::BenchOptions& o = a.bench;
  Json j = {{"threads", 1},
            {"hidden", o.hidden},
            {"ff", o.ff},
            {"experts", o.experts},
            {"heads", o.heads},
            {"kv_heads", o.kv_heads},
            {"dim", o.dim},
            {"tokens", o.tokens},
            {"block_tokens", o.block},
            {"budget_blocks", o.budget},
            {"seed", o.seed},
            {"openblas", r.openblas}};
  j["feed_forward"] = Json::array();
  for (const auto& f : r.feed_forward)
    j["feed_forward"].push_back({{"format", f.format},
                                 {"path", f.path},
                                 {"us", f.us},
                                 {"gb_per_s", f.gb_s},
                                 {"gflop_per_s", f.gflop_s},
                                 {"error", f.error}});
  j["attention"] = Json::array();
  for (const auto& f : r.attention)
    j["attention"].push_back({{"keys", f.keys},
                              {"method", f.method},
                              {"path", f.path},
                              {"us", f.us},
                              {"blocks", f.blocks},
                              {"error", f.error},
                              {"missed", f.missed},
                              {"missed_bound", f.bound}});
  return j;
}

int bench_command(Arguments& a) {
  catch_interrupts();
  OutputFile out("--json", a.json);
  if (a.bench.heads % a.bench.kv_heads != 0)
    throw std::runtime_error(
        fmt::format("--heads {} is no multiple of --kv-heads {}", a.bench.heads, a.bench.kv_heads));
  Progress progress;
  a.bench.cancelled = interrupted;
  a.bench.progress = [&](const std::string& text) { progress.show(text); };
  const compute::BenchResult r = run_bench(a.bench);
  progress.clear();
  const compute::BenchOptions& o = a.bench;
  fmt::print("OpenBLAS: {}\none thread; medians\n", r.openblas);
  fmt::print("\nfeed-forward, one token, {} x {}, {} experts in turn\n", o.hidden, o.ff, o.experts);
  fmt::print("{:<13} {:<9} {:>9} {:>8} {:>9}  error against double\n", "format", "path", "us", "GB/s", "GFLOP/s");
  for (const auto& f : r.feed_forward)
    fmt::print("{:<13} {:<9} {:>9.0f} {:>8.2f} {:>9.2f}  {:.1e}\n", f.format, f.path, f.us, f.gb_s, f.gflop_s, f.error);
  fmt::print(
      "\nattention, one step, {} heads over {} of {}, {} tokens in blocks of {}, bf16; sparse: {} blocks a head\n",
      o.heads, o.kv_heads, o.dim, o.tokens, o.block, o.budget);
  fmt::print("{:<11} {:<16} {:<9} {:>9} {:>7}  {:>9}  {:>9}  {:>9}\n", "keys", "method", "path", "us", "blocks",
             "error", "missed", "its bound");
  for (const auto& f : r.attention)
    fmt::print("{:<11} {:<16} {:<9} {:>9.0f} {:>7.1f}  {:>9.1e}  {:>9.1e}  {:>9.1e}\n", f.keys, f.method, f.path, f.us,
               f.blocks, f.error, f.missed, f.bound);
  if (out) out.finish(pretty(to_json(a, r)));
  return 0;
}

}  // namespace

void add_bench_compute(CLI::App& bench, int& status) {
  auto a = std::make_shared<Arguments>();
  compute::BenchOptions& o = a->bench;
  CLI::App* c = bench.add_subcommand(
      "compute", "Measure experts and attention on the CPU: speed and error of each instruction set");
  c->footer(
      "examples:\n  neotier bench compute\n  neotier bench compute --hidden 4096 --ff 14336 --experts 2 --json "
      "out.json\n"
      "  neotier bench compute --tokens 131072 --budget-blocks 64");
  const CLI::Range size(1u, 1u << 20);
  c->add_option("--hidden", o.hidden, "Width of the model")->capture_default_str()->check(size);
  c->add_option("--ff", o.ff, "Width of an expert")->capture_default_str()->check(size);
  c->add_option("--experts", o.experts, "Experts that are used in turn")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1024u));
  c->add_option("--heads", o.heads, "Query heads")->capture_default_str()->check(CLI::Range(1u, 1024u));
  c->add_option("--kv-heads", o.kv_heads, "Key and value heads")->capture_default_str()->check(CLI::Range(1u, 1024u));
  c->add_option("--dim", o.dim, "Width of a head")->capture_default_str()->check(CLI::Range(1u, 4096u));
  c->add_option("--tokens", o.tokens, "Tokens in the cache")->capture_default_str()->check(CLI::Range(1u, 1u << 22));
  c->add_option("--block-tokens", o.block, "Tokens of a block")->capture_default_str()->check(CLI::Range(1u, 1u << 16));
  c->add_option("--budget-blocks", o.budget, "Blocks that sparse attention reads for a head")
      ->capture_default_str()
      ->check(size);
  c->add_option("--seconds", o.seconds, "Seconds that each figure is measured for, at least")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 60.0));
  c->add_option("--seed", o.seed, "Seed of weights, keys and queries")->capture_default_str();
  add_json(*c, a->json);
  c->callback([a, &status] { status = bench_command(*a); });
}

}  // namespace neotier::cli

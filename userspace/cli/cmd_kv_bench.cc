// SPDX-License-Identifier: Apache-2.0
// neotier kv bench
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "bench/kv_bench.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/words.h"
#include "engine/tiers/scratch_tiers.h"
#include "replay/synthetic.h"
#include "util/interrupt.h"
#include "util/json.h"
#include "util/output_file.h"
#include "util/progress.h"
#include "util/size.h"

namespace fs = std::filesystem;

namespace neotier::cli {

namespace {

using Json = nlohmann::ordered_json;
using kv::KvBenchResult;
using kv::Quantiles;

struct Arguments {
  std::string trace, tiers = "dram=256M,ssd=1G", block_bytes = "512K", synthetic, against, json;
  fs::path folder = "/var/tmp";
  uint64_t first = 0, count = 300, seed = 1;
  bool ways = false;
  replay::LoadOptions load;
  kv::KvBenchOptions bench;
};

replay::KvTrace load(const Arguments& a) {
  if (a.trace.empty()) {
    replay::SyntheticOptions o;
    o.kind = a.synthetic;
    o.requests = a.first + a.bench.before + a.count;
    o.seed = a.seed;
    return replay::slice(replay::make_synthetic(o), a.first, a.bench.before + a.count);
  }
  const replay::KvTrace trace = replay::load_trace(a.trace, a.load);
  if (!trace.identity)
    throw std::runtime_error(fmt::format(
        "{}: this format gives lengths only: no block is known to come back, so nothing can be loaded", a.trace));
  if (a.first >= trace.requests.size())
    throw std::runtime_error(fmt::format("--first {}: the trace has {} requests", a.first, trace.requests.size()));
  return replay::slice(trace, a.first, std::min<size_t>(a.bench.before + a.count, trace.requests.size() - a.first));
}

Json to_json(const Quantiles& q) { return {{"mean", q.mean}, {"p50", q.p50}, {"p90", q.p90}, {"p99", q.p99}}; }

double difference(double measured, double predicted) { return predicted > 0 ? 100 * (measured / predicted - 1) : 0; }

Quantiles replayed(const KvBenchResult& r) {
  return {r.replay.ttft_mean_ms, r.replay.ttft_ms[0], r.replay.ttft_ms[1], r.replay.ttft_ms[2]};
}

bool paced(const Arguments& a, const std::string& tier) {
  return ("," + a.bench.links).find("," + tier + "=") != std::string::npos;
}

Json to_json(const Arguments& a, const KvBenchResult& r) {
  Json j = {{"trace", a.trace.empty() ? "synthetic " + a.synthetic : fs::path(a.trace).filename().string()},
            {"first", a.first},
            {"requests_before", a.bench.before},
            {"requests", r.requests},
            {"speed_up", a.bench.speed_up},
            {"prefill_scale", a.bench.prefill_scale},
            {"block_bytes", a.bench.block_bytes},
            {"layers", a.bench.layers},
            {"policy", a.bench.policy},
            {"block_refs", r.block_refs},
            {"prefix_hits", r.prefix_hits},
            {"prefix_hits_replay", r.replay.prefix_hits},
            {"blocks_loaded", r.loaded},
            {"blocks_bypassed", r.bypassed},
            {"blocks_stored", r.stored},
            {"blocks_passed", r.passed},
            {"blocks_failed", r.failed_blocks},
            {"blocks_wrong", r.wrong_blocks}};
  j["tiers"] = Json::array();
  for (size_t t = 0; t < r.tiers.size(); t++)
    j["tiers"].push_back({{"name", r.tiers[t].name},
                          {"bytes", r.tiers[t].bytes},
                          {"gb_per_s", r.tiers[t].gb_s},
                          {"latency_us", r.tiers[t].latency_us},
                          {"simulated_link", paced(a, r.tiers[t].name)},
                          {"blocks_loaded", r.loaded_from[t]},
                          {"blocks_loaded_replay", r.replay.tiers[t].bytes_loaded / a.bench.block_bytes}});
  j["ttft_ms"] = to_json(r.ttft_ms);
  j["load_ms"] = to_json(r.load_ms);
  j["queue_ms"] = to_json(r.wait_ms);
  j["predicted_ttft_ms"] = to_json(replayed(r));
  j["predicted_ttft_same_hits_ms"] = to_json(r.same_hits_ms);
  j["measured_over_predicted_percent"] = difference(r.ttft_ms.mean, r.replay.ttft_mean_ms);
  j["ttft_recompute_ms"] = {{"p50", r.replay.ttft_recompute_ms[0]},
                            {"p90", r.replay.ttft_recompute_ms[1]},
                            {"p99", r.replay.ttft_recompute_ms[2]}};
  return j;
}

void print(const Arguments& a, const KvBenchResult& r, uint32_t block_tokens) {
  fmt::print(
      "{}: {} requests, {} before them stored, arriving {} x as fast; blocks of {} tokens are {}, in {} layers; policy "
      "{}\n",
      a.trace.empty() ? "synthetic " + a.synthetic : a.trace, r.requests, a.bench.before, a.bench.speed_up,
      block_tokens, format_size(a.bench.block_bytes), a.bench.layers, a.bench.policy);
  fmt::print(
      "loading is real; computing what is missing is slept for: {} x the replay's model of Llama-3.1-8B on an "
      "H100-class GPU\n\n",
      a.bench.prefill_scale);
  fmt::print("{:<6} {:>10}  {:>22}  {:>14} {:>14}\n", "tier", "room", "link (measured)", "blocks loaded",
             "by the replay");
  for (size_t t = 0; t < r.tiers.size(); t++)
    fmt::print("{:<6} {:>10}  {:>22}  {:>14} {:>14}\n", r.tiers[t].name, format_size(r.tiers[t].bytes),
               fmt::format("{:.2f} GB/s, {:.0f} us", r.tiers[t].gb_s, r.tiers[t].latency_us), r.loaded_from[t],
               r.replay.tiers[t].bytes_loaded / a.bench.block_bytes);
  if (!a.bench.links.empty()) fmt::print("simulated links: {} (GB/s:us)\n", a.bench.links);
  fmt::print("\n{:<34} {:>9} {:>9} {:>9} {:>9}\n", "ms", "mean", "p50", "p90", "p99");
  const auto row = [](const char* name, const Quantiles& q) {
    fmt::print("{:<34} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f}\n", name, q.mean, q.p50, q.p90, q.p99);
  };
  const Quantiles p = replayed(r), &m = r.ttft_ms, &s = r.same_hits_ms;
  row("TTFT, measured", m);
  row("  of it loading", r.load_ms);
  row("predicted by the replay", p);
  fmt::print("{:<34} {:>8.1f}% {:>8.1f}% {:>8.1f}% {:>8.1f}%\n", "  measured differs by", difference(m.mean, p.mean),
             difference(m.p50, p.p50), difference(m.p90, p.p90), difference(m.p99, p.p99));
  row("predicted for the blocks found", s);
  fmt::print("{:<34} {:>8.1f}% {:>8.1f}% {:>8.1f}% {:>8.1f}%\n", "  measured differs by", difference(m.mean, s.mean),
             difference(m.p50, s.p50), difference(m.p90, s.p90), difference(m.p99, s.p99));
  row("before being served, one at a time", r.wait_ms);
  fmt::print("without a store {:>28} {:>9.2f} {:>9.2f} {:>9.2f}   (predicted)\n", "", r.replay.ttft_recompute_ms[0],
             r.replay.ttft_recompute_ms[1], r.replay.ttft_recompute_ms[2]);
  fmt::print(
      "\n{} of {} blocks were found ({} by the replay), {} loaded, {} stored; {} loaded blocks held other bytes than "
      "were stored\n",
      r.prefix_hits, r.block_refs, r.replay.prefix_hits, r.loaded, r.stored, r.wrong_blocks);
  if (r.bypassed > 0) fmt::print("{} blocks were there and faster to compute than to load\n", r.bypassed);
  if (r.failed_blocks > 0) fmt::print("{} blocks could not be loaded and were computed\n", r.failed_blocks);
  if (r.no_room > 0) fmt::print("{} requests found no room for all of their blocks\n", r.no_room);
}

// What the policy won: the same requests, the same tiers, real bytes under both.
void print_against(const Arguments& a, const KvBenchResult& r, const KvBenchResult& other) {
  const auto share = [](const KvBenchResult& x) {
    return x.block_refs ? static_cast<double>(x.prefix_hits) / static_cast<double>(x.block_refs) : 0;
  };
  fmt::print(
      "\n{} against {}: {:.1f} % of the blocks found for {:.1f} %, {} blocks loaded for {}, TTFT {:.1f} ms for {:.1f} "
      "ms\n",
      a.bench.policy, a.against, 100 * share(r), 100 * share(other), r.loaded, other.loaded, r.ttft_ms.mean,
      other.ttft_ms.mean);
}

// The same requests with all loaded that is there, and with nothing loaded. Of each request the better of the two is
// what the decision is measured by.
Json print_ways(const KvBenchResult& r, const KvBenchResult& load, const KvBenchResult& compute) {
  const double better = std::min(load.ttft_ms.mean, compute.ttft_ms.mean);
  double best = 0;
  size_t slower = 0;
  for (size_t i = 0; i < r.ttft_of.size(); i++) {
    const double one = std::min(load.ttft_of[i], compute.ttft_of[i]);
    best += one / static_cast<double>(r.ttft_of.size());
    slower += r.ttft_of[i] > 1.02 * one;
  }
  fmt::print("\n{:<34} {:>9} {:>9} {:>9} {:>9}\n", "TTFT, ms", "mean", "p50", "p90", "p99");
  const auto row = [](const char* name, const Quantiles& q) {
    fmt::print("{:<34} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f}\n", name, q.mean, q.p50, q.p90, q.p99);
  };
  row("what is worth it is loaded", r.ttft_ms);
  row("all that is there is loaded", load.ttft_ms);
  row("all is computed", compute.ttft_ms);
  fmt::print(
      "{:+.1f} % against the better of the two; {:+.1f} % against the better one of each request, {} of {} of which "
      "took over 2 % longer\n",
      difference(r.ttft_ms.mean, better), difference(r.ttft_ms.mean, best), slower, r.ttft_of.size());
  return {{"load_all", to_json(load.ttft_ms)},
          {"compute_all", to_json(compute.ttft_ms)},
          {"over_better_percent", difference(r.ttft_ms.mean, better)},
          {"over_better_of_each_percent", difference(r.ttft_ms.mean, best)},
          {"requests_over_2_percent", slower}};
}

int bench_command(Arguments& a) {
  OutputFile out("--json", a.json);
  catch_interrupts();
  a.bench.block_bytes = parse_size(a.block_bytes);
  if (a.trace.empty() == a.synthetic.empty())
    throw std::runtime_error("give a TRACE, or --synthetic WORKLOAD (`neotier kv generate --help` lists them)");
  const replay::KvTrace trace = load(a);
  Progress progress;
  a.bench.cancelled = interrupted;
  a.bench.progress = [&](const std::string& text) { progress.show(text); };
  const auto run = [&](const std::string& policy, kv::LoadWay way = kv::LoadWay::kDecide) {
    const engine::ScratchTiers tiers(a.tiers, a.folder);
    kv::KvBenchOptions options = a.bench;
    options.tiers = tiers.text();
    options.policy = policy;
    options.way = way;
    try {
      return kv::run_kv_bench(trace, options);
    } catch (...) {
      progress.clear();
      throw;
    }
  };
  std::optional<KvBenchResult> other;
  if (!a.against.empty()) {
    (void)placement::find_policy(a.against, NEOTIER_KV);
    other = run(a.against);
  }
  const KvBenchResult r = run(a.bench.policy);
  std::optional<std::pair<KvBenchResult, KvBenchResult>> ways;
  if (a.ways) ways.emplace(run(a.bench.policy, kv::LoadWay::kLoad), run(a.bench.policy, kv::LoadWay::kCompute));
  progress.clear();
  print(a, r, trace.block_tokens);
  Json json = to_json(a, r);
  if (ways) json["ways"] = print_ways(r, ways->first, ways->second);
  if (other) {
    print_against(a, r, *other);
    Arguments theirs = a;
    theirs.bench.policy = a.against;
    json["against"] = to_json(theirs, *other);
  }
  if (out) out.finish(pretty(json));
  if (r.wrong_blocks > 0 || (other && other->wrong_blocks > 0))
    throw std::runtime_error("loaded bytes are not those stored; this is a bug");
  return 0;
}

}  // namespace

void add_kv_bench(CLI::App& kv, int& status) {
  auto a = std::make_shared<Arguments>();
  std::vector<std::string> workloads, policies;
  for (const auto& kind : replay::synthetic_kinds()) workloads.emplace_back(kind.name);
  for (const auto* policy : placement::policies(NEOTIER_KV)) policies.emplace_back(policy->name);
  CLI::App* c = kv.add_subcommand(
      "bench", "Serve a trace's requests from a store over real tiers, and measure TTFT (real bytes)");
  c->footer(
      "examples:\n  neotier kv bench --synthetic chat --count 40\n"
      "  neotier kv bench --synthetic chat --tiers dram=128M,ssd=1G --json kv.json\n"
      "  neotier kv bench chat.jsonl --requests-before 1500 --count 200 --block-bytes 64K --speed-up 10\n"
      "  neotier kv bench --synthetic chat --count 100 --link ssd=0.2:200 --ways\n"
      "The defaults keep the ratio of loading to computing near that of 64 MiB blocks, an NVMe drive and an H100.");
  c->add_option("TRACE", a->trace, "The trace: JSON Lines of Mooncake or Qwen-Bailian");
  c->add_option("--synthetic", a->synthetic, "A workload of `neotier kv generate`, instead of a trace")
      ->check(one_of("workload", workloads));
  c->add_option("--seed", a->seed, "Seed of --synthetic")->capture_default_str();
  c->add_option("--format", a->load.format, "The trace's format. Without it: as its first line says")
      ->check(one_of("format", {"mooncake", "bailian"}));
  c->add_option("--block-tokens", a->load.block_tokens, "Tokens of a block. Without it: the format's own");
  c->add_option("--first", a->first, "Requests to skip at the beginning")->capture_default_str();
  c->add_option("--count", a->count, "Requests that are served and timed")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  c->add_option("--requests-before", a->bench.before,
                "Requests before those, whose blocks are stored without timing them")
      ->capture_default_str()
      ->check(CLI::Range(0, 10000000));
  c->add_option("--tiers", a->tiers, "Tiers, the fastest first, as `neotier tiers` takes them")
      ->type_name("KIND=SIZE,...")
      ->capture_default_str();
  c->add_option("--folder", a->folder, "Where SSD files lie that are not named. They are removed afterwards")
      ->type_name("FOLDER")
      ->capture_default_str();
  c->add_option("--block-bytes", a->block_bytes, "Bytes of a block")->capture_default_str()->type_name("SIZE");
  c->add_option("--pieces", a->bench.layers, "Pieces (layers) that a block is loaded in")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1024u));
  c->add_option("--policy", a->bench.policy,
                "Policy of every tier, here and in the replay; `neotier kv policies` lists them")
      ->capture_default_str()
      ->check(one_of("policy", policies, true));
  c->add_option("--against", a->against,
                "Policy under which the same runs first; what the other one wins over it is said")
      ->check(one_of("policy", policies, true));
  c->add_option("--link", a->bench.links,
                "Simulated links: a tier is read no faster than that, 'ssd=0.5:200' (GB/s:us)")
      ->type_name("NAME=GB_PER_S:US,...");
  c->add_flag("--ways", a->ways,
              "Run it also with all loaded that is there, and with nothing loaded, and compare: load or recompute");
  c->add_option("--speed-up", a->bench.speed_up, "How many times as fast requests arrive as the trace says")
      ->capture_default_str()
      ->check(CLI::Range(1e-3, 1e6));
  c->add_option("--prefill-scale", a->bench.prefill_scale, "Factor of the model's time to compute")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  add_json(*c, a->json);
  c->callback([a, &status] { status = bench_command(*a); });
}

}  // namespace neotier::cli

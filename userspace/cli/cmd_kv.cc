// SPDX-License-Identifier: Apache-2.0
// neotier kv replay | sweep | generate | policies
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/words.h"
#include "replay/sweep.h"
#include "replay/synthetic.h"
#include "replay/tiers.h"
#include "util/interrupt.h"
#include "util/json.h"
#include "util/output_file.h"
#include "util/progress.h"
#include "util/size.h"

namespace fs = std::filesystem;

namespace neotier::cli {

namespace {

using Json = nlohmann::ordered_json;
using replay::KvTrace;

constexpr const char* kRecommended = placement::kRecommendedKvPolicy;

struct Arguments {
  std::string trace, json, page, policy = kRecommended, tiers, links, block_bytes = "0";
  std::vector<std::string> params, policies;
  std::vector<uint64_t> capacities = {1000, 2000, 5000, 10000, 20000, 30000, 50000};
  uint64_t capacity = 10000, first = 0, count = 0;
  uint32_t jobs = std::max(1u, std::thread::hardware_concurrency());
  bool fresh = false;
  replay::LoadOptions load;
  replay::KvOptions replay;
};

std::map<std::string, double> parse_params(const std::vector<std::string>& settings) {
  std::map<std::string, double> params;
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    char* end = nullptr;
    const double value = equals == std::string::npos ? 0 : std::strtod(setting.c_str() + equals + 1, &end);
    if (!end || end == setting.c_str() + equals + 1 || *end)
      throw std::runtime_error(
          fmt::format("--param '{}': expected NAME=NUMBER; `neotier kv policies` lists them", setting));
    params[setting.substr(0, equals)] = value;
  }
  return params;
}

KvTrace load(Arguments& a) {
  catch_interrupts();
  a.replay.cancelled = interrupted;
  a.replay.params = parse_params(a.params);
  KvTrace trace = replay::load_trace(a.trace, a.load);
  if (a.first >= trace.requests.size() && a.first > 0)
    throw std::runtime_error(fmt::format("--first {}: the trace has {} requests", a.first, trace.requests.size()));
  if (a.first > 0 || a.count > 0) trace = replay::slice(trace, a.first, a.count ? a.count : trace.requests.size());
  a.replay.block_bytes = parse_size(a.block_bytes);
  if (a.replay.block_bytes == 0) a.replay.block_bytes = uint64_t{trace.block_tokens} * replay::kKvBytesPerToken;
  return trace;
}

Json describe(const Arguments& a, const KvTrace& trace) {
  Json j;
  j["trace"] = fs::path(a.trace).filename();
  j["format"] = replay::format_name(trace.format);
  j["block_tokens"] = trace.block_tokens;
  j["block_bytes"] = a.replay.block_bytes;
  return j;
}

// Lengths without identity: demand, and how long a block can last.
int lengths_command(const Arguments& a, const KvTrace& trace, OutputFile& out) {
  const double seconds = static_cast<double>(trace.requests.back().time_ns) * 1e-9;
  const double rate = seconds > 0 ? static_cast<double>(trace.blocks.size()) / seconds : 0;
  Json j = describe(a, trace);
  j["policy"] = nullptr;
  j["capacity_blocks"] = a.capacity;
  j["hit_rate"] = nullptr;
  j["prefix_hit_rate"] = nullptr;
  j["requests"] = trace.requests.size();
  j["block_refs"] = trace.blocks.size();
  j["seconds"] = seconds;
  j["blocks_per_s"] = rate;
  j["turnover_s"] = rate > 0 ? Json(static_cast<double>(a.capacity) / rate) : Json(nullptr);
  fmt::print(
      "{}: {} requests, {} blocks of {} tokens in {:.0f} s. This format gives lengths only, so no block is known to "
      "come "
      "back: there is no hit rate.\n",
      a.trace, trace.requests.size(), trace.blocks.size(), trace.block_tokens, seconds);
  fmt::print("demand     {:.1f} new blocks/s, {}/s to write\n", rate,
             format_size(static_cast<uint64_t>(rate * static_cast<double>(a.replay.block_bytes))));
  if (rate > 0)
    fmt::print("turnover   {} blocks are replaced in {:.1f} s on average: a block must come back within about that\n",
               a.capacity, static_cast<double>(a.capacity) / rate);
  if (out) out.finish(pretty(j));
  return 0;
}

int tiers_command(const Arguments& a, const KvTrace& trace, OutputFile& out) {
  const auto policy = placement::find_policy(a.policy, NEOTIER_KV);
  const auto tiers = replay::parse_tiers(a.tiers, a.links);
  const replay::TiersResult r = replay::replay_tiers(trace, policy, tiers, a.replay);
  const auto share = [&](uint64_t n) {
    return r.block_refs ? static_cast<double>(n) / static_cast<double>(r.block_refs) : 0;
  };
  Json j = describe(a, trace);
  uint64_t capacity = 0;
  j["policy"] = r.policy;
  j["hit_rate"] = share(r.hits);
  j["prefix_hit_rate"] = share(r.prefix_hits);
  j["requests"] = r.requests;
  j["block_refs"] = r.block_refs;
  j["recomputed"] = r.recomputed;
  j["tiers"] = Json::array();
  fmt::print("tier    blocks   hit rate   loaded       written      link (assumed)\n");
  for (const replay::TierResult& t : r.tiers) {
    capacity += t.capacity_blocks;
    j["tiers"].push_back({{"name", t.tier.name},
                          {"capacity_blocks", t.capacity_blocks},
                          {"hit_rate", share(t.hits)},
                          {"bytes_loaded", t.bytes_loaded},
                          {"bytes_written", t.bytes_written},
                          {"gb_per_s", t.tier.gb_s},
                          {"latency_us", t.tier.latency_us}});
    fmt::print("{:<6} {:>7}   {:.4f}     {:<12} {:<12} {} GB/s, {} us\n", t.tier.name, t.capacity_blocks, share(t.hits),
               format_size(t.bytes_loaded), format_size(t.bytes_written), t.tier.gb_s, t.tier.latency_us);
  }
  j["capacity_blocks"] = capacity;
  fmt::print("\nmodelled TTFT, ms                 mean       p50       p90       p99\n");
  const auto ttft = [&](const char* key, const char* text, double mean, const double* ms) {
    j[key] = {{"mean", mean}, {"p50", ms[0]}, {"p90", ms[1]}, {"p99", ms[2]}};
    fmt::print("{:<28} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f}\n", text, mean, ms[0], ms[1], ms[2]);
  };
  ttft("ttft_ms", "load what is worth it", r.ttft_mean_ms, r.ttft_ms);
  ttft("ttft_load_ms", "load all that is there", r.ttft_load_mean_ms, r.ttft_load_ms);
  ttft("ttft_recompute_ms", "without a cache", r.ttft_recompute_mean_ms, r.ttft_recompute_ms);
  fmt::print("hit rate {:.4f}, prefix {:.4f}; {} blocks were there but faster to compute than to load (policy {})\n",
             share(r.hits), share(r.prefix_hits), r.recomputed, r.policy);
  if (out) out.finish(pretty(j));
  return 0;
}

int replay_command(Arguments& a) {
  const auto policy = placement::find_policy(a.policy, NEOTIER_KV);
  OutputFile out("--json", a.json);
  const KvTrace trace = load(a);
  if (!trace.identity) return lengths_command(a, trace, out);
  if (!a.tiers.empty()) return tiers_command(a, trace, out);
  a.replay.capacity_blocks = a.capacity;
  const replay::KvResult r = replay::replay(trace, policy, a.replay);
  const double per_object = r.objects ? static_cast<double>(r.state_bytes) / static_cast<double>(r.objects) : 0;
  const double rate = r.cpu_seconds > 0 ? static_cast<double>(r.block_refs) / r.cpu_seconds : 0;
  fmt::print("policy {}, {} blocks: hit rate {:.4f}, prefix {:.4f} of {} references in {} requests\n", r.policy,
             r.capacity_blocks, r.hit_rate(), r.prefix_hit_rate(), r.block_refs, r.requests);
  fmt::print(
      "{} inserted, {} evicted, {} let pass by; {:.2f} M references/s of one core, {:.1f} bytes of state an object\n",
      r.inserts, r.evictions, r.bypassed, rate * 1e-6, per_object);
  if (out) {
    Json j = describe(a, trace);
    j.update(replay::to_json(r));
    j["state_bytes_per_object"] = per_object;
    j["block_refs_per_cpu_s"] = rate;
    out.finish(pretty(j));
  }
  return 0;
}

int sweep_command(Arguments& a) {
  OutputFile json("--json", a.json), page("--output", a.page);
  const KvTrace trace = load(a);
  if (!trace.identity)
    throw std::runtime_error(
        fmt::format("{}: this format gives lengths only, so policies cannot be told apart on it", a.trace));
  if (a.json.empty() && a.page.empty())
    throw std::runtime_error("nowhere to write to: give -o FILE for a page with plots, --json FILE or both");
  replay::SweepOptions options;
  options.trace_name = fs::path(a.trace).filename();
  options.policies = a.policies;
  if (options.policies.empty())
    for (const auto* p : placement::policies(NEOTIER_KV)) options.policies.emplace_back(p->name);
  options.capacities = a.capacities;
  options.replay = a.replay;
  options.jobs = a.jobs;
  if ((page ? page : json).regular()) options.store = (page ? a.page : a.json) + ".partial";
  if (a.fresh && !options.store.empty()) fs::remove(options.store);
  Progress progress;
  std::atomic<bool> cancel = false;
  const auto results = replay::sweep(trace, options, cancel, [&](size_t done, size_t all) {
    cancel = interrupted();
    progress.show(fmt::format("{} of {} replays", done, all));
    if (cancel) progress.clear();
  });
  progress.clear();
  const size_t per = options.capacities.size();
  fmt::print("{:<18}", "hit rate");
  for (uint64_t capacity : options.capacities) fmt::print(" {:>8}", capacity);
  for (size_t i = 0; i < results.size(); i++) {
    if (i % per == 0) fmt::print("\n{:<18}", results[i].policy);
    fmt::print(" {:>8.4f}", results[i].hit_rate());
  }
  fmt::print("\n");
  if (json) json.finish(pretty(replay::to_json(options, trace, results)));
  if (page) page.finish(replay::make_page(options, trace, results));
  if (!options.store.empty()) fs::remove(options.store);
  return 0;
}

int policies_command(const std::string& file) {
  OutputFile json("--json", file);
  Json list = Json::array();
  for (const auto* p : placement::policies(NEOTIER_KV)) {
    Json params = Json::array();
    if (!json) fmt::print("{:<18} {}\n{:<18} source: {}\n", p->name, p->text, "", p->source);
    for (uint32_t i = 0; i < p->nr_params; i++) {
      const auto& q = p->params[i];
      params.push_back({{"name", q.name}, {"default", q.value}, {"min", q.min}, {"max", q.max}, {"text", q.text}});
      if (!json) fmt::print("{:<18} {}={} ({} .. {}): {}\n", "", q.name, q.value, q.min, q.max, q.text);
    }
    list.push_back({{"name", p->name},
                    {"text", p->text},
                    {"source", p->source},
                    {"bound", (p->flags & NEOTIER_NEEDS_ORACLE) != 0},
                    {"recommended", std::string(p->name) == kRecommended},
                    {"params", params}});
  }
  if (json) json.finish(pretty(list));
  return 0;
}

void add_trace_options(CLI::App& command, Arguments& a) {
  command
      .add_option("TRACE", a.trace,
                  "The trace: JSON Lines of Mooncake or Qwen-Bailian, CSV of Azure or BurstGPT; `neotier kv generate` "
                  "writes one")
      ->required();
  command.add_option("--format", a.load.format, "The trace's format. Without it: as its first line says")
      ->check(one_of("format", {"mooncake", "bailian", "azure", "burstgpt"}));
  command
      .add_option("--block-tokens", a.load.block_tokens,
                  "Tokens of a block. Without it: the format's own, 512 or, for Bailian, 16")
      ->check(CLI::Range(1u, 1u << 20));
  command
      .add_option("--block-bytes", a.block_bytes,
                  "Bytes of a block. 0: 128 KiB for each of its tokens, as of Llama-3.1-8B")
      ->type_name("SIZE");
  command.add_option("--first", a.first, "Requests to skip at the beginning")->capture_default_str();
  command.add_option("--count", a.count, "Requests to replay; 0: all")->capture_default_str();
  command.add_option("--history-blocks", a.replay.history_blocks, "Evicted blocks whose identity is kept; 0: all")
      ->capture_default_str();
  command.add_option("--seed", a.replay.seed, "Seed of policies that draw at random")->capture_default_str();
  add_json(command, a.json);
}

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const auto* p : placement::policies(NEOTIER_KV)) names.emplace_back(p->name);
  return names;
}

}  // namespace

void add_kv(CLI::App& app, int& status) {
  auto a = std::make_shared<Arguments>();
  CLI::App* kv = app.add_subcommand("kv", "Judge KV cache policies on traces of requests, and keep real blocks");
  kv->group(kModels);
  kv->footer(
      "example:\n  neotier kv generate chat -o chat.jsonl\n  neotier kv replay chat.jsonl --capacity-blocks 10000");

  CLI::App* one = kv->add_subcommand("replay", "Replay a trace under one policy (simulated)");
  one->footer(
      "examples:\n  neotier kv generate chat -o chat.jsonl\n"
      "  neotier kv replay chat.jsonl --capacity-blocks 5000\n"
      "  neotier kv replay chat.jsonl --policy ./libmine.so --param depth=3 --json out.json\n"
      "  neotier kv replay chat.jsonl --tiers dram=64G,cxl=256G,ssd=2T --link ssd=12:80");
  add_trace_options(*one, *a);
  one->add_option("--policy", a->policy,
                  "Policy; `neotier kv policies` says what each is. A path is a shared library with one of your own")
      ->capture_default_str()
      ->check(one_of("policy", policy_names(), true));
  one->add_option("--param", a->params, "A parameter of the policy. May be repeated")
      ->allow_extra_args(false)
      ->type_name("NAME=NUMBER");
  auto* capacity = one->add_option("--capacity-blocks", a->capacity, "Blocks that the cache holds")
                       ->capture_default_str()
                       ->check(CLI::Range(uint64_t{1}, uint64_t{UINT32_MAX} - 1));
  auto* exact =
      one->add_flag("--engine-rules", a->replay.exact,
                    "As in an engine's own cache (vLLM's): all that a request lacks is stored, in the place of "
                    "as many other blocks, or nothing of it");
  auto* tiers = one->add_option("--tiers", a->tiers,
                                "Tiers instead of one cache, with modelled times to the first token: dram, cxl, ssd, "
                                "remote, separated by commas")
                    ->type_name("NAME=SIZE,...")
                    ->excludes(capacity)
                    ->excludes(exact);
  one->add_option("--link", a->links, "Speed of the links to these tiers")
      ->type_name("NAME=GB_PER_S:US,...")
      ->needs(tiers);
  one->callback([a, &status] { status = replay_command(*a); });

  add_kv_bench(*kv, status);

  CLI::App* sweep = kv->add_subcommand("sweep", "Replay every policy over capacities, with plots (simulated)");
  sweep->footer(
      "example:\n  neotier kv sweep chat.jsonl -o sweep.html --json sweep.json\nInterrupted, the same command goes "
      "on where it stopped.");
  add_trace_options(*sweep, *a);
  sweep->add_option("--policies", a->policies, "Names or shared libraries, separated by commas. Without it: all")
      ->delimiter(',')
      ->check(one_of("policy", policy_names(), true));
  sweep->add_option("--capacities", a->capacities, "Blocks that the cache holds, separated by commas")
      ->delimiter(',')
      ->check(CLI::Range(uint64_t{1}, uint64_t{UINT32_MAX} - 1));
  sweep->add_option("--jobs", a->jobs, "Replays at once")->capture_default_str()->check(CLI::Range(1u, 1024u));
  add_output(*sweep, a->page, "The HTML page with plots to write");
  sweep->add_flag("--fresh", a->fresh, "Forget what an interrupted run has left");
  sweep->callback([a, &status] { status = sweep_command(*a); });

  auto s = std::make_shared<replay::SyntheticOptions>();
  auto out = std::make_shared<std::string>();
  CLI::App* generate = kv->add_subcommand("generate", "Write a synthetic trace of requests, in Mooncake's format");
  std::string kinds;
  std::vector<std::string> workloads;
  for (const auto& kind : replay::synthetic_kinds()) workloads.emplace_back(kind.name);
  for (const auto& kind : replay::synthetic_kinds()) kinds += fmt::format("\n  {:<10} {}", kind.name, kind.text);
  generate->footer("workloads:" + kinds +
                   "\nexample:\n  neotier kv generate agents --requests 20000 --seed 3 -o agents.jsonl");
  generate->add_option("WORKLOAD", s->kind, "What the requests are like")
      ->required()
      ->check(one_of("workload", workloads));
  generate->add_option("--requests", s->requests, "How many requests")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000000));
  generate->add_option("--rate", s->rate, "Requests a second")->capture_default_str()->check(CLI::Range(1e-6, 1e6));
  generate->add_option("--seed", s->seed, "Seed of the requests")->capture_default_str();
  add_output(*generate, *out, "The trace to write, JSON Lines")->required();
  generate->callback([s, out, &status] {
    OutputFile file("--output", *out);
    replay::write_mooncake(replay::make_synthetic(*s), file);
    status = 0;
  });

  CLI::App* policies = kv->add_subcommand("policies", "Print the policies, their parameters and sources");
  policies->footer("example:\n  neotier kv policies");
  add_json(*policies, a->json);
  policies->callback([a, &status] { status = policies_command(a->json); });
}

}  // namespace neotier::cli

// SPDX-License-Identifier: Apache-2.0
// neotier moe replay | analyse | ablate | sweep | policies
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/help.h"
#include "cli/words.h"
#include "replay/moe_analyse.h"
#include "replay/moe_replay.h"
#include "replay/moe_sweep.h"
#include "util/interrupt.h"
#include "util/json.h"
#include "util/output_file.h"
#include "util/progress.h"

namespace fs = std::filesystem;

namespace neotier::cli {

namespace {

using nlohmann::ordered_json;
using placement::PolicyRef;
using replay::MoeOptions;
using replay::MoeResult;
using replay::RoutingTrace;

struct Arguments {
  fs::path directory;
  replay::RoutingShape shape;
  std::string half = "all";
  std::string policy = placement::kRecommendedExpertPolicy, predictor = "learned";
  std::vector<std::string> policy_params, predictor_params;
  MoeOptions replay;
  std::string json;
  replay::MoeSweepOptions sweep;
  fs::path out;
};

PolicyRef find_predictor(const std::string& name) {
  return name == "none" ? nullptr : placement::find_policy(name, NEOTIER_EXPERTS | NEOTIER_PREDICTOR);
}

std::map<std::string, double> parse_params(const std::string& option, const std::vector<std::string>& given) {
  std::map<std::string, double> params;
  for (const std::string& text : given) {
    const size_t equals = text.find('=');
    double value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + std::min(equals, text.size() - 1) + 1, end, value);
    if (equals == std::string::npos || equals == 0 || error != std::errc() || stop != end) {
      throw std::runtime_error(
          fmt::format("{} '{}': expected NAME=NUMBER; `neotier moe policies` lists them", option, text));
    }
    params[text.substr(0, equals)] = value;
  }
  return params;
}

RoutingTrace load(const Arguments& a) {
  RoutingTrace trace = RoutingTrace::load(a.directory, a.shape);
  return a.half == "all" ? trace : trace.half(a.half == "odd");
}

void prepare(Arguments& a) {
  catch_interrupts();
  a.replay.policy_params = parse_params("--param", a.policy_params);
  a.replay.predictor_params = parse_params("--predictor-param", a.predictor_params);
}

// Runs in a thread, so that this one can show how far it is and look at Ctrl-C.
MoeResult replay_visibly(const std::string& what, const RoutingTrace& trace, const PolicyRef& policy,
                         const PolicyRef& predictor, MoeOptions options) {
  std::atomic<bool> cancel = false;
  std::atomic<uint64_t> tokens = 0;
  options.cancel = &cancel;
  options.progress = &tokens;
  auto result = std::async(std::launch::async, [&] { return replay::replay(trace, policy, predictor, options); });
  Progress progress;
  while (result.wait_for(std::chrono::milliseconds(200)) != std::future_status::ready) {
    cancel = interrupted();
    progress.show(
        fmt::format("{}: {:.0f} %", what, 100.0 * static_cast<double>(tokens) / static_cast<double>(trace.tokens())));
  }
  progress.clear();
  throw_if_interrupted();
  return result.get();
}

uint64_t whole_bytes(double bytes) { return static_cast<uint64_t>(std::llround(bytes)); }

ordered_json to_json(const MoeResult& r, const MoeOptions& o, double bytes_lru) {
  ordered_json layers = ordered_json::array();
  for (size_t i = 0; i < r.layer_uses.size(); i++)
    layers.push_back(static_cast<double>(r.layer_stall_free[i]) /
                     static_cast<double>(std::max<uint64_t>(1, r.layer_uses[i])));
  return {{"hit_rate", r.hit_rate()},
          {"stall_free_rate", r.stall_free_rate()},
          {"prefetch_accuracy", r.prefetches ? ordered_json(r.prefetch_accuracy()) : ordered_json(nullptr)},
          {"bytes", whole_bytes(r.bytes)},
          {"bytes_lru", whole_bytes(bytes_lru)},
          {"policy", r.policy},
          {"predictor", r.predictor},
          {"experts_per_layer", o.experts_per_layer},
          {"batch", o.batch},
          {"layer_ms", o.layer_ms},
          {"expert_ms", o.expert_ms},
          {"link_gb_s", o.link_gb_s},
          {"link_us", o.link_us},
          {"expert_bytes", o.expert_bytes},
          {"tokens", r.tokens},
          {"events", r.events},
          {"uses", r.uses},
          {"loads", r.loads},
          {"loads_streamed", r.streamed},
          {"loads_not_admitted", r.bypassed},
          {"prefetches", r.prefetches},
          {"prefetches_used", r.prefetches_used},
          {"modelled_ms_per_token", r.modelled_ns / 1e6 / static_cast<double>(std::max<uint64_t>(1, r.tokens))},
          {"modelled_stall_share", r.modelled_ns > 0 ? r.stall_ns / r.modelled_ns : 0},
          {"policy_state_bytes_per_expert", static_cast<double>(r.policy_state_bytes) / static_cast<double>(r.objects)},
          {"predictor_state_bytes_per_expert",
           static_cast<double>(r.predictor_state_bytes) / static_cast<double>(r.objects)},
          {"replay_seconds", r.seconds},
          {"uses_per_second", r.seconds > 0 ? static_cast<double>(r.uses) / r.seconds : 0},
          {"layer_stall_free_rate", layers}};
}

int replay_command(Arguments& a) {
  prepare(a);
  OutputFile out("--json", a.json);
  const PolicyRef policy = placement::find_policy(a.policy, NEOTIER_EXPERTS), predictor = find_predictor(a.predictor);
  const RoutingTrace trace = load(a);
  const MoeResult r = replay_visibly(a.policy, trace, policy, predictor, a.replay);
  MoeOptions plain = a.replay;
  plain.policy_params.clear();
  const double bytes_lru =
      replay_visibly("lru, to compare", trace, placement::find_policy("lru", NEOTIER_EXPERTS), nullptr, plain).bytes;
  fmt::print("{} tokens, {} uses; policy {}, predictor {}, {} slots a layer, batch {}\n", r.tokens, r.uses, r.policy,
             r.predictor, a.replay.experts_per_layer, a.replay.batch);
  fmt::print("hit rate            {:.4f}\n", r.hit_rate());
  fmt::print("stall-free          {:.4f}   (modelled: {} ms a layer, {} GB/s, {} MB an expert)\n", r.stall_free_rate(),
             a.replay.layer_ms, a.replay.link_gb_s, a.replay.expert_bytes / 1e6);
  if (r.prefetches)
    fmt::print("prefetch accuracy   {:.4f}   ({} fetched ahead)\n", r.prefetch_accuracy(), r.prefetches);
  fmt::print("bytes               {:.4g}   ({:.2f} x LRU's)\n", r.bytes, bytes_lru > 0 ? r.bytes / bytes_lru : 0);
  fmt::print("modelled ms a token {:.3f}   ({:.1f} % of it waiting)\n",
             r.modelled_ns / 1e6 / static_cast<double>(std::max<uint64_t>(1, r.tokens)),
             r.modelled_ns > 0 ? 100 * r.stall_ns / r.modelled_ns : 0);
  fmt::print("state               {} bytes an expert, predictor {}\n", r.policy_state_bytes / r.objects,
             r.predictor_state_bytes / r.objects);
  fmt::print("speed               {:.2f} M uses/s\n", static_cast<double>(r.uses) / r.seconds / 1e6);
  if (out) out.finish(pretty(to_json(r, a.replay, bytes_lru)));
  return 0;
}

int analyse_command(Arguments& a) {
  prepare(a);
  OutputFile out("--json", a.json);
  const auto result = replay::analyse(load(a), a.replay.experts_per_layer);
  const auto line = [](const char* name, const char* x, const auto& pairs, int digits) {
    fmt::print("{}\n", name);
    for (const auto& [at, value] : pairs) {
      if (at) {
        fmt::print("  {:>4} {:<24} {:.{}f}\n", at, x, value, digits);
      } else {
        fmt::print("  all  {:<24} {:.{}f}\n", x, value, digits);
      }
    }
  };
  fmt::print("{} sequences, {} tokens, {} uses\n", result.sequences, result.tokens, result.uses);
  fmt::print(
      "skew: share of a layer's uses in its most used experts\n  10 % {:.4f}, 25 % {:.4f}, 50 % {:.4f}; Gini {:.4f}, "
      "entropy {:.4f} of the highest possible\n",
      result.top_tenth, result.top_quarter, result.top_half, result.gini, result.entropy);
  line("overlap: share of choices that the token so much earlier made too", "tokens earlier", result.overlap, 4);
  fmt::print("  chance                        {:.4f}\n", result.random);
  line("affinity: share of choices that the most frequent successors of one expert take", "layers later",
       result.affinity, 4);
  fmt::print("  most frequent of all          {:.4f}\n", result.popular);
  line(fmt::format("SRP: share of uses that the best group of {} experts covers", result.group).c_str(),
       "tokens a segment", result.srp, 4);
  line(fmt::format("SCH: best hit rate of {} slots a layer", result.group).c_str(), "tokens seen ahead", result.sch, 4);
  line("distinct experts a layer and step", "rows in a batch", result.distinct, 2);
  if (out) out.finish(pretty(replay::to_json(result)));
  return 0;
}

// Parameters that switch a signal: 0 or 1, on by default.
std::vector<std::string> switches(const PolicyRef& policy) {
  std::vector<std::string> names;
  for (uint32_t i = 0; policy && i < policy->nr_params; i++) {
    const neotier_placement_param& p = policy->params[i];
    if (p.min == 0 && p.max == 1 && p.value == 1) names.emplace_back(p.name);
  }
  return names;
}

int ablate_command(Arguments& a) {
  prepare(a);
  OutputFile out("--json", a.json);
  const PolicyRef policy = placement::find_policy(a.policy, NEOTIER_EXPERTS), predictor = find_predictor(a.predictor);
  const RoutingTrace trace = load(a);
  ordered_json rows = ordered_json::array();
  const auto row = [&](const std::string& off, const PolicyRef& p, const MoeOptions& options) {
    const MoeResult r = replay_visibly(off, trace, policy, p, options);
    const double first = rows.empty() ? r.stall_free_rate() : rows[0]["stall_free_rate"].get<double>();
    fmt::print("{:<28} {:.4f}  {:+.4f}  {:.4f}\n", off, r.stall_free_rate(), r.stall_free_rate() - first,
               r.bytes / a.replay.expert_bytes / static_cast<double>(r.uses));
    std::fflush(stdout);
    rows.push_back({{"off", off},
                    {"stall_free_rate", r.stall_free_rate()},
                    {"hit_rate", r.hit_rate()},
                    {"bytes", whole_bytes(r.bytes)}});
  };
  const auto without = [&](const std::string& name, std::map<std::string, double> MoeOptions::*params) {
    MoeOptions options = a.replay;
    (options.*params)[name] = 0;
    return options;
  };
  fmt::print("{:<28} {:<6}  {:<7}  {}\n", "switched off", "stall-free", "change", "transfers a use");
  row("nothing", predictor, a.replay);
  for (const std::string& name : switches(policy))
    row(fmt::format("{}: {}", a.policy, name), predictor, without(name, &MoeOptions::policy_params));
  for (const std::string& name : switches(predictor))
    row(fmt::format("predictor {}: {}", a.predictor, name), predictor, without(name, &MoeOptions::predictor_params));
  if (out) out.finish(pretty(rows));
  return 0;
}

int sweep_command(Arguments& a) {
  prepare(a);
  OutputFile json("--json", a.json), html("--output", a.out);
  const RoutingTrace trace = load(a);
  a.sweep.base = a.replay;
  if (html.regular()) a.sweep.store = a.out.string() + ".runs";
  uint64_t digest = 14695981039346656037u;  // FNV-1a
  for (const auto& sequence : trace.sequences()) {
    for (uint64_t t = 0; t < sequence.tokens; t++) {
      for (uint32_t layer = 0; layer < trace.shape().layers; layer++) {
        for (uint8_t e : trace.experts(sequence.first_token + t, layer)) digest = (digest ^ e) * 1099511628211u;
      }
    }
  }
  a.sweep.identity = fmt::format("{:016x} {} {}", digest, trace.tokens(), trace.shape().experts);
  Progress progress;
  std::atomic<bool> cancel = false;
  const replay::MoeSweep result = replay::moe_sweep(trace, a.sweep, cancel, [&](size_t done, size_t all) {
    cancel = interrupted();
    progress.show(fmt::format("{} of {} runs", done, all));
    if (cancel) progress.clear();
  });
  progress.clear();
  if (json) json.finish(pretty({{"trace", a.directory.filename().string()}, {"cells", result.cells}}));
  html.finish(result.page.html());
  std::error_code ignored;
  if (!a.sweep.store.empty()) fs::remove(a.sweep.store, ignored);
  fmt::print(stderr, "{}\n", a.out.string());
  return 0;
}

int policies_command(const std::string& file) {
  OutputFile json("--json", file);
  ordered_json list = ordered_json::array();
  for (const neotier_placement* p : placement::policies(NEOTIER_EXPERTS)) {
    const char* role = p->flags & NEOTIER_PREDICTOR      ? "predictor"
                       : p->flags & NEOTIER_NEEDS_ORACLE ? "bound"
                                                         : "policy";
    ordered_json params = ordered_json::array();
    for (uint32_t i = 0; i < p->nr_params; i++) {
      const neotier_placement_param& q = p->params[i];
      params.push_back({{"name", q.name}, {"default", q.value}, {"min", q.min}, {"max", q.max}, {"text", q.text}});
    }
    list.push_back({{"name", p->name}, {"role", role}, {"text", p->text}, {"source", p->source}, {"params", params}});
    if (json) continue;
    fmt::print("{:<18} {:<10} {}\n", p->name, role, p->text);
    for (uint32_t i = 0; i < p->nr_params; i++) {
      fmt::print("{:<30}{}={:g}  {}\n", "", p->params[i].name, p->params[i].value, p->params[i].text);
    }
  }
  if (json) json.finish(pretty(list));
  return 0;
}

void add_trace_options(CLI::App& command, Arguments& a) {
  command
      .add_option("FOLDER", a.directory, "Recorded routing: a folder with index.csv and routes.u8 (docs/policies.md)")
      ->required();
  command.add_option("--layers", a.shape.layers, "Layers of the model")->capture_default_str();
  command.add_option("--experts", a.shape.experts, "Experts of a layer")->capture_default_str();
  command.add_option("--top-k", a.shape.top_k, "Experts that a token uses in a layer")->capture_default_str();
  command.add_option("--half", a.half, "Sequences at the even or the odd places of the index, or all")
      ->capture_default_str()
      ->check(one_of("half", {"all", "even", "odd"}));
  command.add_option("--experts-per-layer", a.replay.experts_per_layer, "Slots of each layer's cache")
      ->capture_default_str();
}

void add_replay_options(CLI::App& command, Arguments& a) {
  add_trace_options(command, a);
  command.add_option("--batch", a.replay.batch, "Sequences decoded at a time")->capture_default_str();
  command.add_option("--layer-ms", a.replay.layer_ms, "Ms that a layer takes to compute")->capture_default_str();
  command.add_option("--expert-ms", a.replay.expert_ms, "Ms that one expert takes besides for one row")
      ->capture_default_str();
  command.add_option("--link-gb-s", a.replay.link_gb_s, "Bandwidth to where absent experts lie, in 1e9 bytes a second")
      ->capture_default_str();
  command.add_option("--link-us", a.replay.link_us, "Us that the first expert which a layer waits for takes besides")
      ->capture_default_str();
  command.add_option("--expert-bytes", a.replay.expert_bytes, "Bytes of an expert's weights")->capture_default_str();
  command.add_option("--lookahead", a.replay.lookahead, "Layers ahead that are fetched for")->capture_default_str();
}

// Policies, bounds among them, or predictors and none.
std::vector<std::string> names(bool predictors) {
  std::vector<std::string> found;
  for (const neotier_placement* p : placement::policies(NEOTIER_EXPERTS)) {
    if (((p->flags & NEOTIER_PREDICTOR) != 0) == predictors) found.emplace_back(p->name);
  }
  if (predictors) found.emplace_back("none");
  return found;
}

void add_choice_options(CLI::App& command, Arguments& a) {
  command
      .add_option("--policy", a.policy,
                  "What stays in memory; `neotier moe policies` says what each is. A path is a shared library")
      ->capture_default_str()
      ->check(one_of("policy", names(false), true));
  command.add_option("--predictor", a.predictor, "What is fetched ahead, or none. A path is a shared library")
      ->capture_default_str()
      ->check(one_of("predictor", names(true), true));
  command.add_option("--param", a.policy_params, "A parameter of the policy. May be repeated")
      ->allow_extra_args(false)
      ->type_name("NAME=NUMBER");
  command.add_option("--predictor-param", a.predictor_params, "A parameter of the predictor. May be repeated")
      ->allow_extra_args(false)
      ->type_name("NAME=NUMBER");
  command.add_option("--seed", a.replay.seed, "Seed of policies that draw at random")->capture_default_str();
  add_json(command, a.json);
}

}  // namespace

void add_moe(CLI::App& app, int& status) {
  auto a = std::make_shared<Arguments>();
  CLI::App* moe = app.add_subcommand("moe", "Choose which experts of a model to keep and which to fetch ahead");
  moe->group(kModels);
  moe->footer("example:\n  neotier moe bench --hidden 512 --ff 512 --tokens 16");

  CLI::App* replay =
      moe->add_subcommand("replay", "Replay recorded routing under a policy and a predictor (simulated)");
  replay->footer(
      "examples:\n  neotier moe replay ROUTES\n"
      "  neotier moe replay ROUTES --policy lru --predictor none --experts-per-layer 12\n"
      "  neotier moe replay ROUTES --layer-ms 2 --link-gb-s 12.5 --json figures.json");
  add_replay_options(*replay, *a);
  add_choice_options(*replay, *a);
  replay->callback([a, &status] { status = replay_command(*a); });

  add_moe_bench(*moe, status);

  CLI::App* analyse =
      moe->add_subcommand("analyse", "Print how predictable recorded routing is: SRP and SCH, overlap, affinity, skew");
  analyse->footer("example:\n  neotier moe analyse ROUTES --json analysis.json");
  add_trace_options(*analyse, *a);
  add_json(*analyse, a->json);
  analyse->callback([a, &status] { status = analyse_command(*a); });

  CLI::App* ablate = moe->add_subcommand("ablate", "Replay with each signal of a policy and a predictor switched off");
  ablate->footer(
      "examples:\n  neotier moe ablate ROUTES\n"
      "  neotier moe ablate ROUTES --predictor none");
  add_replay_options(*ablate, *a);
  add_choice_options(*ablate, *a);
  ablate->callback([a, &status] { status = ablate_command(*a); });

  CLI::App* sweep = moe->add_subcommand(
      "sweep", "Replay every policy over capacities and every predictor over compute times, for one HTML page");
  sweep->footer(
      "example:\n  neotier moe sweep ROUTES -o moe.html\n"
      "Interrupted, the same command goes on where it was.");
  add_replay_options(*sweep, *a);
  add_output(*sweep, a->out, "The HTML page to write")->required();
  add_json(*sweep, a->json);
  sweep->add_option("--policies", a->sweep.policies, "Only these policies, separated by commas")
      ->delimiter(',')
      ->check(one_of("policy", names(false), true));
  sweep->add_option("--predictors", a->sweep.predictors, "Only these predictors, separated by commas")
      ->delimiter(',')
      ->check(one_of("predictor", names(true), true));
  sweep->add_option("--capacities", a->sweep.capacities, "Slots of a layer, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  sweep->add_option("--layer-times", a->sweep.layer_ms, "Ms that a layer takes to compute, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  sweep->add_option("--batches", a->sweep.batches, "Sequences decoded at a time, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  a->sweep.parallel = std::max(1u, std::thread::hardware_concurrency());
  sweep->add_option("--jobs", a->sweep.parallel, "Replays at once")->capture_default_str()->check(CLI::Range(1u, 256u));
  sweep->callback([a, &status] { status = sweep_command(*a); });

  CLI::App* policies = moe->add_subcommand("policies", "Print policies, bounds and predictors, with their parameters");
  policies->footer("example:\n  neotier moe policies");
  add_json(*policies, a->json);
  policies->callback([a, &status] { status = policies_command(a->json); });
}

}  // namespace neotier::cli

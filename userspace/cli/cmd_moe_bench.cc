// SPDX-License-Identifier: Apache-2.0
// neotier moe bench; neotier model make
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/moe_bench.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/words.h"
#include "experts/synthetic_model.h"
#include "util/interrupt.h"
#include "util/json.h"
#include "util/output_file.h"
#include "util/progress.h"
#include "util/size.h"
#include "util/temporary_folder.h"

namespace fs = std::filesystem;

namespace neotier::cli {

namespace {

using Json = nlohmann::ordered_json;
using experts::MoeBenchResult;
using experts::MoeMethod;
using experts::SyntheticModel;

struct Arguments {
  std::string model, json, routing, format = "mxfp4", out;
  fs::path folder = "/var/tmp";
  std::string policy = placement::kRecommendedExpertPolicy, predictor = "learned", backing = "ssd",
              prefetch_limit = "0";
  bool no_biases = false;
  double stand_in_ms = -1;
  SyntheticModel shape;
  experts::MoeBenchOptions bench;
};

compute::Format parse_format(const std::string& name) {
  std::string known;
  for (const compute::Format f : compute::kFormats) {
    if (f == compute::Format::kMxfp4Split) continue;
    if (name == compute::to_string(f)) return f;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", compute::to_string(f));
  }
  throw std::runtime_error(fmt::format("--format {}: known: {}", name, known));
}

void make_model(Arguments& a, const std::string& file) {
  a.shape.format = parse_format(a.format);
  a.shape.biases = !a.no_biases;
  const uint64_t bytes = a.shape.expert_bytes() * a.shape.layers * a.shape.experts;
  const fs::path folder = fs::absolute(file).parent_path();
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (!error && space.available < bytes + (64 << 20))
    throw std::runtime_error(
        fmt::format("{}: {} of experts do not fit into the {} that are free; give a smaller "
                    "--hidden and --ff, or another folder",
                    folder.string(), format_size(bytes), format_size(space.available)));
  Progress progress;
  const engine::Status status = write_synthetic_model(
      a.shape, file, [&](double share) { progress.show(fmt::format("writing {}: {:.0f} %", file, 100 * share)); },
      interrupted);
  progress.clear();
  throw_if_interrupted();
  if (!status) throw std::runtime_error(status.what());
}

int make_command(Arguments& a) {
  // What can be wrong with it is said before anything is made.
  (void)OutputFile("FILE", a.out);
  catch_interrupts();
  make_model(a, a.out);
  fmt::print("{}: {} layers of {} experts of {} ({} x {}, {}); random weights\n", a.out, a.shape.layers,
             a.shape.experts, format_size(a.shape.expert_bytes()), a.shape.hidden, a.shape.ff, a.format);
  return 0;
}

double difference(double measured, double predicted) { return predicted > 0 ? 100 * (measured / predicted - 1) : 0; }

Json to_json(const Arguments& a, const MoeBenchResult& r, const std::string& routing) {
  Json j = {{"model", a.model.empty() ? "synthetic, random weights" : fs::path(a.model).filename().string()},
            {"routing", routing},
            {"routing_weights", r.routing_weights},
            {"layers", r.layers},
            {"experts", r.experts},
            {"top_k", a.shape.top_k},
            {"hidden", r.hidden},
            {"ff", r.ff},
            {"format", r.format},
            {"compute_path", r.path},
            {"backing", a.backing},
            {"read_by", r.medium},
            {"expert_bytes", r.expert_bytes},
            {"expert_read_bytes", r.read_bytes},
            {"model_bytes", r.model_bytes},
            {"experts_per_layer", r.slots},
            {"slots_bytes", r.slots_bytes},
            {"tokens", a.bench.tokens},
            {"tokens_before", a.bench.warm},
            {"layer_ms_slept", a.bench.layer_ms},
            {"expert_ms", r.expert_ms},
            {"layer_other_ms", r.other_ms}};
  if (r.stand_in_error > 0) j["stand_in_weight_error"] = r.stand_in_error;
  j["methods"] = Json::array();
  for (const MoeMethod& m : r.methods) {
    Json one = {{"name", m.name},
                {"what", m.text},
                {"token_ms", {{"mean", m.mean_ms}, {"p50", m.p50_ms}, {"p90", m.p90_ms}, {"p99", m.p99_ms}}},
                {"tokens_per_s", 1e3 / m.mean_ms},
                {"stall_share", m.stall_share},
                {"output_digest", fmt::format("{:016x}", m.digest)},
                {"identical", m.identical},
                {"output_error", m.error}};
    if (m.counted) {
      const auto& c = m.counters;
      one["hit_rate"] = static_cast<double>(c.hits) / static_cast<double>(c.uses);
      one["stall_free_rate"] = static_cast<double>(c.stall_free) / static_cast<double>(c.uses);
      one["bytes"] = c.bytes;
      one["loads"] = c.loads;
      one["prefetches"] = c.prefetches;
      one["prefetches_used"] = c.prefetches_used;
      one["cancelled"] = c.cancelled;
      one["in_place"] = c.in_place;
      one["stand_ins"] = c.stand_ins;
      one["link_gb_per_s"] = m.link_gb_s;
      one["link_us"] = m.link_us;
      one["expert_ms"] = m.expert_ms;
      one["layer_other_ms"] = m.other_ms;
      one["wait_ms"] = m.wait_ms;
    }
    if (m.predicted) {
      one["predicted_token_ms"] = {{"mean", m.predicted_mean_ms},
                                   {"p50", m.predicted_p50_ms},
                                   {"p90", m.predicted_p90_ms},
                                   {"p99", m.predicted_p99_ms}};
      one["predicted_wait_ms"] = m.predicted_wait_ms;
      one["measured_over_predicted_percent"] = difference(m.mean_ms, m.predicted_mean_ms);
    }
    one["token_ms_all"] = m.token_ms;
    j["methods"].push_back(std::move(one));
  }
  return j;
}

void print(const Arguments& a, const MoeBenchResult& r, const std::string& routing) {
  fmt::print("{}: {} layers of {} experts, {} a token, {} x {}, {}: {} an expert, {} in all\n",
             a.model.empty() ? "synthetic model, random weights" : a.model, r.layers, r.experts, a.shape.top_k,
             r.hidden, r.ff, r.format, format_size(r.expert_bytes), format_size(r.model_bytes));
  fmt::print("routing: {}; weights {}\n", routing, r.routing_weights);
  fmt::print("experts lie on {} (read by {}), {} slots a layer in memory: {}; computed by one thread, {}\n", a.backing,
             r.medium, r.slots, format_size(r.slots_bytes), r.path);
  fmt::print(
      "{} tokens after {} that policies have seen; measured on this machine; an expert takes {:.2f} ms, a layer "
      "{:.2f} ms besides{}\n\n",
      a.bench.tokens, a.bench.warm, r.expert_ms, r.other_ms,
      a.bench.layer_ms > 0 ? fmt::format(" ({} ms of it slept)", a.bench.layer_ms) : "");
  fmt::print("{:<9} {:>24} {:>8} {:>6} {:>6} {:>7} {:>9} {:>8} | {:>9} {:>8} {:>6} {:>5} {:>6}  output\n", "",
             "ms a token p50/p90/p99", "tokens/s", "stall", "hits", "on time", "bytes/tok", "wait ms", "predicted",
             "its wait", "off by", "GB/s", "+ us");
  for (const MoeMethod& m : r.methods) {
    const auto& c = m.counters;
    const auto share = [&](uint64_t n) {
      return m.counted ? fmt::format("{:.3f}", static_cast<double>(n) / static_cast<double>(c.uses)) : std::string("-");
    };
    const auto number = [](bool known, double value, int digits) {
      return known ? fmt::format("{:.{}f}", value, digits) : std::string("-");
    };
    fmt::print("{:<9} {:>24} {:>8.2f} {:>5.1f}% {:>6} {:>7} {:>9} {:>8} | {:>9} {:>8} {:>6} {:>5} {:>6}  {}\n", m.name,
               fmt::format("{:.1f} / {:.1f} / {:.1f}", m.p50_ms, m.p90_ms, m.p99_ms), 1e3 / m.mean_ms,
               100 * m.stall_share, share(c.hits), share(c.stall_free),
               m.counted ? format_size(c.bytes / a.bench.tokens) : "-", number(m.counted, m.wait_ms, 1),
               number(m.predicted, m.predicted_mean_ms, 1), number(m.predicted, m.predicted_wait_ms, 1),
               m.predicted ? fmt::format("{:+.1f}%", difference(m.mean_ms, m.predicted_mean_ms)) : "-",
               number(m.counted, m.link_gb_s, 2), number(m.counted, m.link_us, 0),
               m.identical ? fmt::format("{:016x}, identical", m.digest)
                           : fmt::format("differs: relative error {:.2e}", m.error));
  }
  fmt::print("\n");
  for (const MoeMethod& m : r.methods) fmt::print("{:<9} {}\n", m.name, m.text);
  if (!r.all_resident)
    fmt::print("everything resident does not fit into this machine's memory: {} is first instead\n", r.methods[0].name);
  fmt::print(
      "stall: share of the time over the first method's. hits: experts that held a slot when their layer began; on "
      "time: and were there.\n"
      "predicted: mean ms a token, and waiting, by the replay (`neotier moe replay`) from the same run's compute time "
      "and the link\nmeasured before and after it. GB/s: the link; + us: what the first of several loads takes "
      "besides.\n");
  for (const MoeMethod& m : r.methods) {
    const auto& c = m.counters;
    if (c.in_place > 0) fmt::print("{}: {} experts were computed where they lie\n", m.name, c.in_place);
    if (c.stand_ins > 0)
      fmt::print("{}: {} Q4_0 stand-ins were used; their weights differ by {:.3f} (relative L2 norm)\n", m.name,
                 c.stand_ins, r.stand_in_error);
    if (c.retries > 0) fmt::print("{}: {} reads were tried twice\n", m.name, c.retries);
  }
}

int bench_command(Arguments& a) {
  OutputFile out("--json", a.json);
  catch_interrupts();
  auto& b = a.bench;
  b.store.policy = placement::find_policy(a.policy, NEOTIER_EXPERTS);
  if (a.predictor != "none")
    b.store.predictor = placement::find_policy(a.predictor, NEOTIER_EXPERTS | NEOTIER_PREDICTOR);
  b.store.resident_files = a.backing == "dram";
  if (b.store.in_place && !b.store.resident_files)
    throw std::runtime_error("--in-place: experts on storage cannot be computed where they lie; give --backing dram");
  b.store.loader.background_bytes_per_s = parse_size(a.prefetch_limit);
  b.store.stand_in = a.stand_in_ms >= 0;
  b.store.stand_in_late_us = b.store.stand_in ? static_cast<uint64_t>(a.stand_in_ms * 1e3) : 0;
  b.model = a.model;
  std::optional<TemporaryFolder> temporary;
  if (b.model.empty()) {
    if (!fs::is_directory(a.folder)) throw std::runtime_error(fmt::format("--folder: no folder {}", a.folder.string()));
    temporary.emplace("neotier-moe-bench", a.folder);
    b.model = (*temporary / "model.gguf").string();
    make_model(a, b.model);
  } else {
    const auto model = model::open_model(b.model);
    if (!model) throw std::runtime_error(model.status().what());
    const auto map = model::find_experts(*model);
    if (!map) throw std::runtime_error(map.status().what());
    if (map->layers.empty()) throw std::runtime_error(fmt::format("{}: no experts in this model", b.model));
    a.shape.layers = static_cast<uint32_t>(map->layers.size());
    a.shape.experts = map->layers[0].experts;
    if (model->experts_used > 0) a.shape.top_k = model->experts_used;
  }
  b.store.top_k = a.shape.top_k;
  b.store.lookahead = std::min(b.store.lookahead, std::max(1u, a.shape.layers - 1));
  if (a.shape.layers == 1) b.store.predictor = nullptr;
  const replay::RoutingShape shape{a.shape.layers, a.shape.experts, a.shape.top_k};
  const uint64_t tokens = b.warm + b.tokens;
  const replay::RoutingTrace trace = a.routing.empty() ? replay::synthetic_routing(shape, tokens, a.shape.seed)
                                                       : replay::RoutingTrace::load(a.routing, shape).first(tokens);
  const std::string routing =
      a.routing.empty() ? "synthetic (skewed and repeating, of nobody's model)" : "recorded, " + a.routing;
  Progress progress;
  b.cancelled = interrupted;
  b.progress = [&](const std::string& text) { progress.show(text); };
  MoeBenchResult r;
  try {
    r = experts::run_moe_bench(trace, b);
  } catch (...) {
    progress.clear();
    throw;
  }
  progress.clear();
  print(a, r, routing);
  if (out) out.finish(pretty(to_json(a, r, routing)));
  for (const MoeMethod& m : r.methods)
    if (!m.identical && m.counters.stand_ins == 0)
      throw std::runtime_error(fmt::format("{}: its output is not {}'s; this is a bug", m.name, r.methods[0].name));
  return 0;
}

void add_shape_options(CLI::App& c, Arguments& a) {
  c.add_option("--layers", a.shape.layers, "Layers of experts")->capture_default_str();
  c.add_option("--experts", a.shape.experts, "Experts of a layer")->capture_default_str();
  c.add_option("--top-k", a.shape.top_k, "Experts that a token uses")->capture_default_str();
  c.add_option("--hidden", a.shape.hidden, "Width of the model, a multiple of 32")->capture_default_str();
  c.add_option("--ff", a.shape.ff, "Width of an expert, a multiple of 32")->capture_default_str();
  c.add_option("--format", a.format, "Format of the weights")
      ->capture_default_str()
      ->check(one_of("format", {"f32", "bf16", "q8_0", "q4_0", "mxfp4"}));
  c.add_flag("--no-biases", a.no_biases,
             "Make experts without biases, with SwiGLU. With biases they have gpt-oss' clamped variant of it");
  c.add_option("--seed", a.shape.seed, "Seed of the weights, and of synthetic routing")->capture_default_str();
}

}  // namespace

void add_model_make(CLI::App& model, int& status) {
  auto a = std::make_shared<Arguments>();
  CLI::App* make = model.add_subcommand("make", "Write a mixture-of-experts model of random weights, as GGUF");
  make->footer(
      "The defaults are gpt-oss-20b's shapes: 9.5 GiB.\nexamples:\n  neotier model make -o m.gguf --hidden 512 --ff "
      "512\n"
      "  neotier moe bench m.gguf");
  add_output(*make, a->out, "The GGUF file to write")->required();
  add_shape_options(*make, *a);
  make->callback([a, &status] { status = make_command(*a); });
}

void add_moe_bench(CLI::App& moe, int& status) {
  auto a = std::make_shared<Arguments>();
  a->shape.hidden = a->shape.ff = 1856;
  auto& b = a->bench;
  CLI::App* c = moe.add_subcommand(
      "bench", "Measure the time a token takes: from the store, under LRU, by mmap, everything resident (real bytes)");
  c->footer(
      "Without MODEL one of random weights is written to --folder and removed afterwards: by default gpt-oss-20b's "
      "layers "
      "and\nexperts, narrower (1856 for 2880), 4 GiB.\nexamples:\n"
      "  neotier moe bench --hidden 512 --ff 512 --tokens 16\n"
      "  neotier moe bench gpt-oss-20b-mxfp4.gguf --experts-per-layer 12 --layer-ms 1 --json moe.json\n"
      "  neotier moe bench --routing ROUTES\n"
      "  neotier moe bench --hidden 512 --ff 512 --backing dram --in-place");
  c->add_option("MODEL", a->model, "A model, GGUF or safetensors, as `neotier model info` takes it");
  add_shape_options(*c, *a);
  c->add_option("--folder", a->folder, "Where a model is written: on the storage to be measured")
      ->type_name("FOLDER")
      ->capture_default_str();
  c->add_option("--routing", a->routing, "Recorded routing, as `neotier moe replay` takes it. Without it: synthetic")
      ->type_name("FOLDER");
  c->add_option("--experts-per-layer", b.store.slots, "Slots of each layer")->capture_default_str();
  c->add_option("--policy", a->policy, "What stays in memory; `neotier moe policies` lists them")
      ->capture_default_str();
  c->add_option("--predictor", a->predictor, "What is fetched ahead, or none")->capture_default_str();
  c->add_option("--lookahead", b.store.lookahead, "Layers ahead that are fetched for")->capture_default_str();
  c->add_option("--prefetch-limit", a->prefetch_limit, "Bytes a second that are fetched ahead at most; 0: no limit")
      ->capture_default_str()
      ->type_name("SIZE");
  c->add_option("--layer-ms", b.layer_ms, "Ms to sleep before each layer, for what is not experts")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e4));
  c->add_option("--tokens", b.tokens, "Tokens that are measured")->capture_default_str()->check(CLI::Range(1, 1000000));
  c->add_option("--tokens-before", b.warm, "Tokens before those, which policies and predictors see without any bytes")
      ->capture_default_str()
      ->check(CLI::Range(0, 10000000));
  c->add_option("--backing", a->backing,
                "Where experts without a slot lie: ssd (in their files), dram (in memory, read "
                "there first)")
      ->capture_default_str()
      ->check(one_of("backing", {"ssd", "dram"}));
  c->add_flag("--in-place", b.store.in_place,
              "Compute experts where they lie when that is over sooner. For --backing dram");
  c->add_option("--stand-in-ms", a->stand_in_ms,
                "Use a resident Q4_0 copy of experts that are further away than so many ms. Changes results")
      ->check(CLI::Range(0.0, 1e6));
  c->add_option("--methods", b.methods, "Which methods to measure; resident runs wherever it fits")
      ->check(one_of("method", {"resident", "store", "lru", "mmap"}))
      ->delimiter(',')
      ->capture_default_str();
  add_json(*c, a->json);
  c->callback([a, &status] { status = bench_command(*a); });
}

}  // namespace neotier::cli

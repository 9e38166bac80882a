// SPDX-License-Identifier: Apache-2.0
#include "replay/moe_sweep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "replay/jobs.h"
#include "replay/moe_analyse.h"

namespace neotier::replay {

namespace {

using Json = nlohmann::ordered_json;
using report::Page;

const char* const kNone = "none";
const char* const kOurs = "learned";

struct Point {
  double hit_rate, stall_free_rate, bytes_a_use, ms_a_token;
};

// The sweep's jobs and, once they have run, their points.
class Runs {
 public:
  Runs(const RoutingTrace& trace, const MoeOptions& base) : trace_(trace), base_(base) {}

  // Names a run; it is added where it is not there yet.
  std::string add(const std::string& policy, const std::string& predictor, const MoeOptions& o) {
    std::string key = fmt::format("{} {} {} {} {}", policy, predictor, o.experts_per_layer, o.layer_ms, o.batch);
    if (!keys_.emplace(key, keys_.size()).second) return key;
    const placement::PolicyRef p = placement::find_policy(policy, NEOTIER_EXPERTS);
    const placement::PolicyRef q =
        predictor == kNone ? nullptr : placement::find_policy(predictor, NEOTIER_EXPERTS | NEOTIER_PREDICTOR);
    jobs_.push_back({key, [this, p, q, o](const std::atomic<bool>& cancel) {
                       MoeOptions options = o;
                       options.cancel = &cancel;
                       const MoeResult r = replay(trace_, p, q, options);
                       return Json{{"policy", r.policy},
                                   {"predictor", r.predictor},
                                   {"experts_per_layer", options.experts_per_layer},
                                   {"layer_ms", options.layer_ms},
                                   {"batch", options.batch},
                                   {"hit_rate", r.hit_rate()},
                                   {"stall_free_rate", r.stall_free_rate()},
                                   {"bytes_a_use", r.bytes / options.expert_bytes / static_cast<double>(r.uses)},
                                   {"ms_a_token", r.modelled_ns / 1e6 / static_cast<double>(r.tokens)}};
                     }});
    return key;
  }

  void run(const MoeSweepOptions& options, const std::atomic<bool>& cancel,
           const std::function<void(size_t, size_t)>& done) {
    const std::string identity =
        fmt::format("moe {} | {} | link {} expert {} lookahead {} seed {}", options.identity, build_identity(),
                    base_.link_gb_s, base_.expert_bytes, base_.lookahead, base_.seed);
    results_ = run_jobs(jobs_, identity, options.store, options.parallel, cancel, done);
  }

  Json cells() const {
    Json list = Json::array();
    for (const Job& job : jobs_) list.push_back(results_.at(job.key));
    return list;
  }

  Point at(const std::string& key) const {
    const Json& r = results_.at(key);
    return {r.at("hit_rate"), r.at("stall_free_rate"), r.at("bytes_a_use"), r.at("ms_a_token")};
  }

 private:
  const RoutingTrace& trace_;
  const MoeOptions& base_;
  std::map<std::string, size_t> keys_;
  std::vector<Job> jobs_;
  std::map<std::string, Json> results_;
};

// A family of curves: a name, and the run at each x.
struct Curve {
  std::string name;
  bool bound = false;
  std::vector<std::pair<double, std::string>> runs;
};

template <typename Value>
Json series(const Runs& runs, const std::vector<Curve>& curves, Value value) {
  Json list = Json::array();
  for (const Curve& curve : curves) {
    Json points = Json::array();
    for (const auto& [x, key] : curve.runs) points.push_back({x, value(runs.at(key))});
    list.push_back({{"name", curve.name}, {"points", points}, {"bound", curve.bound}, {"dots", true}});
  }
  return list;
}

bool is_bound(const std::string& policy) {
  return placement::find_policy(policy, NEOTIER_EXPERTS)->flags & NEOTIER_NEEDS_ORACLE;
}

Json axis(const std::string& name, const std::string& unit, bool log = false) {
  return {{"name", name}, {"unit", unit}, {"log", log}};
}

void table(Page& page, const Runs& runs, const std::string& caption, const std::string& first,
           const std::vector<Curve>& curves, double Point::*value) {
  std::vector<std::string> columns = {first};
  for (const auto& [x, key] : curves.front().runs) columns.push_back(fmt::format("{:g}", x));
  std::vector<std::vector<std::string>> rows;
  for (const Curve& curve : curves) {
    rows.push_back({curve.name});
    for (const auto& [x, key] : curve.runs) rows.back().push_back(fmt::format("{:.4f}", runs.at(key).*value));
  }
  page.table(caption, columns, rows);
}

std::vector<std::string> named(std::vector<std::string> given, uint32_t flags) {
  if (!given.empty()) return given;
  for (const neotier_placement* p : placement::policies(flags)) {
    if ((p->flags & NEOTIER_PREDICTOR) == (flags & NEOTIER_PREDICTOR)) given.emplace_back(p->name);
  }
  return given;
}

}  // namespace

MoeSweep moe_sweep(const RoutingTrace& trace, const MoeSweepOptions& options, const std::atomic<bool>& cancel,
                   const std::function<void(size_t, size_t)>& done) {
  const MoeOptions& base = options.base;
  const std::vector<std::string> policies = named(options.policies, NEOTIER_EXPERTS);
  const std::vector<std::string> predictors = named(options.predictors, NEOTIER_EXPERTS | NEOTIER_PREDICTOR);
  Runs runs(trace, base);

  // One run for each value of one option.
  const auto vary = [&](Curve& curve, const auto& values, auto MoeOptions::*option, const std::string& policy,
                        const std::string& predictor) {
    for (const auto& value : values) {
      MoeOptions o = base;
      o.*option = value;
      curve.runs.emplace_back(value, runs.add(policy, predictor, o));
    }
  };
  std::vector<uint32_t> capacities;
  for (const uint32_t slots : options.capacities) {
    if (slots <= trace.shape().experts) capacities.push_back(slots);
  }

  std::vector<Curve> capacity, batch, compute, batch_ahead;
  for (const std::string& policy : policies) {
    Curve by_capacity{policy, is_bound(policy), {}}, by_batch = by_capacity;
    vary(by_capacity, capacities, &MoeOptions::experts_per_layer, policy, kNone);
    vary(by_batch, options.batches, &MoeOptions::batch, policy, kNone);
    capacity.push_back(by_capacity);
    batch.push_back(by_batch);
  }
  const auto ahead = [&](const std::string& name, const std::string& policy, const std::string& predictor) {
    Curve curve{name, false, {}}, rows_curve = curve;
    vary(curve, options.layer_ms, &MoeOptions::layer_ms, policy, predictor);
    vary(rows_curve, options.batches, &MoeOptions::batch, policy, predictor);
    compute.push_back(curve);
    batch_ahead.push_back(rows_curve);
  };
  for (const std::string& predictor : predictors) ahead(predictor, kOurs, predictor);
  ahead("nothing ahead", kOurs, kNone);
  ahead("nothing ahead, LRU", "lru", kNone);

  runs.run(options, cancel, done);

  Page page(
      "Experts: policies and predictors",
      fmt::format("Replay of {} tokens in {} sequences, {} layers of {} experts, {} a token. Hits are exact; times and "
                  "stalls are modelled ({} GB/s link, {} MB an expert), not of any machine.",
                  trace.tokens(), trace.sequences().size(), trace.shape().layers, trace.shape().experts,
                  trace.shape().top_k, base.link_gb_s, base.expert_bytes / 1e6));
  page.colour_order({kOurs, "lru", "lfu", "lfu-decay", "hybrimoe"});

  page.section("Policies, nothing fetched ahead");
  page.prose(
      "Share of uses whose expert was in the layer's cache when its layer began. Dashed: bounds that know the future; "
      "belady may leave an expert out of the cache, belady-forced may not. In a batch they minimise loads, not missed "
      "uses, so a policy may pass them there.");
  page.chart({{"kind", "lines"},
              {"title", fmt::format("Hit rate over capacity, batch {}", base.batch)},
              {"x", axis("slots a layer", "experts")},
              {"y", axis("hit rate", "")},
              {"series", series(runs, capacity, [](const Point& p) { return p.hit_rate; })}});
  page.chart({{"kind", "lines"},
              {"title", fmt::format("Hit rate over the batch, {} slots a layer", base.experts_per_layer)},
              {"x", axis("rows in a batch", "sequences", true)},
              {"y", axis("hit rate", "")},
              {"series", series(runs, batch, [](const Point& p) { return p.hit_rate; })}});
  table(page, runs, "Hit rate by slots a layer", "policy", capacity, &Point::hit_rate);
  table(page, runs, "Hit rate by rows in a batch", "policy", batch, &Point::hit_rate);

  page.section("Predictors, with policy learned");
  page.prose("Share of uses whose expert was there, in full, when its layer began, and what it costs on the link.");
  page.chart({{"kind", "lines"},
              {"title", fmt::format("Stall-free uses over a layer's compute time, {} slots, batch {}",
                                    base.experts_per_layer, base.batch)},
              {"x", axis("compute of a layer", "ms", true)},
              {"y", axis("stall-free", "")},
              {"series", series(runs, compute, [](const Point& p) { return p.stall_free_rate; })}});
  page.chart({{"kind", "lines"},
              {"title", "Transfers a use"},
              {"x", axis("compute of a layer", "ms", true)},
              {"y", axis("experts over the link, a use", "")},
              {"series", series(runs, compute, [](const Point& p) { return p.bytes_a_use; })}});
  page.chart({{"kind", "lines"},
              {"title", fmt::format("Stall-free uses over the batch, {} ms a layer", base.layer_ms)},
              {"x", axis("rows in a batch", "sequences", true)},
              {"y", axis("stall-free", "")},
              {"series", series(runs, batch_ahead, [](const Point& p) { return p.stall_free_rate; })}});
  page.chart({{"kind", "lines"},
              {"title", "Modelled time a token"},
              {"x", axis("compute of a layer", "ms", true)},
              {"y", axis("modelled time", "ms", true)},
              {"series", series(runs, compute, [](const Point& p) { return p.ms_a_token; })}});
  table(page, runs, "Stall-free share by ms a layer", "predictor", compute, &Point::stall_free_rate);
  table(page, runs, "Transfers a use by ms a layer", "predictor", compute, &Point::bytes_a_use);
  table(page, runs, "Stall-free share by rows in a batch", "predictor", batch_ahead, &Point::stall_free_rate);

  page.section("The trace");
  const RoutingAnalysis a = analyse(trace, base.experts_per_layer);
  Json srp = Json::array(), sch = Json::array();
  for (const auto& [m, share] : a.srp) srp.push_back({m, share});
  for (const auto& [m, share] : a.sch) {
    if (m) sch.push_back({m, share});
  }
  page.chart({{"kind", "lines"},
              {"title", fmt::format("How far {} experts a layer can go", a.group)},
              {"x", axis("tokens of the segment, or seen ahead", "tokens", true)},
              {"y", axis("share of uses", "")},
              {"series",
               {{{"name", "best fixed group of a segment (SRP)"}, {"points", srp}, {"dots", true}},
                {{"name", "best cache that sees ahead (SCH)"}, {"points", sch}, {"dots", true}}}}});
  std::vector<std::vector<std::string>> distinct;
  for (const auto& [rows, experts] : a.distinct)
    distinct.push_back({fmt::format("{}", rows), fmt::format("{:.2f}", experts)});
  page.table("Distinct experts a layer and step", {"rows", "experts"}, distinct);
  return {page, runs.cells()};
}

}  // namespace neotier::replay

// SPDX-License-Identifier: Apache-2.0
#include "score/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "placement/policy.h"
#include "replay/kv.h"
#include "replay/moe_replay.h"
#include "replay/pages/oracle.h"
#include "util/parallel.h"

namespace neotier::score {

namespace {

constexpr double kLeastSpeedup = 1.01, kLeastRate = .01;
constexpr const char *kBase = "lru", *kOracle = "belady";

pages::Job job_of(const Options& options, const std::string& law) {
  pages::Job job;
  job.policy = law == "placebo" ? law : "neotier";
  if (law != "placebo") job.law = law;
  job.tracker = options.tracker;
  job.params = options.params;
  return job;
}

uint64_t part(uint64_t whole, uint32_t percent) { return std::max<uint64_t>(1, (whole * percent + 50) / 100); }

// Hit rates of the base, the oracle and each policy in turn, in all rooms: rate(policy's name, room).
std::vector<Row> rows_of_rates(const std::string& kind, const std::string& trace,
                               const std::vector<std::string>& policies, const std::vector<uint64_t>& rooms,
                               const char* unit, unsigned threads,
                               const std::function<double(const std::string&, uint64_t)>& rate) {
  std::vector<std::string> all = {kBase, kOracle};
  all.insert(all.end(), policies.begin(), policies.end());
  std::vector<double> rates(all.size() * rooms.size());
  parallel_for(rates.size(), threads, [&](size_t i) { rates[i] = rate(all[i % all.size()], rooms[i / all.size()]); });
  std::vector<Row> rows;
  for (size_t room = 0; room < rooms.size(); ++room) {
    const double* r = &rates[room * all.size()];
    for (size_t i = 0; i < policies.size(); ++i) {
      rows.push_back({kind, trace, fmt::format("{} {}", rooms[room], unit), policies[i], r[0], r[2 + i], r[1], r[1],
                      share_of_rate(r[0], r[2 + i], r[1])});
    }
  }
  return rows;
}

}  // namespace

std::optional<double> share_of_speedup(double figure, double oracle) {
  if (oracle < kLeastSpeedup || figure <= 0) return std::nullopt;
  return std::log(figure) / std::log(oracle);
}

std::optional<double> share_of_rate(double base, double figure, double oracle) {
  if (oracle - base < kLeastRate) return std::nullopt;
  return (figure - base) / (oracle - base);
}

void check(const Options& options) {
  for (const std::string& law : options.laws) pages::check(job_of(options, law));
  for (const std::string& policy : options.kv) placement::find_policy(policy, NEOTIER_KV);
  for (const std::string& policy : options.experts) placement::find_policy(policy, NEOTIER_EXPERTS);
}

std::vector<Row> score(const std::string& name, const pages::Recording& recording, const Options& options) {
  hil::Oracle oracle;
  std::vector<pages::Result> results(options.laws.size());
  parallel_for(options.laws.size() + 1, options.threads, [&](size_t i) {
    if (i == 0)
      oracle = pages::solve_oracle(recording, options.params);
    else
      results[i - 1] = pages::replay(recording, job_of(options, options.laws[i - 1]));
  });
  std::vector<Row> rows;
  const double best = oracle.speedup(oracle.costed.saved_ps), most = oracle.speedup(oracle.costed.at_most_ps);
  for (size_t i = 0; i < results.size(); ++i) {
    const double figure =
        static_cast<double>(oracle.modelled_ns) / static_cast<double>(std::max<uint64_t>(1, results[i].modelled_ns));
    rows.push_back(
        {"pages", name, options.tracker, options.laws[i], 1, figure, best, most, share_of_speedup(figure, best)});
  }
  return rows;
}

std::vector<Row> score(const std::string& name, const replay::KvTrace& trace, const Options& options) {
  std::vector<uint64_t> rooms;
  for (const uint32_t percent : options.kv_percent) rooms.push_back(part(trace.objects, percent));
  return rows_of_rates("kv", name, options.kv, rooms, "blocks", options.threads,
                       [&](const std::string& policy, uint64_t room) {
                         replay::KvOptions o;
                         o.capacity_blocks = room;
                         return replay::replay(trace, placement::find_policy(policy, NEOTIER_KV), o).hit_rate();
                       });
}

std::vector<Row> score(const std::string& name, const replay::RoutingTrace& trace, const Options& options) {
  std::vector<uint64_t> rooms;
  for (const uint32_t percent : options.expert_percent) rooms.push_back(part(trace.shape().experts, percent));
  return rows_of_rates("experts", name, options.experts, rooms, "experts", options.threads,
                       [&](const std::string& policy, uint64_t room) {
                         replay::MoeOptions o;
                         o.experts_per_layer = static_cast<uint32_t>(room);
                         o.lookahead = std::clamp(trace.shape().layers - 1, 1u, o.lookahead);
                         const placement::PolicyRef found = placement::find_policy(policy, NEOTIER_EXPERTS);
                         return replay::replay(trace, found, nullptr, o).hit_rate();
                       });
}

std::vector<Mean> means(const std::vector<Row>& rows) {
  std::vector<Mean> means;
  for (const Row& row : rows) {
    auto at = std::find_if(means.begin(), means.end(),
                           [&](const Mean& m) { return m.kind == row.kind && m.policy == row.policy; });
    const double over = row.figure / std::max(row.base, 1e-9);
    if (at == means.end()) at = means.insert(means.end(), {row.kind, row.policy, over, {}, 0, 0});
    at->worst = std::min(at->worst, over);
    ++at->rows;
    if (!row.share) continue;
    ++at->shares;
    at->share = at->share.value_or(0) + (*row.share - at->share.value_or(0)) / static_cast<double>(at->shares);
  }
  return means;
}

namespace {
nlohmann::ordered_json json_of(const std::optional<double>& share) {
  return share ? nlohmann::ordered_json(*share) : nullptr;
}
}  // namespace

nlohmann::ordered_json to_json(const Row& r) {
  return {{"kind", r.kind},     {"trace", r.trace},     {"setting", r.setting},
          {"policy", r.policy}, {"base", r.base},       {"figure", r.figure},
          {"oracle", r.oracle}, {"at_most", r.at_most}, {"share", json_of(r.share)}};
}

nlohmann::ordered_json to_json(const Mean& m) {
  return {{"kind", m.kind}, {"policy", m.policy},        {"share", json_of(m.share)}, {"rows_with_share", m.shares},
          {"rows", m.rows}, {"worst_over_base", m.worst}};
}

}  // namespace neotier::score

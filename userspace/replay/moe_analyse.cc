// SPDX-License-Identifier: Apache-2.0
#include "replay/moe_analyse.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <stdexcept>

#include "replay/moe_replay.h"
#include "replay/moe_schedule.h"

namespace neotier::replay {

namespace {

double over(double part, double whole) { return whole > 0 ? part / whole : 0; }

// Counts in falling order.
std::vector<uint64_t> sorted(std::vector<uint64_t> counts) {
  std::sort(counts.begin(), counts.end(), std::greater<>());
  return counts;
}

double share_of_first(const std::vector<uint64_t>& falling, size_t nr) {
  const auto middle = falling.begin() + static_cast<std::ptrdiff_t>(std::min(nr, falling.size()));
  return over(static_cast<double>(std::accumulate(falling.begin(), middle, uint64_t{0})),
              static_cast<double>(std::accumulate(falling.begin(), falling.end(), uint64_t{0})));
}

template <typename Visit>
void for_each_token(const RoutingTrace& trace, Visit visit) {
  for (const RoutingSequence& sequence : trace.sequences()) {
    for (uint64_t i = 0; i < sequence.tokens; i++) visit(sequence.first_token + i, i);
  }
}

void skew(const RoutingTrace& trace, RoutingAnalysis& a) {
  const RoutingShape& shape = trace.shape();
  const double layers = shape.layers;
  for (uint32_t layer = 0; layer < shape.layers; layer++) {
    std::vector<uint64_t> counts(shape.experts);
    for_each_token(trace, [&](uint64_t token, uint64_t) {
      for (uint8_t e : trace.experts(token, layer)) counts[e]++;
    });
    counts = sorted(counts);
    const double total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), uint64_t{0}));
    a.top_tenth += share_of_first(counts, (shape.experts + 9) / 10) / layers;
    a.top_quarter += share_of_first(counts, (shape.experts + 3) / 4) / layers;
    a.top_half += share_of_first(counts, (shape.experts + 1) / 2) / layers;
    a.popular += share_of_first(counts, shape.top_k) / layers;
    double gini = 0, entropy = 0;
    for (uint32_t i = 0; i < shape.experts; i++) {
      const double share = static_cast<double>(counts[i]) / total;
      gini += share * (shape.experts - 1.0 - 2.0 * i) / shape.experts;
      if (share > 0) entropy -= share * std::log2(share);
    }
    a.gini += gini / layers;
    a.entropy += entropy / std::log2(shape.experts) / layers;
  }
}

double overlap(const RoutingTrace& trace, uint32_t distance) {
  const RoutingShape& shape = trace.shape();
  uint64_t same = 0, all = 0;
  for_each_token(trace, [&](uint64_t token, uint64_t place) {
    if (place < distance) return;
    for (uint32_t layer = 0; layer < shape.layers; layer++) {
      const auto now = trace.experts(token, layer), then = trace.experts(token - distance, layer);
      for (uint8_t e : now) same += std::find(then.begin(), then.end(), e) != then.end();
      all += now.size();
    }
  });
  return over(static_cast<double>(same), static_cast<double>(all));
}

double affinity(const RoutingTrace& trace, uint32_t lead) {
  const RoutingShape& shape = trace.shape();
  double sum = 0;
  for (uint32_t layer = 0; layer + lead < shape.layers; layer++) {
    std::vector<std::vector<uint64_t>> pairs(shape.experts, std::vector<uint64_t>(shape.experts));
    for_each_token(trace, [&](uint64_t token, uint64_t) {
      for (uint8_t from : trace.experts(token, layer)) {
        for (uint8_t to : trace.experts(token, layer + lead)) pairs[from][to]++;
      }
    });
    double covered = 0, all = 0;
    for (const auto& row : pairs) {
      const double total = static_cast<double>(std::accumulate(row.begin(), row.end(), uint64_t{0}));
      covered += total * share_of_first(sorted(row), shape.top_k);
      all += total;
    }
    sum += over(covered, all);
  }
  return over(sum, shape.layers - lead);
}

double best_groups(const RoutingTrace& trace, uint32_t segment, uint32_t group) {
  const RoutingShape& shape = trace.shape();
  uint64_t covered = 0, all = 0;
  for (const RoutingSequence& sequence : trace.sequences()) {
    for (uint64_t begin = 0; begin < sequence.tokens; begin += segment) {
      const uint64_t end = std::min<uint64_t>(begin + segment, sequence.tokens);
      for (uint32_t layer = 0; layer < shape.layers; layer++) {
        std::vector<uint64_t> counts(shape.experts);
        for (uint64_t token = begin; token < end; token++) {
          for (uint8_t e : trace.experts(sequence.first_token + token, layer)) counts[e]++;
        }
        std::partial_sort(counts.begin(), counts.begin() + group, counts.end(), std::greater<>());
        covered += std::accumulate(counts.begin(), counts.begin() + group, uint64_t{0});
        all += (end - begin) * shape.top_k;
      }
    }
  }
  return over(static_cast<double>(covered), static_cast<double>(all));
}

double distinct(const RoutingTrace& trace, uint32_t rows) {
  const RoutingShape& shape = trace.shape();
  const BatchSchedule schedule(trace, rows);
  std::vector<uint64_t> seen(size_t{shape.layers} * shape.experts);
  uint64_t sum = 0, events = 0;
  for (uint64_t step = 0; step < schedule.steps(); step++) {
    // The end, where sequences run out, is not a batch of this size.
    if (schedule.step(step).size() < rows) continue;
    for (uint32_t layer = 0; layer < shape.layers; layer++, events++) {
      for (const BatchSlot& slot : schedule.step(step)) {
        for (uint8_t e : trace.experts(slot.token, layer)) {
          uint64_t& stamp = seen[layer * shape.experts + e];
          sum += stamp != step + 1;
          stamp = step + 1;
        }
      }
    }
  }
  return over(static_cast<double>(sum), static_cast<double>(events));
}

}  // namespace

RoutingAnalysis analyse(const RoutingTrace& trace, uint32_t group) {
  const RoutingShape& shape = trace.shape();
  if (group < 1 || group > shape.experts) {
    throw std::runtime_error(
        fmt::format("--experts-per-layer {}: expected 1 to {}, the experts of a layer", group, shape.experts));
  }
  RoutingAnalysis a;
  a.sequences = trace.sequences().size();
  a.tokens = trace.tokens();
  a.uses = a.tokens * shape.layers * shape.top_k;
  a.group = group;
  a.random = over(shape.top_k, shape.experts);
  skew(trace, a);
  for (uint32_t distance : {1u, 2u, 4u, 8u, 16u, 64u}) a.overlap.emplace_back(distance, overlap(trace, distance));
  for (uint32_t lead : {1u, 2u, 3u, 4u}) {
    if (lead < shape.layers) a.affinity.emplace_back(lead, affinity(trace, lead));
  }
  for (uint32_t segment : {8u, 16u, 32u, 64u, 128u}) a.srp.emplace_back(segment, best_groups(trace, segment, group));
  const placement::PolicyRef belady = placement::find_policy("belady-forced", NEOTIER_EXPERTS);
  for (uint32_t ahead : {2u, 4u, 8u, 16u, 64u, 0u}) {
    MoeOptions options;
    options.experts_per_layer = group;
    options.lookahead = 1;
    if (ahead) options.oracle_steps = ahead;
    a.sch.emplace_back(ahead, replay(trace, belady, nullptr, options).hit_rate());
  }
  for (uint32_t rows : {1u, 2u, 4u, 8u, 16u, 32u}) {
    if (rows <= trace.sequences().size()) a.distinct.emplace_back(rows, distinct(trace, rows));
  }
  return a;
}

nlohmann::ordered_json to_json(const RoutingAnalysis& a) {
  const auto list = [](const auto& pairs, const char* x, const char* y) {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const auto& [at, value] : pairs) out.push_back({{x, at}, {y, value}});
    return out;
  };
  nlohmann::ordered_json sch = list(a.sch, "tokens_ahead", "hit_rate");
  sch.back()["tokens_ahead"] = nullptr;
  return {{"sequences", a.sequences},
          {"tokens", a.tokens},
          {"uses", a.uses},
          {"skew",
           {{"top_tenth", a.top_tenth},
            {"top_quarter", a.top_quarter},
            {"top_half", a.top_half},
            {"gini", a.gini},
            {"entropy", a.entropy}}},
          {"overlap", list(a.overlap, "distance", "share")},
          {"overlap_random", a.random},
          {"affinity", list(a.affinity, "lead", "share")},
          {"affinity_popular", a.popular},
          {"experts_per_layer", a.group},
          {"srp", list(a.srp, "segment_tokens", "share")},
          {"sch", sch},
          {"distinct_experts", list(a.distinct, "batch", "experts")}};
}

}  // namespace neotier::replay

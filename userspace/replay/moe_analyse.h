// SPDX-License-Identifier: Apache-2.0
// What a routing trace says about its model before any policy is chosen.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "replay/routing_trace.h"

namespace neotier::replay {

// All shares are 0 .. 1, means over layers (each weighing the same) unless stated.
struct RoutingAnalysis {
  uint64_t sequences = 0, tokens = 0, uses = 0;

  // Skew: share of a layer's uses that its most used tenth, quarter, half of the experts take (rounded up to whole
  // experts), Gini coefficient, and entropy over the highest possible.
  double top_tenth = 0, top_quarter = 0, top_half = 0, gini = 0, entropy = 0;

  // Overlap: share of a token's choices that the token `distance` earlier in its sequence made too; `random` is chance.
  std::vector<std::pair<uint32_t, double>> overlap;
  double random = 0;

  // Affinity: given one expert of a layer, share of the choices `lead` layers later that its top_k most frequent
  // successors take (counted on the whole trace, so an upper estimate); `popular` is the same without knowing the
  // expert.
  std::vector<std::pair<uint32_t, double>> affinity;
  double popular = 0;

  // SRP, after "Not All Models Suit Expert Offloading" (arXiv 2505.16056): share of uses that one group of `group`
  // experts a layer, chosen best for each segment of m tokens, covers. Segments do not cross sequences.
  std::vector<std::pair<uint32_t, double>> srp;
  // SCH, same source: best hit rate of a cache of `group` experts a layer that sees m tokens ahead (Belady, forced
  // admission, batch 1); the last entry, m = 0, sees all.
  std::vector<std::pair<uint32_t, double>> sch;
  uint32_t group = 0;

  // Distinct experts a layer uses in one step of a batch.
  std::vector<std::pair<uint32_t, double>> distinct;
};

// group: experts a layer for SRP and SCH, 1 .. shape.experts; the paper's sweet spot is 2 x top_k. Throws
// std::runtime_error.
RoutingAnalysis analyse(const RoutingTrace& trace, uint32_t group);
nlohmann::ordered_json to_json(const RoutingAnalysis& analysis);

}  // namespace neotier::replay

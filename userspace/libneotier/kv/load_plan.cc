// SPDX-License-Identifier: Apache-2.0
#include "kv/load_plan.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace neotier::kv {

namespace {

uint64_t end_ns(double load, uint64_t rest, uint32_t layers, const PlanOptions& o) {
  if (rest == UINT64_MAX) return UINT64_MAX;
  const double compute = static_cast<double>(rest), queue = static_cast<double>(o.compute_queue_ns);
  double end = std::max(load, queue) + compute;
  if (o.overlap && load > 0) {
    const double n = layers;
    end = std::max(std::max(load / n, queue) + compute, std::max(load, queue) + compute / n);
  }
  return end < 0x1p63 ? static_cast<uint64_t>(std::llround(end)) : UINT64_MAX;
}

}  // namespace

LoadPlan plan_load(std::span<const uint8_t> tier_of, std::span<const PlanTier> tiers, std::span<const uint64_t> rest_ns,
                   uint32_t layers, const PlanOptions& options) {
  LoadPlan plan;
  plan.found = tier_of.size();
  plan.ttft_ns = plan.compute_all_ns = end_ns(0, rest_ns[0], layers, options);
  std::vector<double> tier_ns(tiers.size());
  double load = 0;
  for (size_t k = 1; k <= tier_of.size(); k++) {
    double& its = tier_ns[tier_of[k - 1]];
    if (its == 0) its = tiers[tier_of[k - 1]].wait_ns;
    its += tiers[tier_of[k - 1]].block_ns;
    load = std::max(load, its);
    const uint64_t end = end_ns(load, rest_ns[k], layers, options);
    if (end < plan.ttft_ns || plan.ttft_ns == UINT64_MAX) {
      plan.load = k;
      plan.load_ns = static_cast<uint64_t>(std::llround(load));
      plan.ttft_ns = end;
    }
    plan.load_all_ns = end;
  }
  if (tier_of.empty()) plan.load_all_ns = plan.ttft_ns;
  return plan;
}

}  // namespace neotier::kv

// SPDX-License-Identifier: Apache-2.0
#include "replay/moe_schedule.h"

#include "neotier_placement.h"

namespace neotier::replay {

BatchSchedule::BatchSchedule(const RoutingTrace& trace, uint32_t rows) {
  struct Row {
    const RoutingSequence* sequence = nullptr;
    uint64_t done = 0;
  };
  const auto& sequences = trace.sequences();
  std::vector<Row> active(rows);
  size_t next = 0;
  slots_.reserve(trace.tokens());
  first_.push_back(0);
  for (;;) {
    for (uint32_t i = 0; i < rows; i++) {
      Row& row = active[i];
      if (!row.sequence && next < sequences.size()) row = {&sequences[next++], 0};
      if (!row.sequence) continue;
      slots_.push_back({row.sequence->first_token + row.done, i, row.done == 0});
      if (++row.done == row.sequence->tokens) row.sequence = nullptr;
    }
    if (slots_.size() == first_.back()) return;
    first_.push_back(slots_.size());
  }
}

std::vector<uint64_t> next_uses(const RoutingTrace& trace, const BatchSchedule& schedule) {
  const RoutingShape& shape = trace.shape();
  const uint64_t uses_a_slot = uint64_t{shape.layers} * shape.top_k;
  std::vector<uint64_t> result(trace.tokens() * uses_a_slot);
  std::vector<uint64_t> next(size_t{shape.layers} * shape.experts, NEOTIER_NEVER);
  for (uint64_t step = schedule.steps(); step-- > 0;) {
    const auto slots = schedule.step(step);
    const auto for_each_use = [&](auto&& visit) {
      for (size_t i = 0; i < slots.size(); i++) {
        for (uint32_t layer = 0; layer < shape.layers; layer++) {
          const auto experts = trace.experts(slots[i].token, layer);
          for (uint32_t k = 0; k < shape.top_k; k++) {
            const uint64_t use = (schedule.first_slot(step) + i) * uses_a_slot + layer * shape.top_k + k;
            visit(use, layer, next[size_t{layer} * shape.experts + experts[k]]);
          }
        }
      }
    };
    // Rows of a step are one event: none of them is the next use of another.
    for_each_use([&](uint64_t use, uint32_t, uint64_t& next_use) { result[use] = next_use; });
    for_each_use([&](uint64_t, uint32_t layer, uint64_t& next_use) { next_use = step * shape.layers + layer; });
  }
  return result;
}

}  // namespace neotier::replay

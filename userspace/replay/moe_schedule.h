// SPDX-License-Identifier: Apache-2.0
// Which token each row of a batch decodes at each step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "replay/routing_trace.h"

namespace neotier::replay {

struct BatchSlot {
  uint64_t token;
  uint32_t row;
  bool begins;  // the first token of its sequence
};

// Rows take sequences in the trace's order, each the next one as soon as its own has ended. Immutable.
class BatchSchedule {
 public:
  BatchSchedule(const RoutingTrace& trace, uint32_t rows);

  uint64_t steps() const { return first_.size() - 1; }
  // Active rows of a step, in rising order.
  std::span<const BatchSlot> step(uint64_t step) const {
    return {slots_.data() + first_[step], slots_.data() + first_[step + 1]};
  }
  // Index of the step's first slot among all slots.
  uint64_t first_slot(uint64_t step) const { return first_[step]; }

 private:
  std::vector<BatchSlot> slots_;
  std::vector<uint64_t> first_;
};

// For each use (slot x layers x top_k, as the schedule orders slots): the tick (step x layers + layer) of the next
// event that uses the same expert, or NEOTIER_NEVER.
std::vector<uint64_t> next_uses(const RoutingTrace& trace, const BatchSchedule& schedule);

}  // namespace neotier::replay

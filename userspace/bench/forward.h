// SPDX-License-Identifier: Apache-2.0
// One token through all expert layers of a model, each followed by a residual sum and preceded by a norm; no attention.
// Which experts is told by a trace; with what weights, by the model's own routers where it has them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "compute/moe.h"
#include "experts/layout.h"
#include "model/model.h"

namespace neotier::experts {

class Forward {
 public:
  // Throws std::runtime_error where a router cannot be read.
  Forward(const model::Model& model, const Layout& layout, uint32_t top_k);

  const std::string& weights_text() const { return weights_text_; }

  // The layer's experts into `step`; throws.
  using Layer = std::function<void(uint32_t layer, compute::MoeStep& step)>;
  // routes: layers x top_k. Returns the output, hidden floats; the same token number gives the same input.
  std::span<const float> token(uint64_t number, const std::function<std::span<const uint8_t>(uint32_t)>& routes,
                               const Layer& layer);

 private:
  const compute::Kernels& kernels_;
  const uint32_t layers_, experts_, hidden_, top_k_;
  std::vector<std::vector<float>> routers_;  // of each layer: experts x hidden; none: weights by rank
  std::string weights_text_;
  std::vector<float> x_, normed_, y_;
};

}  // namespace neotier::experts

// SPDX-License-Identifier: Apache-2.0
// A mixture-of-experts layer on the CPU: router, gated feed-forward experts, sum. Experts may be computed in any order,
// as they arrive, by several threads: the result has the same bits, because each expert's output is kept apart until
// the sum, which is taken in the router's order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compute/kernels.h"
#include "compute/matrix.h"
#include "engine/status.h"

namespace neotier::compute {

using engine::Code;
using engine::Result;
using engine::Status;

enum class Activation : uint8_t {
  kSwiGlu,         // silu(gate) * up (Mixtral, Qwen, DeepSeek)
  kSwiGluClamped,  // gpt-oss: g = min(gate, 7), u = clamp(up, -7, 7): (u + 1) * g * sigmoid(1.702 g)
};

// y = down * act(gate * x + gate_bias, up * x + up_bias) + down_bias. Views: whoever pins the bytes keeps them in
// place.
struct Expert {
  Matrix gate, up;                   // ff x hidden
  Matrix down;                       // hidden x ff
  const float* gate_bias = nullptr;  // ff; NULL: none
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;  // hidden
};

// kInvalid, with the reason: shapes that do not fit one another or `hidden`, rows that are no whole blocks, no data.
Status check(const Expert& expert, uint32_t hidden);

// One token through one expert. `x` and `y` hidden floats; `scratch` 2 * ff floats. The expert has passed check().
void feed_forward(const Kernels& k, const Expert& expert, Activation activation, const float* x, float* y,
                  float* scratch);

enum class RouterKind : uint8_t {
  kTopKSoftmax,  // softmax over the chosen logits (Mixtral, gpt-oss, Qwen with norm_topk_prob)
  kSoftmaxTopK,  // softmax over all, then the largest, not made to sum to 1 (OLMoE, Qwen1.5-MoE)
};

struct Routing {
  uint32_t tokens = 0, top_k = 0;
  std::vector<uint32_t> experts;  // tokens x top_k; by falling logit, of equal ones the lower number first
  std::vector<float> weights;     // likewise
};

// `x`: tokens x router.columns; `bias`: router.rows or NULL. kInvalid: shapes, top_k; kCorrupt: a logit is no number.
Result<Routing> route(const Kernels& k, const Matrix& router, const float* bias, std::span<const float> x,
                      uint32_t top_k, RouterKind kind);

class MoeStep {
 public:
  // `routing` and `x` (tokens x hidden) are kept by the caller until the step is gone.
  MoeStep(const Kernels& k, const Routing& routing, std::span<const float> x, uint32_t hidden);

  // Each expert that some token chose, once, by number.
  const std::vector<uint32_t>& wanted() const { return wanted_; }
  // All tokens of one expert. Thread-safe among different experts; the same expert again overwrites with the same bits.
  // kInvalid: not wanted, or shapes.
  Status compute(uint32_t expert, const Expert& weights, Activation activation);
  // y (tokens x hidden) = the weighted sum. kInvalid: an expert was not computed.
  Status finish(std::span<float> y) const;

 private:
  const Kernels& k_;
  const Routing& routing_;
  std::span<const float> x_;
  uint32_t hidden_;
  std::vector<uint32_t> wanted_;
  std::vector<float> outputs_;  // tokens x top_k x hidden
  std::vector<uint8_t> done_;   // by place in wanted_
};

}  // namespace neotier::compute

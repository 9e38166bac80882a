// SPDX-License-Identifier: Apache-2.0
#include "compute/moe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace neotier::compute {

namespace {

void multiply(const Kernels& k, const Matrix& m, const float* bias, const float* x, float* y) {
  k.dots(m.format, m.data, m.stride(), m.scales, m.scale_stride(), m.rows, m.columns, x, y);
  if (bias)
    for (size_t i = 0; i < m.rows; i++) y[i] += bias[i];
}

// libm's exp on every path: 1 ulp, and of no weight beside the products.
float activate(Activation a, float gate, float up) {
  if (a == Activation::kSwiGlu) return gate / (1 + std::exp(-gate)) * up;
  // fmin and clamp by comparison would turn NaN into 7.
  const float g = gate > 7 ? 7 : gate;
  const float u = up > 7 ? 7 : up < -7 ? -7 : up;
  return (u + 1) * (g / (1 + std::exp(-1.702F * g)));
}

Status check(const char* name, const Matrix& m, uint32_t rows, uint32_t columns) {
  const auto invalid = [&](const std::string& what) {
    return Status(Code::kInvalid, fmt::format("expert's {} matrix: {}", name, what));
  };
  if (m.rows != rows || m.columns != columns || rows == 0 || columns == 0)
    return invalid(fmt::format("{} x {}, wanted {} x {}", m.rows, m.columns, rows, columns));
  if (m.columns % granularity(m.format) != 0)
    return invalid(fmt::format("rows of {} are no whole {} blocks of {}", m.columns, to_string(m.format), kBlock));
  if (!m.data || (m.format == Format::kMxfp4Split && !m.scales)) return invalid("no data; is it pinned?");
  return {};
}

}  // namespace

Status check(const Expert& expert, uint32_t hidden) {
  const uint32_t ff = expert.gate.rows;
  if (Status s = check("gate", expert.gate, ff, hidden); !s) return s;
  if (Status s = check("up", expert.up, ff, hidden); !s) return s;
  return check("down", expert.down, hidden, ff);
}

void feed_forward(const Kernels& k, const Expert& expert, Activation activation, const float* x, float* y,
                  float* scratch) {
  const size_t ff = expert.gate.rows;
  multiply(k, expert.gate, expert.gate_bias, x, scratch);
  multiply(k, expert.up, expert.up_bias, x, scratch + ff);
  for (size_t i = 0; i < ff; i++) scratch[i] = activate(activation, scratch[i], scratch[ff + i]);
  multiply(k, expert.down, expert.down_bias, scratch, y);
}

Result<Routing> route(const Kernels& k, const Matrix& router, const float* bias, std::span<const float> x,
                      uint32_t top_k, RouterKind kind) {
  if (top_k == 0 || top_k > router.rows)
    return Status(Code::kInvalid, fmt::format("top-k {} of {} experts", top_k, router.rows));
  if (Status s = check("router", router, router.rows, router.columns); !s) return s;
  if (x.size() % router.columns != 0)
    return Status(Code::kInvalid, fmt::format("{} floats are no whole tokens of {}", x.size(), router.columns));
  Routing out;
  out.tokens = static_cast<uint32_t>(x.size() / router.columns);
  out.top_k = top_k;
  std::vector<float> logits(router.rows);
  std::vector<uint32_t> order(router.rows);
  for (uint32_t t = 0; t < out.tokens; t++) {
    multiply(k, router, bias, x.data() + size_t{t} * router.columns, logits.data());
    if (std::any_of(logits.begin(), logits.end(), [](float v) { return std::isnan(v); }))
      return Status(Code::kCorrupt, fmt::format("token {}: a router logit is no number", t));
    std::iota(order.begin(), order.end(), 0u);
    std::partial_sort(order.begin(), order.begin() + top_k, order.end(),
                      [&](uint32_t a, uint32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
    // In double and by libm: routing weights do not depend on the path but through the logits.
    const uint32_t over = kind == RouterKind::kTopKSoftmax ? top_k : router.rows;
    double sum = 0;
    const double max = logits[order[0]];
    const auto share = [&](float v) { return v == max ? 1.0 : std::exp(v - max); };  // inf - inf is no number
    for (uint32_t i = 0; i < over; i++) sum += share(kind == RouterKind::kTopKSoftmax ? logits[order[i]] : logits[i]);
    for (uint32_t i = 0; i < top_k; i++) {
      out.experts.push_back(order[i]);
      out.weights.push_back(static_cast<float>(share(logits[order[i]]) / sum));
    }
  }
  return out;
}

MoeStep::MoeStep(const Kernels& k, const Routing& routing, std::span<const float> x, uint32_t hidden)
    : k_(k), routing_(routing), x_(x), hidden_(hidden), wanted_(routing.experts) {
  std::sort(wanted_.begin(), wanted_.end());
  wanted_.erase(std::unique(wanted_.begin(), wanted_.end()), wanted_.end());
  outputs_.resize(routing.experts.size() * hidden);
  done_.resize(wanted_.size());
}

Status MoeStep::compute(uint32_t expert, const Expert& weights, Activation activation) {
  const auto at = std::lower_bound(wanted_.begin(), wanted_.end(), expert);
  if (at == wanted_.end() || *at != expert) return {Code::kInvalid, fmt::format("no token chose expert {}", expert)};
  if (Status s = check(weights, hidden_); !s) return s;
  std::vector<float> scratch(size_t{2} * weights.gate.rows);
  for (size_t slot = 0; slot < routing_.experts.size(); slot++)
    if (routing_.experts[slot] == expert)
      feed_forward(k_, weights, activation, x_.data() + slot / routing_.top_k * hidden_,
                   outputs_.data() + slot * hidden_, scratch.data());
  done_[static_cast<size_t>(at - wanted_.begin())] = 1;
  return {};
}

Status MoeStep::finish(std::span<float> y) const {
  for (size_t i = 0; i < wanted_.size(); i++)
    if (!done_[i]) return {Code::kInvalid, fmt::format("expert {} was not computed", wanted_[i])};
  if (y.size() != size_t{routing_.tokens} * hidden_)
    return {Code::kInvalid, fmt::format("room for {} floats, wanted {} x {}", y.size(), routing_.tokens, hidden_)};
  std::fill(y.begin(), y.end(), 0.0F);
  for (size_t slot = 0; slot < routing_.experts.size(); slot++) {
    float* out = y.data() + slot / routing_.top_k * hidden_;
    const float* in = outputs_.data() + slot * hidden_;
    for (size_t i = 0; i < hidden_; i++) out[i] += routing_.weights[slot] * in[i];
  }
  return {};
}

}  // namespace neotier::compute

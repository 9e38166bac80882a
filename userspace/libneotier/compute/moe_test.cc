// SPDX-License-Identifier: Apache-2.0
#include "compute/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "compute/compute_testing.h"

namespace neotier::compute {

namespace {

struct Weights {
  Packed gate, up, down;
  std::vector<float> gate_bias, up_bias, down_bias;
  Expert view() const { return {gate.view, up.view, down.view, gate_bias.data(), up_bias.data(), down_bias.data()}; }
};

Weights make(Format f, uint32_t hidden, uint32_t ff, uint32_t seed) {
  const auto values = [&](uint32_t rows, uint32_t columns, uint32_t s) {
    return quantise(f, random_floats(size_t{rows} * columns, seed * 10 + s, 0.2F), rows, columns);
  };
  return {values(ff, hidden, 1),
          values(ff, hidden, 2),
          values(hidden, ff, 3),
          random_floats(ff, seed * 10 + 4),
          random_floats(ff, seed * 10 + 5),
          random_floats(hidden, seed * 10 + 6)};
}

std::vector<double> multiply(const Matrix& m, const float* bias, const std::vector<double>& x) {
  const std::vector<float> w = dequantised(m);
  std::vector<double> y(m.rows);
  for (size_t r = 0; r < m.rows; r++) {
    y[r] = bias ? bias[r] : 0;
    for (size_t i = 0; i < m.columns; i++) y[r] += double{w[r * m.columns + i]} * x[i];
  }
  return y;
}

std::vector<double> reference(const Expert& e, Activation a, const float* x) {
  const std::vector<double> in(x, x + e.gate.columns);
  std::vector<double> g = multiply(e.gate, e.gate_bias, in), u = multiply(e.up, e.up_bias, in);
  for (size_t i = 0; i < g.size(); i++) {
    if (a == Activation::kSwiGlu) {
      g[i] = g[i] / (1 + std::exp(-g[i])) * u[i];
    } else {
      const double c = std::min(g[i], 7.0);
      g[i] = (std::clamp(u[i], -7.0, 7.0) + 1) * c / (1 + std::exp(-1.702 * c));
    }
  }
  return multiply(e.down, e.down_bias, g);
}

double worst(const std::vector<float>& got, const std::vector<double>& wanted) {
  double error = 0, size = 0;
  for (size_t i = 0; i < got.size(); i++) {
    error = std::max(error, std::abs(got[i] - wanted[i]));
    size = std::max(size, std::abs(wanted[i]));
  }
  return error / size;
}

TEST(FeedForward, EveryFormatActivationAndPath) {
  for (const Format f : kFormats)
    for (const Activation a : {Activation::kSwiGlu, Activation::kSwiGluClamped}) {
      const Weights w = make(f, 96, 160, 1);
      const std::vector<float> x = random_floats(96, 2, 3);
      const auto wanted = reference(w.view(), a, x.data());
      for (const Kernels* k : all_kernels()) {
        std::vector<float> y(96), scratch(320);
        feed_forward(*k, w.view(), a, x.data(), y.data(), scratch.data());
        EXPECT_LT(worst(y, wanted), 2e-5) << to_string(f) << " " << to_string(k->path);
      }
    }
}

TEST(FeedForward, OddShapesAndInterleavedRows) {
  const uint32_t hidden = 37, ff = 21;
  const Weights w = make(Format::kBf16, hidden, ff, 4);
  std::vector<float> both;
  const std::vector<float> gate = dequantised(w.gate.view), up = dequantised(w.up.view);
  for (uint32_t r = 0; r < ff; r++) {
    both.insert(both.end(), gate.begin() + r * hidden, gate.begin() + (r + 1) * hidden);
    both.insert(both.end(), up.begin() + r * hidden, up.begin() + (r + 1) * hidden);
  }
  const Packed merged = quantise(Format::kBf16, both, 2 * ff, hidden);
  Expert e = w.view();
  e.gate = every_other(merged.view, 0);
  e.up = every_other(merged.view, 1);
  ASSERT_TRUE(check(e, hidden).is_ok());
  const std::vector<float> x = random_floats(hidden, 3);
  for (const Kernels* k : all_kernels()) {
    std::vector<float> a(hidden), b(hidden), scratch(2 * ff);
    feed_forward(*k, w.view(), Activation::kSwiGlu, x.data(), a.data(), scratch.data());
    feed_forward(*k, e, Activation::kSwiGlu, x.data(), b.data(), scratch.data());
    EXPECT_EQ(a, b);
    EXPECT_LT(worst(a, reference(w.view(), Activation::kSwiGlu, x.data())), 2e-5);
  }
}

TEST(FeedForward, NanReachesTheOutput) {
  const Weights w = make(Format::kF32, 8, 4, 5);
  for (const Activation a : {Activation::kSwiGlu, Activation::kSwiGluClamped}) {
    std::vector<float> x(8, 1.0F), y(8), scratch(8);
    x[3] = std::nanf("");
    feed_forward(kernels(), w.view(), a, x.data(), y.data(), scratch.data());
    for (const float v : y) EXPECT_TRUE(std::isnan(v));
  }
}

TEST(FeedForward, RefusesShapesThatDoNotFit) {
  const Weights w = make(Format::kQ4_0, 64, 32, 6);
  EXPECT_TRUE(check(w.view(), 64).is_ok());
  EXPECT_EQ(check(w.view(), 32).code(), Code::kInvalid);
  Expert e = w.view();
  e.up.data = nullptr;
  EXPECT_NE(check(e, 64).what().find("up matrix: no data"), std::string::npos);
  e = w.view();
  e.down.columns = 33;
  EXPECT_EQ(check(e, 64).code(), Code::kInvalid);
}

TEST(Router, ChoosesTheLargestAndTheLowerOfEquals) {
  const std::vector<float> identity = {1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1};  // 4 experts of 3; the last two are equal
  const Packed router = quantise(Format::kF32, identity, 4, 3);
  const std::vector<float> x = {1, 5, 3, 2, 2, 2};
  const auto r = route(kernels(), router.view, nullptr, x, 2, RouterKind::kTopKSoftmax);
  ASSERT_TRUE(r.is_ok());
  EXPECT_EQ(r->experts, (std::vector<uint32_t>{1, 2, 0, 1}));
  EXPECT_NEAR(r->weights[0], 1 / (1 + std::exp(-2.0)), 1e-6);
  EXPECT_FLOAT_EQ(r->weights[2] + r->weights[3], 1);
  const auto s = route(kernels(), router.view, nullptr, x, 2, RouterKind::kSoftmaxTopK);
  EXPECT_NEAR(s->weights[3], 0.25, 1e-6);
  EXPECT_TRUE(route(kernels(), router.view, nullptr, {}, 2, RouterKind::kTopKSoftmax)->experts.empty());
  EXPECT_EQ(route(kernels(), router.view, nullptr, x, 5, RouterKind::kTopKSoftmax).status().code(), Code::kInvalid);
  const std::vector<float> bad = {1, std::nanf(""), 0};
  EXPECT_EQ(route(kernels(), router.view, nullptr, bad, 1, RouterKind::kTopKSoftmax).status().code(), Code::kCorrupt);
}

TEST(MoeStep, AnyOrderAndThreadsGiveTheSameBits) {
  const uint32_t hidden = 64, experts = 8, tokens = 5, top_k = 3;
  std::vector<Weights> all;
  for (uint32_t e = 0; e < experts; e++) all.push_back(make(Format::kMxfp4, hidden, 32, 20 + e));
  const Packed router = quantise(Format::kF32, random_floats(experts * hidden, 3), experts, hidden);
  const std::vector<float> x = random_floats(tokens * hidden, 4);
  for (const Kernels* k : all_kernels()) {
    const auto routing = route(*k, router.view, nullptr, x, top_k, RouterKind::kTopKSoftmax);
    ASSERT_TRUE(routing.is_ok());
    std::vector<float> first(tokens * hidden), other(tokens * hidden);
    MoeStep step(*k, *routing, x, hidden);
    EXPECT_EQ(step.finish(first).code(), Code::kInvalid);
    for (const uint32_t e : step.wanted())
      ASSERT_TRUE(step.compute(e, all[e].view(), Activation::kSwiGluClamped).is_ok());
    ASSERT_TRUE(step.finish(first).is_ok());

    std::vector<double> wanted(tokens * hidden);
    for (size_t slot = 0; slot < routing->experts.size(); slot++) {
      const auto y =
          reference(all[routing->experts[slot]].view(), Activation::kSwiGluClamped, x.data() + slot / top_k * hidden);
      for (size_t i = 0; i < hidden; i++) wanted[slot / top_k * hidden + i] += routing->weights[slot] * y[i];
    }
    EXPECT_LT(worst(first, wanted), 2e-5);

    MoeStep again(*k, *routing, x, hidden);
    std::vector<std::thread> threads;
    std::vector<uint32_t> order(again.wanted().rbegin(), again.wanted().rend());
    for (const uint32_t e : order)
      threads.emplace_back(
          [&, e] { EXPECT_TRUE(again.compute(e, all[e].view(), Activation::kSwiGluClamped).is_ok()); });
    for (std::thread& t : threads) t.join();
    ASSERT_TRUE(again.finish(other).is_ok());
    EXPECT_EQ(first, other);
  }
}

TEST(MoeStep, NoTokens) {
  const Routing none{0, 2, {}, {}};
  MoeStep step(kernels(), none, {}, 64);
  EXPECT_TRUE(step.wanted().empty());
  EXPECT_TRUE(step.finish({}).is_ok());
  EXPECT_EQ(step.compute(0, {}, Activation::kSwiGlu).code(), Code::kInvalid);
}

}  // namespace

}  // namespace neotier::compute

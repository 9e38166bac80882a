// SPDX-License-Identifier: Apache-2.0
#include "compute/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "compute/compute_testing.h"

namespace neotier::compute {

namespace {

// Blocks in memory of their own, and the same keys and values as floats.
struct Cache {
  AttentionShape shape;
  std::vector<Packed> keys, values;
  std::vector<KvBlock> blocks;
  std::vector<Digest> digests;

  Cache(AttentionShape s, const std::vector<uint32_t>& tokens, uint32_t capacity, uint32_t seed, float key_scale = 1)
      : shape(s) {
    for (const uint32_t n : tokens) {
      const uint32_t rows = s.kv_heads * capacity;
      keys.push_back(quantise(s.format, random_floats(size_t{rows} * s.dim, seed++, key_scale), rows, s.dim));
      values.push_back(quantise(s.format, random_floats(size_t{rows} * s.dim, seed++), rows, s.dim));
      blocks.push_back({keys.back().data.data(), values.back().data.data(), n, capacity});
      digests.push_back(digest(s, blocks.back()));
    }
  }

  double score(const float* q, uint32_t head, size_t block, uint32_t token) const {
    const std::vector<float> k = row(keys[block], head, block, token);
    double sum = 0;
    for (size_t i = 0; i < k.size(); i++) sum += double{q[i]} * k[i];
    return sum / std::sqrt(double{static_cast<double>(shape.dim)});
  }
  std::vector<float> row(const Packed& p, uint32_t head, size_t block, uint32_t token) const {
    std::vector<float> out(shape.dim);
    const uint32_t kv_head = head / (shape.heads / shape.kv_heads);
    dequantise({shape.format, p.view.rows, shape.dim, p.data.data(), nullptr, 0},
               kv_head * blocks[block].capacity + token, out);
    return out;
  }

  // Over the blocks named, or all. Also each block's share of the softmax over all.
  std::vector<double> reference(const std::vector<float>& query, uint32_t head,
                                std::vector<double>* shares = nullptr) const {
    const float* q = query.data() + size_t{head} * shape.dim;
    double max = -INFINITY, sum = 0;
    for (size_t b = 0; b < blocks.size(); b++)
      for (uint32_t t = 0; t < blocks[b].tokens; t++) max = std::max(max, score(q, head, b, t));
    std::vector<double> out(shape.dim);
    if (shares) shares->assign(blocks.size(), 0);
    for (size_t b = 0; b < blocks.size(); b++)
      for (uint32_t t = 0; t < blocks[b].tokens; t++) {
        const double p = std::exp(score(q, head, b, t) - max);
        sum += p;
        if (shares) (*shares)[b] += p;
        const std::vector<float> v = row(values[b], head, b, t);
        for (size_t i = 0; i < v.size(); i++) out[i] += p * v[i];
      }
    for (double& v : out) v = sum > 0 ? v / sum : 0;
    if (shares)
      for (double& v : *shares) v /= sum;
    return out;
  }
};

TEST(Attention, FullEqualsThePlainDefinition) {
  for (const Format f : {Format::kF32, Format::kBf16})
    for (const uint32_t dim : {1u, 33u, 64u}) {
      const Cache c({6, 2, dim, f, 0}, {16, 5, 0, 16, 1}, 16, dim, 2);
      const std::vector<float> q = random_floats(6 * dim, 5, 2);
      for (const Kernels* k : all_kernels()) {
        std::vector<float> out(6 * dim);
        const AttentionResult r = attend(*k, c.shape, c.blocks, q, out);
        for (uint32_t h = 0; h < 6; h++) {
          EXPECT_EQ(r.missed[h], 0);
          const std::vector<double> wanted = c.reference(q, h);
          for (uint32_t i = 0; i < dim; i++) EXPECT_NEAR(out[h * dim + i], wanted[i], 2e-5) << to_string(k->path);
        }
      }
    }
}

TEST(Attention, AllBlocksChosenIsFullBitForBit) {
  const Cache c({4, 4, 64, Format::kBf16, 0}, {8, 8, 8, 3}, 8, 3);
  const std::vector<float> q = random_floats(4 * 64, 6);
  const std::vector<uint32_t> budget = {4};
  const auto choice = choose_blocks(c.shape, c.digests, q, budget);
  ASSERT_TRUE(choice.is_ok());
  for (const Kernels* k : all_kernels()) {
    std::vector<float> full(4 * 64), sparse(4 * 64);
    attend(*k, c.shape, c.blocks, q, full);
    const AttentionResult r = attend(*k, c.shape, c.blocks, q, sparse, &*choice);
    EXPECT_EQ(full, sparse);
    EXPECT_EQ(r.missed, std::vector<float>(4, 0));
  }
}

TEST(Attention, WhatSparseMissesIsWithinItsOwnBound) {
  const Cache c({4, 2, 32, Format::kF32, 0}, std::vector<uint32_t>(20, 4), 4, 30, 1.5F);
  const std::vector<float> q = random_floats(4 * 32, 8, 2);
  const std::vector<uint32_t> budgets = {1, 3, 8, 19};
  const auto choice = choose_blocks(c.shape, c.digests, q, budgets);
  ASSERT_TRUE(choice.is_ok());
  std::vector<float> out(4 * 32);
  const AttentionResult r = attend(kernels(), c.shape, c.blocks, q, out, &*choice);
  double largest = 0;
  for (const Packed& v : c.values)
    for (const float f : dequantised(v.view)) largest = std::max(largest, double{std::abs(f)});
  for (uint32_t h = 0; h < 4; h++) {
    EXPECT_EQ(choice->blocks[h].size(), budgets[h]);
    EXPECT_EQ(choice->blocks[h].back(), 19u);  // the newest
    std::vector<double> shares;
    const std::vector<double> full = c.reference(q, h, &shares);
    double missed = 1;
    for (const uint32_t b : choice->blocks[h]) missed -= shares[b];
    EXPECT_LE(missed, r.missed[h] * (1 + 1e-4) + 1e-6);
    EXPECT_GT(r.missed[h], 0);
    for (uint32_t i = 0; i < 32; i++) EXPECT_LE(std::abs(out[h * 32 + i] - full[i]), 2 * r.missed[h] * largest + 1e-4);
  }
}

TEST(Attention, TheBlockThatMattersIsChosen) {
  Cache c({1, 1, 16, Format::kF32, 0}, std::vector<uint32_t>(30, 4), 4, 50, 0.1F);
  const std::vector<float> q = random_floats(16, 9);
  for (int i = 0; i < 16; i++) {  // token 2 of block 11 points where the query does
    const float key = 20 * q[i];
    std::memcpy(c.keys[11].data.data() + (2 * 16 + i) * 4, &key, 4);
  }
  c.digests[11] = digest(c.shape, c.blocks[11]);
  const std::vector<uint32_t> budget = {3};
  const auto choice = choose_blocks(c.shape, c.digests, q, budget);
  EXPECT_EQ(choice->blocks[0], (std::vector<uint32_t>{0, 11, 29}));
  std::vector<float> out(16);
  EXPECT_LT(attend(kernels(), c.shape, c.blocks, q, out, &*choice).missed[0], 1e-3);
  const auto budgets = calibrate_budgets(kernels(), c.shape, c.blocks, c.digests, q, 0.99F);
  ASSERT_TRUE(budgets.is_ok());
  EXPECT_EQ(*budgets, std::vector<uint32_t>{3});
}

TEST(Attention, CalibratedBudgetsHoldTheShare) {
  const Cache c({4, 2, 16, Format::kBf16, 0}, std::vector<uint32_t>(24, 4), 4, 70, 1.5F);
  const std::vector<float> queries = random_floats(3 * 4 * 16, 10, 2);
  const auto budgets = calibrate_budgets(kernels(), c.shape, c.blocks, c.digests, queries, 0.9F);
  ASSERT_TRUE(budgets.is_ok());
  for (size_t n = 0; n < 3; n++) {
    const std::vector<float> q(queries.begin() + n * 64, queries.begin() + (n + 1) * 64);
    const auto choice = choose_blocks(c.shape, c.digests, q, *budgets);
    for (uint32_t h = 0; h < 4; h++) {
      std::vector<double> shares;
      c.reference(q, h, &shares);
      double got = 0;
      for (const uint32_t b : choice->blocks[h]) got += shares[b];
      EXPECT_GE(got, 0.9 - 1e-5);
      EXPECT_LE(budgets->at(h), 24u);
    }
  }
}

TEST(Attention, NoTokensGiveZeroAndNanGoesThrough) {
  Cache c({2, 1, 8, Format::kF32, 0}, {0, 4, 4}, 4, 90);
  const std::vector<float> q = random_floats(16, 11);
  std::vector<float> out(16, 7);
  attend(kernels(), c.shape, std::span(c.blocks).first(1), q, out);
  EXPECT_EQ(out, std::vector<float>(16, 0));
  attend(kernels(), c.shape, {}, q, out);
  EXPECT_EQ(out, std::vector<float>(16, 0));
  const float nan = std::nanf("");
  std::memcpy(c.keys[1].data.data(), &nan, 4);
  c.digests[1] = digest(c.shape, c.blocks[1]);
  const std::vector<uint32_t> budget = {3};
  for (const Kernels* k : all_kernels()) {
    attend(*k, c.shape, c.blocks, q, out);
    for (const float v : out) EXPECT_TRUE(std::isnan(v));
  }
  // Not hidden by sparsity either: a block with a NaN is chosen before any other but the first and the last.
  const auto choice = choose_blocks(c.shape, c.digests, q, budget);
  EXPECT_EQ(choice->blocks[0], (std::vector<uint32_t>{0, 1, 2}));
}

TEST(Attention, RefusesShapesThatDoNotFit) {
  const std::vector<float> q(16);
  const std::vector<uint32_t> zero = {0}, three = {1, 1, 1};
  const AttentionShape s{2, 1, 8, Format::kF32, 0};
  EXPECT_EQ(check({3, 2, 8, Format::kF32, 0}, {}).code(), Code::kInvalid);
  EXPECT_EQ(check({2, 2, 8, Format::kQ8_0, 0}, {}).code(), Code::kInvalid);
  const KvBlock missing{nullptr, nullptr, 1, 4}, over{nullptr, nullptr, 5, 4};
  EXPECT_NE(check(s, std::span(&missing, 1)).what().find("is it pinned"), std::string::npos);
  EXPECT_EQ(check(s, std::span(&over, 1)).code(), Code::kInvalid);
  EXPECT_EQ(choose_blocks(s, {}, q, zero).status().code(), Code::kInvalid);
  EXPECT_EQ(choose_blocks(s, {}, q, three).status().code(), Code::kInvalid);
  EXPECT_EQ(choose_blocks(s, {}, std::span(q).first(3), std::vector<uint32_t>{1}).status().code(), Code::kInvalid);
}

}  // namespace

}  // namespace neotier::compute

// SPDX-License-Identifier: Apache-2.0
#include "compute/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace neotier::compute {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float scale_of(const AttentionShape& s) { return s.scale != 0 ? s.scale : 1 / std::sqrt(static_cast<float>(s.dim)); }

const std::byte* head_of(const AttentionShape& s, const KvBlock& b, const std::byte* data, uint32_t kv_head) {
  return data + size_t{kv_head} * b.capacity * row_bytes(s.format, s.dim);
}

uint32_t kv_head_of(const AttentionShape& s, uint32_t head) { return head / (s.heads / s.kv_heads); }

// No score of the block is larger, but for rounding.
float bound(const AttentionShape& s, const Digest& d, const float* q, uint32_t kv_head, float scale) {
  const float* low = d.low.data() + size_t{kv_head} * s.dim;
  const float* high = d.high.data() + size_t{kv_head} * s.dim;
  float sum = 0;
  for (uint32_t i = 0; i < s.dim; i++) sum += std::max(q[i] * low[i], q[i] * high[i]);
  return std::isnan(sum) ? kInfinity : sum * scale;
}

struct Ranked {
  std::vector<float> bounds;
  std::vector<uint32_t> order;  // the first and the last, then by falling bound
};

Ranked rank(const AttentionShape& s, std::span<const Digest> digests, const float* q, uint32_t kv_head) {
  Ranked r;
  const float scale = scale_of(s);
  const uint32_t n = static_cast<uint32_t>(digests.size());
  for (uint32_t b = 0; b < n; b++) {
    r.bounds.push_back(bound(s, digests[b], q, kv_head, scale));
    r.order.push_back(b);
  }
  const auto fixed = [&](uint32_t b) { return b == n - 1 ? 2 : b == 0 ? 1 : 0; };
  std::sort(r.order.begin(), r.order.end(), [&](uint32_t a, uint32_t b) {
    if (fixed(a) != fixed(b)) return fixed(a) > fixed(b);
    return r.bounds[a] != r.bounds[b] ? r.bounds[a] > r.bounds[b] : a < b;
  });
  return r;
}

// Sums of one head over blocks as they come, rescaled when the largest score rises (Milakov & Gimelshein, arXiv
// 1805.02867).
class OnlineSoftmax {
 public:
  OnlineSoftmax(const Kernels& k, const AttentionShape& s, uint32_t head, const float* q, float* out)
      : k_(k), s_(s), kv_head_(kv_head_of(s, head)), q_(q), out_(out) {
    std::fill_n(out, s.dim, 0.0F);
  }

  void add(const KvBlock& b) {
    if (b.tokens == 0) return;
    const size_t stride = row_bytes(s_.format, s_.dim);
    scores_.resize(b.tokens);
    k_.dots(s_.format, head_of(s_, b, b.keys, kv_head_), stride, nullptr, 0, b.tokens, s_.dim, q_, scores_.data());
    const float scale = scale_of(s_);
    for (float& v : scores_) v *= scale;
    const float max = k_.max(scores_.data(), scores_.size());
    if (!(max <= max_)) {  // also where either is NaN
      const float shrink = max_ == -kInfinity ? 0 : std::exp(max_ - max);
      sum_ *= shrink;
      for (uint32_t i = 0; i < s_.dim; i++) out_[i] *= shrink;
      max_ = max;
    }
    if (max_ == -kInfinity) return;  // every score so far is -infinity: weight 0
    sum_ += k_.exp_sum(scores_.data(), scores_.size(), max_);
    k_.sum_rows(s_.format, head_of(s_, b, b.values, kv_head_), stride, b.tokens, s_.dim, scores_.data(), out_);
  }

  void finish() {
    if (sum_ == 0) return;
    for (uint32_t i = 0; i < s_.dim; i++) out_[i] /= sum_;
  }
  // log of the sum of exp(score).
  float log_sum() const { return max_ == -kInfinity ? -kInfinity : max_ + std::log(sum_); }

 private:
  const Kernels& k_;
  const AttentionShape& s_;
  uint32_t kv_head_;
  const float* q_;
  float* out_;
  float max_ = -kInfinity, sum_ = 0;
  std::vector<float> scores_;
};

// log(exp(a) + exp(b))
float log_add(float a, float b) {
  const float high = std::max(a, b);
  return std::isinf(high) ? high : high + std::log1p(std::exp(std::min(a, b) - high));
}

Status invalid(const std::string& what) { return {Code::kInvalid, "attention: " + what}; }

}  // namespace

Status check(const AttentionShape& s, std::span<const KvBlock> blocks) {
  if (s.heads == 0 || s.kv_heads == 0 || s.dim == 0 || s.heads % s.kv_heads != 0)
    return invalid(fmt::format("{} heads over {} KV heads of {}: no whole groups", s.heads, s.kv_heads, s.dim));
  if (s.format != Format::kF32 && s.format != Format::kBf16)
    return invalid(fmt::format("KV in {}; f32 and bf16 are known", to_string(s.format)));
  if (s.scale < 0 || std::isnan(s.scale)) return invalid("a scale below 0");
  for (size_t i = 0; i < blocks.size(); i++) {
    const KvBlock& b = blocks[i];
    if (b.tokens > b.capacity) return invalid(fmt::format("block {}: {} tokens of {}", i, b.tokens, b.capacity));
    if (b.tokens > 0 && (!b.keys || !b.values)) return invalid(fmt::format("block {}: no data; is it pinned?", i));
  }
  return {};
}

Digest digest(const AttentionShape& s, const KvBlock& block) {
  Digest d;
  const size_t n = size_t{s.kv_heads} * s.dim;
  d.low.assign(n, kInfinity);
  d.high.assign(n, -kInfinity);
  d.tokens = block.tokens;
  std::vector<float> row(s.dim);
  for (uint32_t h = 0; h < s.kv_heads; h++) {
    const Matrix keys{s.format, block.tokens, s.dim, head_of(s, block, block.keys, h), nullptr, 0};
    float* low = d.low.data() + size_t{h} * s.dim;
    float* high = d.high.data() + size_t{h} * s.dim;
    for (uint32_t t = 0; t < block.tokens; t++) {
      dequantise(keys, t, row);
      for (uint32_t i = 0; i < s.dim; i++) {
        // NaN stays, and makes the bound infinite.
        low[i] = row[i] < low[i] || std::isnan(row[i]) ? row[i] : low[i];
        high[i] = row[i] > high[i] || std::isnan(row[i]) ? row[i] : high[i];
      }
    }
  }
  return d;
}

Result<Choice> choose_blocks(const AttentionShape& s, std::span<const Digest> digests, std::span<const float> query,
                             std::span<const uint32_t> budgets) {
  if (Status status = check(s, {}); !status) return status;
  if (query.size() != size_t{s.heads} * s.dim) return invalid(fmt::format("a query of {} floats", query.size()));
  if (budgets.size() != 1 && budgets.size() != s.heads)
    return invalid(fmt::format("{} budgets for {} heads", budgets.size(), s.heads));
  for (const Digest& d : digests)
    if (d.low.size() != size_t{s.kv_heads} * s.dim || d.high.size() != d.low.size())
      return invalid("a digest of another shape");
  Choice c;
  for (uint32_t h = 0; h < s.heads; h++) {
    const uint32_t budget = budgets[budgets.size() == 1 ? 0 : h];
    if (budget == 0) return invalid(fmt::format("a budget of 0 blocks for head {}", h));
    const Ranked r = rank(s, digests, query.data() + size_t{h} * s.dim, kv_head_of(s, h));
    const size_t taken = std::min<size_t>(budget, r.order.size());
    float left_out = -kInfinity;
    for (size_t i = taken; i < r.order.size(); i++) {
      const uint32_t b = r.order[i];
      if (digests[b].tokens > 0)
        left_out = log_add(left_out, r.bounds[b] + std::log(static_cast<float>(digests[b].tokens)));
    }
    c.blocks.emplace_back(r.order.begin(), r.order.begin() + static_cast<ptrdiff_t>(taken));
    std::sort(c.blocks.back().begin(), c.blocks.back().end());
    c.left_out.push_back(left_out);
  }
  return c;
}

AttentionResult attend(const Kernels& k, const AttentionShape& s, std::span<const KvBlock> blocks,
                       std::span<const float> query, std::span<float> out, const Choice* choice) {
  AttentionResult result;
  for (uint32_t h = 0; h < s.heads; h++) {
    OnlineSoftmax head(k, s, h, query.data() + size_t{h} * s.dim, out.data() + size_t{h} * s.dim);
    if (choice)
      for (const uint32_t b : choice->blocks[h]) head.add(blocks[b]);
    else
      for (const KvBlock& b : blocks) head.add(b);
    head.finish();
    // The share of what is left out, at most: exp(left) / (exp(left) + exp(kept)).
    const float left = choice ? choice->left_out[h] : -kInfinity;
    result.missed.push_back(left == -kInfinity ? 0 : 1 / (1 + std::exp(head.log_sum() - left)));
  }
  return result;
}

Result<std::vector<uint32_t>> calibrate_budgets(const Kernels& k, const AttentionShape& s,
                                                std::span<const KvBlock> blocks, std::span<const Digest> digests,
                                                std::span<const float> queries, float share) {
  if (Status status = check(s, blocks); !status) return status;
  const size_t per = size_t{s.heads} * s.dim;
  if (digests.size() != blocks.size())
    return invalid(fmt::format("{} digests of {} blocks", digests.size(), blocks.size()));
  if (queries.empty() || queries.size() % per != 0) return invalid(fmt::format("queries of {} floats", queries.size()));
  if (!(share > 0 && share <= 1)) return invalid(fmt::format("a share of {}, wanted 0 to 1", share));
  std::vector<uint32_t> budgets(s.heads, 1);
  std::vector<float> scratch(s.dim);
  for (size_t at = 0; at < queries.size(); at += per) {
    for (uint32_t h = 0; h < s.heads; h++) {
      const float* q = queries.data() + at + size_t{h} * s.dim;
      std::vector<double> sums;
      double max = -kInfinity;
      for (const KvBlock& b : blocks) {
        OnlineSoftmax one(k, s, h, q, scratch.data());
        one.add(b);
        sums.push_back(one.log_sum());
        max = std::max(max, sums.back());
      }
      double all = 0, got = 0;
      for (double& v : sums) all += v = std::exp(v - max);
      const Ranked r = rank(s, digests, q, kv_head_of(s, h));
      uint32_t budget = 0;
      while (budget < r.order.size() && got < share * all * (1 - 1e-12)) got += sums[r.order[budget++]];
      budgets[h] = std::max(budgets[h], budget);
    }
  }
  return budgets;
}

}  // namespace neotier::compute

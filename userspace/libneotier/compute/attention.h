// SPDX-License-Identifier: Apache-2.0
// One decode step of attention over KV blocks that a store keeps: every block, or for each head the blocks that matter
// most to it. Heads are grouped (GQA): query head h reads KV head h / (heads / kv_heads).
//
// Sparse attention goes in two steps, so that only chosen blocks have to be resident: choose_blocks() looks at digests
// (the smallest and largest key of a block, dimension by dimension: an upper bound of any score in it, as in Quest,
// arXiv 2406.10774), with a budget for each head (as in Fluxion, arXiv 2605.07719); attend() reads the blocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "compute/kernels.h"
#include "engine/status.h"

namespace neotier::compute {

using engine::Code;
using engine::Result;
using engine::Status;

struct AttentionShape {
  uint32_t heads = 0, kv_heads = 0, dim = 0;
  Format format = Format::kBf16;  // of keys and values: kF32 or kBf16
  float scale = 0;                // of scores; 0: 1 / sqrt(dim)
};

// Keys and values of up to `tokens` tokens: kv_heads x capacity x dim each, so that a head's keys lie together. Views.
struct KvBlock {
  const std::byte* keys = nullptr;
  const std::byte* values = nullptr;
  uint32_t tokens = 0;    // in use, from 0
  uint32_t capacity = 0;  // that the block is laid out for
};

// kInvalid with the reason. NULL keys or values are invalid where tokens > 0.
Status check(const AttentionShape& shape, std::span<const KvBlock> blocks);

// What choose_blocks() knows of a block: kv_heads x dim smallest and as many largest keys.
struct Digest {
  std::vector<float> low, high;
  uint32_t tokens = 0;
};
// A block with a NaN among its keys gets a digest that is always chosen first.
Digest digest(const AttentionShape& shape, const KvBlock& block);

struct Choice {
  // Of each head, in rising order.
  std::vector<std::vector<uint32_t>> blocks;
  // Of each head: log of an upper bound of the sum of exp(score) over the blocks left out; -infinity where none is.
  std::vector<float> left_out;
};

// `budgets`: blocks of each head (one entry: of all), at least 1. The first block (attention sinks) and the last
// are always among them, where the budget is 2 or more. `query`: heads x dim.
Result<Choice> choose_blocks(const AttentionShape& shape, std::span<const Digest> digests, std::span<const float> query,
                             std::span<const uint32_t> budgets);

struct AttentionResult {
  // Of each head: upper bound of the share of the full softmax that the blocks left out have: 0 for full attention. The
  // output differs from full attention's by at most twice this times the largest value's magnitude, in each dimension.
  std::vector<float> missed;
};

// out (heads x dim) = softmax(scale q K') V over all blocks, or those of `choice`. Heads of no tokens give 0. Bits do
// not depend on other heads. NaN and infinite keys go through as in the plain definition. The blocks have passed
// check().
AttentionResult attend(const Kernels& k, const AttentionShape& shape, std::span<const KvBlock> blocks,
                       std::span<const float> query, std::span<float> out, const Choice* choice = nullptr);

// For each head the smallest budget with which the chosen blocks hold `share` (0..1] of the full softmax on every one
// of the sample queries (each heads x dim). Reads every block: done now and then, not each step.
Result<std::vector<uint32_t>> calibrate_budgets(const Kernels& k, const AttentionShape& shape,
                                                std::span<const KvBlock> blocks, std::span<const Digest> digests,
                                                std::span<const float> queries, float share);

}  // namespace neotier::compute

// SPDX-License-Identifier: Apache-2.0
// `neotier bench compute`: speed and error of the kernels on this machine, one thread, beside OpenBLAS where it is
// installed (libopenblas.so.0, loaded at run time).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace neotier::compute {

struct BenchOptions {
  uint32_t hidden = 2880, ff = 2880;  // gpt-oss
  uint32_t experts = 4;               // that the feed-forward goes round, so that weights come from memory
  uint32_t heads = 64, kv_heads = 8, dim = 64;
  uint32_t tokens = 16384, block = 64;
  uint32_t budget = 32;  // blocks of each head, mean
  double seconds = 0.2;  // at least, of each figure
  uint32_t seed = 1;
  std::function<bool()> cancelled;
  std::function<void(const std::string&)> progress;
};

struct FeedForwardFigure {
  std::string format, path;
  double us = 0;                 // of one token through one expert: median
  double gb_s = 0, gflop_s = 0;  // of weights read; two operations a weight
  double error = 0;              // largest, over the largest output, against double
};

struct AttentionFigure {
  std::string keys, method, path;
  double us = 0;
  double blocks = 0;  // read, mean of heads
  double error = 0;   // ||out - full|| / ||full||, full in double
  double missed = 0;  // share of the softmax left out, mean of heads
  double bound = 0;   // the stated upper bound of it, mean of heads
};

struct BenchResult {
  std::string openblas;  // its own description, or why it is missing
  std::vector<FeedForwardFigure> feed_forward;
  std::vector<AttentionFigure> attention;
};

// Throws std::runtime_error: cancelled.
BenchResult run_bench(const BenchOptions& options);

}  // namespace neotier::compute

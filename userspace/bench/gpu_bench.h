// SPDX-License-Identifier: Apache-2.0
// Copies to and from a GPU's memory, in pieces, by each way that there is, beside one copy of it all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "util/median.h"

namespace neotier::engine {

struct GpuBenchOptions {
  int device = 0;
  uint64_t bytes = 1 << 30;  // that each measurement moves
  std::vector<uint64_t> pieces = {4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20};
  unsigned rounds = 5;
  std::function<void(const std::string&)> progress;
  std::function<bool()> cancelled;
};

struct GpuBenchSeries {
  std::string way, method;                 // "in", "out"; "whole", "each", "batch", "kernel", "chosen"
  uint64_t piece_bytes = 0;                // 0: all of it at once
  std::vector<double> bytes_per_s, cpu_s;  // by round; of asking for the copies, without waiting for them
  double median_rate() const { return median(bytes_per_s); }
  double median_cpu_s() const { return median(cpu_s); }
};

// Host memory is registered, as a tier's is. Throws std::runtime_error with one line: no device, no memory, cancelled;
// other bytes came back than were sent.
std::vector<GpuBenchSeries> bench_gpu(const GpuBenchOptions& options);

}  // namespace neotier::engine

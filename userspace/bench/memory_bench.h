// SPDX-License-Identifier: Apache-2.0
// Latency and bandwidth of memory tiers, beside the C library's memcpy on the same memory, and of the kernel's
// move_pages.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/tiers/memory/memory_tier.h"

namespace neotier::engine {

struct MemoryBenchOptions {
  uint64_t set_bytes = 512 << 20;  // gone through once a round: larger than the caches
  unsigned rounds = 5;             // of each; the median counts
  std::function<void(const std::string&)> progress = [](const std::string&) {};
  std::function<bool()> stop = [] { return false; };
};

struct CopyFigure {
  uint64_t piece_bytes = 0;
  double write_bytes_per_s = 0, read_bytes_per_s = 0;
  double memcpy_bytes_per_s = 0;  // by as many threads, in turns with the tier
  double write_vs_memcpy() const { return write_bytes_per_s / memcpy_bytes_per_s; }
  double read_vs_memcpy() const { return read_bytes_per_s / memcpy_bytes_per_s; }
};

struct MemoryFigures {
  TierInfo info;
  std::string notes;
  unsigned threads = 0;
  double read_latency_ns = 0, write_latency_ns = 0;  // 4 KiB, one at a time, from submission to completion
  std::vector<CopyFigure> copies;
};

// The tier's capacity is that of options.set_bytes at least. Throws std::runtime_error where it fails, or is
// interrupted.
MemoryFigures bench_memory(MemoryTierOptions tier, const MemoryBenchOptions& options);

struct MovePagesFigures {
  std::string not_run;  // why, where it was not
  int from = -1, to = -1;
  double bytes_per_s = 0;         // moved there by move_pages, 4 KiB pages, batches of 512
  double memcpy_bytes_per_s = 0;  // copied there instead
};
MovePagesFigures bench_move_pages(const MemoryBenchOptions& options);

}  // namespace neotier::engine

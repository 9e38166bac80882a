// SPDX-License-Identifier: Apache-2.0
// `neotier kv bench`: the requests of a trace, in its timing, on a KV store over real tiers. Blocks that are there are
// loaded for real, to the byte; the rest would be computed by a GPU, which is slept for as the replay's model of one
// says. Beside it: what the replay predicts from the links as they were measured before the run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "replay/tiers.h"
#include "replay/trace.h"

namespace neotier::kv {

// Which of the blocks that are there are loaded.
enum class LoadWay : uint8_t {
  kDecide,   // those that the store thinks worth it, by its links as it has seen them
  kLoad,     // all
  kCompute,  // none
};

struct KvBenchOptions {
  std::string tiers;  // as engine/tiers/make_tiers.h takes them, fastest first
  uint64_t block_bytes = 512 << 10;
  uint32_t layers = 4;                                   // a block is loaded so many pieces; block_bytes is a multiple
  std::string policy = placement::kRecommendedKvPolicy;  // of every tier
  // "ssd=0.5:200" (GB/s:us): that tier is read through a simulated link that is no faster.
  std::string links;
  LoadWay way = LoadWay::kDecide;
  uint64_t before = 0;          // requests whose blocks are stored first; neither timed nor counted
  double speed_up = 1;          // of the trace's arrivals
  double prefill_scale = 0.05;  // of replay::prefill_ns()
  std::function<bool()> cancelled;
  std::function<void(const std::string&)> progress;
};

struct Quantiles {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0;
};

struct KvBenchResult {
  std::vector<replay::Tier> tiers;  // with measured links, and what they hold below their watermark
  uint64_t requests = 0, block_refs = 0, prefix_hits = 0, loaded = 0, stored = 0, passed = 0, no_room = 0;
  std::vector<uint64_t> loaded_from;  // blocks, by tier
  uint64_t wrong_blocks = 0;          // bytes that were not those stored
  uint64_t failed_blocks = 0;         // were there and could not be loaded
  uint64_t bypassed = 0;              // were there and were not worth loading
  std::vector<double> ttft_of;        // ms, of each request
  Quantiles ttft_ms;                  // from when the request is served: loading measured, computing slept
  Quantiles load_ms;                  // of that, loading
  Quantiles wait_ms;                  // before it is served: one at a time
  Quantiles same_hits_ms;             // TTFT predicted for the blocks that were there, where they were
  replay::TiersResult replay;         // TTFT predicted with the replay's own caches
};

// Throws std::runtime_error with one line; interrupted.
KvBenchResult run_kv_bench(const replay::KvTrace& trace, const KvBenchOptions& options);

}  // namespace neotier::kv

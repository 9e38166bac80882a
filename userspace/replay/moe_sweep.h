// SPDX-License-Identifier: Apache-2.0
// `neotier moe sweep`: every policy over capacities, every predictor over compute times and batches, on one page.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "replay/moe_replay.h"
#include "report/page.h"

namespace neotier::replay {

struct MoeSweepOptions {
  MoeOptions base;                                // link, expert size, slots and batch where they are not what varies
  std::vector<std::string> policies, predictors;  // empty: all of this build
  std::vector<uint32_t> capacities = {4, 5, 6, 7, 8, 10, 12, 16, 20, 24};
  std::vector<double> layer_ms = {0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 4, 8};
  std::vector<uint32_t> batches = {1, 2, 4, 8, 16, 32};
  unsigned parallel = 1;
  std::filesystem::path store;  // what is done already; see jobs.h; empty: none
  std::string identity;         // of the trace
};

struct MoeSweep {
  report::Page page;
  nlohmann::ordered_json cells;  // a run each, in the order of the plots
};

// Runs what the store lacks; `cancel` and `done` as for run_jobs(). Throws std::runtime_error.
MoeSweep moe_sweep(const RoutingTrace& trace, const MoeSweepOptions& options, const std::atomic<bool>& cancel,
                   const std::function<void(size_t, size_t)>& done);

}  // namespace neotier::replay

// SPDX-License-Identifier: Apache-2.0
// Every policy over every capacity of a trace: in parallel, resumable, as JSON and as a page with plots.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "replay/kv.h"
#include "replay/trace.h"

namespace neotier::replay {

struct SweepOptions {
  std::string trace_name;
  std::vector<std::string> policies;  // names or shared libraries
  std::vector<uint64_t> capacities;   // blocks
  KvOptions replay;                   // capacity, params and cancelled are ignored
  uint32_t jobs = 1;                  // threads
  std::filesystem::path store;        // of finished replays: see jobs.h; empty: none
};

// In the order policies x capacities; cancel and done as run_jobs() has them. Throws std::runtime_error as replay() and
// run_jobs() do.
std::vector<KvResult> sweep(const KvTrace& trace, const SweepOptions& options, const std::atomic<bool>& cancel,
                            const std::function<void(size_t done, size_t all)>& done);

nlohmann::ordered_json to_json(const KvResult& result);
nlohmann::ordered_json to_json(const SweepOptions& options, const KvTrace& trace, const std::vector<KvResult>& results);

// One self-contained file. Throws std::runtime_error.
std::string make_page(const SweepOptions& options, const KvTrace& trace, const std::vector<KvResult>& results);

}  // namespace neotier::replay

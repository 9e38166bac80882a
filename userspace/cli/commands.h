// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace CLI {
class App;
}

namespace neotier::cli {

// Under what `neotier --help` lists a command.
inline constexpr const char* kServer = "the emulated CXL server";
inline constexpr const char* kModels = "KV caches and experts";
inline constexpr const char* kMachine = "this machine's tiers, live";

// Adds `neotier hil …`. The subcommand that runs leaves the exit status in `status`, which must outlive the app.
void add_hil(CLI::App& app, int& status);
// Adds `neotier kv …`, in the same way.
void add_kv(CLI::App& app, int& status);
// Its `report`.
void add_hil_report(CLI::App& hil, int& status);
// The same for `neotier trace …`.
void add_trace(CLI::App& app, int& status);
// Adds `neotier replay`.
void add_replay(CLI::App& app, int& status);
// Adds `neotier score`.
void add_score(CLI::App& app, int& status);
// Adds `neotier moe …`, likewise.
void add_moe(CLI::App& app, int& status);
// Adds `neotier model …`, likewise.
void add_model(CLI::App& app, int& status);
// Adds `neotier status` and `neotier tiers`.
void add_engine(CLI::App& app, int& status);
// Adds `neotier top`, and `neotier kernel …`.
void add_top(CLI::App& app, int& status);
void add_kernel(CLI::App& app, int& status);

// `neotier kv bench`, `neotier moe bench`, `neotier model make`: each below the command of its part.
void add_kv_bench(CLI::App& kv, int& status);
void add_moe_bench(CLI::App& moe, int& status);
void add_model_make(CLI::App& model, int& status);

// Adds `neotier bench …`, likewise.
void add_bench(CLI::App& app, int& status);
// Its `engine` and `compute`.
void add_bench_engine(CLI::App& bench, int& status);
void add_bench_compute(CLI::App& bench, int& status);
// The memory tiers' part of its `tiers`, and the links between `tiers`: prints, and returns its figures. Throws
// std::runtime_error.
nlohmann::ordered_json bench_memory_tiers(uint64_t set_bytes, const std::string& tiers);

}  // namespace neotier::cli

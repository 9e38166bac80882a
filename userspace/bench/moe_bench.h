// SPDX-License-Identifier: Apache-2.0
// `neotier moe bench`: a model's experts computed token by token along a routing trace, with real bytes from real
// media: everything resident, from the store under a policy, and by mmap with a limited page cache. Beside each: what
// the replay predicts from the link and the compute that were measured in the same run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "experts/expert_store.h"
#include "replay/moe_replay.h"
#include "replay/routing_trace.h"

namespace neotier::experts {

struct MoeBenchOptions {
  std::string model;     // path
  StoreOptions store;    // of "store"; "lru" and "resident" differ in policy, predictor and slots
  uint64_t tokens = 64;  // measured
  uint64_t warm = 2000;  // tokens before them that policies and predictors have seen, without bytes
  double layer_ms = 0;   // slept before each layer, for what is not experts (attention)
  std::vector<std::string> methods = {"resident", "store", "lru", "mmap"};
  std::function<bool()> cancelled;
  std::function<void(const std::string&)> progress;
};

struct MoeMethod {
  std::string name, text;  // text: what it was, for people
  std::vector<double> token_ms;
  double mean_ms = 0, p50_ms = 0, p90_ms = 0, p99_ms = 0;
  double stall_share = 0;  // of the time, over the first method's
  uint64_t digest = 0;     // of every token's output
  bool identical = false;  // to the first method's
  double error = 0;        // relative L2 norm of the outputs against those; 0 where identical
  bool counted = false;    // by the store: what follows is known
  StoreCounters counters;
  double link_gb_s = 0;    // of expert loads one after the other, before and after the run
  double link_us = 0;      // what the first of them takes besides
  double wait_ms = 0;      // a token, for experts that were not there
  double expert_ms = 0;    // to compute one, mean of this run
  double other_ms = 0;     // of a layer besides: layer_ms, router, norms, sums, the policy
  bool predicted = false;  // by the replay: what follows is known
  double predicted_wait_ms = 0;
  double predicted_mean_ms = 0, predicted_p50_ms = 0, predicted_p90_ms = 0, predicted_p99_ms = 0;
};

struct MoeBenchResult {
  uint64_t expert_bytes = 0, read_bytes = 0;  // of one: weights; blocks that are read
  uint64_t slots_bytes = 0, model_bytes = 0;  // memory of the slots; all experts
  uint32_t layers = 0, experts = 0, slots = 0, hidden = 0, ff = 0;
  std::string path, format, medium, routing_weights;  // the CPU's path; how files are read
  double expert_ms = 0;                               // to compute one expert for one token, mean, everything resident
  double other_ms = 0;                                // of a layer besides: layer_ms, router, norms, sums
  double stand_in_error = 0;
  bool all_resident = false;  // there is memory for that, and it is the first method
  std::vector<MoeMethod> methods;
};

// trace: at least warm + tokens tokens of the model's shape. Throws std::runtime_error with one line: no such model,
// shapes that do not fit, an expert that cannot be read, cancelled.
MoeBenchResult run_moe_bench(const replay::RoutingTrace& trace, const MoeBenchOptions& options);

}  // namespace neotier::experts

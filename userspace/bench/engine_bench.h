// SPDX-License-Identifier: Apache-2.0
// What the engine itself costs: index, policies, planner, mover, with tiers that hold no bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace neotier::engine {

struct EngineBenchOptions {
  uint64_t objects = 10000000;
  uint64_t operations = 1000000;  // timed, of each kind
  std::string policy = "lru";
  uint64_t seed = 1;
  std::function<void(const std::string&)> progress = [](const std::string&) {};
  std::function<bool()> stop = [] { return false; };
};

// Keys looked up, of wall time but for waiting for a processor.
struct LookupFigures {
  double per_s = 0;   // by one thread
  double of_two = 0;  // by two threads together, of those
};

// Nanoseconds of processor time an operation, mean of `operations`, uniformly random keys: nothing is warm.
struct EngineFigures {
  uint64_t objects = 0;
  double index_ns = 0;  // key to record
  double use_ns = 0;    // the same under the lock, with heat and the policy's hit: what a get pays beside its copy
  double miss_ns = 0;
  double plan_ns = 0;                    // a victim chosen and its destination
  double move_ns = 0;                    // a whole move: asked for, room found, published, all but the bytes
  LookupFigures lookups;                 // whole ones of one key
  LookupFigures kv_lookups;              // of a KV store's prompt, in a session's request that has begun
  LookupFigures kv_requests;             // the same, each beginning one: the policies are told of the one before
  double bytes_per_object = 0;           // index and policies, as laid out
  double resident_bytes_per_object = 0;  // what the process grew by while they came
  size_t record_bytes = 0;
  std::string policy;
};

// Throws std::runtime_error where it fails or is interrupted.
EngineFigures bench_engine(const EngineBenchOptions& options);

}  // namespace neotier::engine

// SPDX-License-Identifier: Apache-2.0
// What the environment asks for: a backend gets no other word from its host.
#pragma once

#include <cstdint>
#include <string>

namespace neotier::ggml {

struct Settings {
  uint64_t memory_bytes = 0;  // NEOTIER_EXPERTS_MEMORY; 0: what is free when the model is loaded
  std::string policy;         // NEOTIER_EXPERTS_POLICY
  std::string predictor;      // NEOTIER_EXPERTS_PREDICTOR; "": the policy's own, "none": none
  int node = -1;              // NEOTIER_EXPERTS_NODE: where their memory is to be; -1: the system's choice
  bool repack = true;         // NEOTIER_EXPERTS_REPACK=0: not, as llama.cpp's --no-repack
  std::string stats;          // NEOTIER_EXPERTS_STATS: a file for counters when the model goes
  bool quiet = false;         // NEOTIER_QUIET=1: no line at the start
};

// Throws std::runtime_error with one line: the variable, its value, what it may be.
Settings settings_of_environment();

}  // namespace neotier::ggml

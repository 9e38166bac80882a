// SPDX-License-Identifier: Apache-2.0
// Workloads made up here, to judge policies on what no public trace shows. Not real traffic: every name begins with
// "synthetic".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "replay/trace.h"

namespace neotier::replay {

struct SyntheticKind {
  const char* name;
  const char* text;
};

// chat, prompts, agents, scans, documents, drift, mixed
const std::vector<SyntheticKind>& synthetic_kinds();

struct SyntheticOptions {
  std::string kind = "mixed";
  uint64_t requests = 20000;
  uint64_t seed = 1;
  // Requests a second; stretches all times but those of people and tools (think times), so load against reuse time
  // varies.
  double rate = 4;
};

// The same options give the same trace. 512-token blocks. Throws std::runtime_error (unknown kind, rate or requests 0).
KvTrace make_synthetic(const SyntheticOptions& options);

}  // namespace neotier::replay

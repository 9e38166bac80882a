// SPDX-License-Identifier: Apache-2.0
// Recordings made up here, to score laws where nothing was recorded. Not real programs: every name begins with
// "synthetic". 96 MiB of DRAM, 240 MiB of pages taken first touch in order, then some 1.5 modelled s of fills.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "replay/pages/recording.h"

namespace neotier::pages {

struct SyntheticKind {
  const char* name;
  const char* text;
};
const std::vector<SyntheticKind>& synthetic_kinds();

// The same arguments give the same recording. fills > 0: after the pages were taken. Throws std::runtime_error for a
// kind of no known name.
Recording make_synthetic(const std::string& kind, uint64_t fills, uint64_t seed);

}  // namespace neotier::pages

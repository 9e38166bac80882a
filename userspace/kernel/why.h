// SPDX-License-Identifier: Apache-2.0
// Why pages move, or do not: the module's counters of a while, in sentences for whoever runs the machine.
//
// Pure functions, but kswapd_gave_up(); any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "kernel/module.h"

namespace neotier::kernel {

// Why some of what was reported did not move.
struct Cause {
  std::string counter;  // of stats/
  uint64_t reports = 0;
  std::string text;  // goes on after "N reports: "
  std::string hint;  // what to do about it; may be empty
};

struct Why {
  std::string summary;                               // one or two sentences
  std::string hint;                                  // may be empty
  uint64_t promoted = 0, demoted = 0, reported = 0;  // pages, pages, hot pages that the devices told of
  std::vector<Cause> causes;                         // those with most reports first
};

// What the counters say of the `seconds` between two looks.
Why why(const Snapshot& before, const Snapshot& now, double seconds);

nlohmann::ordered_json to_json(const Why& why);

// Nodes whose kswapd has freed nothing sixteen times in a row, and does nothing until somebody else reclaims there:
// from the text of /proc/zoneinfo.
std::set<int> kswapd_gave_up(const std::string& zoneinfo);
// The same of this machine; empty where that cannot be read.
std::set<int> kswapd_gave_up();

// The text for stats/skipped_<reason> or kept_<reason>; empty: not known here.
std::string text_of_reason(const std::string& reason);

}  // namespace neotier::kernel

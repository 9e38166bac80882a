// SPDX-License-Identifier: Apache-2.0
// Runs as JSON and as a table.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hil/run.h"

namespace neotier::hil {

// Keys as docs/hil.md lists them; counts and times over the region of interest. Only "host" differs between
// repetitions.
nlohmann::ordered_json to_json(const RunResult& run);

// Modelled ns of the phase `name` (from its mark to the next phase's), or nothing.
std::optional<uint64_t> phase_ns(const RunResult& run, const std::string& name);
// Modelled ns from the mark "jump" until a window is again within `tolerance` of the mean window of "settled".
std::optional<uint64_t> recovery_ns(const RunResult& run, double tolerance = 0.1);

// One line a run: time, speed-up over `none`, share of the gap between `none` and `ideal` recovered, misses,
// migrations.
std::string table(const std::vector<RunResult>& runs);

// Why a policy that moves pages made no difference to speak of, from what was counted; one line. Empty where it did,
// and for policies that move none. `none`: first touch, or null.
std::string why_nothing(const RunResult& run, const RunResult* none);

}  // namespace neotier::hil

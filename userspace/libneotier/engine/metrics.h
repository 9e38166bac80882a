// SPDX-License-Identifier: Apache-2.0
// An engine's status as Prometheus text (exposition format 0.0.4) and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "engine/engine.h"

namespace neotier::engine {

std::string prometheus_text(const EngineStatus& status);
nlohmann::ordered_json to_json(const EngineStatus& status);
// "dram", "cxl", "gpu", "ssd", ...
const char* to_string(TierKind kind);

}  // namespace neotier::engine

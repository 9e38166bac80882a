// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace neotier {

// Indented by two; arrays of numbers stay on one line. Ends with a line break.
std::string pretty(const nlohmann::ordered_json& json);

}  // namespace neotier

// SPDX-License-Identifier: Apache-2.0
// From words to tiers: the only place that knows every kind there is.
#pragma once

#include <string>
#include <vector>

#include "engine/catalogue.h"

namespace neotier::engine {

// "dram=8G,cxl=32G:node=1,ssd=200G:file=/var/cache/neotier": see neotier_config.tiers in include/neotier.h. Throws
// std::runtime_error with one line.
std::vector<TierSetup> make_tiers(const std::string& text);

}  // namespace neotier::engine

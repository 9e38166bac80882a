// SPDX-License-Identifier: Apache-2.0
// From words to tiers: the only place that knows every kind there is.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/catalogue.h"

namespace neotier::engine {

// "dram=8G,cxl=32G:node=1,ssd=200G:file=/var/cache/neotier": see neotier_config.tiers in neotier.h. Throws
// std::runtime_error with one line. All that can be wrong is looked for before the first tier is made, tiers larger
// than the machine's memory or the free part of its disk among it. `announce` hears of a file before it takes its room.
using Announce = std::function<void(const std::string& line)>;
std::vector<TierSetup> make_tiers(const std::string& text, const Announce& announce = {});

}  // namespace neotier::engine

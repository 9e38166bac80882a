// SPDX-License-Identifier: Apache-2.0
// What the best placement of a recording's pages would have won (hil/oracle.h), from the recording alone.
#pragma once

#include "hil/oracle.h"
#include "replay/pages/recording.h"
#include "replay/pages/replay.h"

namespace neotier::pages {

// Of the movable pages, in the DRAM that they had, over `none`; a move costs what it costs in a replay with these
// parameters. Epochs are 50 ms of modelled time, and merged as hil/oracle.h does. Thread-safe.
hil::Oracle solve_oracle(const Recording& recording, const Params& params);

}  // namespace neotier::pages

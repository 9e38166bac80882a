// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hil/run_view.h"
#include "report/page.h"

namespace neotier::hil {

// Adds what happened over modelled time, for the runs that were sampled (--timeline) or that marked windows. Of several
// seeds, the first.
void timeline_charts(report::Page& page, const Group& group);

}  // namespace neotier::hil

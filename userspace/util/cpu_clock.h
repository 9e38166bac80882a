// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ctime>

namespace neotier {

// CPU time of the calling thread in seconds: what else the machine does must not show in a figure for speed.
inline double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace neotier

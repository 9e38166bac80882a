// SPDX-License-Identifier: Apache-2.0
// For programs that take their own memory for a device's: tests of connectors.
#include <cuda_runtime.h>

namespace {
const bool all = (cuda_stand_in::reach_all(), true);
}

// SPDX-License-Identifier: Apache-2.0
#include "compute/kernels.h"

namespace neotier::compute {
namespace {
constexpr size_t kLanes = 4;
constexpr Path kPath = Path::kBaseline;
}  // namespace
}  // namespace neotier::compute

#define NEOTIER_TABLE kBaselineKernels
#include "compute/kernels_body.inc"

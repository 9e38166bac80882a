// SPDX-License-Identifier: Apache-2.0
#include "compute/kernels.h"

namespace neotier::compute {
namespace {
constexpr size_t kLanes = 8;
constexpr Path kPath = Path::kAvx2;
}  // namespace
}  // namespace neotier::compute

#define NEOTIER_TABLE kAvx2Kernels
#include "compute/kernels_body.inc"

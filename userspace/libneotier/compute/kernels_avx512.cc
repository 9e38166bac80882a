// SPDX-License-Identifier: Apache-2.0
#include "compute/kernels.h"

namespace neotier::compute {
namespace {
constexpr size_t kLanes = 16;
constexpr Path kPath = Path::kAvx512;
}  // namespace
}  // namespace neotier::compute

#define NEOTIER_TABLE kAvx512Kernels
#include "compute/kernels_body.inc"

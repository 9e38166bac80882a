// SPDX-License-Identifier: Apache-2.0
// Memory of an NVIDIA GPU as a tier. No CUDA header is needed to use it; without nvcc at build time the functions are
// there and say that they are not (cuda_none.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/tier.h"

namespace neotier::engine {

struct CudaOptions {
  std::string name = "gpu";
  int device = 0;
  uint64_t capacity_bytes = 0;
  uint64_t staging_bytes = 32 << 20;  // pinned, a direction; for host memory that is not registered
};

// Whether a device and its driver are there now.
bool cuda_available();
// kGone: no such device or no driver; kFull: not so much memory; kUnsupported: built without CUDA.
Result<std::unique_ptr<Tier>> open_cuda_tier(const CudaOptions& options);
// Host memory that transfers will use directly, without staging, for as long as the tier lives or until it is
// unregistered. False: not permitted, or not a tier of open_cuda_tier's; transfers are staged then.
bool cuda_register_host(Tier& tier, std::span<std::byte> memory);
// No transfer may be using it. Harmless where it is not registered.
void cuda_unregister_host(Tier& tier, std::span<std::byte> memory);

}  // namespace neotier::engine

// SPDX-License-Identifier: Apache-2.0
// Where nvcc was not there at build time.
#include "engine/tiers/cuda/cuda_tier.h"
#include "engine/tiers/cuda/device_copies.h"

namespace neotier::engine {

bool cuda_available() { return false; }

Result<std::unique_ptr<Tier>> open_cuda_tier(const CudaOptions& options) {
  return Status(
      Code::kUnsupported,
      "tier " + options.name + ": built without CUDA; install nvcc and configure again (stand-in=yes imitates it)");
}

bool cuda_register_host(Tier&, std::span<std::byte>) { return false; }
void cuda_unregister_host(Tier&, std::span<std::byte>) {}

Result<std::unique_ptr<DeviceCopies>> open_device_copies(int) {
  return Status(Code::kUnsupported, "built without CUDA; install nvcc and configure again");
}

}  // namespace neotier::engine

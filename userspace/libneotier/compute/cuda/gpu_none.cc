// SPDX-License-Identifier: Apache-2.0
// Built without nvcc.
#include "compute/cuda/gpu.h"

namespace neotier::compute::cuda {

namespace {
Status none() { return {Code::kUnsupported, "built without CUDA: no nvcc was found"}; }
}  // namespace

bool available() { return false; }
Status feed_forward(const Expert&, Activation, const float*, float*, float*, void*) { return none(); }
Status attend(const AttentionShape&, const KvBlock*, uint32_t, const uint32_t*, const uint32_t*, const float*, float*,
              void*) {
  return none();
}
Status wait(void*) { return none(); }
Result<DeviceMemory> DeviceMemory::copy_of(std::span<const std::byte>) { return none(); }
DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept : data_(other.data_), bytes_(other.bytes_) {}
DeviceMemory::~DeviceMemory() = default;
Status DeviceMemory::read(std::span<std::byte>) const { return none(); }

}  // namespace neotier::compute::cuda

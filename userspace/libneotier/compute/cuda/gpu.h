// SPDX-License-Identifier: Apache-2.0
// Experts and attention on an NVIDIA GPU, over memory that is on it already (a tier's extents). The definitions are
// those of compute/moe.h and compute/attention.h; sums run in another order, within the same bounds. No CUDA header is
// needed to use this; without nvcc at build time every call says kUnsupported (gpu_none.cc).
//
// Never run on a device by this project so far: its tests skip where there is none.
//
// Pointers in views and arguments are device addresses unless said. Calls start work on `stream` (a cudaStream_t; NULL:
// the default one) and return; its errors come with the next call or with wait(). Thread-safe on different streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "compute/attention.h"
#include "compute/moe.h"

namespace neotier::compute::cuda {

// Whether a device and its driver are there now.
bool available();

// One token through one expert; as compute::feed_forward(). `scratch`: 2 * ff floats.
Status feed_forward(const Expert& expert, Activation activation, const float* x, float* y, float* scratch,
                    void* stream);

// As compute::attend(). `blocks`: nr_blocks of them on the device, their pointers of the device too. `chosen` and
// `first` (heads + 1) on the device: head h reads blocks chosen[first[h]] to chosen[first[h + 1] - 1]; both NULL: all.
// kUnsupported: dim above 256.
Status attend(const AttentionShape& shape, const KvBlock* blocks, uint32_t nr_blocks, const uint32_t* chosen,
              const uint32_t* first, const float* query, float* out, void* stream);

Status wait(void* stream);

// Memory of the device, for callers without a tier.
class DeviceMemory {
 public:
  // A copy of host bytes. kFull, kGone, kUnsupported.
  static Result<DeviceMemory> copy_of(std::span<const std::byte> host);
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&&) = delete;
  ~DeviceMemory();  // NOLINT(performance-trivially-destructible): it is not, in builds with a device
  std::byte* data() const { return data_; }
  // To host memory of at most the same size; waits for the default stream.
  Status read(std::span<std::byte> host) const;

 private:
  DeviceMemory(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_;
  size_t bytes_;
};

}  // namespace neotier::compute::cuda

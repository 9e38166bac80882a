// SPDX-License-Identifier: Apache-2.0
// Many small pieces in one kernel launch, where a copy each costs more in launches than in bytes. Works on device
// memory and on pinned host memory alike (unified addressing).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace neotier::engine::cuda {

struct CopyItem {
  void* to;
  const void* from;
  uint64_t bytes;
};

// Copies `count` items, whose array lies in pinned memory until the stream has passed. Any alignment: whole
// 16-byte words where both ends have the same offset in them.
cudaError_t scatter(const CopyItem* items, uint32_t count, cudaStream_t stream);

// The same with items that may go when the call returns: they go along as the kernel's argument.
inline constexpr size_t kItemsByValue = 512;
cudaError_t scatter_by_value(const CopyItem* items, size_t count, cudaStream_t stream);

// Below this mean size the kernel is faster than the device's copy engines by more than it loses where others compute.
inline constexpr uint64_t kSmallPiece = 16 << 10;

// In larger batches each piece takes longer.
inline constexpr size_t kBatchAtOnce = 512;
// By the device's copy engines, in one call of the driver's. The arrays may go when it returns.
cudaError_t copy_batch(void* const* to, const void* const* from, const size_t* bytes, size_t count,
                       cudaStream_t stream);

}  // namespace neotier::engine::cuda

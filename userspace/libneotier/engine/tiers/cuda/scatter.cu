// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/cuda/scatter.h"

namespace neotier::engine::cuda {

namespace {

constexpr unsigned kThreads = 256;
// Blocks an item: enough loads in flight to fill PCIe or NVLink with a few items, few enough to leave the SMs to compute.
constexpr unsigned kBlocksPerItem = 4;

__global__ void copy_items(const CopyItem* items) {
  const CopyItem item = items[blockIdx.y];
  auto* to = static_cast<unsigned char*>(item.to);
  const auto* from = static_cast<const unsigned char*>(item.from);
  const uint64_t first = blockIdx.x * kThreads + threadIdx.x, step = gridDim.x * kThreads;
  const auto offset = reinterpret_cast<uintptr_t>(to) % sizeof(uint4);
  if (offset != reinterpret_cast<uintptr_t>(from) % sizeof(uint4)) {
    for (uint64_t i = first; i < item.bytes; i += step) to[i] = from[i];
    return;
  }
  const uint64_t wanted = offset ? sizeof(uint4) - offset : 0;
  const uint64_t head = wanted < item.bytes ? wanted : item.bytes;
  const uint64_t words = (item.bytes - head) / sizeof(uint4);
  auto* to_words = reinterpret_cast<uint4*>(to + head);
  const auto* from_words = reinterpret_cast<const uint4*>(from + head);
  for (uint64_t i = first; i < words; i += step) to_words[i] = from_words[i];
  for (uint64_t i = first; i < head; i += step) to[i] = from[i];
  for (uint64_t i = head + words * sizeof(uint4) + first; i < item.bytes; i += step) to[i] = from[i];
}

}  // namespace

cudaError_t scatter(const CopyItem* items, uint32_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  (void)cudaGetLastError();  // of an earlier call, whose caller has been told
  copy_items<<<dim3(kBlocksPerItem, count), kThreads, 0, stream>>>(items);
  return cudaGetLastError();
}

}  // namespace neotier::engine::cuda

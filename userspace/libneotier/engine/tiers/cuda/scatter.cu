// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/cuda/scatter.h"

namespace neotier::engine::cuda {

namespace {

constexpr unsigned kThreads = 256;
// So many fill PCIe (docs/decisions/0060-gpu-memory.md), and leave the other processors to compute: pieces of a page
// or so wait more than they are copied.
constexpr unsigned kBlocks = 8, kBlocksOfSmall = 32;
constexpr uint64_t kSmall = 16 << 10;
constexpr unsigned kAtOnce = 4;  // words of a thread in flight

struct Items {
  CopyItem items[kItemsByValue];
};

__device__ void copy_item(const CopyItem& item) {
  auto* to = static_cast<unsigned char*>(item.to);
  const auto* from = static_cast<const unsigned char*>(item.from);
  const auto offset = reinterpret_cast<uintptr_t>(to) % sizeof(uint4);
  if (offset != reinterpret_cast<uintptr_t>(from) % sizeof(uint4)) {
    for (uint64_t i = threadIdx.x; i < item.bytes; i += kThreads) to[i] = from[i];
    return;
  }
  const uint64_t wanted = offset ? sizeof(uint4) - offset : 0;
  const uint64_t head = wanted < item.bytes ? wanted : item.bytes;
  const uint64_t words = (item.bytes - head) / sizeof(uint4);
  auto* to_words = reinterpret_cast<uint4*>(to + head);
  const auto* from_words = reinterpret_cast<const uint4*>(from + head);
  uint64_t i = threadIdx.x;
  for (; i + (kAtOnce - 1) * kThreads < words; i += kAtOnce * kThreads) {
    uint4 word[kAtOnce];
#pragma unroll
    for (unsigned k = 0; k < kAtOnce; k++) word[k] = from_words[i + k * kThreads];
#pragma unroll
    for (unsigned k = 0; k < kAtOnce; k++) to_words[i + k * kThreads] = word[k];
  }
  for (; i < words; i += kThreads) to_words[i] = from_words[i];
  for (i = threadIdx.x; i < head; i += kThreads) to[i] = from[i];
  for (i = head + words * sizeof(uint4) + threadIdx.x; i < item.bytes; i += kThreads) to[i] = from[i];
}

// A thread block takes an item after the other.
__global__ void copy_items(const CopyItem* items, uint32_t count) {
  for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) copy_item(items[i]);
}
__global__ void copy_items_by_value(const __grid_constant__ Items items, uint32_t count) {
  for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) copy_item(items.items[i]);
}

unsigned blocks_for(const CopyItem* items, size_t count) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; i++) bytes += items[i].bytes;
  const unsigned blocks = bytes / count < kSmall ? kBlocksOfSmall : kBlocks;
  return count < blocks ? static_cast<unsigned>(count) : blocks;
}

}  // namespace

cudaError_t scatter(const CopyItem* items, uint32_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  (void)cudaGetLastError();  // of an earlier call, whose caller has been told
  copy_items<<<blocks_for(items, count), kThreads, 0, stream>>>(items, count);
  return cudaGetLastError();
}

cudaError_t scatter_by_value(const CopyItem* items, size_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  if (count > kItemsByValue) return cudaErrorInvalidValue;
  (void)cudaGetLastError();
  Items all;
  for (size_t i = 0; i < count; i++) all.items[i] = items[i];
  copy_items_by_value<<<blocks_for(items, count), kThreads, 0, stream>>>(all, static_cast<uint32_t>(count));
  return cudaGetLastError();
}

cudaError_t copy_batch(void* const* to, const void* const* from, const size_t* bytes, size_t count, cudaStream_t stream) {
#if CUDART_VERSION >= 13000
  cudaMemcpyAttributes attributes = {};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first = 0;
  return cudaMemcpyBatchAsync(const_cast<void**>(to), const_cast<const void**>(from), bytes, count, &attributes, &first, 1, stream);
#else
  for (size_t i = 0; i < count; i++)
    if (const cudaError_t error = cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, stream); error != cudaSuccess)
      return error;
  return cudaSuccess;
#endif
}

}  // namespace neotier::engine::cuda

// SPDX-License-Identifier: Apache-2.0
// Between gpu.cc and the kernels: plain C types, as nvcc here has C++17 only.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace neotier::compute::cuda {

struct DeviceMatrix {
  int format;  // the number of compute::Format
  uint32_t rows, columns;
  const unsigned char* data;
  const unsigned char* scales;
  size_t stride, scale_stride;
};

struct DeviceBlock {  // laid out as compute::KvBlock
  const unsigned char* keys;
  const unsigned char* values;
  uint32_t tokens, capacity;
};

constexpr uint32_t kMaxDim = 256;

cudaError_t launch_matvec(const DeviceMatrix& m, const float* bias, const float* x, float* y, cudaStream_t stream);
// gate[i] = act(gate[i], up[i])
cudaError_t launch_activation(bool clamped, float* gate, const float* up, uint32_t n, cudaStream_t stream);
cudaError_t launch_attention(uint32_t heads, uint32_t kv_heads, uint32_t dim, bool bf16, float scale,
                             const DeviceBlock* blocks, uint32_t nr_blocks, const uint32_t* chosen,
                             const uint32_t* first, const float* query, float* out, cudaStream_t stream);

}  // namespace neotier::compute::cuda

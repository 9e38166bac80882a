// SPDX-License-Identifier: Apache-2.0
#include <cuda_fp16.h>

#include <cmath>

#include "compute/cuda/launch.h"

namespace neotier::compute::cuda {

namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 4;  // of a thread block
enum Format { kF32, kBf16, kQ8_0, kQ4_0, kMxfp4, kMxfp4Split };  // compute::Format

__device__ uint32_t u16_at(const unsigned char* p) { return p[0] | p[1] << 8; }
__device__ float bf16_at(const unsigned char* p) { return __uint_as_float(u16_at(p) << 16); }
__device__ float f16_at(const unsigned char* p) { return __half2float(__ushort_as_half(static_cast<unsigned short>(u16_at(p)))); }
__device__ float f32_at(const unsigned char* p) {
  return __uint_as_float(u16_at(p) | u16_at(p + 2) << 16);
}
__device__ float e8m0(unsigned char e) { return e == 255 ? nanf("") : ldexpf(1.0F, e - 127); }
__device__ float e2m1(int v) {
  const int m = v & 7;
  const float value = m < 4 ? 0.5F * m : ldexpf(1.0F + 0.5F * (m & 1), (m >> 1) - 1);
  return v & 8 ? -value : value;
}
__device__ int half_of(unsigned char b, bool high) { return high ? b >> 4 : b & 15; }

// Lane l of a warp has value l of a block of 32.
template <int kFormat>
__device__ float weight(const unsigned char* row, const unsigned char* scales, uint32_t block, int lane, uint32_t column) {
  switch (kFormat) {
    case kF32: return f32_at(row + size_t{column} * 4);
    case kBf16: return bf16_at(row + size_t{column} * 2);
    case kQ8_0: {
      const unsigned char* b = row + size_t{block} * 34;
      return f16_at(b) * static_cast<signed char>(b[2 + lane]);
    }
    case kQ4_0: {
      const unsigned char* b = row + size_t{block} * 18;
      return f16_at(b) * (half_of(b[2 + lane % 16], lane >= 16) - 8);
    }
    case kMxfp4: {
      const unsigned char* b = row + size_t{block} * 17;
      return e8m0(b[0]) * e2m1(half_of(b[1 + lane % 16], lane >= 16));
    }
    default: return e8m0(scales[block]) * e2m1(half_of(row[size_t{block} * 16 + lane / 2], lane % 2));
  }
}

__device__ float sum_of_warp(float v) {
  for (int n = kWarp / 2; n > 0; n /= 2) v += __shfl_xor_sync(0xffffffff, v, n);
  return v;
}

// A warp a row.
template <int kFormat>
__global__ void matvec(DeviceMatrix m, const float* bias, const float* x, float* y) {
  const uint32_t r = blockIdx.x * kWarps + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (r >= m.rows) return;
  const unsigned char* row = m.data + r * m.stride;
  const unsigned char* scales = m.scales + r * m.scale_stride;
  float sum = 0;
  for (uint32_t block = 0; block * kWarp < m.columns; block++) {
    const uint32_t column = block * kWarp + lane;
    if (column < m.columns) sum += weight<kFormat>(row, scales, block, lane, column) * x[column];
  }
  sum = sum_of_warp(sum);
  if (lane == 0) y[r] = sum + (bias ? bias[r] : 0);
}

__global__ void activate(bool clamped, float* gate, const float* up, uint32_t n) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float g = gate[i], u = up[i];
  if (clamped) {
    g = g > 7 ? 7 : g;
    u = u > 7 ? 7 : u < -7 ? -7 : u;
    gate[i] = (u + 1) * (g / (1 + expf(-1.702F * g)));
  } else {
    gate[i] = g / (1 + expf(-g)) * u;
  }
}

// A thread block a head; each warp takes every kWarps-th token with a softmax of its own, and the four are merged.
__global__ void attention(uint32_t group, uint32_t dim, bool bf16, float scale, const DeviceBlock* blocks, uint32_t nr_blocks,
                          const uint32_t* chosen, const uint32_t* first, const float* query, float* out) {
  constexpr int kPerLane = kMaxDim / kWarp;
  const uint32_t head = blockIdx.x, kv_head = head / group;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const size_t element = bf16 ? 2 : 4;
  const auto at = [&](const unsigned char* p, uint32_t i) { return bf16 ? bf16_at(p + i * 2) : f32_at(p + i * 4); };
  float q[kPerLane] = {}, acc[kPerLane] = {};
  for (int k = 0; k < kPerLane; k++)
    if (const uint32_t i = lane + k * kWarp; i < dim) q[k] = query[size_t{head} * dim + i] * scale;
  float max = -INFINITY, sum = 0;
  const uint32_t begin = first ? first[head] : 0, end = first ? first[head + 1] : nr_blocks;
  for (uint32_t n = begin; n < end; n++) {
    const DeviceBlock b = blocks[chosen ? chosen[n] : n];
    for (uint32_t t = warp; t < b.tokens; t += kWarps) {
      const size_t row = (size_t{kv_head} * b.capacity + t) * dim * element;
      float score = 0;
      for (int k = 0; k < kPerLane; k++)
        if (const uint32_t i = lane + k * kWarp; i < dim) score += q[k] * at(b.keys + row, i);
      score = sum_of_warp(score);
      if (!(score <= max)) {  // also where either is NaN
        const float shrink = max == -INFINITY ? 0 : expf(max - score);
        sum *= shrink;
        for (int k = 0; k < kPerLane; k++) acc[k] *= shrink;
        max = score;
      }
      if (max == -INFINITY) continue;
      const float p = expf(score - max);
      sum += p;
      for (int k = 0; k < kPerLane; k++)
        if (const uint32_t i = lane + k * kWarp; i < dim) acc[k] += p * at(b.values + row, i);
    }
  }
  __shared__ float maxima[kWarps], sums[kWarps], parts[kWarps][kMaxDim];
  if (lane == 0) maxima[warp] = max, sums[warp] = sum;
  for (int k = 0; k < kPerLane; k++)
    if (const uint32_t i = lane + k * kWarp; i < dim) parts[warp][i] = acc[k];
  __syncthreads();
  float all = -INFINITY, total = 0;
  for (int w = 0; w < kWarps; w++)
    if (!(maxima[w] <= all)) all = maxima[w];
  const auto factor = [&](int w) { return maxima[w] == -INFINITY ? 0.0F : expf(maxima[w] - all); };
  for (int w = 0; w < kWarps; w++) total += sums[w] * factor(w);
  for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x) {
    float v = 0;
    for (int w = 0; w < kWarps; w++) v += parts[w][i] * factor(w);
    out[size_t{head} * dim + i] = total == 0 ? 0 : v / total;
  }
}

}  // namespace

cudaError_t launch_matvec(const DeviceMatrix& m, const float* bias, const float* x, float* y, cudaStream_t stream) {
  const dim3 grid((m.rows + kWarps - 1) / kWarps), block(kWarp * kWarps);
  switch (m.format) {
    case kF32: matvec<kF32><<<grid, block, 0, stream>>>(m, bias, x, y); break;
    case kBf16: matvec<kBf16><<<grid, block, 0, stream>>>(m, bias, x, y); break;
    case kQ8_0: matvec<kQ8_0><<<grid, block, 0, stream>>>(m, bias, x, y); break;
    case kQ4_0: matvec<kQ4_0><<<grid, block, 0, stream>>>(m, bias, x, y); break;
    case kMxfp4: matvec<kMxfp4><<<grid, block, 0, stream>>>(m, bias, x, y); break;
    case kMxfp4Split: matvec<kMxfp4Split><<<grid, block, 0, stream>>>(m, bias, x, y); break;
    default: return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

cudaError_t launch_activation(bool clamped, float* gate, const float* up, uint32_t n, cudaStream_t stream) {
  activate<<<(n + 255) / 256, 256, 0, stream>>>(clamped, gate, up, n);
  return cudaGetLastError();
}

cudaError_t launch_attention(uint32_t heads, uint32_t kv_heads, uint32_t dim, bool bf16, float scale, const DeviceBlock* blocks,
                             uint32_t nr_blocks, const uint32_t* chosen, const uint32_t* first, const float* query, float* out,
                             cudaStream_t stream) {
  attention<<<heads, kWarp * kWarps, 0, stream>>>(heads / kv_heads, dim, bf16, scale, blocks, nr_blocks, chosen, first, query, out);
  return cudaGetLastError();
}

}  // namespace neotier::compute::cuda

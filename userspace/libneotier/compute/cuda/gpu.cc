// SPDX-License-Identifier: Apache-2.0
#include "compute/cuda/gpu.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "compute/cuda/launch.h"

namespace neotier::compute::cuda {

static_assert(sizeof(DeviceBlock) == sizeof(KvBlock));
static_assert(offsetof(DeviceBlock, capacity) == offsetof(KvBlock, capacity));

namespace {

Status as_status(cudaError_t error, const char* where) {
  if (error == cudaSuccess) return {};
  const Code code = error == cudaErrorMemoryAllocation                                    ? Code::kFull
                    : error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver  ? Code::kGone
                    : error == cudaErrorIllegalAddress || error == cudaErrorLaunchFailure ? Code::kGone
                                                                                          : Code::kIo;
  return {code, fmt::format("{}: {}", where, cudaGetErrorString(error))};
}

DeviceMatrix device_view(const Matrix& m) {
  return {static_cast<int>(m.format),
          m.rows,
          m.columns,
          reinterpret_cast<const unsigned char*>(m.data),
          reinterpret_cast<const unsigned char*>(m.scales),
          m.stride(),
          m.scale_stride()};
}

}  // namespace

bool available() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

Status feed_forward(const Expert& expert, Activation activation, const float* x, float* y, float* scratch,
                    void* stream) {
  if (Status s = check(expert, expert.gate.columns); !s) return s;
  auto* on = static_cast<cudaStream_t>(stream);
  const uint32_t ff = expert.gate.rows;
  cudaError_t error = launch_matvec(device_view(expert.gate), expert.gate_bias, x, scratch, on);
  if (error == cudaSuccess) error = launch_matvec(device_view(expert.up), expert.up_bias, x, scratch + ff, on);
  if (error == cudaSuccess)
    error = launch_activation(activation == Activation::kSwiGluClamped, scratch, scratch + ff, ff, on);
  if (error == cudaSuccess) error = launch_matvec(device_view(expert.down), expert.down_bias, scratch, y, on);
  return as_status(error, "feed-forward on the GPU");
}

Status attend(const AttentionShape& shape, const KvBlock* blocks, uint32_t nr_blocks, const uint32_t* chosen,
              const uint32_t* first, const float* query, float* out, void* stream) {
  if (Status s = check(shape, {}); !s) return s;
  if (shape.dim > kMaxDim)
    return {Code::kUnsupported, fmt::format("heads of {} on the GPU, at most {}", shape.dim, kMaxDim)};
  const float scale = shape.scale != 0 ? shape.scale : 1 / std::sqrt(static_cast<float>(shape.dim));
  return as_status(launch_attention(shape.heads, shape.kv_heads, shape.dim, shape.format == Format::kBf16, scale,
                                    reinterpret_cast<const DeviceBlock*>(blocks), nr_blocks, chosen, first, query, out,
                                    static_cast<cudaStream_t>(stream)),
                   "attention on the GPU");
}

Status wait(void* stream) {
  return as_status(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "work on the GPU");
}

Result<DeviceMemory> DeviceMemory::copy_of(std::span<const std::byte> host) {
  void* data = nullptr;
  cudaError_t error = cudaMalloc(&data, host.size());
  if (error != cudaSuccess) return as_status(error, "memory of the GPU");
  DeviceMemory memory(static_cast<std::byte*>(data), host.size());
  error = cudaMemcpy(data, host.data(), host.size(), cudaMemcpyHostToDevice);
  if (error != cudaSuccess) return as_status(error, "copy to the GPU");
  return memory;
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

DeviceMemory::~DeviceMemory() { cudaFree(data_); }

Status DeviceMemory::read(std::span<std::byte> host) const {
  if (host.size() > bytes_) return {Code::kInvalid, fmt::format("{} of {} bytes", host.size(), bytes_)};
  return as_status(cudaMemcpy(host.data(), data_, host.size(), cudaMemcpyDeviceToHost), "copy from the GPU");
}

}  // namespace neotier::compute::cuda

// SPDX-License-Identifier: Apache-2.0
// As much of CUDA's run time as the GPU tier calls, on host memory: streams are threads, and copies are made when the
// test lets them. Only for the tier's tests where there is no CUDA; the names are CUDA's.
#pragma once

#include <cstddef>

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorSystemNotReady = 802,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorNoDevice = 100,
  cudaErrorECCUncorrectable = 214,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorHardwareStackError = 714,
  cudaErrorLaunchFailure = 719,
  cudaErrorContained = 721
};
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
using cudaStream_t = struct StandInStream*;
using cudaEvent_t = struct StandInEvent*;

constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaEventBlockingSync = 1;
constexpr unsigned cudaHostAllocPortable = 1, cudaHostRegisterPortable = 1;

cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaDeviceSynchronize();
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* memory);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);

// The test's own.
namespace cuda_stand_in {

enum class Call { kLaunch, kCopy, kRecord };
// The next `count` such calls fail with `error`, and leave it as the last error.
void fail(Call call, unsigned count, cudaError_t error);
// Copies that were asked for while held are made after release().
void hold();
void release();

}  // namespace cuda_stand_in

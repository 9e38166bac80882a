// SPDX-License-Identifier: Apache-2.0
// As much of CUDA's run time as the GPU tier calls, on host memory: streams are threads, and copies are made when the
// test lets them. Only for the tier's tests where there is no CUDA; the names are CUDA's.
#pragma once

#include <cstddef>

#define NEOTIER_CUDA_STAND_IN 1

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorSystemNotReady = 802,
  cudaErrorDevicesUnavailable = 46,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorHostMemoryAlreadyRegistered = 712,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
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

enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone,
  cudaStreamCaptureStatusActive,
  cudaStreamCaptureStatusInvalidated
};
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound };
constexpr unsigned long long cudaEnableDefault = 0;

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* result);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventQuery(cudaEvent_t event);
using cudaHostFn_t = void (*)(void*);
using cudaGraph_t = struct StandInGraph*;
// The calling thread begins to capture `stream`, in the mode that forbids all threads what is unsafe, unless they allow
// it themselves; fails at the end where something was called nevertheless.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
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
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);

// The test's own.
namespace cuda_stand_in {

enum class Call { kLaunch, kCopy, kRecord, kQuery };
// The next `count` such calls fail with `error`, and leave it as the last error.
void fail(Call call, unsigned count, cudaError_t error);
// Copies that were asked for while held are made after release().
void hold();
void release();
// Kernels may use any memory of the process, whether it was allocated for that or not.
void reach_all();
// How many there are; 1 at first. A call with a stream or an event of another device than the current one fails, as
// CUDA's do.
void set_devices(int count);
// Whether a device was set in this thread, or a context is on its stack.
bool thread_has_context();

}  // namespace cuda_stand_in

// SPDX-License-Identifier: Apache-2.0
// A device's primary context on this thread's stack of contexts, for a scope. Not by cudaSetDevice(): to put the former
// device back would make a context on it where the thread had none, which takes some hundred megabytes of its memory.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

namespace neotier::engine::cuda {

// One device's; holds its primary context as long as it lives.
class DeviceContext {
 public:
  DeviceContext() = default;
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;
  ~DeviceContext() {
    if (context_) release_(device_);
  }
  cudaError_t open(int device) {
    // Makes the run time find the driver.
    int devices = 0;
    if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess) return error;
    if (device < 0 || device >= devices) return cudaErrorInvalidDevice;
    device_ = device;
    if (!find("cuDevicePrimaryCtxRetain", 7000, retain_) || !find("cuDevicePrimaryCtxRelease", 11000, release_) ||
        !find("cuCtxPushCurrent", 4000, push_) || !find("cuCtxPopCurrent", 4000, pop_))
      return cudaErrorNotSupported;
    if (retain_(&context_, device) != CUDA_SUCCESS) {
      context_ = nullptr;
      return cudaErrorDevicesUnavailable;
    }
    return cudaSuccess;
  }

 private:
  friend class DeviceScope;
  template <typename Function>
  static bool find(const char* name, unsigned version, Function*& function) {
    cudaDriverEntryPointQueryResult result{};
    void* found = nullptr;
    if (cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess)
      return false;
    function = reinterpret_cast<Function*>(found);
    return true;
  }

  int device_ = 0;
  CUcontext context_ = nullptr;
  CUresult (*retain_)(CUcontext*, CUdevice) = nullptr;
  CUresult (*release_)(CUdevice) = nullptr;
  CUresult (*push_)(CUcontext) = nullptr;
  CUresult (*pop_)(CUcontext*) = nullptr;
};

// Calls in it are the device's, and disturb no capture of a graph: not of this thread's, and not one of another thread
// that forbids all threads what it calls unsafe.
class DeviceScope {
 public:
  explicit DeviceScope(const DeviceContext& context) : context_(context) {
    pushed_ = context_.context_ && context_.push_(context_.context_) == CUDA_SUCCESS;
    (void)cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  ~DeviceScope() {
    (void)cudaThreadExchangeStreamCaptureMode(&mode_);
    CUcontext was = nullptr;
    if (pushed_) (void)context_.pop_(&was);
  }

 private:
  const DeviceContext& context_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  bool pushed_ = false;
};

}  // namespace neotier::engine::cuda

// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "engine/tiers/cuda/scatter.h"

namespace {

std::mutex lock_of_all;
std::condition_variable changed;
bool held = false;
unsigned failures[4] = {};
cudaError_t failure = cudaSuccess;
thread_local cudaError_t last_error = cudaSuccess;
int devices = 1;
thread_local int own_device = -1;  // set by the thread
thread_local std::vector<int> contexts;
thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
unsigned capturing = 0;
bool spoilt = false;

cudaError_t attempt(cuda_stand_in::Call call) {
  const std::lock_guard lock(lock_of_all);
  unsigned& left = failures[static_cast<size_t>(call)];
  if (left == 0) return cudaSuccess;
  left--;
  return last_error = failure;
}

int current() { return !contexts.empty() ? contexts.back() : own_device < 0 ? 0 : own_device; }

// Memory that a device reaches, and its bytes.
std::map<const std::byte*, size_t> reached;
bool any_reached = false;
void reach(const void* memory, size_t bytes) {
  const std::lock_guard lock(lock_of_all);
  reached[static_cast<const std::byte*>(memory)] = bytes;
}
void forget(const void* memory) {
  const std::lock_guard lock(lock_of_all);
  reached.erase(static_cast<const std::byte*>(memory));
}
bool reaches(const void* memory, size_t bytes) {
  const std::lock_guard lock(lock_of_all);
  if (any_reached) return true;
  const auto* const from = static_cast<const std::byte*>(memory);
  auto found = reached.upper_bound(from);
  if (found == reached.begin()) return false;
  --found;
  return from + bytes <= found->first + found->second;
}

// What CUDA calls unsafe while anything is captured.
bool forbidden() {
  const std::lock_guard lock(lock_of_all);
  if (capturing == 0 || mode == cudaStreamCaptureModeRelaxed) return false;
  spoilt = true;
  last_error = cudaErrorStreamCaptureUnsupported;
  return true;
}

}  // namespace

// Who waits for an event keeps what it waits for: it may be destroyed meanwhile.
struct EventState {
  uint64_t recorded = 0, passed = 0;
};
struct StandInEvent {
  std::shared_ptr<EventState> state = std::make_shared<EventState>();
  int device = current();
};

struct StandInStream {
  std::deque<std::function<void()>> work;
  bool busy = false, stop = false, captured = false;
  int device = current();
  std::thread thread{[this] { run(); }};

  void add(std::function<void()> what) {
    const std::lock_guard lock(lock_of_all);
    work.push_back(std::move(what));
    changed.notify_all();
  }
  void drain(std::unique_lock<std::mutex>& lock) {
    changed.wait(lock, [this] { return work.empty() && !busy; });
  }
  void run() {
    std::unique_lock lock(lock_of_all);
    for (;;) {
      changed.wait(lock, [this] { return stop || (!work.empty() && !held); });
      if (work.empty()) return;
      const std::function<void()> next = std::move(work.front());
      work.pop_front();
      busy = true;
      lock.unlock();
      next();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
};

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices) return cudaErrorInvalidDevice;
  own_device = device;
  if (!contexts.empty()) contexts.back() = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current();
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices;
  return cudaSuccess;
}
namespace {
// A context is its device's number, and one.
CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device) + 1); }
CUresult retain(CUcontext* context, CUdevice device) {
  *context = context_of(device);
  return device < devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult let_go(CUdevice) { return CUDA_SUCCESS; }
CUresult push(CUcontext context) {
  contexts.push_back(static_cast<int>(reinterpret_cast<uintptr_t>(context) - 1));
  return CUDA_SUCCESS;
}
CUresult pop(CUcontext* context) {
  if (contexts.empty()) return CUDA_ERROR_INVALID_VALUE;
  *context = context_of(contexts.back());
  contexts.pop_back();
  return CUDA_SUCCESS;
}
}  // namespace
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const std::string_view wanted = name;
  *function = wanted == "cuDevicePrimaryCtxRetain"    ? reinterpret_cast<void*>(&retain)
              : wanted == "cuDevicePrimaryCtxRelease" ? reinterpret_cast<void*>(&let_go)
              : wanted == "cuCtxPushCurrent"          ? reinterpret_cast<void*>(&push)
              : wanted == "cuCtxPopCurrent"           ? reinterpret_cast<void*>(&pop)
                                                      : nullptr;
  *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* other) {
  std::swap(mode, *other);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const std::lock_guard lock(lock_of_all);
  *status = stream && stream->captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return forbidden() ? cudaErrorStreamCaptureUnsupported : cudaSuccess; }
const char* cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "failed as asked"; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  *memory = std::malloc(bytes);
  if (!*memory) return cudaErrorMemoryAllocation;
  reach(*memory, bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  forget(memory);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) { return cudaMalloc(memory, bytes); }
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  if (!any_reached && reaches(memory, 1)) return last_error = cudaErrorHostMemoryAlreadyRegistered;
  reach(memory, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  forget(memory);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  if (stream->device != current()) return last_error = cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = attempt(cuda_stand_in::Call::kCopy)) return error;
  stream->add([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new StandInStream;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::lock_guard lock(lock_of_all);
    stream->stop = true;
    changed.notify_all();
  }
  stream->thread.join();
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::lock_guard lock(lock_of_all);
  stream->captured = true;
  spoilt = false;
  capturing++;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(lock_of_all);
  stream->captured = false;
  capturing--;
  *graph = nullptr;
  return spoilt ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  stream->add([=] { function(data); });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::shared_ptr<EventState> state = event->state;
  uint64_t number = 0;
  {
    const std::lock_guard lock(lock_of_all);
    number = state->recorded;
  }
  if (stream)
    stream->add([=] {
      std::unique_lock lock(lock_of_all);
      changed.wait(lock, [=] { return state->passed >= number; });
    });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  if (const cudaError_t error = attempt(cuda_stand_in::Call::kQuery)) return error;
  const std::lock_guard lock(lock_of_all);
  if (event->state->passed >= event->state->recorded) return cudaSuccess;
  return last_error = cudaErrorNotReady;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  std::unique_lock lock(lock_of_all);
  stream->drain(lock);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new StandInEvent;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (stream && stream->device != event->device) return last_error = cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = attempt(cuda_stand_in::Call::kRecord)) return error;
  const std::shared_ptr<EventState> state = event->state;
  uint64_t number = 0;
  {
    const std::lock_guard lock(lock_of_all);
    number = ++state->recorded;
    if (!stream) state->passed = number;
  }
  if (!stream) return cudaSuccess;
  stream->add([=] {
    const std::lock_guard lock(lock_of_all);
    state->passed = number;
    changed.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  std::unique_lock lock(lock_of_all);
  changed.wait(lock, [state = event->state] { return state->passed >= state->recorded; });
  return cudaSuccess;
}

namespace cuda_stand_in {

void fail(Call call, unsigned count, cudaError_t error) {
  const std::lock_guard lock(lock_of_all);
  failures[static_cast<size_t>(call)] = count;
  failure = error;
}
void hold() {
  const std::lock_guard lock(lock_of_all);
  held = true;
}
void release() {
  const std::lock_guard lock(lock_of_all);
  held = false;
  changed.notify_all();
}
void reach_all() { any_reached = true; }
void set_devices(int count) { devices = count; }
bool thread_has_context() { return own_device >= 0 || !contexts.empty(); }

}  // namespace cuda_stand_in

namespace neotier::engine::cuda {

namespace {
// A kernel has no business with memory that its device does not reach.
bool all_reached(const CopyItem* items, size_t count) {
  return std::all_of(items, items + count, [](const CopyItem& item) {
    return reaches(item.to, item.bytes) && reaches(item.from, item.bytes);
  });
}
}  // namespace

// In the place of scatter.cu.
cudaError_t scatter(const CopyItem* items, uint32_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  (void)cudaGetLastError();
  if (!all_reached(items, count)) return last_error = cudaErrorIllegalAddress;
  if (const cudaError_t error = attempt(cuda_stand_in::Call::kLaunch)) return error;
  stream->add([=] {
    for (uint32_t i = 0; i < count; i++) std::memcpy(items[i].to, items[i].from, items[i].bytes);
  });
  return cudaSuccess;
}

cudaError_t scatter_by_value(const CopyItem* items, size_t count, cudaStream_t stream) {
  if (count > kItemsByValue) return cudaErrorInvalidValue;
  if (stream->device != current()) return last_error = cudaErrorInvalidResourceHandle;
  if (!all_reached(items, count)) return last_error = cudaErrorIllegalAddress;
  if (const cudaError_t error = attempt(cuda_stand_in::Call::kLaunch)) return error;
  stream->add([all = std::vector<CopyItem>(items, items + count)] {
    for (const CopyItem& item : all) std::memcpy(item.to, item.from, item.bytes);
  });
  return cudaSuccess;
}

cudaError_t copy_batch(void* const* to, const void* const* from, const size_t* bytes, size_t count,
                       cudaStream_t stream) {
  for (size_t i = 0; i < count; i++)
    if (const cudaError_t error = cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, stream)) return error;
  return cudaSuccess;
}

}  // namespace neotier::engine::cuda

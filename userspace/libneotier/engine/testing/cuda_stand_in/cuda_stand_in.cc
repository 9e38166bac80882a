// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/tiers/cuda/scatter.h"

namespace {

std::mutex lock_of_all;
std::condition_variable changed;
bool held = false;
unsigned failures[3] = {};
cudaError_t failure = cudaSuccess;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t attempt(cuda_stand_in::Call call) {
  const std::lock_guard lock(lock_of_all);
  unsigned& left = failures[static_cast<size_t>(call)];
  if (left == 0) return cudaSuccess;
  left--;
  return last_error = failure;
}

}  // namespace

struct StandInEvent {
  uint64_t recorded = 0, passed = 0;
};

struct StandInStream {
  std::deque<std::function<void()>> work;
  bool busy = false, stop = false;
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

cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidValue; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "failed as asked"; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = std::malloc(bytes);
  return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) { return cudaMalloc(memory, bytes); }
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  if (const cudaError_t error = attempt(cuda_stand_in::Call::kCopy)) return error;
  stream->add([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new StandInStream;
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
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
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
  if (const cudaError_t error = attempt(cuda_stand_in::Call::kRecord)) return error;
  uint64_t number = 0;
  {
    const std::lock_guard lock(lock_of_all);
    number = ++event->recorded;
  }
  stream->add([=] {
    const std::lock_guard lock(lock_of_all);
    event->passed = number;
  });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::unique_lock lock(lock_of_all);
  changed.wait(lock, [event] { return event->passed >= event->recorded; });
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

}  // namespace cuda_stand_in

namespace neotier::engine::cuda {

// In the place of scatter.cu.
cudaError_t scatter(const CopyItem* items, uint32_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  (void)cudaGetLastError();
  if (const cudaError_t error = attempt(cuda_stand_in::Call::kLaunch)) return error;
  stream->add([=] {
    for (uint32_t i = 0; i < count; i++) std::memcpy(items[i].to, items[i].from, items[i].bytes);
  });
  return cudaSuccess;
}

}  // namespace neotier::engine::cuda

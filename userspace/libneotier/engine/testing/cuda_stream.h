// SPDX-License-Identifier: Apache-2.0
// A stream of the caller's in tests: on a GPU, or on the stand-in for CUDA's run time.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <thread>

namespace neotier::engine {

struct CudaStream {
  cudaStream_t stream = nullptr;
  CudaStream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess); }
  ~CudaStream() { cudaStreamDestroy(stream); }
  // What comes later waits for a while.
  void sleep() {
    const auto nap = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(60)); };
    EXPECT_EQ(cudaLaunchHostFunc(stream, nap, nullptr), cudaSuccess);
  }
  void copy(std::byte* to, const std::byte* from, size_t bytes) {
    EXPECT_EQ(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), cudaSuccess);
  }
  void wait() { EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess); }
};

}  // namespace neotier::engine

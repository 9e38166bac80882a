// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace neotier {

// Calls work(0) to work(n - 1), up to `threads` (>= 1) at a time. Throws what the first call to fail has thrown, after
// all threads have ended; calls that had not begun by then may be left out.
inline void parallel_for(size_t n, unsigned threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failed;
  const auto take = [&] {
    for (size_t i; (i = next++) < n;) {
      try {
        work(i);
      } catch (...) {
        next = n;
        const std::lock_guard lock(mutex);
        if (!failed) failed = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> workers;
    for (size_t i = 1; i < std::min<size_t>(threads, n); ++i) workers.emplace_back(take);
    take();
  }
  if (failed) std::rethrow_exception(failed);
}

}  // namespace neotier

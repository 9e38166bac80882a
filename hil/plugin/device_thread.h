// SPDX-License-Identifier: GPL-2.0-or-later
// Clocks the device in a thread of its own, beside QEMU's, without a visible difference: requests are handed over in
// batches, and whoever wants to see or change anything else of the device calls settle() first, which waits until every
// request has been clocked. Between settle() and the next request() the device belongs to the caller.
//
// Thread safety: request() and settle() from one thread. The device's observer is called from the other one, before
// settle() returns.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>

#include "hw/sim/neoprof_device.h"

namespace neotier::hil {

class DeviceThread {
 public:
  // `device` is not owned and must live as long as this.
  explicit DeviceThread(neoprof::Device& device) : device_(device), worker_([this] { work(); }) {}

  ~DeviceThread() {
    settle();
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  DeviceThread(const DeviceThread&) = delete;
  DeviceThread& operator=(const DeviceThread&) = delete;

  // A request of 64 bytes at `dpa`, a multiple of 64.
  void request(uint64_t dpa, bool is_write) {
    Batch& batch = batches_[filling_];
    batch.requests[batch.size++] = dpa | uint64_t{is_write};
    if (batch.size == kBatch) hand_over();
  }

  // Waits until every request so far has been clocked.
  void settle() {
    if (batches_[filling_].size != 0) hand_over();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return full_ == 0; });
  }

 private:
  // Small enough that settle() waits microseconds, large enough that waking a thread costs little a request.
  static constexpr size_t kBatch = 256;
  static constexpr size_t kBatches = 16;

  struct Batch {
    std::array<uint64_t, kBatch> requests;
    size_t size = 0;
  };

  void hand_over() {
    std::unique_lock lock(mutex_);
    ++full_;
    changed_.notify_all();
    filling_ = (filling_ + 1) % kBatches;
    changed_.wait(lock, [this] { return full_ < kBatches; });
  }

  void work() {
    size_t next = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return full_ != 0 || stop_; });
      if (full_ == 0) return;
      lock.unlock();
      Batch& batch = batches_[next];
      device_.accesses({batch.requests.data(), batch.size});
      batch.size = 0;
      next = (next + 1) % kBatches;
      lock.lock();
      --full_;
      changed_.notify_all();
    }
  }

  neoprof::Device& device_;
  std::array<Batch, kBatches> batches_;
  size_t filling_ = 0;  // the caller's; the worker's are the `full_` batches before it
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t full_ = 0;  // batches handed over and not yet clocked
  bool stop_ = false;
  std::thread worker_;  // last: it uses all of the above
};

}  // namespace neotier::hil

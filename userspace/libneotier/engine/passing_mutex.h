// SPDX-License-Identifier: Apache-2.0
// A mutex whose owner can tell that others wait, and let one of them pass: so that work on many objects holds nobody up
// for longer than a few of them take. Unlocking alone does not do that: the owner, being awake, has it again before the
// one that it woke has begun to run.
//
// Thread safety: all calls from any thread; pass() by the owner.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>

namespace neotier::engine {

class PassingMutex {
 public:
  void lock() {
    if (!mutex_.try_lock()) {
      waiting_++;
      mutex_.lock();
      waiting_--;
    }
    turns_.fetch_add(1, std::memory_order_relaxed);
  }
  bool try_lock() {
    if (!mutex_.try_lock()) return false;
    turns_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  void unlock() { mutex_.unlock(); }

  // Where somebody waits: unlocks until one of them had it, but not for ever (it may not get a processor).
  void pass() {
    if (waiting_ == 0) return;
    const uint64_t before = turns_;
    unlock();
    for (int i = 0; i < kMostSleeps && turns_ == before && waiting_ > 0; i++) std::this_thread::sleep_for(kSleep);
    lock();
  }

 private:
  static constexpr int kMostSleeps = 50;
  static constexpr std::chrono::microseconds kSleep{10};

  std::mutex mutex_;
  std::atomic<uint32_t> waiting_{0};
  std::atomic<uint64_t> turns_{0};
};

}  // namespace neotier::engine

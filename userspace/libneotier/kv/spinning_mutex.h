// SPDX-License-Identifier: Apache-2.0
// A mutex for what is held for a hundred nanoseconds, by many in turn: who finds it taken looks again a few times
// before he sleeps. To sleep and be woken takes longer than all that is done under it.
//
// Thread safety: all calls from any thread.
#pragma once

#include <mutex>

namespace neotier::kv {

class SpinningMutex {
 public:
  void lock() {
    for (int i = 0; i < kLooks; i++) {
      if (mutex_.try_lock()) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    mutex_.lock();  // its owner has no processor
  }
  void unlock() { mutex_.unlock(); }

 private:
  static constexpr int kLooks = 100;
  std::mutex mutex_;
};

}  // namespace neotier::kv

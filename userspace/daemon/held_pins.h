// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

namespace neotier::daemon {

// Pins and their bytes, of a client or of all clients of a user. Leases end in the engine without a word: what has run
// out is left out when it matters, which costs as much as has run out.
//
// Thread safety: all calls from any thread.
class HeldPins {
 public:
  // Takes the pin if no more than `most_pins` and `most_bytes` are held then. expires_ns: UINT64_MAX: never. Throws
  // std::bad_alloc.
  bool take(uint64_t pin, uint64_t bytes, uint64_t expires_ns, uint64_t now_ns, uint64_t most_pins,
            uint64_t most_bytes) {
    std::lock_guard lock(mutex_);
    const auto over = [&] { return pins_.size() >= most_pins || bytes_ > most_bytes || bytes > most_bytes - bytes_; };
    while (over() && !leases_.empty() && leases_.begin()->first <= now_ns) drop(leases_.begin()->second);
    if (over()) return false;
    const auto at = pins_.try_emplace(pin, Pin{bytes, expires_ns}).first;
    try {
      if (expires_ns != UINT64_MAX) leases_.emplace(expires_ns, pin);
    } catch (...) {
      pins_.erase(at);
      throw;
    }
    bytes_ += bytes;
    return true;
  }
  bool has(uint64_t pin) const {
    std::lock_guard lock(mutex_);
    return pins_.contains(pin);
  }
  // Nothing where it has been left out already.
  void give_back(uint64_t pin) {
    std::lock_guard lock(mutex_);
    drop(pin);
  }
  // Calls `each` for every pin, and holds none afterwards.
  template <typename Each>
  void give_back_all(Each each) {
    std::lock_guard lock(mutex_);
    for (const auto& [pin, what] : pins_) each(pin);
    pins_.clear();
    leases_.clear();
    bytes_ = 0;
  }
  std::pair<uint64_t, uint64_t> pins_and_bytes() const {
    std::lock_guard lock(mutex_);
    return {pins_.size(), bytes_};
  }

 private:
  struct Pin {
    uint64_t bytes = 0, expires_ns = UINT64_MAX;
  };
  void drop(uint64_t pin) {
    const auto at = pins_.find(pin);
    if (at == pins_.end()) return;
    bytes_ -= at->second.bytes;
    leases_.erase({at->second.expires_ns, pin});
    pins_.erase(at);
  }

  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Pin> pins_;
  std::set<std::pair<uint64_t, uint64_t>> leases_;
  uint64_t bytes_ = 0;
};

}  // namespace neotier::daemon

// SPDX-License-Identifier: Apache-2.0
// A recording's requests on a device of more memory: that of as many tenants, each of whom does what the recorded
// program does, in memory of its own. Their requests come beside the recorded ones, as many as the device's link has
// room for: so above some size more memory means that each page is asked for less often. Who of the tenants asks is
// drawn by lot. The lots are the same in each replay.
//
// Thread safety: one thread an object.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace neotier::pages {

class Tenants {
 public:
  // One alone: nothing is added.
  Tenants() = default;
  // `slots`: pages of the device's memory that one tenant has. `own_per_tick`: requests that the recording makes in a
  // tick, on average; `link_per_tick`: that the link carries, 1 or more.
  Tenants(uint32_t slots, uint32_t tenants, double own_per_tick, uint32_t link_per_tick)
      : slots_(slots), others_(tenants - 1), link_per_tick_(link_per_tick), left_(link_per_tick) {
    const double room = std::max(0.0, (link_per_tick - own_per_tick) / std::max(own_per_tick, 1e-9));
    share_ = static_cast<uint64_t>(std::min<double>(others_, room) * kOne);
  }

  uint32_t count() const { return others_ + 1; }
  // Which page of the recorded tenant a page of any of them is like.
  uint32_t recorded(uint32_t slot) const { return others_ == 0 ? slot : slot % slots_; }

  // The recorded requests (slot x 2, plus 1 for a write), each followed by others' for the same page of theirs.
  std::span<const uint32_t> beside(std::span<const uint32_t> requests) {
    if (others_ == 0) return requests;
    all_.clear();
    for (const uint32_t request : requests) {
      const uint32_t slot = recorded(request >> 1), write = request & 1;
      all_.push_back(slot << 1 | write);
      if (left_ > 0) --left_;
      for (owed_ += share_; owed_ >= kOne; owed_ -= kOne) {
        if (left_ == 0) {
          ++held_back_;
          continue;
        }
        --left_;
        const auto tenant = static_cast<uint32_t>(1 + random_() % others_);
        all_.push_back((tenant * slots_ + slot) << 1 | write);
      }
    }
    return all_;
  }
  void tick() { left_ = link_per_tick_; }

  // Requests of others for which the link had no room when they were due.
  uint64_t held_back() const { return held_back_; }

 private:
  static constexpr uint64_t kOne = 1 << 16;
  uint32_t slots_ = 1, others_ = 0, link_per_tick_ = 1, left_ = 1;
  uint64_t share_ = 0, owed_ = 0, held_back_ = 0;  // share: requests of others beside each recorded one
  std::mt19937_64 random_{1};                      // whose numbers the standard prescribes
  std::vector<uint32_t> all_;
};

}  // namespace neotier::pages

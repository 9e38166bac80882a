// SPDX-License-Identifier: Apache-2.0
// Pinned memory of the host that blocks on their way between a tier and a GPU go through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/tiers/cuda/device_copies.h"

namespace neotier::kv {

// Slots of pinned memory, each as large as a block and page-aligned. A save keeps its slots until its caller ends it, a
// load until the device has read them. So that no load waits for a caller, saves leave one slot to loads. Any thread.
class Staging {
 public:
  enum class For : uint8_t { kLoad, kSave };
  static constexpr size_t kForLoadsAlone = 1;

  // Of as many slots as there is room for.
  Staging(std::unique_ptr<engine::PinnedMemory> memory, uint64_t block_bytes);
  // NULL: there is none for it now.
  std::byte* take(For whom);
  void give_back(std::byte* slot);
  uint64_t slot_bytes() const { return slot_bytes_; }
  size_t slots() const { return slots_; }
  size_t free_slots() const;

 private:
  const std::unique_ptr<engine::PinnedMemory> memory_;
  const uint64_t slot_bytes_;
  size_t slots_ = 0;
  mutable std::mutex mutex_;
  std::vector<std::byte*> free_;
};

}  // namespace neotier::kv

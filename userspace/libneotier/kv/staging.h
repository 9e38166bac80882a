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

// Blocks of pinned memory, each whole and page-aligned. Any thread.
class Staging {
 public:
  Staging(std::unique_ptr<engine::PinnedMemory> memory, uint64_t block_bytes);
  // NULL: all are in use.
  std::byte* take();
  void give_back(std::byte* slot);
  size_t slots() const { return slots_; }
  size_t free_slots() const;

 private:
  const std::unique_ptr<engine::PinnedMemory> memory_;
  size_t slots_ = 0;
  mutable std::mutex mutex_;
  std::vector<std::byte*> free_;
};

}  // namespace neotier::kv

// SPDX-License-Identifier: Apache-2.0
#include "kv/staging.h"

#include <span>
#include <utility>

namespace neotier::kv {

namespace {

constexpr uint64_t kPage = 4096;

}  // namespace

Staging::Staging(std::unique_ptr<engine::PinnedMemory> memory, uint64_t block_bytes)
    : memory_(std::move(memory)), slot_bytes_((block_bytes + kPage - 1) / kPage * kPage) {
  const std::span<std::byte> bytes = memory_->bytes();
  slots_ = bytes.size() / slot_bytes_;
  free_.reserve(slots_);
  for (size_t i = slots_; i-- > 0;) free_.push_back(bytes.data() + i * slot_bytes_);
}

std::byte* Staging::take(For whom) {
  const std::lock_guard lock(mutex_);
  if (free_.size() <= (whom == For::kSave ? kForLoadsAlone : 0)) return nullptr;
  std::byte* const slot = free_.back();
  free_.pop_back();
  return slot;
}

void Staging::give_back(std::byte* slot) {
  const std::lock_guard lock(mutex_);
  free_.push_back(slot);  // there is room: it came from there
}

size_t Staging::free_slots() const {
  const std::lock_guard lock(mutex_);
  return free_.size();
}

}  // namespace neotier::kv

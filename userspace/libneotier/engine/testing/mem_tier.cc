// SPDX-License-Identifier: Apache-2.0
#include "engine/testing/mem_tier.h"

#include <algorithm>
#include <cstring>

namespace neotier::engine {

MemTier::MemTier(MemTierOptions options) : options_(std::move(options)) {
  info_.name = options_.name;
  info_.kind = options_.kind;
  info_.stand_in = true;
  info_.durable = options_.medium != nullptr;
  info_.kernel_moves = options_.kernel_moves;
  info_.capacity_bytes = options_.capacity_bytes;
  if (options_.medium) next_ = options_.medium->next;
  for (unsigned i = 0; i < options_.threads; i++) threads_.emplace_back([this] { work(); });
}

MemTier::~MemTier() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    held_ = false;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

TierUsage MemTier::usage() const {
  const std::lock_guard lock(mutex_);
  return {used_, objects_.size()};
}

Result<Extent> MemTier::allocate(const Key& key, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!in_service_ || lost_) return Status(Code::kGone, options_.name + ": out of service");
  if (bytes == 0 || bytes > options_.capacity_bytes)
    return Status(Code::kInvalid, options_.name + ": " + std::to_string(bytes) + " bytes asked, of " +
                                      std::to_string(options_.capacity_bytes) + " in all");
  if (bytes > options_.capacity_bytes - used_) return Status(Code::kFull, options_.name + ": full");
  auto object = std::make_shared<Object>();
  object->key = key;
  object->bytes.resize(bytes);
  object->written.resize(options_.medium ? bytes : 0);
  used_ += bytes;
  objects_.emplace(next_, std::move(object));
  return next_++;
}

void MemTier::free(Extent extent) {
  const std::lock_guard lock(mutex_);
  const auto at = objects_.find(extent);
  if (at == objects_.end()) return;
  used_ -= at->second->bytes.size();
  objects_.erase(at);
}

void MemTier::describe(Extent extent, Note note) {
  const std::lock_guard lock(mutex_);
  if (const auto object = object_of(extent)) object->note = note;
}

std::shared_ptr<MemTier::Object> MemTier::object_of(Extent extent) const {
  const auto at = objects_.find(extent);
  return at == objects_.end() ? nullptr : at->second;
}

std::byte* MemTier::map(Extent extent) {
  const std::lock_guard lock(mutex_);
  const auto object = options_.mappable && !options_.medium ? object_of(extent) : nullptr;
  return object ? object->bytes.data() : nullptr;
}

size_t MemTier::submit(std::span<Transfer* const> transfers) {
  size_t taken = 0;
  {
    const std::lock_guard lock(mutex_);
    while (taken < transfers.size() && queue_.size() + running_ < options_.queue_depth)
      queue_.push_back(transfers[taken++]);
  }
  work_.notify_all();
  return taken;
}

void MemTier::cancel(Transfer& transfer) {
  {
    const std::lock_guard lock(mutex_);
    const auto at = std::find(queue_.begin(), queue_.end(), &transfer);
    if (at == queue_.end()) return;
    queue_.erase(at);
  }
  transfer.done(transfer, Status(Code::kCancelled, options_.name + ": cancelled before it began"));
}

bool MemTier::in_service() const {
  const std::lock_guard lock(mutex_);
  return in_service_ && !lost_;
}

Status MemTier::come_back() {
  const std::lock_guard lock(mutex_);
  if (lost_) return {Code::kGone, options_.name + ": the medium is still lost"};
  in_service_ = true;
  return Status::ok();
}

Result<std::vector<Recovered>> MemTier::recover() {
  std::vector<Recovered> found;
  if (!options_.medium) return found;
  const std::lock_guard lock(mutex_);
  for (const auto& [extent, kept] : options_.medium->extents) {
    auto object = std::make_shared<Object>();
    object->key = kept.key;
    object->bytes = kept.bytes;
    object->written.assign(kept.bytes.size(), true);
    object->note = kept.note;
    used_ += kept.bytes.size();
    objects_.emplace(extent, std::move(object));
    found.push_back({kept.key, extent, kept.bytes.size(), kept.note});
  }
  return found;
}

void MemTier::hold() {
  const std::lock_guard lock(mutex_);
  held_ = true;
}

void MemTier::release() {
  {
    const std::lock_guard lock(mutex_);
    held_ = false;
  }
  work_.notify_all();
}

void MemTier::fail(Op op, unsigned count, Code code) {
  const std::lock_guard lock(mutex_);
  failure_ = code;
  failures_[static_cast<size_t>(op)] = count;
}

void MemTier::lose() {
  {
    const std::lock_guard lock(mutex_);
    lost_ = true;
    in_service_ = false;
    held_ = false;
  }
  work_.notify_all();
}

void MemTier::mend() {
  const std::lock_guard lock(mutex_);
  lost_ = false;
}

void MemTier::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return (stop_ && queue_.empty()) || (!queue_.empty() && !held_); });
    if (queue_.empty()) return;
    Transfer* transfer = queue_.front();
    queue_.pop_front();
    running_++;
    lock.unlock();
    Status status = execute(*transfer);
    lock.lock();
    running_--;
    lock.unlock();
    transfer->done(*transfer, std::move(status));
    lock.lock();
  }
}

Status MemTier::execute(Transfer& transfer) {
  {
    const std::lock_guard lock(mutex_);
    if (!in_service_) return {Code::kGone, options_.name + ": out of service"};
    unsigned& failures = failures_[static_cast<size_t>(transfer.op)];
    if (failures > 0) {
      failures--;
      return {failure_, options_.name + ": failed as asked"};
    }
  }
  return transfer.op == Op::kFlush ? flush() : copy(transfer);
}

Status MemTier::copy(Transfer& transfer) {
  std::shared_ptr<Object> object;
  {
    const std::lock_guard lock(mutex_);
    object = object_of(transfer.extent);
  }
  const uint64_t bytes = bytes_of(transfer.pieces);
  if (!object || transfer.offset > object->bytes.size() || bytes > object->bytes.size() - transfer.offset)
    return {Code::kInvalid, options_.name + ": no such extent, or beyond its end"};
  const std::shared_lock copying(copying_);
  std::byte* at = object->bytes.data() + transfer.offset;
  for (const Piece& piece : transfer.pieces) {
    if (piece.bytes == 0) continue;
    if (transfer.op == Op::kRead)
      std::memcpy(piece.data, at, piece.bytes);
    else
      std::memcpy(at, piece.data, piece.bytes);
    at += piece.bytes;
  }
  if (transfer.op == Op::kWrite && options_.medium) {
    const std::lock_guard lock(written_);
    std::fill_n(object->written.begin() + static_cast<ptrdiff_t>(transfer.offset), bytes, true);
  }
  return Status::ok();
}

Status MemTier::flush() {
  if (!options_.medium) return {Code::kUnsupported, options_.name + ": keeps nothing past its process"};
  const std::unique_lock copying(copying_);
  const std::lock_guard lock(mutex_);
  options_.medium->extents.clear();
  for (const auto& [extent, object] : objects_)
    if (std::find(object->written.begin(), object->written.end(), false) == object->written.end())
      options_.medium->extents.emplace(extent, MemMedium::Kept{object->key, object->bytes, object->note});
  options_.medium->next = next_;
  return Status::ok();
}

}  // namespace neotier::engine

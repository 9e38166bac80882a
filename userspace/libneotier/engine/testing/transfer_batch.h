// SPDX-License-Identifier: Apache-2.0
// Transfers that a test submits together and waits for. Owns them; counts how often `done` was called.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <stdexcept>
#include <vector>

#include "engine/tier.h"

namespace neotier::engine {

class TransferBatch {
 public:
  explicit TransferBatch(Tier& tier) : tier_(tier) {}
  // In flight transfers point here.
  ~TransferBatch() {
    if (submitted_ > 0) wait();
  }
  TransferBatch(const TransferBatch&) = delete;
  TransferBatch& operator=(const TransferBatch&) = delete;

  // Returns the transfer's number. The host memory is the caller's.
  size_t add(Op op, Extent extent, uint64_t offset, std::vector<Piece> pieces) {
    Item& item = items_.emplace_back();
    item.pieces = std::move(pieces);
    item.transfer.op = op;
    item.transfer.extent = extent;
    item.transfer.offset = offset;
    item.transfer.pieces = item.pieces;
    item.transfer.done = [this, &item](Transfer&, Status status) {
      const std::lock_guard lock(mutex_);
      item.status = std::move(status);
      item.calls++;
      completed_++;
      changed_.notify_all();
    };
    return items_.size() - 1;
  }
  size_t add(Op op, Extent extent, uint64_t offset, std::span<std::byte> bytes) {
    return add(op, extent, offset, std::vector<Piece>{{bytes.data(), bytes.size()}});
  }
  size_t add_flush() { return add(Op::kFlush, kNoExtent, 0, std::vector<Piece>{}); }

  // Submits as many of the rest as the tier takes.
  void submit_some() {
    std::vector<Transfer*> rest;
    for (size_t i = submitted_; i < items_.size(); i++) rest.push_back(&items_[i].transfer);
    if (!rest.empty()) submitted_ += tier_.submit(rest);
  }
  // Submits all and waits for them. Throws where a tier loses one (no answer in two minutes).
  void run() {
    const auto limit = deadline();
    while (submitted_ < items_.size()) {
      submit_some();
      if (submitted_ < items_.size()) await([&] { return completed_ == submitted_; }, limit, /*or_a_while=*/true);
    }
    wait();
  }
  // For what was submitted.
  void wait() {
    await([&] { return completed_ >= submitted_; }, deadline(), false);
  }

  size_t size() const { return items_.size(); }
  size_t submitted() const { return submitted_; }
  size_t completed() {
    const std::lock_guard lock(mutex_);
    return completed_;
  }
  Transfer& transfer(size_t i) { return items_[i].transfer; }
  const Status& status(size_t i) const { return items_[i].status; }
  unsigned calls(size_t i) const { return items_[i].calls; }

 private:
  struct Item {
    Transfer transfer;
    std::vector<Piece> pieces;
    Status status;
    unsigned calls = 0;
  };

  static std::chrono::steady_clock::time_point deadline() {
    return std::chrono::steady_clock::now() + std::chrono::minutes(2);
  }
  // Polls, for tiers without a thread.
  template <typename Ready>
  void await(Ready ready, std::chrono::steady_clock::time_point limit, bool or_a_while) {
    std::unique_lock lock(mutex_);
    while (!ready()) {
      lock.unlock();
      const size_t polled = tier_.poll();
      lock.lock();
      if (ready()) return;
      if (polled == 0) changed_.wait_for(lock, std::chrono::milliseconds(1));
      if (or_a_while) return;
      if (std::chrono::steady_clock::now() > limit) throw std::runtime_error("a transfer never completed");
    }
  }

  Tier& tier_;
  std::deque<Item> items_;
  size_t submitted_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t completed_ = 0;
};

// One transfer, to its end.
inline Status transfer_now(Tier& tier, Op op, Extent extent, uint64_t offset, std::span<std::byte> bytes) {
  TransferBatch batch(tier);
  batch.add(op, extent, offset, bytes);
  batch.run();
  return batch.status(0);
}
inline Status write_now(Tier& tier, Extent extent, std::span<std::byte> bytes, uint64_t offset = 0) {
  return transfer_now(tier, Op::kWrite, extent, offset, bytes);
}
inline Status read_now(Tier& tier, Extent extent, std::span<std::byte> bytes, uint64_t offset = 0) {
  return transfer_now(tier, Op::kRead, extent, offset, bytes);
}
inline Status flush_now(Tier& tier) { return transfer_now(tier, Op::kFlush, kNoExtent, 0, {}); }

}  // namespace neotier::engine

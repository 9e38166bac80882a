// SPDX-License-Identifier: Apache-2.0
#include "bench/paced_tier.h"

#include <algorithm>

#include "engine/clock.h"

namespace neotier::bench {

using engine::Status;
using engine::Transfer;

namespace {

uint64_t now_ns() { return engine::SteadyClock().now_ns(); }

}  // namespace

PacedTier::PacedTier(std::unique_ptr<engine::Tier> inner, double bytes_per_s, uint64_t latency_ns)
    : inner_(std::move(inner)),
      info_(inner_->info()),
      ns_per_byte_(1e9 / bytes_per_s),
      latency_ns_(latency_ns),
      thread_([this] { run(); }) {
  info_.kind = engine::TierKind::kStandIn;
  info_.stand_in = true;
}

PacedTier::~PacedTier() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void PacedTier::ended(const std::shared_ptr<Own>& own, const Status& status) {
  std::lock_guard lock(mutex_);
  own->status = status;
  if (!status.is_ok()) own->due_ns = 0;
  at_inner_.erase(own->outer);
  ended_.push(own);
  changed_.notify_one();
}

size_t PacedTier::submit(std::span<Transfer* const> transfers) {
  size_t taken = 0;
  for (; taken < transfers.size(); taken++) {
    Transfer& outer = *transfers[taken];
    const auto own = std::make_shared<Own>();
    own->outer = &outer;
    own->transfer.op = outer.op;
    own->transfer.extent = outer.extent;
    own->transfer.offset = outer.offset;
    own->transfer.pieces = outer.pieces;
    own->transfer.done = [this, one = own.get()](Transfer&, const Status& status) {
      std::unique_lock lock(mutex_);
      const std::shared_ptr<Own> same = at_inner_.at(one->outer);
      lock.unlock();
      ended(same, status);
    };
    uint64_t before = 0;
    {
      std::lock_guard lock(mutex_);
      before = free_ns_;
      at_inner_[&outer] = own;
      if (outer.op == engine::Op::kRead) {
        const uint64_t bytes = std::min(engine::bytes_of(outer.pieces), info_.capacity_bytes);
        free_ns_ = std::max(free_ns_, now_ns()) + static_cast<uint64_t>(static_cast<double>(bytes) * ns_per_byte_);
        own->due_ns = free_ns_ + latency_ns_;
      }
    }
    Transfer* const one[] = {&own->transfer};
    if (inner_->submit(one) == 0) {
      std::lock_guard lock(mutex_);
      free_ns_ = before;
      at_inner_.erase(&outer);
      break;
    }
  }
  return taken;
}

void PacedTier::cancel(Transfer& transfer) {
  std::shared_ptr<Own> own;
  {
    std::lock_guard lock(mutex_);
    const auto found = at_inner_.find(&transfer);
    if (found == at_inner_.end()) return;
    own = found->second;
  }
  inner_->cancel(own->transfer);
}

void PacedTier::run() {
  std::unique_lock lock(mutex_);
  while (!stop_ || !ended_.empty()) {
    const uint64_t now = now_ns();
    if (ended_.empty()) {
      changed_.wait(lock);
    } else if (ended_.top()->due_ns > now) {
      changed_.wait_for(lock, std::chrono::nanoseconds(ended_.top()->due_ns - now));
    } else {
      const std::shared_ptr<Own> own = ended_.top();
      ended_.pop();
      lock.unlock();
      own->outer->done(*own->outer, own->status);
      lock.lock();
    }
  }
}

}  // namespace neotier::bench

// SPDX-License-Identifier: Apache-2.0
#include "bench/steady_load.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace neotier::engine {

SteadyLoad::SteadyLoad(Tier& tier, uint64_t bytes, uint64_t count, unsigned depth, std::span<std::byte> memory)
    : tier_(tier) {
  for (uint64_t i = 0; i < count; i++) {
    const Result<Extent> extent = tier.allocate(key_of(i), bytes);
    if (!extent) throw std::runtime_error(extent.status().what());
    extents_.push_back(*extent);
  }
  for (unsigned i = 0; i < depth; i++) {
    Lane& lane = *lanes_.emplace_back(std::make_unique<Lane>());
    lane.piece = {memory.data() + i * bytes, bytes};
    lane.transfer.pieces = std::span(&lane.piece, 1);
    lane.transfer.done = [this](Transfer& transfer, const Status& status) { next(transfer, status); };
  }
}

Key SteadyLoad::key_of(uint64_t index) {
  Key key;
  std::memcpy(key.bytes, &index, sizeof index);
  return key;
}

double SteadyLoad::run(Op op, uint64_t accesses) { return run(op, false, accesses, 0); }
double SteadyLoad::run_for(Op op, bool random, double seconds) { return run(op, random, UINT64_MAX, seconds); }

double SteadyLoad::run(Op op, bool random, uint64_t accesses, double seconds) {
  random_ = random;
  left_ = accesses;
  at_ = 0;
  ended_ = 0;
  active_ = static_cast<unsigned>(lanes_.size());
  const auto begin = std::chrono::steady_clock::now();
  for (auto& lane : lanes_) {
    lane->transfer.op = op;
    start(lane->transfer);
  }
  if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  std::unique_lock lock(mutex_);
  if (seconds > 0) left_ = 0;
  idle_.wait(lock, [this] { return active_ == 0; });
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!status_) throw std::runtime_error(status_.what());
  return static_cast<double>(ended_) / took;
}

// From the tier's thread, or the first time from run(): the lock is for that.
void SteadyLoad::start(Transfer& transfer) {
  {
    const std::lock_guard lock(mutex_);
    if (left_ == 0 || !status_) {
      if (--active_ == 0) idle_.notify_all();
      return;
    }
    left_--;
    transfer.extent = extents_[(random_ ? draw_() : at_) % extents_.size()];
    at_++;
  }
  Transfer* const one = &transfer;
  if (tier_.submit(std::span(&one, 1)) != 1) std::abort();
}

void SteadyLoad::next(Transfer& transfer, const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (!status) status_ = status;
    ended_++;
  }
  start(transfer);
}

}  // namespace neotier::engine

// SPDX-License-Identifier: Apache-2.0
// Objects of one size on a tier, and transfers of whole ones of which so many are always under way.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <vector>

#include "engine/tier.h"

namespace neotier::engine {

// Thread safety: one caller at a time. The tier's queue must be deeper than `depth`.
class SteadyLoad {
 public:
  // Allocates `count` objects of `bytes`, by key_of(0), key_of(1) and so on. `memory`: depth * bytes of it or more are
  // read and written. Throws std::runtime_error where the tier has no room.
  SteadyLoad(Tier& tier, uint64_t bytes, uint64_t count, unsigned depth, std::span<std::byte> memory);

  static Key key_of(uint64_t index);
  const std::vector<Extent>& extents() const { return extents_; }

  // So many accesses, over the objects in order, again and again. Returns accesses a second. Throws std::runtime_error
  // where a transfer failed.
  double run(Op op, uint64_t accesses);
  // Each object once.
  double run_once(Op op) { return run(op, extents_.size()); }
  // For so long, in order or at random.
  double run_for(Op op, bool random, double seconds);

 private:
  struct Lane {
    Transfer transfer;
    Piece piece;
  };

  double run(Op op, bool random, uint64_t accesses, double seconds);
  void start(Transfer& transfer);
  void next(Transfer& transfer, const Status& status);

  Tier& tier_;
  std::vector<Extent> extents_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::mt19937_64 draw_{1};
  std::mutex mutex_;  // of all below
  std::condition_variable idle_;
  uint64_t left_ = 0, at_ = 0, ended_ = 0;
  unsigned active_ = 0;
  bool random_ = false;
  Status status_;
};

}  // namespace neotier::engine

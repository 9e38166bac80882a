// SPDX-License-Identifier: Apache-2.0
// A tier that is read through a slower link: its bytes are kept by another tier, and each read ends no sooner than a
// link of so many bytes a second and such a latency would let it. Writes take what they take. It calls itself a
// stand-in, and every report says so.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/tier.h"

namespace neotier::bench {

// Thread safety: that of a tier.
class PacedTier final : public engine::Tier {
 public:
  PacedTier(std::unique_ptr<engine::Tier> inner, double bytes_per_s, uint64_t latency_ns);
  // No transfer may be in flight.
  ~PacedTier() override;

  const engine::TierInfo& info() const override { return info_; }
  engine::TierUsage usage() const override { return inner_->usage(); }
  engine::Result<engine::Extent> allocate(const engine::Key& key, uint64_t bytes) override {
    return inner_->allocate(key, bytes);
  }
  void free(engine::Extent extent) override { inner_->free(extent); }
  void describe(engine::Extent extent, engine::Note note) override { inner_->describe(extent, note); }
  std::byte* map(engine::Extent) override { return nullptr; }  // past the link
  size_t submit(std::span<engine::Transfer* const> transfers) override;
  void cancel(engine::Transfer& transfer) override;
  size_t poll() override { return inner_->poll(); }
  bool in_service() const override { return inner_->in_service(); }
  engine::Status come_back() override { return inner_->come_back(); }
  engine::Result<std::vector<engine::Recovered>> recover() override { return inner_->recover(); }
  std::vector<engine::Found> find(std::span<const engine::Key> keys, uint32_t timeout_ms) override {
    return inner_->find(keys, timeout_ms);
  }

 private:
  struct Own {
    engine::Transfer transfer;
    engine::Transfer* outer = nullptr;
    uint64_t due_ns = 0;
    engine::Status status;
  };
  struct Later {
    bool operator()(const std::shared_ptr<Own>& a, const std::shared_ptr<Own>& b) const {
      return a->due_ns > b->due_ns;
    }
  };
  void ended(const std::shared_ptr<Own>& own, const engine::Status& status);
  void run();

  std::unique_ptr<engine::Tier> inner_;
  engine::TierInfo info_;
  double ns_per_byte_;
  uint64_t latency_ns_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t free_ns_ = 0;  // when the link has sent what it has
  std::unordered_map<engine::Transfer*, std::shared_ptr<Own>> at_inner_;
  // Their bytes are there, their time is not over.
  std::priority_queue<std::shared_ptr<Own>, std::vector<std::shared_ptr<Own>>, Later> ended_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace neotier::bench

// SPDX-License-Identifier: Apache-2.0
// The reference tier: the contract of engine/tier.h in plain memory, with faults at the tester's command. It proves the
// conformance suite, and stands for any tier in tests of what lies above.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/tier.h"

namespace neotier::engine {

// What outlives the tier: what a flush made durable.
struct MemMedium {
  struct Kept {
    Key key;
    std::vector<std::byte> bytes;
    Note note = 0;
  };
  std::map<Extent, Kept> extents;
  Extent next = 1;
};

struct MemTierOptions {
  std::string name = "mem";
  TierKind kind = TierKind::kStandIn;
  uint64_t capacity_bytes = 16 << 20;
  bool mappable = true;  // never where durable: what is written past the transfers cannot be followed
  unsigned threads = 2;
  size_t queue_depth = 64;            // transfers taken and not completed
  std::shared_ptr<MemMedium> medium;  // set: the tier is durable
  bool kernel_moves = false;          // as said of it; nothing moves
};

class MemTier : public Tier {
 public:
  explicit MemTier(MemTierOptions options);
  ~MemTier() override;

  const TierInfo& info() const override { return info_; }
  TierUsage usage() const override;
  Result<Extent> allocate(const Key& key, uint64_t bytes) override;
  void free(Extent extent) override;
  void describe(Extent extent, Note note) override;
  std::byte* map(Extent extent) override;
  size_t submit(std::span<Transfer* const> transfers) override;
  void cancel(Transfer& transfer) override;
  size_t poll() override { return 0; }
  bool in_service() const override;
  Status come_back() override;
  Result<std::vector<Recovered>> recover() override;

  // Faults; from any thread. Transfers taken while held start after release().
  void hold();
  void release();
  // The next `count` transfers of `op` fail with `code`, and change nothing.
  void fail(Op op, unsigned count, Code code = Code::kIo);
  // All fails until mend() and come_back(). Ends a hold.
  void lose();
  void mend();

 private:
  struct Object {
    Key key;
    std::vector<std::byte> bytes;
    std::vector<bool> written;
    Note note = 0;
  };

  std::shared_ptr<Object> object_of(Extent extent) const;
  void work();
  Status execute(Transfer& transfer);
  Status copy(Transfer& transfer);
  Status flush();

  const MemTierOptions options_;
  TierInfo info_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::map<Extent, std::shared_ptr<Object>> objects_;
  uint64_t used_ = 0;
  Extent next_ = 1;
  std::deque<Transfer*> queue_;
  size_t running_ = 0;
  bool held_ = false, stop_ = false, lost_ = false, in_service_ = true;
  unsigned failures_[3] = {};
  Code failure_ = Code::kIo;
  // Copies share it, a flush has it alone: it sees each write whole or not at all.
  std::shared_mutex copying_;
  std::mutex written_;  // guards Object::written
  std::vector<std::thread> threads_;
};

}  // namespace neotier::engine

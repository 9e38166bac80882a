// SPDX-License-Identifier: Apache-2.0
// Host memory as a tier: DRAM, or the memory of a CXL device, which Linux shows as a NUMA node without processors.
// Bound to its node, in huge pages where wanted and to be had. Where there is no such node, `cxl` is made on an
// ordinary one and says so (TierInfo::stand_in); as kGpu it imitates a GPU's memory, which the host cannot address, and
// says so too. Moved by the kernel (MemoryMode::kKernel), it begins on its node and is held there by nobody: hot pages
// then go to DRAM and keep their addresses.
//
// Transfers are copied by a few threads of the tier's, in order of submission; the host may also read and write extents
// in place (map()).
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/arena.h"
#include "engine/tier.h"
#include "engine/tiers/memory/copy.h"

namespace neotier::engine {

enum class HugePages : uint8_t {
  kNone,
  kTransparent,  // madvise
  kExplicit      // MAP_HUGETLB out of the system's pool; transparent ones where that is too small
};

enum class MemoryMode : uint8_t {
  kBind,   // its pages stay on its node
  kKernel  // all are taken there at the start, and the kernel may move them; of kCxl with a node alone
};

struct MemoryTierOptions {
  std::string name = "dram";
  TierKind kind = TierKind::kDram;  // or kCxl, kGpu
  uint64_t capacity_bytes = 0;
  int node = -1;  // -1: kDram: the system's choice; kCxl: the first node without processors
  HugePages huge_pages = HugePages::kTransparent;  // kKernel: not kExplicit, which do not move
  MemoryMode mode = MemoryMode::kBind;
  unsigned threads = 0;  // that copy; 0: half of the processors, 1 .. 4
  // Before each copy, by the thread that does it: what it returns, if not kOk, is the transfer's end. For tests.
  std::function<Status(Op)> before_copy;
};

class MemoryTier final : public Tier {
 public:
  // Throws std::runtime_error with one line: no such node, no memory, a mode that cannot be.
  explicit MemoryTier(MemoryTierOptions options);
  ~MemoryTier() override;

  const TierInfo& info() const override { return info_; }
  TierUsage usage() const override { return arena_.usage(); }
  Result<Extent> allocate(const Key& key, uint64_t bytes) override;
  void free(Extent extent) override;
  std::byte* map(Extent extent) override;
  std::byte* address(Extent extent) override;
  std::vector<NodeBytes> nodes() const override;
  size_t submit(std::span<Transfer* const> transfers) override;
  void cancel(Transfer& transfer) override;
  size_t poll() override { return 0; }
  bool in_service() const override;
  Status come_back() override;
  Result<std::vector<Recovered>> recover() override { return std::vector<Recovered>(); }

  // Before the memory is taken away (hot removal), and after it is there again. Contents are assumed to have survived.
  void set_present(bool present);
  // All of it: for devices that want it registered.
  std::span<std::byte> range() override { return {base_, mapped_bytes_}; }
  // How it turned out: node, page size, copy. One line.
  const std::string& notes() const { return notes_; }
  // Where its pages are bound to, or began; -1: the system's choice.
  int node() const { return node_; }

 private:
  void work();
  Status check(const Transfer& transfer) const;
  Status copy(Transfer& transfer);

  MemoryTierOptions options_;
  TierInfo info_;
  int node_ = -1;
  Arena arena_;
  std::byte* base_ = nullptr;
  size_t mapped_bytes_ = 0;
  CopyFn copy_ = copy_plain;
  std::string notes_;

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::deque<Transfer*> queue_;
  bool stop_ = false;
  bool present_ = true, in_service_ = true;
  std::vector<std::thread> threads_;

  // What nodes() found last. Transfers never want this lock, so only who asks for the same waits for the sample.
  mutable std::mutex nodes_mutex_;
  mutable std::vector<NodeBytes> nodes_;
  mutable std::chrono::steady_clock::time_point nodes_until_;  // it is new enough so long
  mutable std::mt19937_64 nodes_random_;
};

// NUMA nodes that have memory and no processors, as CXL memory has; none where the system has no NUMA.
std::vector<int> nodes_without_processors();

}  // namespace neotier::engine

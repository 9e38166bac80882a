// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/memory/memory_tier.h"

#include <numa.h>
#include <numaif.h>

#include <fstream>
#include <random>
#include <sstream>

#include "engine/testing/tier_conformance.h"
#include "engine/tiers/memory/page_nodes.h"

namespace neotier::engine {
namespace {

class MemoryHarness : public TierHarness {
 public:
  explicit MemoryHarness(TierKind kind, HugePages pages = HugePages::kTransparent,
                         MemoryMode mode = MemoryMode::kBind) {
    MemoryTierOptions options;
    options.name = kind == TierKind::kCxl ? "cxl" : "dram";
    options.kind = kind;
    options.capacity_bytes = 16 << 20;
    options.huge_pages = pages;
    options.mode = mode;
    // A stand-in, named, where there is no node without processors.
    if (mode == MemoryMode::kKernel && nodes_without_processors().empty()) options.node = 0;
    options.threads = 2;
    options.before_copy = [this](Op op) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !held_; });
      if (failures_[static_cast<size_t>(op)] == 0) return Status();
      failures_[static_cast<size_t>(op)]--;
      return Status(Code::kIo, "as the test wills");
    };
    tier_ = std::make_unique<MemoryTier>(options);
  }
  ~MemoryHarness() override { release(); }
  Tier& tier() override { return *tier_; }
  std::string cannot(Fault fault) const override {
    if (fault == Fault::kCorrupt) return "memory has no checksums of ours; its controller has ECC";
    if (fault == Fault::kCrash) return "memory does not outlive the process";
    return "";
  }
  void hold() override { set_held(true); }
  void release() override { set_held(false); }
  void fail(Op op, unsigned count) override {
    std::lock_guard lock(mutex_);
    failures_[static_cast<size_t>(op)] = count;
  }
  void lose() override {
    tier_->set_present(false);
    release();
  }
  void mend() override { tier_->set_present(true); }

 private:
  void set_held(bool held) {
    std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  unsigned failures_[3] = {};
  std::unique_ptr<MemoryTier> tier_;
};

struct Dram : MemoryHarness {
  Dram() : MemoryHarness(TierKind::kDram) {}
};
struct Cxl : MemoryHarness {
  Cxl() : MemoryHarness(TierKind::kCxl) {}
};
struct SmallPages : MemoryHarness {
  SmallPages() : MemoryHarness(TierKind::kDram, HugePages::kNone) {}
};
struct GpuStandIn : MemoryHarness {
  GpuStandIn() : MemoryHarness(TierKind::kGpu) {}
};
struct MovedByKernel : MemoryHarness {
  MovedByKernel() : MemoryHarness(TierKind::kCxl, HugePages::kNone, MemoryMode::kKernel) {}
};
using Kinds = ::testing::Types<Dram, Cxl, SmallPages, GpuStandIn, MovedByKernel>;
INSTANTIATE_TYPED_TEST_SUITE_P(Memory, TierConformance, Kinds);

TEST(MemoryTier, StandInSaysSo) {
  MemoryTierOptions options;
  options.name = "cxl";
  options.kind = TierKind::kCxl;
  options.capacity_bytes = 1 << 20;
  const MemoryTier tier(options);
  EXPECT_EQ(tier.info().stand_in, nodes_without_processors().empty());
  EXPECT_EQ(tier.notes().find("stand-in") != std::string::npos, tier.info().stand_in) << tier.notes();
}

TEST(MemoryTier, ExplicitHugePagesFallBack) {
  MemoryTierOptions options;
  options.capacity_bytes = 64 << 20;
  options.huge_pages = HugePages::kExplicit;
  const MemoryTier tier(options);
  EXPECT_TRUE(tier.notes().find("pool") != std::string::npos) << tier.notes();
}

TEST(MemoryTier, RefusesANodeThatIsNone) {
  MemoryTierOptions options;
  options.capacity_bytes = 1 << 20;
  options.node = 999;
  EXPECT_THROW(MemoryTier{options}, std::runtime_error);
}

// On the node that is meant: that without processors, else the only one that is sure to be there.
MemoryTierOptions moved_by_kernel() {
  MemoryTierOptions options;
  options.name = "cxl";
  options.kind = TierKind::kCxl;
  options.mode = MemoryMode::kKernel;
  options.huge_pages = HugePages::kNone;
  options.capacity_bytes = 96 << 20;
  if (nodes_without_processors().empty()) options.node = 0;
  return options;
}

int policy_at(const void* address) {
  int mode = -1;
  EXPECT_EQ(get_mempolicy(&mode, nullptr, 0, const_cast<void*>(address), MPOL_F_ADDR), 0) << std::strerror(errno);
  return mode;
}

// The kernel module leaves alone what a policy holds on the slow node, and there is nothing to promote in memory that
// was never touched.
TEST(MemoryTierMode, KernelTakesAllPagesOnTheNodeAndHoldsNone) {
  MemoryTierOptions options = moved_by_kernel();
  MemoryTier tier(options);
  EXPECT_TRUE(tier.info().kernel_moves);
  const std::byte* base = tier.range().data();
  for (const uint64_t at : {uint64_t{0}, options.capacity_bytes / 2, options.capacity_bytes - 1})
    EXPECT_EQ(policy_at(base + at), MPOL_DEFAULT) << at;
  const std::vector<NodeBytes> nodes = tier.nodes();
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_EQ(nodes[0].node, tier.node());
  EXPECT_EQ(nodes[0].bytes, options.capacity_bytes) << "some pages are in no memory";
  EXPECT_NE(tier.notes().find("moved by the kernel"), std::string::npos) << tier.notes();
}

TEST(MemoryTierMode, BindHoldsThem) {
  MemoryTierOptions options = moved_by_kernel();
  options.mode = MemoryMode::kBind;
  MemoryTier tier(options);
  EXPECT_FALSE(tier.info().kernel_moves);
  EXPECT_EQ(policy_at(tier.range().data()), MPOL_BIND);
  EXPECT_TRUE(tier.nodes().empty());
}

// "nh" of VmFlags: khugepaged would gather again what was moved one by one.
TEST(MemoryTierMode, SmallPagesStaySmall) {
  MemoryTier tier(moved_by_kernel());
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream range(line);
    const auto base = reinterpret_cast<uintptr_t>(tier.range().data());
    if (range >> std::hex >> begin >> dash >> end && dash == '-') here = begin <= base && base < end;
    if (!here || !line.starts_with("VmFlags:")) continue;
    if (std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) {
      EXPECT_NE(line.find(" nh"), std::string::npos) << line;
    }
    EXPECT_EQ(line.find(" lo"), std::string::npos) << "locked: " << line;
    return;
  }
  FAIL() << "not in /proc/self/smaps";
}

TEST(MemoryTierMode, WhatCannotBeIsOneLine) {
  const auto error = [](const MemoryTierOptions& options) -> std::string {
    try {
      const MemoryTier tier(options);
      return "taken";
    } catch (const std::runtime_error& thrown) {
      return thrown.what();
    }
  };
  MemoryTierOptions dram = moved_by_kernel(), pool = moved_by_kernel(), nowhere = moved_by_kernel();
  dram.kind = TierKind::kDram;
  EXPECT_NE(error(dram).find("is for cxl tiers"), std::string::npos) << error(dram);
  pool.huge_pages = HugePages::kExplicit;
  EXPECT_NE(error(pool).find("explicit huge pages"), std::string::npos) << error(pool);
  nowhere.node = -1;
  if (nodes_without_processors().empty())
    EXPECT_NE(error(nowhere).find("name one (node)"), std::string::npos) << error(nowhere);
  else
    EXPECT_EQ(error(nowhere), "taken");
  for (const MemoryTierOptions& options : {dram, pool}) EXPECT_EQ(error(options).find('\n'), std::string::npos);
}

// A tier of 1 TiB, of which a third lies on node 0, a 64th on node 2 and the rest on node 1.
TEST(PageNodes, ALargeTierIsASample) {
  constexpr uint64_t kPages = uint64_t{1} << 28;
  auto* const base = reinterpret_cast<std::byte*>(uint64_t{1} << 44);
  std::mt19937_64 random(test_seed());
  size_t asked = 0;
  uint64_t former = 0;
  const auto ask = [&](std::span<void*> pages, int* nodes) {
    asked += pages.size();
    for (size_t i = 0; i < pages.size(); i++) {
      const uint64_t offset = static_cast<uint64_t>(static_cast<std::byte*>(pages[i]) - base);
      EXPECT_EQ(offset % 4096, 0u);
      const uint64_t page = offset / 4096;
      EXPECT_LT(page, kPages);
      EXPECT_TRUE(former == 0 || page > former) << "a page twice";
      former = page;
      nodes[i] = page % 64 == 7 ? 2 : page % 3 == 0 ? 0 : 1;
    }
    return true;
  };
  const std::vector<NodeBytes> found = sample_nodes(base, kPages * 4096, random, ask);
  EXPECT_EQ(asked, kSampledPages);
  ASSERT_EQ(found.size(), 3u);
  const double shares[] = {63. / 64 / 3, 63. / 64 * 2 / 3, 1. / 64};
  for (int node = 0; node < 3; node++) {
    EXPECT_EQ(found[static_cast<size_t>(node)].node, node);
    // Five standard errors.
    EXPECT_NEAR(static_cast<double>(found[static_cast<size_t>(node)].bytes) / (kPages * 4096.), shares[node], .04)
        << node;
  }
}

TEST(PageNodes, ASmallOneIsExact) {
  auto* const base = reinterpret_cast<std::byte*>(uint64_t{1} << 44);
  std::mt19937_64 random(test_seed());
  const auto ask = [&](std::span<void*> pages, int* nodes) {
    for (size_t i = 0; i < pages.size(); i++) {
      const auto page = static_cast<uint64_t>(static_cast<std::byte*>(pages[i]) - base) / 4096;
      nodes[i] = page < 100 ? 1 : page == 100 ? -ENOENT : 0;
    }
    return true;
  };
  const std::vector<NodeBytes> found = sample_nodes(base, uint64_t{1000} * 4096, random, ask);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].node, 0);
  EXPECT_EQ(found[0].bytes, 899u * 4096);
  EXPECT_EQ(found[1].node, 1);
  EXPECT_EQ(found[1].bytes, 100u * 4096) << "what is swapped out is on none";
  EXPECT_TRUE(sample_nodes(base, 4096, random, [](std::span<void*>, int*) { return false; }).empty());
}

TEST(Copy, StreamingCopiesAnyAlignment) {
  std::vector<std::byte> from = pattern(1, 100000), to(100200);
  for (const size_t shift : {0, 1, 31, 63}) {
    for (const size_t bytes : {0, 1, 4095, 4096, 4159, 65536, 99000}) {
      std::fill(to.begin(), to.end(), std::byte{0xEE});
      copy_streaming(to.data() + 64 + shift, from.data() + 7, bytes);
      EXPECT_EQ(std::memcmp(to.data() + 64 + shift, from.data() + 7, bytes), 0) << shift << " " << bytes;
      EXPECT_EQ(to[63 + shift], std::byte{0xEE});
      EXPECT_EQ(to[64 + shift + bytes], std::byte{0xEE}) << shift << " " << bytes;
    }
  }
}

TEST(MemoryTierOptions, MoreThanTheMachineHasIsRefused) {
  MemoryTierOptions options;
  options.capacity_bytes = uint64_t{2} << 40;
  try {
    const MemoryTier tier(options);
    FAIL() << "taken";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("this machine has"), std::string::npos) << error.what();
  }
}

TEST(Arena, ClassesWasteAtMostAFifth) {
  for (uint64_t bytes = 513; bytes < (8 << 20); bytes += bytes / 7) {
    const uint64_t room = Arena::room_of(bytes);
    EXPECT_GE(room, bytes);
    // Rounding to the unit adds what the size class does not.
    EXPECT_LE(static_cast<double>(room), static_cast<double>(bytes) * 1.25 + 4096) << bytes;
  }
}

// Extents never overlap, whatever comes and goes, and all room comes back.
TEST(Arena, ChurnKeepsExtentsApart) {
  Arena arena(64 << 20);
  std::mt19937_64 random(test_seed());
  std::map<uint64_t, Extent> held;  // by offset
  for (int i = 0; i < 40000; i++) {
    if (held.empty() || random() % 100 < 55) {
      const uint64_t bytes = random() % 10 == 0 ? 1 + random() % (3 << 20) : 1 + random() % (64 << 10);
      const Extent extent = arena.allocate(bytes);
      if (extent == kNoExtent) continue;
      const uint64_t begin = Arena::offset_of(extent);
      const auto after = held.lower_bound(begin);
      if (after != held.end()) {
        ASSERT_LE(begin + bytes, after->first);
      }
      if (after != held.begin()) {
        const auto before = std::prev(after);
        ASSERT_LE(before->first + Arena::bytes_of(before->second), begin);
      }
      ASSERT_LE(begin + bytes, arena.capacity_bytes());
      ASSERT_EQ(Arena::bytes_of(extent), bytes);
      held[begin] = extent;
    } else {
      auto it = held.begin();
      std::advance(it, random() % std::min<size_t>(held.size(), 50));
      ASSERT_TRUE(arena.holds(it->second));
      ASSERT_TRUE(arena.free(it->second));
      ASSERT_FALSE(arena.free(it->second)) << "freed twice";
      held.erase(it);
    }
  }
  EXPECT_EQ(arena.usage().extents, held.size());
  for (const auto& [offset, extent] : held) ASSERT_TRUE(arena.free(extent));
  EXPECT_EQ(arena.usage().used_bytes, 0u);
  EXPECT_NE(arena.allocate(arena.capacity_bytes()), kNoExtent) << "all in one piece again";
}

// A cache whose objects change size must not lose its memory to the former sizes.
TEST(Arena, FormerSizesGiveTheirRoomBack) {
  Arena arena(32 << 20);
  std::vector<Extent> held;
  for (const uint64_t bytes : {4096u, 100000u, 700u, 2000000u, 30000u}) {
    for (Extent e = arena.allocate(bytes); e != kNoExtent; e = arena.allocate(bytes)) held.push_back(e);
    EXPECT_GT(arena.usage().used_bytes, arena.capacity_bytes() * 9 / 10) << bytes;
    for (const Extent e : held) arena.free(e);
    held.clear();
  }
}

}  // namespace
}  // namespace neotier::engine

// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/memory/memory_tier.h"

#include <random>

#include "engine/testing/tier_conformance.h"

namespace neotier::engine {
namespace {

class MemoryHarness : public TierHarness {
 public:
  explicit MemoryHarness(TierKind kind, HugePages pages = HugePages::kTransparent) {
    MemoryTierOptions options;
    options.name = kind == TierKind::kCxl ? "cxl" : "dram";
    options.kind = kind;
    options.capacity_bytes = 16 << 20;
    options.huge_pages = pages;
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
using Kinds = ::testing::Types<Dram, Cxl, SmallPages, GpuStandIn>;
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

// SPDX-License-Identifier: Apache-2.0
// The suite on a GPU's memory, where there is one; and what is said where there is none.
#include "engine/tiers/cuda/cuda_tier.h"

#include <cstdio>

#include "engine/testing/tier_conformance.h"

namespace neotier::engine {
namespace {

// Those of a device are the suites named Device...: main() runs them where there is one.
TEST(CudaTier, SaysWhyItCannotBeOpened) {
  CudaOptions options;
  options.device = 4711;
  options.capacity_bytes = 1 << 20;
  const auto opened = open_cuda_tier(options);
  ASSERT_FALSE(opened);
  EXPECT_TRUE(opened.status().code() == Code::kGone || opened.status().code() == Code::kUnsupported);
  EXPECT_NE(opened.status().what().find("stand-in=yes"), std::string::npos);
}

class CudaHarness : public TierHarness {
 public:
  CudaHarness() {
    CudaOptions options;
    options.capacity_bytes = 16 << 20;
    options.staging_bytes = 1 << 20;
    auto opened = open_cuda_tier(options);
    EXPECT_TRUE(opened) << opened.status().what();
    if (opened) tier_ = std::move(*opened);
  }
  Tier& tier() override { return *tier_; }
  bool there() const { return tier_ != nullptr; }
  std::string cannot(Fault) const override { return "a GPU's memory has no faults at the test's command"; }

 private:
  std::unique_ptr<Tier> tier_;
};

TEST(DeviceCuda, RegisteredMemoryGoesDirectly) {
  CudaHarness harness;
  ASSERT_TRUE(harness.there());
  Bytes memory = pattern(1, 4 << 20), back(4 << 20);
  EXPECT_TRUE(cuda_register_host(harness.tier(), memory));
  EXPECT_TRUE(cuda_register_host(harness.tier(), back));
  const Result<Extent> extent = harness.tier().allocate(make_key(1), memory.size());
  ASSERT_TRUE(extent);
  ASSERT_TRUE(write_now(harness.tier(), *extent, memory));
  ASSERT_TRUE(read_now(harness.tier(), *extent, back));
  EXPECT_EQ(memory, back);
}

using Kinds = ::testing::Types<CudaHarness>;
INSTANTIATE_TYPED_TEST_SUITE_P(DeviceCuda, TierConformance, Kinds);

}  // namespace
}  // namespace neotier::engine

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!neotier::engine::cuda_available() && ::testing::GTEST_FLAG(filter).starts_with("Device")) {
    std::puts("skipped: no CUDA device on this machine");
    return 0;
  }
  return RUN_ALL_TESTS();
}

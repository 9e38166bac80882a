// SPDX-License-Identifier: Apache-2.0
// The GPU tier itself on a stand-in for CUDA's run time: the suite, and calls that fail.
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "engine/testing/tier_conformance.h"
#include "engine/tiers/cuda/cuda_tier.h"

namespace neotier::engine {
namespace {

using cuda_stand_in::Call;

class StandInHarness : public TierHarness {
 public:
  StandInHarness() {
    CudaOptions options;
    options.capacity_bytes = 16 << 20;
    options.staging_bytes = 1 << 20;
    auto opened = open_cuda_tier(options);
    EXPECT_TRUE(opened) << opened.status().what();
    if (opened) tier_ = std::move(*opened);
  }
  ~StandInHarness() override { cuda_stand_in::release(); }
  Tier& tier() override { return *tier_; }
  std::string cannot(Fault fault) const override {
    return fault == Fault::kHold ? "" : "the stand-in fails calls, which are not transfers";
  }
  void hold() override { cuda_stand_in::hold(); }
  void release() override { cuda_stand_in::release(); }

 private:
  std::unique_ptr<Tier> tier_;
};

// Many small pieces go by a kernel, a large one by a copy of its own: where a later call fails, the copies before it
// are on their way, and the caller's memory is theirs until they are through.
void nothing_ends_before_its_copies(Call call, unsigned small_pieces) {
  StandInHarness harness;
  Tier& tier = harness.tier();
  constexpr uint64_t kLarge = 1 << 20, kSmall = 1000;
  const uint64_t bytes = kLarge + small_pieces * kSmall;
  const Result<Extent> extent = tier.allocate(make_key(1), bytes);
  ASSERT_TRUE(extent);
  Bytes content = pattern(1, bytes);
  ASSERT_TRUE(write_now(tier, *extent, content));
  ASSERT_TRUE(cuda_register_host(tier, content));
  for (const Op op : {Op::kRead, Op::kWrite}) {
    cuda_stand_in::hold();
    cuda_stand_in::fail(call, 1, cudaErrorLaunchOutOfResources);
    std::vector<Piece> pieces = {{content.data(), kLarge}};
    for (unsigned i = 0; i < small_pieces; i++) pieces.push_back({content.data() + kLarge + i * kSmall, kSmall});
    std::atomic<int> ended{0};
    Status status;
    Transfer transfer;
    transfer.op = op;
    transfer.extent = *extent;
    transfer.pieces = pieces;
    transfer.done = [&](Transfer&, const Status& how) {
      status = how;
      ended = 1;
    };
    Transfer* const one[] = {&transfer};
    ASSERT_EQ(tier.submit(one), 1u);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(ended, 0) << "the copy has not been made yet";
    cuda_stand_in::release();
    while (ended == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(status.code(), Code::kIo) << status.what();
    EXPECT_TRUE(tier.in_service());
    // What failed once has no part in what comes next.
    Bytes back(bytes);
    ASSERT_TRUE(write_now(tier, *extent, content));
    ASSERT_TRUE(read_now(tier, *extent, back));
    EXPECT_EQ(back, content);
  }
  cuda_unregister_host(tier, content);
}

TEST(CudaStandIn, AFailedLaunchEndsNothingEarly) { nothing_ends_before_its_copies(Call::kLaunch, 20); }
TEST(CudaStandIn, AFailedRecordEndsNothingEarly) { nothing_ends_before_its_copies(Call::kRecord, 0); }

// A batch whose staging is full flushes it on the way: all that was in it fails with the flush.
void failed_flush(Call call, uint64_t bytes, int count) {
  StandInHarness harness;
  Tier& tier = harness.tier();
  std::vector<Extent> extents;
  std::vector<Bytes> memory;
  for (int i = 0; i < count; i++) {
    extents.push_back(*tier.allocate(make_key(i), bytes));
    Bytes content = pattern(i, bytes);
    ASSERT_TRUE(write_now(tier, extents.back(), content));
    memory.emplace_back(bytes);
  }
  for (unsigned failures = 1; failures < 4; failures++) {
    for (Bytes& one : memory) std::fill(one.begin(), one.end(), std::byte{0});
    cuda_stand_in::hold();
    TransferBatch batch(tier);
    for (int i = 0; i < count; i++) batch.add(Op::kRead, extents[i], 0, std::span(memory[i]));
    cuda_stand_in::fail(call, failures, cudaErrorLaunchOutOfResources);
    batch.submit_some();
    cuda_stand_in::release();
    batch.run();
    int failed = 0;
    for (int i = 0; i < count; i++) {
      ASSERT_EQ(batch.calls(i), 1u);
      if (batch.status(i)) {
        EXPECT_EQ(memory[i], pattern(i, bytes)) << i;
      } else {
        failed++;
      }
    }
    EXPECT_GT(failed, 0);
    cuda_stand_in::fail(call, 0, cudaSuccess);
  }
}
TEST(CudaStandIn, AFailedFlushFailsAllThatItCarried) {
  failed_flush(Call::kCopy, 200000, 12);
  failed_flush(Call::kLaunch, 12000, 60);
}

using Kinds = ::testing::Types<StandInHarness>;
INSTANTIATE_TYPED_TEST_SUITE_P(CudaStandIn, TierConformance, Kinds);

}  // namespace
}  // namespace neotier::engine

// SPDX-License-Identifier: Apache-2.0
// Copies to and from a device: on a GPU where there is one (cuda_tier_test), and on the stand-in for CUDA's run time.
#include "engine/tiers/cuda/device_copies.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "engine/testing/cuda_stream.h"
#include "engine/testing/pattern.h"
#include "engine/testing/transfer_batch.h"
#include "engine/tiers/cuda/cuda_tier.h"

namespace neotier::engine {
namespace {

constexpr CopyMethod kMethods[] = {CopyMethod::kChosen, CopyMethod::kEach, CopyMethod::kBatch, CopyMethod::kKernel};

using Stream = CudaStream;

class DeviceCopiesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_device_copies(0);
    ASSERT_TRUE(opened) << opened.status().what();
    copies_ = std::move(*opened);
    auto memory = copies_->allocate(kBytes);
    ASSERT_TRUE(memory) << memory.status().what();
    device_ = *memory;
    for (auto* host : {&a_, &b_}) {
      auto pinned = copies_->pinned(kBytes);
      ASSERT_TRUE(pinned) << pinned.status().what();
      *host = std::move(*pinned);
    }
  }
  std::byte* a() { return a_->bytes().data(); }
  std::byte* b() { return b_->bytes().data(); }
  void now(CopyLane lane, std::vector<DeviceCopy> list, CopyMethod method = CopyMethod::kChosen) {
    const Status asked = copies_->copy(lane, list, method);
    EXPECT_TRUE(asked) << asked.what();
    auto mark = copies_->mark(lane);
    ASSERT_TRUE(mark) << mark.status().what();
    const Status made = copies_->wait(**mark, 20000);
    EXPECT_TRUE(made) << made.what();
  }
  void fill(std::byte* at, uint64_t seed) {
    const Bytes bytes = pattern(seed, kBytes);
    std::copy(bytes.begin(), bytes.end(), at);
  }
  bool is(const std::byte* at, uint64_t seed) {
    const Bytes bytes = pattern(seed, kBytes);
    return std::equal(bytes.begin(), bytes.end(), at);
  }

  static constexpr size_t kBytes = 4 << 20;
  std::unique_ptr<DeviceCopies> copies_;
  std::byte* device_ = nullptr;
  std::unique_ptr<PinnedMemory> a_, b_;
};

// Pieces of any size, anyhow aligned, and nothing beside them.
TEST_F(DeviceCopiesTest, AnyPieces) {
  std::mt19937_64 random(test_seed());
  for (const CopyMethod method : kMethods) {
    for (const uint64_t most : {uint64_t{40}, uint64_t{5000}, uint64_t{200000}}) {
      fill(a(), random());
      fill(b(), random());
      now(CopyLane::kIn, {{device_, b(), kBytes}});
      Bytes wanted(b(), b() + kBytes);
      std::vector<DeviceCopy> list;
      for (size_t at = random() % 40; at < kBytes;) {
        const uint64_t bytes = std::min<uint64_t>(1 + random() % most, kBytes - at),
                       from = random() % (kBytes - bytes + 1);
        list.push_back({device_ + at, a() + from, bytes});
        std::copy_n(a() + from, bytes, wanted.begin() + static_cast<ptrdiff_t>(at));
        at += bytes + random() % 40 + (most < 100 ? 400 : 0);
      }
      now(CopyLane::kStagedIn, list, method);
      now(CopyLane::kOut, {{b(), device_, kBytes}});
      EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), b()))
          << "method " << static_cast<int>(method) << ", " << most;
      // And back, from places in no order.
      fill(b(), 1);
      Bytes back(b(), b() + kBytes);
      for (DeviceCopy& one : list) {
        const size_t at = static_cast<size_t>(one.to - device_);
        one = {b() + at, device_ + at, one.bytes};
        std::copy_n(wanted.begin() + static_cast<ptrdiff_t>(at), one.bytes, back.begin() + static_cast<ptrdiff_t>(at));
      }
      now(CopyLane::kOut, list, method);
      EXPECT_TRUE(std::equal(back.begin(), back.end(), b())) << "method " << static_cast<int>(method) << ", " << most;
    }
  }
}

TEST_F(DeviceCopiesTest, ComeAfterTheCallersStream) {
  for (const CopyLane lane : {CopyLane::kIn, CopyLane::kStagedIn}) {
    Stream stream;
    fill(a(), 1);
    fill(b(), 2);
    now(lane, {{device_, a(), kBytes}});
    stream.sleep();
    stream.copy(device_, b(), kBytes / 2);  // would come last, were it not waited for
    ASSERT_TRUE(copies_->after(lane, stream.stream));
    now(lane, {{device_, a(), kBytes}});
    fill(b(), 3);
    now(CopyLane::kOut, {{b(), device_, kBytes}});
    EXPECT_TRUE(is(b(), 1));
  }
}

TEST_F(DeviceCopiesTest, TheCallersStreamWaits) {
  Stream slow, stream;
  fill(a(), 1);
  fill(b(), 2);
  now(CopyLane::kIn, {{device_, b(), kBytes}});
  slow.sleep();
  ASSERT_TRUE(copies_->after(CopyLane::kIn, slow.stream));
  const DeviceCopy one{device_, a(), kBytes};
  ASSERT_TRUE(copies_->copy(CopyLane::kIn, {&one, 1}));
  auto mark = copies_->mark(CopyLane::kIn);
  ASSERT_TRUE(mark);
  EXPECT_EQ(copies_->wait(**mark, 0).code(), Code::kTimeout);
  EXPECT_EQ(copies_->wait(**mark, 5).code(), Code::kTimeout);
  ASSERT_TRUE(copies_->let_wait(stream.stream, **mark));
  stream.copy(b(), device_, kBytes);
  stream.wait();
  EXPECT_TRUE(is(b(), 1));
  EXPECT_TRUE(copies_->wait(**mark, 20000));
}

// Another thread's, in the mode that forbids everybody what is unsafe, and this thread's own.
TEST_F(DeviceCopiesTest, CapturesOfGraphsAreNotDisturbed) {
  CudaOptions options;
  options.capacity_bytes = 1 << 20;
  auto opened = open_cuda_tier(options);
  ASSERT_TRUE(opened) << opened.status().what();
  Tier& tier = **opened;
  const auto everything = [&](Stream& other) {
    fill(a(), 5);
    EXPECT_TRUE(copies_->after(CopyLane::kIn, other.stream));
    now(CopyLane::kIn, {{device_, a(), kBytes}});
    now(CopyLane::kOut, {{b(), device_, kBytes}});
    EXPECT_TRUE(is(b(), 5));
    EXPECT_TRUE(copies_->pinned(4096));
    EXPECT_TRUE(copies_->allocate(4096));
    Bytes bytes = pattern(6, 100000), back(100000), registered(8192);
    EXPECT_TRUE(cuda_register_host(tier, registered));
    const Result<Extent> extent = tier.allocate(make_key(1), bytes.size());
    ASSERT_TRUE(extent);
    EXPECT_TRUE(write_now(tier, *extent, bytes));
    EXPECT_TRUE(read_now(tier, *extent, back));
    EXPECT_EQ(back, bytes);
    tier.free(*extent);
    cuda_unregister_host(tier, registered);
  };
  for (const bool own : {true, false}) {
    Stream captured, other;
    ASSERT_EQ(cudaStreamBeginCapture(captured.stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    if (own) {
      everything(other);
    } else {
      std::thread([&] { everything(other); }).join();
    }
    EXPECT_EQ(copies_->after(CopyLane::kIn, captured.stream).code(), Code::kInvalid);
    auto mark = copies_->mark(CopyLane::kIn);
    ASSERT_TRUE(mark);
    EXPECT_EQ(copies_->let_wait(captured.stream, **mark).code(), Code::kInvalid);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(captured.stream, &graph), cudaSuccess);
    if (graph) cudaGraphDestroy(graph);
  }
}

TEST_F(DeviceCopiesTest, RegisteredMemoryIsReached) {
  Bytes memory = pattern(9, 1 << 20);
  EXPECT_FALSE(copies_->registered(memory.data(), 1));
  ASSERT_TRUE(copies_->register_host(memory));
  EXPECT_TRUE(copies_->registered(memory.data(), memory.size()));
  EXPECT_TRUE(copies_->registered(memory.data() + 5, memory.size() - 5));
  EXPECT_FALSE(copies_->registered(memory.data() + 5, memory.size()));
  EXPECT_FALSE(copies_->registered(memory.data() + 5, UINT64_MAX));
  std::vector<DeviceCopy> list;
  for (size_t i = 0; i < 100; i++) list.push_back({device_ + i * 1000, memory.data() + i * 1000, 1000});
  now(CopyLane::kIn, list, CopyMethod::kKernel);
  now(CopyLane::kOut, {{b(), device_, 100000}});
  EXPECT_TRUE(std::equal(memory.begin(), memory.begin() + 100000, b()));
  copies_.reset();  // and with it the registration
  EXPECT_EQ(cudaHostRegister(memory.data(), memory.size(), 0), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(memory.data()), cudaSuccess);
}

TEST_F(DeviceCopiesTest, NoSuchDevice) {
  const auto none = open_device_copies(4711);
  EXPECT_EQ(none.status().code(), Code::kGone);
  EXPECT_NE(none.status().what().find("GPU 4711"), std::string::npos);
}

#ifdef NEOTIER_CUDA_STAND_IN
TEST_F(DeviceCopiesTest, CallersKeepTheirDevice) {
  cuda_stand_in::set_devices(3);
  {
    auto opened = open_device_copies(2);
    ASSERT_TRUE(opened);
    CudaOptions options;
    options.device = 2;
    options.capacity_bytes = 1 << 20;
    auto tier = open_cuda_tier(options);
    ASSERT_TRUE(tier);
    const auto use = [&] {
      DeviceCopies& copies = **opened;
      const auto memory = copies.allocate(4096);
      auto pinned = copies.pinned(4096);
      ASSERT_TRUE(memory && pinned);
      const DeviceCopy one{*memory, (*pinned)->bytes().data(), 4096};
      EXPECT_TRUE(copies.copy(CopyLane::kIn, {&one, 1}));
      EXPECT_TRUE(copies.copy(CopyLane::kIn, {&one, 1}, CopyMethod::kKernel));
      auto mark = copies.mark(CopyLane::kIn);
      ASSERT_TRUE(mark);
      EXPECT_TRUE(copies.wait(**mark, 20000));
      Bytes bytes = pattern(1, 4096), back(4096);
      EXPECT_TRUE(cuda_register_host(**tier, bytes));
      const Result<Extent> extent = (*tier)->allocate(make_key(1), 4096);
      ASSERT_TRUE(extent);
      EXPECT_TRUE(write_now(**tier, *extent, bytes));
      EXPECT_TRUE(read_now(**tier, *extent, back));
      EXPECT_EQ(back, bytes);
      (*tier)->free(*extent);
      EXPECT_TRUE((*tier)->come_back());
      cuda_unregister_host(**tier, bytes);
    };
    cudaSetDevice(1);
    use();
    int device = -1;
    cudaGetDevice(&device);
    EXPECT_EQ(device, 1);
    cudaSetDevice(0);
    // Where the thread had no device it has none afterwards.
    std::thread([&] {
      use();
      EXPECT_FALSE(cuda_stand_in::thread_has_context());
    }).join();
  }
  cuda_stand_in::set_devices(1);
}

TEST_F(DeviceCopiesTest, CallsThatFail) {
  using cuda_stand_in::Call;
  const DeviceCopy one{device_, a(), 4096};
  std::vector<DeviceCopy> many(100, one);
  cuda_stand_in::fail(Call::kCopy, 1, cudaErrorLaunchOutOfResources);
  EXPECT_EQ(copies_->copy(CopyLane::kIn, {&one, 1}).code(), Code::kIo);
  cuda_stand_in::fail(Call::kLaunch, 1, cudaErrorIllegalAddress);
  EXPECT_EQ(copies_->copy(CopyLane::kIn, many).code(), Code::kGone);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "left for the caller's next launch";
  cuda_stand_in::fail(Call::kRecord, 1, cudaErrorLaunchFailure);
  EXPECT_EQ(copies_->mark(CopyLane::kIn).status().code(), Code::kGone);
  auto mark = copies_->mark(CopyLane::kIn);
  ASSERT_TRUE(mark);
  cuda_stand_in::fail(Call::kQuery, 1, cudaErrorLaunchFailure);
  EXPECT_EQ(copies_->wait(**mark, 20000).code(), Code::kGone);
  EXPECT_TRUE(copies_->wait(**mark, 20000));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}
#endif

}  // namespace
}  // namespace neotier::engine

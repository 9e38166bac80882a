// SPDX-License-Identifier: Apache-2.0
// The GPU against the CPU's baseline path.
#include "compute/cuda/gpu.h"

#include <gtest/gtest.h>

#include "compute/compute_testing.h"

namespace neotier::compute::cuda {

namespace {

template <typename T>
DeviceMemory up(const std::vector<T>& host) {
  auto memory = DeviceMemory::copy_of(std::as_bytes(std::span(host)));
  EXPECT_TRUE(memory.is_ok()) << memory.status().what();
  return std::move(*memory);
}

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!available()) GTEST_SKIP() << "skipped: no NVIDIA GPU, or built without nvcc";
  }
};

TEST_F(Gpu, FeedForwardOfEveryFormat) {
  const uint32_t hidden = 96, ff = 160;
  for (const Format f : kFormats)
    for (const Activation a : {Activation::kSwiGlu, Activation::kSwiGluClamped}) {
      const Packed gate = quantise(f, random_floats(ff * hidden, 1, 0.2F), ff, hidden);
      const Packed second = quantise(f, random_floats(ff * hidden, 2, 0.2F), ff, hidden);
      const Packed down = quantise(f, random_floats(ff * hidden, 3, 0.2F), hidden, ff);
      const std::vector<float> x = random_floats(hidden, 4), bias = random_floats(ff, 5);
      std::vector<float> wanted(hidden), got(hidden), scratch(2 * ff);
      Expert e{gate.view, second.view, down.view, bias.data(), nullptr, nullptr};
      compute::feed_forward(*kernels(Path::kBaseline), e, a, x.data(), wanted.data(), scratch.data());
      const DeviceMemory x_up = up(x), y = up(got), s = up(scratch), b = up(bias);
      std::vector<DeviceMemory> kept;
      const auto moved = [&](const Packed& p) {
        Matrix m = p.view;
        kept.push_back(up(p.data));
        m.data = kept.back().data();
        if (m.scales) {
          kept.push_back(up(p.scales));
          m.scales = kept.back().data();
        }
        return m;
      };
      const auto floats = [](const DeviceMemory& m) { return reinterpret_cast<float*>(m.data()); };
      const Expert device{moved(gate), moved(second), moved(down), floats(b), nullptr, nullptr};
      ASSERT_TRUE(feed_forward(device, a, floats(x_up), floats(y), floats(s), nullptr).is_ok());
      ASSERT_TRUE(wait(nullptr).is_ok());
      ASSERT_TRUE(y.read(std::as_writable_bytes(std::span(got))).is_ok());
      for (uint32_t i = 0; i < hidden; i++) EXPECT_NEAR(got[i], wanted[i], 2e-4) << to_string(f);
    }
}

TEST_F(Gpu, AttentionOverAllAndChosenBlocks) {
  const AttentionShape shape{4, 2, 64, Format::kBf16, 0};
  std::vector<Packed> packed;
  std::vector<DeviceMemory> kept;
  std::vector<KvBlock> host, device;
  for (uint32_t i = 0; i < 5; i++) {
    for (uint32_t j = 0; j < 2; j++) {
      packed.push_back(quantise(shape.format, random_floats(2 * 8 * 64, 10 * i + j), 2 * 8, 64));
      kept.push_back(up(packed.back().data));
    }
    host.push_back({packed[2 * i].data.data(), packed[2 * i + 1].data.data(), 8 - i, 8});
    device.push_back({kept[2 * i].data(), kept[2 * i + 1].data(), 8 - i, 8});
  }
  const std::vector<float> q = random_floats(4 * 64, 3);
  std::vector<float> wanted(4 * 64), got(4 * 64);
  Choice choice;
  choice.blocks.assign(4, {0, 3});
  choice.left_out.assign(4, 0);
  const std::vector<uint32_t> chosen = {0, 3, 0, 3, 0, 3, 0, 3}, first = {0, 2, 4, 6, 8};
  const DeviceMemory blocks = up(device), query = up(q), out = up(got), list = up(chosen), start = up(first);
  for (const bool sparse : {false, true}) {
    compute::attend(*kernels(Path::kBaseline), shape, host, q, wanted, sparse ? &choice : nullptr);
    const auto words = [&](const DeviceMemory& m) {
      return sparse ? reinterpret_cast<const uint32_t*>(m.data()) : nullptr;
    };
    ASSERT_TRUE(attend(shape, reinterpret_cast<const KvBlock*>(blocks.data()), 5, words(list), words(start),
                       reinterpret_cast<const float*>(query.data()), reinterpret_cast<float*>(out.data()), nullptr)
                    .is_ok());
    ASSERT_TRUE(wait(nullptr).is_ok());
    ASSERT_TRUE(out.read(std::as_writable_bytes(std::span(got))).is_ok());
    for (size_t i = 0; i < got.size(); i++) EXPECT_NEAR(got[i], wanted[i], 2e-5);
  }
}

TEST(GpuAbsent, SaysSo) {
  if (available()) GTEST_SKIP() << "skipped: a GPU is here";
  const std::byte one{};
  const auto memory = DeviceMemory::copy_of({&one, 1});
  ASSERT_FALSE(memory.is_ok());
  EXPECT_FALSE(memory.status().what().empty());
}

}  // namespace

}  // namespace neotier::compute::cuda

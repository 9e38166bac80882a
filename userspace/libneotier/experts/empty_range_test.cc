// SPDX-License-Identifier: Apache-2.0
#include "experts/empty_range.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <vector>

namespace neotier::experts {

namespace {

using engine::Code;

std::vector<std::byte> pages(size_t count, int value) {
  return std::vector<std::byte>(count * kPage, static_cast<std::byte>(value));
}

size_t resident(const EmptyRange& range) {
  std::vector<unsigned char> there(range.bytes() / kPage);
  EXPECT_EQ(mincore(range.base(), range.bytes(), there.data()), 0);
  size_t count = 0;
  for (const unsigned char page : there) count += page & 1;
  return count;
}

class Range : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = EmptyRange::reserve(16 * kPage - 5);
    if (!made && made.status().code() == Code::kUnsupported) GTEST_SKIP() << made.status().what();
    ASSERT_TRUE(made) << made.status().what();
    range_ = std::move(*made);
  }
  std::unique_ptr<EmptyRange> range_;
};

TEST_F(Range, IsWholePagesAndTakesNoMemory) {
  EXPECT_EQ(range_->bytes(), 16 * kPage);
  EXPECT_EQ(resident(*range_), 0u);
}

TEST_F(Range, ATouchBeforeAnybodyServesIsZeros) {
  EXPECT_EQ(range_->base()[5 * kPage], std::byte{0});
  EXPECT_EQ(resident(*range_), 1u);
}

TEST_F(Range, WhatIsPutIsThereWithoutAFault) {
  std::atomic<int> faults = 0;
  range_->on_fault([&](std::byte* page) {
    faults++;
    ASSERT_TRUE(range_->put(page, pages(1, 9).data(), kPage));
  });
  const auto bytes = pages(3, 7);
  ASSERT_TRUE(range_->put(range_->base() + kPage, bytes.data(), bytes.size()));
  EXPECT_EQ(std::memcmp(range_->base() + kPage, bytes.data(), bytes.size()), 0);
  EXPECT_EQ(faults, 0);
  EXPECT_EQ(range_->base()[0], std::byte{9}) << "a touch waits for its page";
  EXPECT_EQ(faults, 1);
  range_->take_out(range_->base() + 2 * kPage, kPage);
  EXPECT_EQ(resident(*range_), 3u);
  EXPECT_EQ(range_->base()[2 * kPage], std::byte{9}) << "never zeros, never what was there";
  EXPECT_EQ(range_->base()[kPage], std::byte{7});
  EXPECT_EQ(faults, 2);
}

TEST_F(Range, PutFromAnyAddressKeepsThePagesThatAreThere) {
  ASSERT_TRUE(range_->put(range_->base() + 2 * kPage, pages(1, 1).data(), kPage));
  ASSERT_TRUE(range_->put(range_->base() + 5 * kPage, pages(1, 1).data(), kPage));
  std::vector<std::byte> bytes(6 * kPage + 13);
  for (size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<std::byte>(2 + i % 200);
  ASSERT_TRUE(range_->put(range_->base() + kPage, bytes.data() + 13, 6 * kPage));
  for (size_t page = 1; page < 7; page++) {
    const std::byte* const at = range_->base() + page * kPage;
    if (page == 2 || page == 5)
      EXPECT_EQ(at[7], std::byte{1}) << page;
    else
      EXPECT_EQ(std::memcmp(at, bytes.data() + 13 + (page - 1) * kPage, kPage), 0) << page;
  }
}

TEST_F(Range, ManyThreadsWaitForOnePage) {
  std::atomic<int> right = 0;
  range_->on_fault([&](std::byte* page) {
    (void)range_->put(page, pages(1, 3).data(), kPage);
    range_->wake(page);
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; i++)
    threads.emplace_back([&] {
      for (size_t page = 0; page < 16; page++) right += range_->base()[page * kPage + 99] == std::byte{3};
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(right, 8 * 16);
}

TEST_F(Range, APoisonedPageEndsWhoTouchesIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        auto own = EmptyRange::reserve(kPage);
        EmptyRange& range = **own;
        range.on_fault([&](std::byte* page) { range.poison(page, "cannot be read"); });
        std::_Exit(range.base()[0] == std::byte{0} ? 0 : 1);
      },
      "");
}

TEST(EmptyRangeReserve, RefusesWhatIsNone) {
  EXPECT_EQ(EmptyRange::reserve(0).status().code(), Code::kInvalid);
  EXPECT_EQ(EmptyRange::reserve(UINT64_MAX).status().code(), Code::kInvalid);
  EXPECT_EQ(EmptyRange::reserve(1ULL << 62).status().code(), Code::kNoMemory);
  EXPECT_EQ(EmptyRange::reserve(kPage, 4000).status().code(), Code::kInvalid);
  EXPECT_EQ(EmptyRange::reserve(kPage, 900).status().code(), Code::kInvalid);
}

}  // namespace
}  // namespace neotier::experts

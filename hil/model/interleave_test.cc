// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
#include "neotier/interleave.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>

namespace {

neotier_interleave make(uint64_t ways, uint64_t granularity) {
  neotier_interleave il;
  EXPECT_TRUE(neotier_interleave_valid(&il, ways, granularity));
  return il;
}

class Interleave : public testing::TestWithParam<std::tuple<uint64_t, uint64_t>> {
 protected:
  const uint64_t ways_ = std::get<0>(GetParam());
  const uint64_t granularity_ = std::get<1>(GetParam());
  const neotier_interleave il_ = make(ways_, granularity_);
};

INSTANTIATE_TEST_SUITE_P(
    , Interleave, testing::Combine(testing::Values(1, 2, 4, 16), testing::Values(256, 1024, 2048, 4096, 8192, 16384)),
    [](const auto& test) {
      return std::to_string(std::get<0>(test.param)) + "ways" + std::to_string(std::get<1>(test.param));
    });

// Chunks dealt out one after the other, as the text of the specification has it.
TEST_P(Interleave, AgreesWithDealingChunksOut) {
  std::map<uint32_t, uint64_t> next;  // DPA of each position's next chunk
  uint64_t offset = 0;
  for (int round = 0; round < 64; ++round) {
    for (uint32_t position = 0; position < ways_; ++position, offset += granularity_) {
      for (uint64_t in_chunk : {uint64_t{0}, uint64_t{64}, granularity_ - 1}) {
        ASSERT_EQ(neotier_interleave_position(&il_, offset + in_chunk), position);
        ASSERT_EQ(neotier_interleave_dpa(&il_, offset + in_chunk), next[position] + in_chunk);
        ASSERT_EQ(neotier_interleave_offset(&il_, position, next[position] + in_chunk), offset + in_chunk);
      }
      next[position] += granularity_;
    }
  }
}

// The pages named for a unit are those that hold a byte of it, no more and no fewer.
TEST_P(Interleave, PagesOfAUnit) {
  for (uint64_t unit : {uint64_t{0}, uint64_t{1}, uint64_t{7}, uint64_t{12345}, (uint64_t{1} << 36) - 1}) {
    for (uint32_t position = 0; position < ways_; ++position) {
      std::set<uint64_t> expected;
      for (uint64_t dpa = unit * 4096; dpa < (unit + 1) * 4096; dpa += 64) {
        expected.insert(neotier_interleave_offset(&il_, position, dpa) >> 12);
      }
      const neotier_page_run run = neotier_interleave_pages(&il_, position, unit);
      std::set<uint64_t> named;
      for (uint32_t i = 0; i < run.pages; ++i) named.insert(run.first + uint64_t{i} * run.stride);
      ASSERT_EQ(named, expected);
      ASSERT_EQ(run.pages, expected.size());
    }
  }
}

TEST(InterleaveValid, RefusesWhatTheArithmeticDoesNotKnow) {
  neotier_interleave il;
  for (uint64_t ways : {0, 3, 5, 6, 12, 32}) EXPECT_FALSE(neotier_interleave_valid(&il, ways, 4096)) << ways;
  for (uint64_t granularity : {0, 128, 300, 4095, 32768}) {
    EXPECT_FALSE(neotier_interleave_valid(&il, 2, granularity)) << granularity;
  }
  EXPECT_FALSE(neotier_interleave_valid(&il, UINT64_MAX, UINT64_MAX));
}

}  // namespace

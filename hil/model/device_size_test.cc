// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
#include "hil/model/device_size.h"

#include <gtest/gtest.h>

namespace neotier::hil {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(DeviceSize, IsTheWidestThatTheBudgetAllows) {
  for (const double budget : {0.5, 2.25, 4.5, 6.0, 100.0}) {
    for (uint64_t bytes = 64 * kMiB; bytes <= 65536 * kMiB; bytes *= 2) {
      const auto width = log2_width_within(budget, bytes);
      ASSERT_TRUE(width) << budget << " bits a page of " << bytes;
      const uint64_t pages = bytes / 4096;
      const double allowed = budget * static_cast<double>(pages);
      EXPECT_LE(static_cast<double>(device_state(*width).sketch), allowed);
      EXPECT_TRUE(*width == full_log2_width() || static_cast<double>(device_state(*width + 1).sketch) > allowed);
    }
  }
}

// 2 rows of 4096 counters of 16 bits with tags of 8: 4.0 bits for each of 49,152 pages.
TEST(DeviceSize, CountsTheTags) {
  EXPECT_EQ(log2_width_within(4.5, 192 * kMiB), 12U);
  EXPECT_EQ(device_state(12).sketch, 196'608U);
  EXPECT_EQ(log2_width_within(2.25, 192 * kMiB), 11U);
  EXPECT_EQ(log2_width_within(3.99, 192 * kMiB), 11U);
  EXPECT_EQ(device_state(full_log2_width()).sketch, 2ULL * 524'288 * 24);
}

TEST(DeviceSize, RefusesWhatNoRowFits) { EXPECT_FALSE(log2_width_within(0.01, 64 * kMiB)); }

TEST(DeviceSize, TakesNumbersInRangeAlone) {
  EXPECT_EQ(parse_bits_per_page("4.5"), 4.5);
  EXPECT_EQ(parse_bits_per_page("4096"), 4096);
  for (const char* text : {"", "0", "-1", "4.5x", "nan", "inf", "4097", "1e3", " 4", "full"}) {
    EXPECT_FALSE(parse_bits_per_page(text)) << text;
  }
}

}  // namespace
}  // namespace neotier::hil

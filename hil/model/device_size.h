// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// How large a profiler a CXL device has, and how much state that is. The tracker's rows are as wide as a budget in bits
// for each 4 KiB page of the device's memory allows; all else is as built, whatever the memory's size.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace neotier::hil {

// Of the published profiler: bits of its sketch for each 4 KiB page of the memory that it watches.
constexpr double kDeviceBitsPerPage = 4.5;
constexpr double kMinDeviceBitsPerPage = 0.01, kMaxDeviceBitsPerPage = 4096;

// Bits of state.
struct DeviceState {
  uint32_t rows = 0, log2_width = 0, counter_bits = 0, tag_bits = 0;  // each counter has a tag, that of an epoch
  uint64_t sketch = 0;                                                // counters and tags of all rows
  uint64_t epochs = 0;                                                // what the tags stand for
  uint64_t hot_filter = 0, lost_units = 0, hotlist = 0, queue = 0, histogram = 0, watch = 0;
  [[nodiscard]] uint64_t other() const {
    return epochs + hot_filter + lost_units + hotlist + queue + histogram + watch;
  }
};

// The state of a device whose rows have 2^log2_width counters.
DeviceState device_state(uint32_t log2_width);
// Of a device as built, with nothing narrowed.
uint32_t full_log2_width();
// The widest row, log2, with which the sketch has at most `bits_per_page` bits for each 4 KiB page of `bytes`; nothing
// where even the narrowest has more. As built at most.
std::optional<uint32_t> log2_width_within(double bits_per_page, uint64_t bytes);
// A number in [kMinDeviceBitsPerPage, kMaxDeviceBitsPerPage]; nothing for any other text.
std::optional<double> parse_bits_per_page(std::string_view text);
// Families of hash functions that a device can be told to use.
uint32_t device_hash_seeds();

}  // namespace neotier::hil

// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
#include "hil/model/device_size.h"

#include <charconv>

#include "hw/model/neoprof_model.h"
#include "neoprof_regs.h"

namespace neotier::hil {
namespace {

constexpr neoprof::ModelParams kBuilt{};
constexpr uint64_t kUnitBits = 24;  // of a 4 KiB unit in what the range bitmap covers
constexpr uint64_t kWays = 4;

constexpr uint64_t log2_of(uint64_t power_of_two) {
  uint64_t bits = 0;
  while (power_of_two >> bits > 1) ++bits;
  return bits;
}

}  // namespace

DeviceState device_state(uint32_t log2_width) {
  const uint64_t sets = kBuilt.hot_entries / kWays;
  DeviceState state;
  state.rows = kBuilt.rows;
  state.log2_width = log2_width;
  state.counter_bits = kBuilt.counter_bits;
  state.tag_bits = kBuilt.tag_bits;
  state.sketch = (uint64_t{state.rows} << log2_width) * (state.counter_bits + state.tag_bits);
  state.epochs = (uint64_t{state.rows} << state.tag_bits) * (state.tag_bits + 5);
  // A slot of the table, and in the list the unit with its set and way.
  state.hot_filter = uint64_t{kBuilt.hot_entries} * ((kUnitBits + 1) + (kUnitBits + log2_of(sets) + kWays));
  state.lost_units = sets * (kUnitBits + 1);
  state.hotlist = uint64_t{NEOPROF_HOTLIST_ENTRIES} * (kUnitBits + 16);
  state.queue = uint64_t{kBuilt.channels} * kBuilt.tap_depth * (kUnitBits + 2);
  state.histogram = 2 * 4 * uint64_t{NEOPROF_HISTOGRAM_BINS} * (kUnitBits + 1);
  // A unit with its valid bit, to compare, the unit once more, to read, and a count.
  state.watch = uint64_t{NEOPROF_WATCH_COUNT} * ((kUnitBits + 1) + kUnitBits + 32);
  return state;
}

uint32_t full_log2_width() { return kBuilt.log2_width; }

std::optional<uint32_t> log2_width_within(double bits_per_page, uint64_t bytes) {
  const uint64_t pages = bytes / 4096;
  const double budget = bits_per_page * static_cast<double>(pages);
  for (uint32_t width = kBuilt.log2_width; width >= kBuilt.min_log2_width; --width) {
    if (static_cast<double>(device_state(width).sketch) <= budget) return width;
  }
  return std::nullopt;
}

std::optional<double> parse_bits_per_page(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= kMinDeviceBitsPerPage) ||
      !(value <= kMaxDeviceBitsPerPage)) {
    return std::nullopt;
  }
  return value;
}

uint32_t device_hash_seeds() { return kBuilt.hash_seeds; }

}  // namespace neotier::hil

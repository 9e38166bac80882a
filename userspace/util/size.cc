// SPDX-License-Identifier: Apache-2.0
#include "util/size.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <string_view>

namespace neotier {

uint64_t parse_size(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view unit(end, text.data() + text.size());
  for (std::string_view suffix : {"iB", "B", "ib", "b"}) {
    if (unit.size() > 1 && unit.ends_with(suffix)) {
      unit.remove_suffix(suffix.size());
      break;
    }
  }
  int shift = -1;
  if (unit.empty())
    shift = 0;
  else if (unit == "K" || unit == "k")
    shift = 10;
  else if (unit == "M" || unit == "m")
    shift = 20;
  else if (unit == "G" || unit == "g")
    shift = 30;
  else if (unit == "T" || unit == "t")
    shift = 40;
  if (error != std::errc() || shift < 0 || value > UINT64_MAX >> 1 >> std::max(shift, 0)) {
    throw std::invalid_argument(fmt::format("'{}' is no size; write for example 256M, 1G or 2T", text));
  }
  return value << shift;
}

std::string format_size(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return value == static_cast<double>(static_cast<uint64_t>(value)) ? fmt::format("{:.0f} {}", value, kUnits[unit])
                                                                    : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace neotier

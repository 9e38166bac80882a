// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later
// How unevenly accesses fall on pages: the share of them that the hottest pages take.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

namespace neotier::trace {

// Percent of the touched pages, hottest first.
inline constexpr std::array<unsigned, 5> kConcentrationPercent = {1, 5, 10, 25, 50};

// `counts`: accesses of each touched page, in any order. Returns shares from 0 to 1; all 0 without accesses. The number
// of pages is rounded to the nearest, and is at least one.
inline std::array<double, kConcentrationPercent.size()> concentration(std::vector<uint64_t> counts) {
  std::array<double, kConcentrationPercent.size()> shares{};
  std::sort(counts.begin(), counts.end(), std::greater<>());
  const auto total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  if (total == 0) return shares;
  for (size_t i = 0; i < shares.size(); ++i) {
    const auto pages = static_cast<size_t>(
        std::max(1L, std::lround(static_cast<double>(counts.size()) * kConcentrationPercent[i] / 100)));
    const auto end = counts.begin() + static_cast<std::ptrdiff_t>(std::min(pages, counts.size()));
    shares[i] = static_cast<double>(std::accumulate(counts.begin(), end, uint64_t{0})) / static_cast<double>(total);
  }
  return shares;
}

}  // namespace neotier::trace

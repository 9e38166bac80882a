// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <vector>

namespace neotier {

// The smallest value that at least a share q (0 .. 1) of the values, in rising order, do not exceed. 0 of none.
inline double quantile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  const auto at = static_cast<size_t>(std::ceil(q * static_cast<double>(sorted.size())));
  return sorted[at == 0 ? 0 : at - 1];
}

}  // namespace neotier

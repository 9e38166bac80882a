// SPDX-License-Identifier: Apache-2.0
// For tests: random data by seed, and every path that this CPU has.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "compute/kernels.h"

namespace neotier::compute {

inline std::vector<const Kernels*> all_kernels() {
  std::vector<const Kernels*> all;
  for (const Path path : kPaths)
    if (const Kernels* k = kernels(path)) all.push_back(k);
  return all;
}

inline std::vector<float> random_floats(size_t n, uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> out(n);
  for (float& v : out) v = normal(random);
  return out;
}

inline std::vector<float> dequantised(const Matrix& m) {
  std::vector<float> out(size_t{m.rows} * m.columns);
  for (size_t r = 0; r < m.rows; r++) dequantise(m, r, std::span(out).subspan(r * m.columns, m.columns));
  return out;
}

}  // namespace neotier::compute

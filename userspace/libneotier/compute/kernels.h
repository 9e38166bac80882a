// SPDX-License-Identifier: Apache-2.0
// The inner loops, one set for each instruction set, from one source (kernels_body.inc). All arithmetic on weights is
// in f32 after exact dequantisation.
//
// Numerics. A dot product of n terms differs from the exact one by at most dot_bound(n) * sum |w x| on every path: each
// path adds in another order, so paths may differ from one another by twice that. One path gives the same bits every
// time, whichever rows are computed together and in whatever order. NaN and infinity go through as in IEEE 754.
// exp_sum: relative error of each term at most 2^-21.
#pragma once

#include <cstddef>
#include <cstdint>

#include "compute/matrix.h"

namespace neotier::compute {

enum class Path : uint8_t {
  kBaseline,  // what every CPU of the architecture has: SSE2 on x86-64
  kAvx2,      // AVX2, FMA
  kAvx512,    // AVX-512 F, BW, DQ, VL
};
inline constexpr Path kPaths[] = {Path::kBaseline, Path::kAvx2, Path::kAvx512};
const char* to_string(Path path);

// gamma_n of Higham, Accuracy and Stability of Numerical Algorithms, 3.1, with 4 more roundings: those of a scale.
constexpr double dot_bound(size_t n) {
  const double nu = static_cast<double>(n + 4) * 0x1p-24;
  return nu / (1 - nu);
}

struct Kernels {
  Path path;
  // y[r] = dot(row r, x) for `rows` rows, `stride` bytes apart; scales (kMxfp4Split) scale_stride bytes apart.
  void (*dots)(Format format, const std::byte* data, size_t stride, const std::byte* scales, size_t scale_stride,
               size_t rows, size_t columns, const float* x, float* y);
  // y += sum over r of p[r] * row r, in the order of r; kF32 and kBf16 only.
  void (*sum_rows)(Format format, const std::byte* data, size_t stride, size_t rows, size_t columns, const float* p,
                   float* y);
  // s[i] = exp(s[i] - max); returns their sum. Below about -87 the result is 0.
  float (*exp_sum)(float* s, size_t n, float max);
  // The largest; NaN where there is one; -infinity of none.
  float (*max)(const float* s, size_t n);
};

// NULL where this CPU cannot run it, or the build has no such path (another architecture).
const Kernels* kernels(Path path);
// The fastest that this CPU can run; $NEOTIER_COMPUTE_PATH (baseline, avx2, avx512) overrides, where it can be run. The
// choice is made once. Thread-safe.
const Kernels& kernels();

}  // namespace neotier::compute

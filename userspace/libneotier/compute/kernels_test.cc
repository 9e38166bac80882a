// SPDX-License-Identifier: Apache-2.0
// Every path against plain double arithmetic on the same dequantised weights, within the stated bounds.
#include "compute/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>

#include "compute/compute_testing.h"

namespace neotier::compute {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> multiply(const Kernels& k, const Matrix& m, const std::vector<float>& x, size_t first, size_t rows) {
  std::vector<float> y(rows);
  k.dots(m.format, m.data + first * m.stride(), m.stride(), m.scales ? m.scales + first * m.scale_stride() : nullptr,
         m.scale_stride(), rows, m.columns, x.data(), y.data());
  return y;
}

TEST(Kernels, DotsAreWithinTheBound) {
  for (const Format f : kFormats)
    for (const uint32_t columns : {1u, 2u, 7u, 8u, 31u, 32u, 33u, 64u, 96u, 127u, 160u, 2880u}) {
      if (columns % granularity(f) != 0) continue;
      for (const uint32_t rows : {1u, 3u, 4u, 9u}) {
        const Packed w = quantise(f, random_floats(size_t{rows} * columns, columns + rows), rows, columns);
        const std::vector<float> x = random_floats(columns, 7), plain = dequantised(w.view);
        for (const Kernels* k : all_kernels()) {
          const std::vector<float> y = multiply(*k, w.view, x, 0, rows);
          for (uint32_t r = 0; r < rows; r++) {
            double exact = 0, size = 0;
            for (uint32_t i = 0; i < columns; i++) {
              const double term = double{plain[r * columns + i]} * x[i];
              exact += term;
              size += std::abs(term);
            }
            EXPECT_LE(std::abs(y[r] - exact), dot_bound(columns) * size)
                << to_string(f) << " " << to_string(k->path) << " " << columns << " columns, row " << r << " of "
                << rows;
          }
        }
      }
    }
}

TEST(Kernels, RowsTogetherGiveTheBitsOfRowsAlone) {
  for (const Format f : kFormats) {
    const Packed w = quantise(f, random_floats(11 * 96, 3), 11, 96);
    const std::vector<float> x = random_floats(96, 4);
    for (const Kernels* k : all_kernels()) {
      const std::vector<float> all = multiply(*k, w.view, x, 0, 11);
      for (size_t r = 0; r < 11; r++)
        EXPECT_EQ(std::bit_cast<uint32_t>(all[r]), std::bit_cast<uint32_t>(multiply(*k, w.view, x, r, 1)[0]));
    }
  }
}

TEST(Kernels, NoRowsAndNoColumns) {
  for (const Kernels* k : all_kernels()) {
    float y = 5;
    k->dots(Format::kF32, nullptr, 0, nullptr, 0, 0, 4, nullptr, &y);
    EXPECT_EQ(y, 5);
    k->dots(Format::kF32, reinterpret_cast<const std::byte*>(&y), 0, nullptr, 0, 1, 0, nullptr, &y);
    EXPECT_EQ(y, 0);
    EXPECT_EQ(k->max(nullptr, 0), -kInfinity);
  }
}

TEST(Kernels, NanAndInfinityGoThrough) {
  for (const size_t at : {0u, 5u, 40u}) {
    std::vector<float> w = random_floats(41, 1), x(41, 1.0F);
    for (const float odd : {std::nanf(""), kInfinity}) {
      w[at] = odd;
      const Packed m = quantise(Format::kF32, w, 1, 41), b = quantise(Format::kBf16, w, 1, 41);
      for (const Kernels* k : all_kernels())
        for (const Packed* p : {&m, &b}) {
          const float y = multiply(*k, p->view, x, 0, 1)[0];
          EXPECT_TRUE(std::isnan(odd) ? std::isnan(y) : y == kInfinity) << y << " at " << at;
        }
    }
  }
}

// The kernels' own decoding of scales, against the plain one: every f16 and every E8M0 with every E2M1.
TEST(Kernels, EveryScaleIsDecodedExactly) {
  std::vector<float> x(32, 0);
  x[17] = 1;
  const auto same = [](float a, float b) { return (std::isnan(a) && std::isnan(b)) || a == b; };
  for (const Kernels* k : all_kernels()) {
    Packed q8 = quantise(Format::kQ8_0, std::vector<float>(32, 0), 1, 32),
           mx = quantise(Format::kMxfp4, std::vector<float>(32, 0), 1, 32);
    q8.data[2 + 17] = std::byte{1};
    for (uint32_t h = 0; h < 65536; h++) {
      const uint16_t half = static_cast<uint16_t>(h);
      std::memcpy(q8.data.data(), &half, 2);
      ASSERT_TRUE(same(multiply(*k, q8.view, x, 0, 1)[0], from_f16(half)) || !std::isfinite(from_f16(half))) << h;
    }
    for (int e = 0; e < 255; e++)
      for (int v = 0; v < 16; v++) {
        mx.data[0] = static_cast<std::byte>(e);
        mx.data[1 + 1] = static_cast<std::byte>(v << 4);  // value 17
        ASSERT_EQ(multiply(*k, mx.view, x, 0, 1)[0], dequantised(mx.view)[17]) << e << " " << v;
      }
    mx.data[0] = std::byte{255};
    EXPECT_TRUE(std::isnan(multiply(*k, mx.view, x, 0, 1)[0]));
  }
}

TEST(Kernels, WeightedRowSums) {
  for (const Format f : {Format::kF32, Format::kBf16})
    for (const uint32_t columns : {1u, 15u, 64u, 65u, 200u}) {
      const uint32_t rows = 13;
      const Packed w = quantise(f, random_floats(rows * columns, columns), rows, columns);
      const std::vector<float> p = random_floats(rows, 9), plain = dequantised(w.view),
                               start = random_floats(columns, 2);
      for (const Kernels* k : all_kernels()) {
        std::vector<float> y = start;
        k->sum_rows(f, w.view.data, w.view.stride(), rows, columns, p.data(), y.data());
        for (uint32_t i = 0; i < columns; i++) {
          double exact = start[i], size = std::abs(start[i]);
          for (uint32_t r = 0; r < rows; r++) {
            exact += double{p[r]} * plain[r * columns + i];
            size += std::abs(double{p[r]} * plain[r * columns + i]);
          }
          EXPECT_LE(std::abs(y[i] - exact), dot_bound(rows) * size);
        }
      }
    }
}

TEST(Kernels, Exponentials) {
  for (const Kernels* k : all_kernels())
    for (const size_t n : {1u, 5u, 16u, 1003u}) {
      std::vector<float> s(n);
      for (size_t i = 0; i < n; i++) s[i] = 3 - 90.0F * static_cast<float>(i) / static_cast<float>(n);
      const std::vector<float> in = s;
      const float total = k->exp_sum(s.data(), n, 3);
      double exact = 0;
      for (size_t i = 0; i < n; i++) {
        const double e = std::exp(double{in[i]} - 3);
        exact += e;
        if (in[i] - 3 > -87)
          EXPECT_LE(std::abs(s[i] - e), 0x1p-21 * e) << in[i];
        else
          EXPECT_LE(s[i], 1.7e-38F);
      }
      EXPECT_NEAR(total, exact, exact * (0x1p-21 + dot_bound(n)));
      std::vector<float> odd = {-kInfinity, 0, std::nanf("")};
      EXPECT_TRUE(std::isnan(k->exp_sum(odd.data(), 3, 0)));
      EXPECT_EQ(odd[0], 0);
      EXPECT_EQ(odd[1], 1);
      EXPECT_TRUE(std::isnan(odd[2]));
    }
}

TEST(Kernels, LargestWithNan) {
  for (const Kernels* k : all_kernels())
    for (const size_t n : {1u, 16u, 37u})
      for (size_t at = 0; at < n; at++) {
        std::vector<float> s(n, -2.0F);
        s[at] = 4;
        EXPECT_EQ(k->max(s.data(), n), 4);
        s[at] = std::nanf("");
        EXPECT_TRUE(std::isnan(k->max(s.data(), n)));
      }
}

TEST(Formats, EveryHalfSurvives) {
  for (uint32_t h = 0; h < 65536; h++) {
    const float f = from_f16(static_cast<uint16_t>(h));
    if (std::isnan(f)) continue;
    ASSERT_EQ(to_f16(f), h);
  }
  EXPECT_EQ(to_f16(1 + 0x1p-11F), 0x3c00);      // a tie, to even
  EXPECT_EQ(to_f16(1 + 3 * 0x1p-11F), 0x3c02);  // likewise, upwards
  EXPECT_EQ(to_f16(65519.0F), 0x7bff);
  EXPECT_EQ(to_f16(65520.0F), 0x7c00);
  EXPECT_EQ(to_bf16(1 + 0x1p-8F), 0x3f80);
  EXPECT_EQ(to_bf16(std::nanf("")) & 0x7fc0, 0x7fc0);
}

// What a block in a file means, by the formats' published layouts.
TEST(Formats, BlocksByHand) {
  std::vector<std::byte> q4(18, std::byte{0x88}), mx(17, std::byte{0}), split(16, std::byte{0});
  q4[0] = std::byte{0x00}, q4[1] = std::byte{0x40};  // f16 2.0
  q4[2] = std::byte{0x9f};                           // value 0: 15, value 16: 9
  std::vector<float> out(32);
  dequantise({Format::kQ4_0, 1, 32, q4.data(), nullptr, 0}, 0, out);
  EXPECT_EQ(out[0], 14);
  EXPECT_EQ(out[16], 2);
  EXPECT_EQ(out[1], 0);
  mx[0] = std::byte{129};  // 4
  mx[1] = std::byte{0xf5};
  dequantise({Format::kMxfp4, 1, 32, mx.data(), nullptr, 0}, 0, out);
  EXPECT_EQ(out[0], 12);
  EXPECT_EQ(out[16], -24);
  split[0] = std::byte{0xf5};
  dequantise({Format::kMxfp4Split, 1, 32, split.data(), mx.data(), 0}, 0, out);
  EXPECT_EQ(out[0], 12);
  EXPECT_EQ(out[1], -24);
}

// Q8_0: half a step, and what rounding the scale to f16 makes of 127 steps. Q4_0: a step, as the side without the
// largest value ends at 7.
TEST(Formats, QuantisingStaysWithinHalfAStep) {
  const std::vector<float> in = random_floats(64 * 64, 8);
  for (const auto& [f, step] : {std::pair(Format::kQ8_0, 0.57 / 127), std::pair(Format::kQ4_0, 1.01 / 8)}) {
    const Packed p = quantise(f, in, 64, 64);
    const std::vector<float> out = dequantised(p.view);
    for (size_t b = 0; b < in.size(); b += 32) {
      float max = 0;
      for (size_t i = b; i < b + 32; i++) max = std::max(max, std::abs(in[i]));
      for (size_t i = b; i < b + 32; i++) EXPECT_LE(std::abs(in[i] - out[i]), max * step) << to_string(f);
    }
  }
}

}  // namespace

}  // namespace neotier::compute

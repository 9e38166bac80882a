// SPDX-License-Identifier: Apache-2.0
#include "compute/matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace neotier::compute {

namespace {

constexpr float kE2m1[16] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};

uint8_t byte_at(const std::byte* p) { return static_cast<uint8_t>(*p); }

uint16_t u16_at(const std::byte* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

void put16(std::byte* p, uint16_t v) { std::memcpy(p, &v, sizeof v); }

// 2^(e - 127); 255 is NaN (OCP Microscaling Formats 1.0, section 5.4.1).
float from_e8m0(uint8_t e) { return e == 255 ? std::nanf("") : std::ldexp(1.0F, e - 127); }

uint8_t nearest_e2m1(float v) {
  uint8_t best = 0;
  for (uint8_t i = 1; i < 8; i++)
    if (std::fabs(kE2m1[i] - std::fabs(v)) < std::fabs(kE2m1[best] - std::fabs(v))) best = i;
  return std::signbit(v) ? best + 8 : best;
}

float largest(std::span<const float> values) {  // the signed value of largest magnitude
  float max = 0;
  for (const float v : values)
    if (std::fabs(v) > std::fabs(max)) max = v;
  return max;
}

void pack_q8(std::span<const float> in, std::byte* out) {
  const float d = std::fabs(largest(in)) / 127;
  put16(out, to_f16(d));
  for (size_t i = 0; i < kBlock; i++)
    out[2 + i] = static_cast<std::byte>(static_cast<int8_t>(d > 0 ? std::lround(in[i] / d) : 0));
}

void pack_q4(std::span<const float> in, std::byte* out) {
  const float d = largest(in) / -8;
  put16(out, to_f16(d));
  const auto nibble = [&](float v) {
    return d != 0 ? static_cast<int>(std::clamp(std::floor(v / d + 8.5F), 0.0F, 15.0F)) : 8;
  };
  for (size_t i = 0; i < 16; i++) out[2 + i] = static_cast<std::byte>(nibble(in[i]) | nibble(in[i + 16]) << 4);
}

void pack_mxfp4(std::span<const float> in, std::byte* out, std::byte* scale, bool interleaved) {
  const float max = std::fabs(largest(in));
  int e = 0;
  if (max > 0) e = std::clamp(std::ilogb(max) - 2 + 127, 0, 254);  // 4 <= max / scale < 8
  *scale = static_cast<std::byte>(e);
  const float inverse = std::ldexp(1.0F, 127 - e);
  for (size_t i = 0; i < 16; i++) {
    const size_t low = interleaved ? 2 * i : i, high = interleaved ? 2 * i + 1 : i + 16;
    out[i] = static_cast<std::byte>(nearest_e2m1(in[low] * inverse) | nearest_e2m1(in[high] * inverse) << 4);
  }
}

}  // namespace

const char* to_string(Format format) {
  constexpr const char* kNames[] = {"f32", "bf16", "q8_0", "q4_0", "mxfp4", "mxfp4-split"};
  return kNames[static_cast<int>(format)];
}

Matrix every_other(const Matrix& m, unsigned first) {
  Matrix half = m;
  half.rows = m.rows / 2;
  half.skip = 1;
  half.data += first * m.stride();
  if (half.scales) half.scales += first * m.scale_stride();
  return half;
}

float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_f16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float sign = bits & 0x8000 ? -1.0F : 1.0F;
  if (exponent == 31) return mantissa ? std::nanf("") : sign * INFINITY;
  return sign * (exponent ? std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25)
                          : std::ldexp(static_cast<float>(mantissa), -24));
}

uint16_t to_f16(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (magnitude >= 65520) return sign | 0x7c00;
  const int exponent = magnitude < 0x1p-14F ? -14 : std::ilogb(magnitude);
  // Whole units of the last place, rounded to even by nearbyint; a carry runs into the exponent as it should.
  const int units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return static_cast<uint16_t>(sign | (units < 1024 ? units : ((exponent + 14) << 10) + units));
}

void dequantise(const Matrix& m, size_t row, std::span<float> out) {
  const size_t columns = m.columns;
  const std::byte* p = m.data + row * m.stride();
  for (size_t i = 0; i < columns; i++) {
    const size_t block = i / kBlock, j = i % kBlock;
    const auto half = [&](const std::byte* values, size_t at, bool high) {
      return byte_at(values + at) >> (high ? 4 : 0) & 15;
    };
    switch (m.format) {
      case Format::kF32:
        std::memcpy(&out[i], p + i * 4, 4);
        break;
      case Format::kBf16:
        out[i] = from_bf16(u16_at(p + i * 2));
        break;
      case Format::kQ8_0: {
        const std::byte* b = p + block * 34;
        out[i] = from_f16(u16_at(b)) * static_cast<float>(static_cast<int8_t>(b[2 + j]));
        break;
      }
      case Format::kQ4_0: {
        const std::byte* b = p + block * 18;
        out[i] = from_f16(u16_at(b)) * static_cast<float>(half(b + 2, j % 16, j >= 16) - 8);
        break;
      }
      case Format::kMxfp4: {
        const std::byte* b = p + block * 17;
        out[i] = from_e8m0(byte_at(b)) * kE2m1[half(b + 1, j % 16, j >= 16)];
        break;
      }
      case Format::kMxfp4Split:
        out[i] =
            from_e8m0(byte_at(m.scales + row * m.scale_stride() + block)) * kE2m1[half(p + block * 16, j / 2, j % 2)];
        break;
    }
  }
}

Packed quantise(Format format, std::span<const float> values, uint32_t rows, uint32_t columns) {
  Packed out;
  const size_t stride = row_bytes(format, columns);
  out.data.resize(rows * stride);
  if (format == Format::kMxfp4Split) out.scales.resize(size_t{rows} * (columns / kBlock));
  for (size_t r = 0; r < rows; r++) {
    const auto row = values.subspan(r * columns, columns);
    std::byte* p = out.data.data() + r * stride;
    if (format == Format::kF32) std::memcpy(p, row.data(), stride);
    if (format == Format::kBf16)
      for (size_t i = 0; i < columns; i++) put16(p + 2 * i, to_bf16(row[i]));
    if (granularity(format) == 1) continue;
    for (size_t b = 0; b < columns / kBlock; b++) {
      const auto block = row.subspan(b * kBlock, kBlock);
      if (format == Format::kQ8_0) pack_q8(block, p + b * 34);
      if (format == Format::kQ4_0) pack_q4(block, p + b * 18);
      if (format == Format::kMxfp4) pack_mxfp4(block, p + b * 17 + 1, p + b * 17, false);
      if (format == Format::kMxfp4Split)
        pack_mxfp4(block, p + b * 16, out.scales.data() + r * (columns / kBlock) + b, true);
    }
  }
  out.view = {format, rows, columns, out.data.data(), out.scales.empty() ? nullptr : out.scales.data(), 0};
  return out;
}

}  // namespace neotier::compute

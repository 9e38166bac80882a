// SPDX-License-Identifier: Apache-2.0
// Weights as they lie in memory: row-major, in the formats that models are shipped in. A view; whoever made it keeps
// the bytes in place (pinned in a store) while it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace neotier::compute {

enum class Format : uint8_t {
  kF32,
  kBf16,
  kQ8_0,        // GGUF: blocks of 32, an f16 scale and 32 int8
  kQ4_0,        // GGUF: blocks of 32, an f16 scale and 16 bytes; value j in the low half of byte j, j + 16 in the high
  kMxfp4,       // GGUF: blocks of 32, an E8M0 scale and 16 bytes of E2M1, halves as in Q4_0
  kMxfp4Split,  // safetensors (gpt-oss): the same blocks, values 2j and 2j + 1 in byte j, scales in a tensor of their
                // own
};
inline constexpr Format kFormats[] = {Format::kF32,  Format::kBf16,  Format::kQ8_0,
                                      Format::kQ4_0, Format::kMxfp4, Format::kMxfp4Split};
const char* to_string(Format format);

inline constexpr size_t kBlock = 32;  // elements of a block of the quantised formats

// Elements a row has to be a multiple of.
constexpr size_t granularity(Format f) { return f == Format::kF32 || f == Format::kBf16 ? 1 : kBlock; }

// Bytes of a row of `columns` elements, without kMxfp4Split's scales (columns / 32 bytes).
constexpr size_t row_bytes(Format f, size_t columns) {
  switch (f) {
    case Format::kF32:
      return columns * 4;
    case Format::kBf16:
      return columns * 2;
    case Format::kQ8_0:
      return columns / kBlock * 34;
    case Format::kQ4_0:
      return columns / kBlock * 18;
    case Format::kMxfp4:
      return columns / kBlock * 17;
    case Format::kMxfp4Split:
      return columns / kBlock * 16;
  }
  return 0;
}

struct Matrix {
  Format format{};
  uint32_t rows = 0, columns = 0;
  const std::byte* data = nullptr;    // any alignment
  const std::byte* scales = nullptr;  // kMxfp4Split only
  size_t skip = 0;                    // rows of the data between one of ours and the next

  size_t stride() const { return (skip + 1) * row_bytes(format, columns); }
  size_t scale_stride() const { return format == Format::kMxfp4Split ? (skip + 1) * (columns / kBlock) : 0; }
  size_t bytes() const {
    return rows * (row_bytes(format, columns) + (format == Format::kMxfp4Split ? columns / kBlock : 0));
  }
};

// Rows `first`, first + 2, …: gate (0) and up (1) of gpt-oss' gate_up_proj. `m` with an even number of rows, no skip.
Matrix every_other(const Matrix& m, unsigned first);

// f16 and bf16 to f32, exact; f32 to them, to nearest even.
float from_f16(uint16_t bits);
float from_bf16(uint16_t bits);
uint16_t to_f16(float value);
uint16_t to_bf16(float value);

// One row, exact: what the kernels multiply with. The plain definition of each format.
void dequantise(const Matrix& m, size_t row, std::span<float> out);

// Rows in a format; scales apart for kMxfp4Split. Rounds to the nearest value that the block's scale can make (Q4_0,
// Q8_0 as in ggml: the scale is that of the largest magnitude). `columns` a multiple of granularity().
struct Packed {
  std::vector<std::byte> data, scales;
  Matrix view;  // of these vectors: moves with them, do not copy
};
Packed quantise(Format format, std::span<const float> values, uint32_t rows, uint32_t columns);

}  // namespace neotier::compute

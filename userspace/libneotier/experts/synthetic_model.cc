// SPDX-License-Identifier: Apache-2.0
#include "experts/synthetic_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "util/output_file.h"

namespace neotier::experts {

namespace {

using compute::Format;
using engine::Code;
using engine::Status;

constexpr uint64_t kAlignment = 32;

uint32_t ggml_type(Format f) {
  switch (f) {
    case Format::kBf16:
      return 30;
    case Format::kQ8_0:
      return 8;
    case Format::kQ4_0:
      return 2;
    case Format::kMxfp4:
      return 39;
    default:
      return 0;  // F32
  }
}

// Vigna's splitmix64: as many streams as there are seeds, and fast.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // Uniform, -1 .. 1.
  float unit() { return static_cast<float>(static_cast<int64_t>(next() >> 40) - (1 << 23)) * 0x1p-23F; }

 private:
  uint64_t state_;
};

// A row that is multiplied with n numbers around 1 gives a sum around 1.
void fill_row(Format format, Random& random, uint32_t columns, std::byte* out) {
  const float spread = std::sqrt(3.0F / static_cast<float>(columns));
  if (format == Format::kF32 || format == Format::kBf16) {
    for (uint32_t i = 0; i < columns; i++) {
      const float value = random.unit() * spread;
      if (format == Format::kF32) {
        std::memcpy(out + size_t{4} * i, &value, 4);
      } else {
        const uint16_t half = compute::to_bf16(value);
        std::memcpy(out + size_t{2} * i, &half, 2);
      }
    }
    return;
  }
  // Any bits are values of these formats; the scale makes them the size wanted.
  const float largest = format == Format::kQ8_0 ? 128 : format == Format::kQ4_0 ? 8 : 6;
  const uint16_t scale = compute::to_f16(spread / largest);
  const auto exponent =
      static_cast<uint8_t>(127 + std::lround(std::log2(spread / 3)));  // E2M1's mean magnitude is near 2
  const size_t values = format == Format::kQ8_0 ? 32 : 16;
  for (uint32_t block = 0; block < columns / compute::kBlock; block++) {
    if (format == Format::kMxfp4) {
      *out++ = std::byte{exponent};
    } else {
      std::memcpy(out, &scale, 2);
      out += 2;
    }
    for (size_t i = 0; i < values; i += 8, out += 8) {
      const uint64_t bits = random.next();
      std::memcpy(out, &bits, 8);
    }
  }
}

class Writer {
 public:
  Writer(const SyntheticModel& model, std::string file, const std::function<void(double)>& progress,
         const std::function<bool()>& cancelled)
      : m_(model), file_(std::move(file)), progress_(progress), cancelled_(cancelled) {
    for (uint32_t layer = 0; layer < m_.layers; layer++) {
      const std::string blk = fmt::format("blk.{}.ffn_", layer);
      add(blk + "gate_inp.weight", Format::kF32, m_.experts, m_.hidden, 1, 1);
      add(blk + "gate_exps.weight", m_.format, m_.ff, m_.hidden, m_.experts, 1);
      add(blk + "up_exps.weight", m_.format, m_.ff, m_.hidden, m_.experts, 1);
      add(blk + "down_exps.weight", m_.format, m_.hidden, m_.ff, m_.experts, 1);
      if (!m_.biases) continue;
      add(blk + "gate_exps.bias", Format::kF32, m_.experts, m_.ff, 1, 0.1F);
      add(blk + "up_exps.bias", Format::kF32, m_.experts, m_.ff, 1, 0.1F);
      add(blk + "down_exps.bias", Format::kF32, m_.experts, m_.hidden, 1, 0.1F);
    }
  }

  Status write() {
    try {
      OutputFile out("", file_);
      out_ = &out;
      Status status = content();
      if (status.is_ok()) out.commit();
      return status;
    } catch (const std::runtime_error& error) {
      return {Code::kIo, error.what()};
    }
  }

 private:
  struct Tensor {
    std::string name;
    Format format{};
    uint32_t rows = 0, columns = 0, stack = 0;
    float size = 1;
    uint64_t offset = 0, bytes = 0;
  };

  void add(const std::string& name, Format format, uint32_t rows, uint32_t columns, uint32_t stack, float size) {
    const uint64_t bytes = uint64_t{stack} * rows * compute::row_bytes(format, columns);
    tensors_.push_back({name, format, rows, columns, stack, size, data_bytes_, bytes});
    data_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  template <typename T>
  void number(T value) {
    const auto* bytes = reinterpret_cast<const char*>(&value);
    head_.append(bytes, sizeof value);
  }
  void text(const std::string& s) {
    number<uint64_t>(s.size());
    head_ += s;
  }
  void pair(const std::string& key, uint32_t value) {
    text(key);
    number<uint32_t>(4);
    number(value);
  }
  void pair(const std::string& key, const std::string& value) {
    text(key);
    number<uint32_t>(8);
    text(value);
  }

  Status content() {
    number<uint32_t>(0x46554747);
    number<uint32_t>(3);
    number<uint64_t>(tensors_.size());
    number<uint64_t>(6);
    pair("general.architecture", "synthetic-moe");
    pair("general.name", "random weights of neotier");
    pair("general.alignment", static_cast<uint32_t>(kAlignment));
    pair("synthetic-moe.block_count", m_.layers);
    pair("synthetic-moe.expert_count", m_.experts);
    pair("synthetic-moe.expert_used_count", m_.top_k);
    for (const Tensor& t : tensors_) {
      text(t.name);
      number<uint32_t>(t.stack > 1 ? 3 : 2);
      number<uint64_t>(t.columns);
      number<uint64_t>(t.rows);
      if (t.stack > 1) number<uint64_t>(t.stack);
      number<uint32_t>(ggml_type(t.format));
      number(t.offset);
    }
    head_.resize((head_.size() + kAlignment - 1) / kAlignment * kAlignment);
    if (Status s = put(head_.data(), head_.size()); !s) return s;
    std::vector<std::byte> row;
    for (size_t i = 0; i < tensors_.size(); i++) {
      const Tensor& t = tensors_[i];
      Random random(m_.seed * 1000003 + i);
      const size_t width = compute::row_bytes(t.format, t.columns);
      // Whole rows, about 1 MiB at a time.
      const uint64_t rows = uint64_t{t.rows} * t.stack, step = std::max<uint64_t>(1, (1 << 20) / width);
      for (uint64_t r = 0; r < rows; r += step) {
        if (cancelled_ && cancelled_()) return {Code::kCancelled, "interrupted"};
        const uint64_t count = std::min(step, rows - r);
        row.resize(count * width);
        for (uint64_t k = 0; k < count; k++) fill_row(t.format, random, t.columns, row.data() + k * width);
        if (t.size != 1) shrink(row, t.size);
        if (Status s = put(row.data(), row.size()); !s) return s;
      }
      const std::byte zeros[kAlignment] = {};
      if (Status s = put(zeros, (kAlignment - t.bytes % kAlignment) % kAlignment); !s) return s;
      if (progress_) progress_(static_cast<double>(t.offset) / static_cast<double>(data_bytes_));
    }
    return {};
  }

  static void shrink(std::vector<std::byte>& values, float by) {
    for (size_t i = 0; i < values.size(); i += 4) {
      float v = 0;
      std::memcpy(&v, values.data() + i, 4);
      v *= by;
      std::memcpy(values.data() + i, &v, 4);
    }
  }

  Status put(const void* data, size_t bytes) {
    out_->write(data, bytes);
    return {};
  }

  const SyntheticModel& m_;
  const std::string file_;
  const std::function<void(double)>& progress_;
  const std::function<bool()>& cancelled_;
  std::vector<Tensor> tensors_;
  uint64_t data_bytes_ = 0;
  std::string head_;
  OutputFile* out_ = nullptr;
};

}  // namespace

uint64_t SyntheticModel::expert_bytes() const {
  return 2 * uint64_t{ff} * compute::row_bytes(format, hidden) + uint64_t{hidden} * compute::row_bytes(format, ff) +
         (biases ? 4 * (2 * uint64_t{ff} + hidden) : 0);
}

engine::Status write_synthetic_model(const SyntheticModel& m, const std::string& file,
                                     const std::function<void(double)>& progress,
                                     const std::function<bool()>& cancelled) {
  const auto invalid = [](const std::string& what) { return Status(Code::kInvalid, what); };
  if (m.layers == 0 || m.layers > 256 || m.experts < 2 || m.experts > 256 || m.top_k == 0 || m.top_k > m.experts)
    return invalid(fmt::format("{} layers of {} experts, {} a token: expected 1 to 256, 2 to 256, at most the experts",
                               m.layers, m.experts, m.top_k));
  for (const uint32_t n : {m.hidden, m.ff})
    if (n == 0 || n > 65536 || n % compute::kBlock != 0)
      return invalid(fmt::format("a width of {}: expected a multiple of 32, up to 65536", n));
  if (m.format == Format::kMxfp4Split) return invalid("mxfp4-split is a format of safetensors, not of GGUF");
  return Writer(m, file, progress, cancelled).write();
}

}  // namespace neotier::experts

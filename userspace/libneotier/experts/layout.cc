// SPDX-License-Identifier: Apache-2.0
#include "experts/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

namespace neotier::experts {

namespace {

using compute::Format;
using model::Extent;
using model::Piece;
using model::Role;

std::optional<Format> format_of(std::string_view dtype) {
  if (dtype == "F32") return Format::kF32;
  if (dtype == "BF16") return Format::kBf16;
  if (dtype == "Q8_0") return Format::kQ8_0;
  if (dtype == "Q4_0") return Format::kQ4_0;
  if (dtype == "MXFP4") return Format::kMxfp4;
  if (dtype == "U8") return Format::kMxfp4Split;
  return std::nullopt;
}

Status unsupported(const std::string& what) { return {Code::kUnsupported, what}; }

// Rows and columns of one expert's matrix, whatever the tensor is stacked from.
Result<Projection> projection(const model::Tensor& t, uint64_t bytes) {
  const auto format = format_of(t.dtype->name);
  const auto refuse = [&] {
    return unsupported(
        fmt::format("tensor {}: {} [{}] cannot be multiplied with here; f32, bf16, Q8_0, Q4_0, MXFP4 can",
                    model::shown(t.name), t.dtype->name, fmt::join(t.shape, ", ")));
  };
  if (!format || t.shape.size() < 2) return refuse();
  Projection p{*format, 0, 0};
  uint64_t columns = t.shape.back(), rows = t.shape[t.shape.size() - 2];
  if (p.format == Format::kMxfp4Split) {  // experts, rows, blocks, 16 bytes
    if (t.shape.size() < 3 || columns != compute::kBlock / 2) return refuse();
    columns = rows * compute::kBlock;
    rows = t.shape[t.shape.size() - 3];
  }
  if (rows == 0 || columns == 0 || rows > UINT32_MAX || columns > UINT32_MAX ||
      columns % compute::granularity(p.format) != 0 ||
      rows * compute::row_bytes(p.format, static_cast<size_t>(columns)) != bytes)
    return refuse();
  p.rows = static_cast<uint32_t>(rows);
  p.columns = static_cast<uint32_t>(columns);
  return p;
}

}  // namespace

Result<Layout> Layout::of(const model::Model& model) {
  auto map = model::find_experts(model);
  if (!map) return map.status();
  const std::string& file = model.files[0].path;
  if (map->layers.empty()) return unsupported(file + ": no experts in this model");
  Layout l;
  l.map_ = std::move(*map);
  l.wide_bias_.resize(model.tensors.size());
  for (size_t i = 0; i < l.map_.layers.size(); i++) {
    if (l.map_.layers[i].experts != l.map_.layers[0].experts)
      return unsupported(file + ": layers with different numbers of experts");
    if (Status s = l.add_layer(model, i); !s) return Status(s.code(), file + ": " + s.what());
  }
  for (uint32_t layer = 0; layer < l.layers(); layer++)
    for (uint32_t e = 0; e < l.experts(); e++) {
      const std::vector<Run> runs = l.runs(layer, e);
      l.slot_bytes_ = std::max(l.slot_bytes_, runs.back().at + runs.back().bytes);
      l.read_bytes_ += runs.back().at + runs.back().bytes;
    }
  for (const Extent& e : l.map_.all) l.weight_bytes_ += e.bytes;
  return l;
}

Status Layout::add_layer(const model::Model& model, size_t index) {
  LayerShape shape;
  bool biases = false;
  for (const Extent& e : map_.extents(index, 0)) {
    const model::Tensor& t = model.tensors[e.tensor];
    if (e.piece == Piece::kBias) {
      biases = true;
      const std::string_view dtype = t.dtype->name;
      if (dtype != "F32" && dtype != "BF16")
        return unsupported(fmt::format("tensor {}: a bias in {}; f32 and bf16 are known", model::shown(t.name), dtype));
      continue;
    }
    if (e.piece == Piece::kScale) continue;
    const auto p = projection(t, e.bytes);
    if (!p) return p.status();
    if (e.role == Role::kGate) shape.gate = *p;
    if (e.role == Role::kUp) shape.up = *p;
    if (e.role == Role::kDown) shape.down = *p;
    if (e.role == Role::kGateUp) {
      shape.joined = true;
      shape.interleaved = p->format == Format::kMxfp4Split;
      if (p->rows % 2 != 0) return unsupported(fmt::format("tensor {}: an odd number of rows", model::shown(t.name)));
      shape.gate = shape.up = {p->format, p->rows / 2, p->columns};
    }
  }
  for (uint32_t e = 0; e < map_.layers[index].experts; e++)
    for (const Extent& x : map_.extents(index, e)) {
      const bool bias = x.piece == Piece::kBias;
      wide_bias_[x.tensor] = bias && std::string_view(model.tensors[x.tensor].dtype->name) == "F32";
      if (bias &&
          (!wide_bias_[x.tensor] || x.offset % alignof(float) != 0 || (x.role == Role::kGateUp && shape.interleaved)))
        only_points_ = false;
    }
  shape.hidden = shape.gate.columns;
  shape.ff = shape.gate.rows;
  if (shape.up.rows != shape.ff || shape.up.columns != shape.hidden || shape.down.rows != shape.hidden ||
      shape.down.columns != shape.ff || (!shapes_.empty() && shapes_[0].hidden != shape.hidden))
    return unsupported(fmt::format("layer {}: gate {} x {}, up {} x {}, down {} x {} do not fit one another",
                                   map_.layers[index].layer, shape.gate.rows, shape.gate.columns, shape.up.rows,
                                   shape.up.columns, shape.down.rows, shape.down.columns));
  // Of the models whose experts have biases, gpt-oss is the one that is known.
  activation_ = biases ? compute::Activation::kSwiGluClamped : compute::Activation::kSwiGlu;
  shapes_.push_back(shape);
  return {};
}

std::vector<Run> Layout::runs(uint32_t layer, uint32_t expert) const {
  std::vector<Run> runs;
  for (const Extent& e : map_.extents(layer, expert)) {
    const uint64_t begin = e.offset / kIoBlock * kIoBlock;
    runs.push_back({e.file, begin, (e.offset + e.bytes + kIoBlock - 1) / kIoBlock * kIoBlock - begin, 0});
  }
  std::sort(runs.begin(), runs.end(),
            [](const Run& a, const Run& b) { return a.file != b.file ? a.file < b.file : a.offset < b.offset; });
  std::vector<Run> joined;
  for (const Run& r : runs) {
    Run* last = joined.empty() ? nullptr : &joined.back();
    if (last && last->file == r.file && r.offset <= last->offset + last->bytes)
      last->bytes = std::max(last->bytes, r.offset + r.bytes - last->offset);
    else
      joined.push_back(r);
  }
  uint64_t at = 0;
  for (Run& r : joined) {
    r.at = at;
    at += r.bytes;
  }
  return joined;
}

template <typename Place>
compute::Expert Layout::make(uint32_t layer, uint32_t expert, const Place& place,
                             std::deque<std::vector<float>>& biases) const {
  const LayerShape& s = shapes_[layer];
  compute::Expert out;
  const auto bias = [&](const Extent& e, size_t first, size_t count, size_t step) -> const float* {
    const std::byte* data = place(e);
    const bool wide = wide_bias_[e.tensor];
    if (wide && step == 1 && reinterpret_cast<uintptr_t>(data) % alignof(float) == 0)
      return reinterpret_cast<const float*>(data) + first;
    std::vector<float>& values = biases.emplace_back(count);
    for (size_t i = 0; i < count; i++) {
      const size_t at = first + i * step;
      uint16_t half = 0;
      if (wide)
        std::memcpy(&values[i], data + 4 * at, 4);
      else {
        std::memcpy(&half, data + 2 * at, 2);
        values[i] = compute::from_bf16(half);
      }
    }
    return values.data();
  };
  const auto matrix = [](const Projection& p) {
    compute::Matrix m;
    m.format = p.format;
    m.rows = p.rows;
    m.columns = p.columns;
    return m;
  };
  compute::Matrix both = matrix({s.gate.format, 2 * s.ff, s.hidden});
  out.gate = matrix(s.gate);
  out.up = matrix(s.up);
  out.down = matrix(s.down);
  for (const Extent& e : map_.extents(layer, expert)) {
    compute::Matrix* const m = e.role == Role::kGate   ? &out.gate
                               : e.role == Role::kUp   ? &out.up
                               : e.role == Role::kDown ? &out.down
                                                       : &both;
    if (e.piece == Piece::kWeight) m->data = place(e);
    if (e.piece == Piece::kScale) m->scales = place(e);
    if (e.piece != Piece::kBias) continue;
    if (e.role == Role::kGate) out.gate_bias = bias(e, 0, s.ff, 1);
    if (e.role == Role::kUp) out.up_bias = bias(e, 0, s.ff, 1);
    if (e.role == Role::kDown) out.down_bias = bias(e, 0, s.hidden, 1);
    if (e.role == Role::kGateUp) {
      const size_t step = s.interleaved ? 2 : 1;
      out.gate_bias = bias(e, 0, s.ff, step);
      out.up_bias = bias(e, s.interleaved ? 1 : s.ff, s.ff, step);
    }
  }
  if (s.joined && s.interleaved) {
    out.gate = compute::every_other(both, 0);
    out.up = compute::every_other(both, 1);
  } else if (s.joined) {
    out.gate.data = both.data;
    out.up.data = both.data + s.ff * compute::row_bytes(s.gate.format, s.hidden);
  }
  return out;
}

compute::Expert Layout::view(uint32_t layer, uint32_t expert, const std::byte* slot,
                             std::deque<std::vector<float>>& biases) const {
  const std::vector<Run> all = runs(layer, expert);
  return make(
      layer, expert,
      [&](const Extent& e) {
        const Run* r = all.data();
        while (r->file != e.file || e.offset < r->offset || e.offset >= r->offset + r->bytes) r++;
        return slot + r->at + (e.offset - r->offset);
      },
      biases);
}

compute::Expert Layout::view_in_place(uint32_t layer, uint32_t expert, const std::vector<const std::byte*>& files,
                                      std::deque<std::vector<float>>& biases) const {
  return make(
      layer, expert, [&](const Extent& e) { return files[e.file] + e.offset; }, biases);
}

}  // namespace neotier::experts

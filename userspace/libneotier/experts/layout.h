// SPDX-License-Identifier: Apache-2.0
// From the byte ranges of an expert in its files to what has to be read, and to matrices over the bytes once they are
// in memory. Reads are rounded out to whole blocks of 4096 bytes, for direct I/O; pieces whose blocks touch are one
// read.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "compute/moe.h"
#include "model/experts.h"

namespace neotier::experts {

using engine::Code;
using engine::Result;
using engine::Status;

inline constexpr uint64_t kIoBlock = 4096;

// A range of a file and where it goes in a slot; all multiples of kIoBlock.
struct Run {
  uint32_t file = 0;
  uint64_t offset = 0, bytes = 0, at = 0;
};

// Of one projection: what the kernels are told.
struct Projection {
  compute::Format format{};
  uint32_t rows = 0, columns = 0;
};

struct LayerShape {
  uint32_t hidden = 0, ff = 0;
  Projection gate, up, down;
  bool joined = false;       // gate and up in one tensor
  bool interleaved = false;  // gpt-oss in safetensors: its rows in turns; otherwise gate's come first
};

// Immutable: any thread. Refers to nothing of the model but copies.
class Layout {
 public:
  // Layers must have equally many experts. kUnsupported: no experts, or formats and shapes that compute/ cannot
  // multiply with (which, and what can).
  static Result<Layout> of(const model::Model& model);

  uint32_t layers() const { return static_cast<uint32_t>(shapes_.size()); }
  uint32_t experts() const { return map_.layers[0].experts; }
  uint32_t hidden() const { return shapes_[0].hidden; }
  const LayerShape& shape(uint32_t layer) const { return shapes_[layer]; }
  compute::Activation activation() const { return activation_; }
  // Of a slot that any expert fits into; a multiple of kIoBlock.
  uint64_t slot_bytes() const { return slot_bytes_; }
  // Of the weights themselves, of all experts together, and of the blocks that they lie in.
  uint64_t weight_bytes() const { return weight_bytes_; }
  uint64_t read_bytes() const { return read_bytes_; }

  // In rising order of file and offset.
  std::vector<Run> runs(uint32_t layer, uint32_t expert) const;
  // Over a slot that the runs were read into. `biases` takes those that are not f32 in place; keep it with the view.
  compute::Expert view(uint32_t layer, uint32_t expert, const std::byte* slot,
                       std::deque<std::vector<float>>& biases) const;
  // Whether view() does no more than point into the slot, whose bytes may then be where the CPU cannot read them. Not
  // so where biases are narrow, or lie in turns.
  bool only_points() const { return only_points_; }
  // Over whole files in memory, by number.
  compute::Expert view_in_place(uint32_t layer, uint32_t expert, const std::vector<const std::byte*>& files,
                                std::deque<std::vector<float>>& biases) const;

 private:
  template <typename Place>
  compute::Expert make(uint32_t layer, uint32_t expert, const Place& place,
                       std::deque<std::vector<float>>& biases) const;
  Status add_layer(const model::Model& model, size_t index);

  model::ExpertMap map_;
  std::vector<LayerShape> shapes_;
  std::vector<bool> wide_bias_;  // by tensor: bias in f32, not bf16
  compute::Activation activation_{};
  bool only_points_ = true;
  uint64_t slot_bytes_ = 0, weight_bytes_ = 0, read_bytes_ = 0;
};

}  // namespace neotier::experts

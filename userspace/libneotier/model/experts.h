// SPDX-License-Identifier: Apache-2.0
// Where each expert of a mixture-of-experts model lies: the byte ranges that have to be read to have it. Found by the
// tensors' names, in the layouts that are common:
//   GGUF         blk.L.ffn_{gate,up,down,gate_up}_exps.{weight,bias,scale}: all experts in one tensor, outermost
//   dimension
//                blk.L.ffn_{gate,up,down}.E.weight: before 2024-04
//   safetensors  ….layers.L.….experts.E.{w1,w3,w2 | gate_proj,up_proj,down_proj}.PARAMETER (Mixtral, Qwen, DeepSeek)
//                ….layers.L.….experts.{gate_up_proj,down_proj}[_blocks,_scales,_bias] (gpt-oss, Llama 4)
// Shared experts, which every token uses, are not in the map.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"

namespace neotier::model {

inline constexpr uint64_t kMaxExtents = 1 << 21;  // of a map
inline constexpr uint32_t kMaxLayer = 1 << 16;
inline constexpr uint32_t kMaxExpert = 1 << 16;

enum class Role : uint8_t { kGate, kUp, kGateUp, kDown };
enum class Piece : uint8_t { kWeight, kScale, kBias };  // kScale: of weights quantised apart from their scales
const char* to_string(Role role);
const char* to_string(Piece piece);

struct Extent {
  uint64_t offset = 0, bytes = 0;
  uint32_t file = 0;    // of Model::files
  uint32_t tensor = 0;  // of Model::tensors
  Role role{};
  Piece piece{};
};

struct ExpertLayer {
  uint32_t layer = 0;    // the model's number; dense layers are left out
  uint32_t experts = 0;  // numbered from 0
  uint32_t extents = 0;  // of each expert
  uint64_t bytes = 0;    // of the largest expert
  uint64_t first = 0;    // of ExpertMap::all
};

struct ExpertMap {
  std::vector<ExpertLayer> layers;  // by number
  std::vector<Extent> all;          // by layer, expert, role, piece

  // `index` is of layers, not the model's number. Both in range.
  std::span<const Extent> extents(size_t index, uint32_t expert) const {
    const ExpertLayer& l = layers[index];
    return {all.data() + l.first + uint64_t{expert} * l.extents, l.extents};
  }
};

// No layers where the model has no experts. kCorrupt: experts of a layer that lack a number, a role, or have different
// ones; one line.
Result<ExpertMap> find_experts(const Model& model);

}  // namespace neotier::model

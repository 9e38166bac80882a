// SPDX-License-Identifier: Apache-2.0
#include "kv/block_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace neotier::kv {

namespace {

// Each takes memory here, and a place of the caller's in each call.
constexpr size_t kMostPieces = 1 << 20;

void check_pieces(size_t pieces) {
  if (pieces > kMostPieces)
    throw std::runtime_error(fmt::format("{} pieces: a block has at most {}", pieces, kMostPieces));
}

std::vector<uint32_t> pieces_of_layers(uint32_t layers, size_t pieces, std::span<const uint32_t> layer_pieces) {
  if (layers == 0) throw std::runtime_error("0 layers: a block has 1 or more");
  if (!layer_pieces.empty()) {
    if (layer_pieces.size() != layers)
      throw std::runtime_error(fmt::format("pieces of {} layers, and there are {}", layer_pieces.size(), layers));
    return {layer_pieces.begin(), layer_pieces.end()};
  }
  if (pieces == 0 || pieces % layers != 0)
    throw std::runtime_error(
        fmt::format("{} pieces for {} layers: say how many each has, or give all as many", pieces, layers));
  return std::vector<uint32_t>(layers, static_cast<uint32_t>(pieces / layers));
}

std::vector<uint64_t> uniform(uint32_t layers, uint64_t bytes) {
  // Before memory is taken for what cannot be.
  if (layers == 0 || bytes == 0 || layers > UINT32_MAX / bytes)
    throw std::runtime_error(
        fmt::format("{} layers of {} bytes: a block has 1 .. {} bytes in 1 layer or more", layers, bytes, UINT32_MAX));
  check_pieces(layers);
  return std::vector<uint64_t>(layers, bytes);
}

}  // namespace

BlockLayout::BlockLayout(uint32_t layers, uint64_t layer_bytes)
    : BlockLayout(layers, uniform(layers, layer_bytes), {}) {}

BlockLayout::BlockLayout(uint32_t layers, std::span<const uint64_t> piece_bytes,
                         std::span<const uint32_t> layer_pieces) {
  check_pieces(piece_bytes.size());
  const std::vector<uint32_t> counts = pieces_of_layers(layers, piece_bytes.size(), layer_pieces);
  first_.push_back(0);
  for (uint32_t layer = 0; layer < layers; layer++) {
    if (counts[layer] == 0) throw std::runtime_error(fmt::format("layer {} has no pieces", layer));
    first_.push_back(first_.back() + counts[layer]);
  }
  if (first_.back() != piece_bytes.size())
    throw std::runtime_error(
        fmt::format("{} pieces, and the layers have {} of them", piece_bytes.size(), first_.back()));
  pieces_.reserve(piece_bytes.size());
  for (const uint64_t bytes : piece_bytes) {
    if (bytes == 0) throw std::runtime_error(fmt::format("piece {} has no bytes", pieces_.size()));
    if (bytes > UINT32_MAX - bytes_)
      throw std::runtime_error(fmt::format("pieces of more than {} bytes in all, up to piece {}: a block has no more",
                                           UINT32_MAX, pieces_.size()));
    pieces_.push_back({bytes_, bytes});
    bytes_ += bytes;
    largest_ = std::max(largest_, bytes);
  }
}

}  // namespace neotier::kv

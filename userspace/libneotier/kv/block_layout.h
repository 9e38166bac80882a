// SPDX-License-Identifier: Apache-2.0
// What a block consists of: layers, and of each layer the pieces that the caller has in places of their own (K and V,
// or heads). In the engine a block is one object: its pieces one after another, layer by layer.
//
// Immutable once made; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace neotier::kv {

struct BlockPiece {
  uint64_t offset = 0, bytes = 0;  // in the block
};

class BlockLayout {
 public:
  // Each layer one piece of so many bytes.
  BlockLayout(uint32_t layers, uint64_t layer_bytes);
  // piece_bytes: layer by layer. layer_pieces: how many each layer has, `layers` of them; empty: all as many.
  BlockLayout(uint32_t layers, std::span<const uint64_t> piece_bytes, std::span<const uint32_t> layer_pieces);
  // Both throw std::runtime_error: no layers, a layer without pieces, a piece without bytes, pieces that do not fit
  // their layers, more than 2^20 of them, 4 GiB or more in all.

  uint32_t layers() const { return static_cast<uint32_t>(first_.size() - 1); }
  size_t nr_pieces() const { return pieces_.size(); }
  std::span<const BlockPiece> pieces() const { return pieces_; }
  // Of a layer: the first, and the one after the last.
  size_t first_piece(uint32_t layer) const { return first_[layer]; }
  size_t end_piece(uint32_t layer) const { return first_[layer + 1]; }
  uint64_t bytes() const { return bytes_; }
  uint64_t largest_piece() const { return largest_; }

 private:
  std::vector<BlockPiece> pieces_;
  std::vector<size_t> first_;  // of each layer, and the end
  uint64_t bytes_ = 0, largest_ = 0;
};

}  // namespace neotier::kv

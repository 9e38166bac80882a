// SPDX-License-Identifier: Apache-2.0
// What lies where in the model files people have: GGUF and safetensors, unmodified, in one file or many. Only headers
// are read; weights stay in their files, for whoever reads extents.
//
// Everything in a file is untrusted. Memory is bounded by kMax… below, whatever counts a file claims: no allocation is
// sized by a number that the bytes present do not back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/source.h"

namespace neotier::model {

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // JSON of one safetensors file or index, as its own library
inline constexpr uint64_t kMaxTensors = 1 << 20;          // of a model, all files together
inline constexpr uint64_t kMaxNames = 64 << 20;           // bytes of all names of a model
inline constexpr uint32_t kMaxFiles = 4096;
inline constexpr uint32_t kMaxRank = 8;

enum class Format : uint8_t { kGguf, kSafetensors };
const char* to_string(Format format);

// An element type, or a block of elements that are quantised together.
struct Dtype {
  const char* name;         // as its format writes it: "BF16", "Q4_0"
  uint32_t block_elements;  // along the innermost dimension
  uint32_t block_bits;
};

struct Tensor {
  std::string name;
  const Dtype* dtype = nullptr;
  std::vector<uint64_t> shape;  // outermost first, in both formats; empty: one element
  uint32_t file = 0;            // of Model::files
  uint64_t offset = 0;          // from the start of the file
  uint64_t bytes = 0;
};

struct ModelFile {
  std::string path;
  uint64_t bytes = 0;
};

struct Model {
  Format format{};
  std::string architecture, name;  // as the file says; empty where it does not (safetensors never does)
  uint32_t version = 0;            // of GGUF
  uint32_t experts_used = 0;       // per token, 0: not said
  std::vector<ModelFile> files;
  std::vector<Tensor> tensors;  // by file, then offset

  // NULL where there is none. O(log n).
  const Tensor* find(std::string_view tensor) const;
  // Orders tensors and the index of find(). kCorrupt: two of one name.
  Status index();

 private:
  std::vector<uint32_t> by_name_;
};

// PATH: a GGUF file (any part of a split one), a safetensors file, a model.safetensors.index.json, or a folder that
// holds one of these. Every tensor lies whole in its file and overlaps no other. kNotFound, kIo, kInvalid (no model,
// more than one), kCorrupt (malformed), kUnsupported (a version or type not known); one line each: FILE: what at offset
// N; what to do.
Result<Model> open_model(const std::string& path);

// One file, for tests and fuzzers. `split_no`, `split_count`: which part of how many a GGUF file says it is (0 of 0:
// not split).
struct Part {
  Model model;
  uint32_t split_no = 0, split_count = 0;
};
Result<Part> read_gguf(const Source& source, const std::string& file);
Result<Part> read_safetensors(const Source& source, const std::string& file);

// tensor -> file of a model.safetensors.index.json; every file is a plain name.
struct ShardIndex {
  std::vector<std::string> files;
  std::vector<std::pair<std::string, uint32_t>> tensors;  // name, index of files; in the index's order
};
Result<ShardIndex> read_shard_index(const Source& source, const std::string& file);

// Bytes of a tensor; kCorrupt text where the product wraps or the shape does not fit the type's blocks. Empty: fine.
std::string tensor_bytes(const Dtype& dtype, const std::vector<uint64_t>& shape, uint64_t* bytes);

}  // namespace neotier::model

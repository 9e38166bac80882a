// SPDX-License-Identifier: Apache-2.0
// Both JSON readers get each input.
#include <cstdint>
#include <cstdlib>

#include "model/experts.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace neotier::model;
  const MemorySource source({reinterpret_cast<const std::byte*>(data), size});
  if (auto shards = read_shard_index(source, "fuzz")) {
    for (const auto& [name, file] : shards->tensors)
      if (file >= shards->files.size()) std::abort();
  } else if (shards.status().what().find('\n') != std::string::npos) {
    std::abort();  // one line
  }
  auto part = read_safetensors(source, "fuzz");
  if (!part) {
    if (part.status().what().find('\n') != std::string::npos) std::abort();
    return 0;
  }
  uint64_t total = 0;
  for (const Tensor& t : part->model.tensors) {
    if (t.offset > size || t.bytes > size - t.offset || part->model.find(t.name) != &t) std::abort();
    total += t.bytes;
  }
  if (total > size) std::abort();
  if (auto map = find_experts(part->model))
    for (const Extent& e : map->all)
      if (e.offset > size || e.bytes > size - e.offset) std::abort();
  return 0;
}

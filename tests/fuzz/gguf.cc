// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>

#include "model/experts.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace neotier::model;
  const MemorySource source({reinterpret_cast<const std::byte*>(data), size});
  auto part = read_gguf(source, "fuzz");
  if (!part) {
    if (part.status().what().find('\n') != std::string::npos) std::abort();  // one line
    return 0;
  }
  for (const Tensor& t : part->model.tensors)
    if (t.offset > size || t.bytes > size - t.offset || part->model.find(t.name) != &t) std::abort();
  if (auto map = find_experts(part->model))
    for (const Extent& e : map->all)
      if (e.offset > size || e.bytes > size - e.offset) std::abort();
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// For tests: a file's bytes; none where it cannot be read.
#pragma once

#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace neotier {

inline std::string content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::vector<std::byte> content_bytes(const std::string& path) {
  const std::string text = content(path);
  const auto* const first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

}  // namespace neotier

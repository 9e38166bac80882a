// SPDX-License-Identifier: Apache-2.0
// Files that have been read into memory, as engine::File: a load is a copy by the thread that waits. For models whose
// experts lie in host memory and are brought nearer from there.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/io/file.h"

namespace neotier::experts {

// The memory stays the caller's.
struct ResidentRange {
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
};
std::unique_ptr<engine::File> resident_file(std::vector<ResidentRange> files);

}  // namespace neotier::experts

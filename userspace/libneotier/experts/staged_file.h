// SPDX-License-Identifier: Apache-2.0
// A file whose reads end in memory that the CPU cannot address, as a GPU's: each goes into a staging buffer, and from
// there to its place by the tier while the next ones are read. Io::iov names the tier's own addresses
// (Tier::address()); nothing is touched there by this.
//
// For tiers with a thread of their own. Reads of at most `piece_bytes`, a multiple of kIoBlock; longer ones end with
// -EINVAL. What the tier refuses ends with -ENODEV where it is out of service, else with -EIO.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/io/file.h"
#include "engine/tier.h"

namespace neotier::experts {

struct StagedPlace {
  std::byte* address = nullptr;
  uint64_t bytes = 0;
  engine::Extent extent = engine::kNoExtent;
};

// places: where reads may end, disjoint. pieces: staging buffers, 1 or more. nullptr: no memory for them.
std::unique_ptr<engine::File> staged_file(std::unique_ptr<engine::File> file, std::shared_ptr<engine::Tier> tier,
                                          std::vector<StagedPlace> places, uint64_t piece_bytes, uint32_t pieces);

}  // namespace neotier::experts

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "engine/io/file.h"
#include "engine/tiers/ssd/format.h"

namespace neotier::engine::ssd {

// `result` is a -errno: kFull or kIo.
Status io_error(int64_t result, const std::string& what);
// When nothing else is under way on the file. Errors name `path`. `version`: the older of its copies'.
Result<Geometry> read_superblock(File& file, const std::string& path, uint32_t& version);
// Durable when it returns. Of a file that has one: a copy is written when the other one is whole.
Status write_superblock(File& file, const Geometry& geometry, const std::string& path);
// Zeros in its place, durable when it returns; cut short, the first copy is still whole.
Status erase_superblock(File& file, const std::string& path);

}  // namespace neotier::engine::ssd

// SPDX-License-Identifier: Apache-2.0
// Sizes as people write them.
#pragma once

#include <cstdint>
#include <string>

namespace neotier {

// "256M", "1G", "64K" or bytes; powers of 1024. Throws std::invalid_argument with one line.
uint64_t parse_size(const std::string& text);
// "256 MiB", "1.5 GiB".
std::string format_size(uint64_t bytes);

}  // namespace neotier

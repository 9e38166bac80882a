// SPDX-License-Identifier: Apache-2.0
// stub for now
#pragma once
#include <cstdint>
namespace neotier::replay {
constexpr uint64_t kKvBytesPerToken = 128 * 1024;
}

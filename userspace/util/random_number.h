// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>

namespace neotier {

// From the operating system: no two processes get the same. Not for tests.
inline uint64_t random_number() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace neotier

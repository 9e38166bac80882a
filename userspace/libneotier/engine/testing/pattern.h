// SPDX-License-Identifier: Apache-2.0
// Content for tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "engine/tier.h"

namespace neotier::engine {

using Bytes = std::vector<std::byte>;

inline Key make_key(uint64_t n) {
  Key key;
  std::memcpy(key.bytes, &n, sizeof n);
  return key;
}

// Bytes that name their place, so that any that come from elsewhere are seen.
inline Bytes pattern(uint64_t seed, size_t bytes) {
  Bytes made(bytes);
  std::mt19937_64 random(seed * 0x9E3779B97F4A7C15u + 1);
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = random();
    std::memcpy(made.data() + i, &word, std::min<size_t>(8, bytes - i));
  }
  return made;
}

// NEOTIER_TEST_SEED repeats a run of the random tests.
inline uint64_t test_seed() {
  const char* given = std::getenv("NEOTIER_TEST_SEED");
  return given ? std::strtoull(given, nullptr, 10) : 1;
}

}  // namespace neotier::engine

// SPDX-License-Identifier: Apache-2.0
// The random numbers of the programs here: the same from a seed on every machine and with every library.
#ifndef NEOTIER_PROGRAMS_RANDOM_H
#define NEOTIER_PROGRAMS_RANDOM_H

#include <cstdint>

namespace neotier {

// SplitMix64 (Steele, Lea and Flood 2014): one multiply chain a number, any seed. Not thread-safe.
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  // A number of [0, n).
  uint32_t below(uint32_t n) { return static_cast<uint32_t>((next() >> 32) * n >> 32); }
};

}  // namespace neotier

#endif

// SPDX-License-Identifier: Apache-2.0
#include "replay/tiers.h"
#include "replay/kv.h"
namespace neotier::replay {
uint64_t prefill_ns(uint64_t before, uint64_t tokens) {
  return static_cast<uint64_t>(double(tokens) * (16.06e9 + 524288.0 * (double(before) + double(tokens) / 2)) / 400e12 * 1e9);
}
}

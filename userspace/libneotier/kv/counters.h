// SPDX-License-Identifier: Apache-2.0
// What a KV store has done since it was opened. Named once: status, metrics and documents follow this list.
#pragma once

#include <cstdint>
#include <vector>

#define NEOTIER_KV_COUNTERS(X)                                                              \
  X(requests, "requests that the policies were told of")                                    \
  X(lookups, "look-ups")                                                                    \
  X(lookup_blocks, "blocks that were asked for in look-ups")                                \
  X(lookup_hits, "of those, leading blocks that were there")                                \
  X(offered, "blocks offered to be stored")                                                 \
  X(stored, "of those, stored")                                                             \
  X(present, "of those, there already")                                                     \
  X(filtered, "of those, kept out by the filter")                                           \
  X(passed, "of those, not wanted by any tier's policy")                                    \
  X(over_quota, "of those, refused for the tenant's quota")                                 \
  X(no_room, "of those, refused for want of room")                                          \
  X(loads, "loads")                                                                         \
  X(loaded_blocks, "blocks that were loaded whole")                                         \
  X(failed_blocks, "blocks that were to be loaded and did not arrive")                      \
  X(decided_all, "loads that were to decide: all of what was there was worth loading")      \
  X(decided_part, "the same: a part")                                                       \
  X(decided_none, "the same: nothing")                                                      \
  X(bypassed_blocks, "blocks that were there and that were faster to compute than to load") \
  X(trials, "of those, read nevertheless, to see whether their tier is still slow")         \
  X(quota_evictions, "blocks that made room for others of their tenant")                    \
  X(expired_sessions, "sessions whose time was over")                                       \
  X(expired_blocks, "blocks that went with their session")

namespace neotier::kv {

struct StoreCounters {
#define NEOTIER_COUNTER(name, help) uint64_t name = 0;
  NEOTIER_KV_COUNTERS(NEOTIER_COUNTER)
#undef NEOTIER_COUNTER
  std::vector<uint64_t> bypassed_of_tier;  // bypassed_blocks by the tier that had them
};

}  // namespace neotier::kv

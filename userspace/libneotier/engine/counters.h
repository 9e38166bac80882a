// SPDX-License-Identifier: Apache-2.0
// What the engine counts, each with the sentence that metrics print for it. Counters never go back.
//
// Thread safety: none; the engine's lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace neotier::engine {

// name, help. Names become neotier_NAME_total.
#define NEOTIER_COUNTERS(X)                                                                           \
  X(hits, "uses of objects that were in a tier in service")                                           \
  X(misses, "uses of keys that were nowhere")                                                         \
  X(request_events, "requests told to the policies whole")                                            \
  X(let_pass, "objects of requests that the policies of all tiers let pass")                          \
  X(puts, "objects stored")                                                                           \
  X(removes, "objects removed on request")                                                            \
  X(moves, "objects that changed tiers, for any reason")                                              \
  X(moved_bytes, "bytes of those")                                                                    \
  X(demand_loads, "moves that a caller waited for")                                                   \
  X(prefetches, "moves ahead of use, on request")                                                     \
  X(promotions, "moves to a faster tier because the object was hot")                                  \
  X(demotions, "moves to a slower tier to make room")                                                 \
  X(write_backs, "copies made on a durable tier ahead of eviction")                                   \
  X(clean_drops, "evictions that only dropped a copy, another one being there")                       \
  X(discards, "objects thrown away that can be made anew, no tier having room worth the time")        \
  X(bypasses, "tiers passed over because loading from them takes longer than making the object anew") \
  X(hysteresis_holds, "moves not made because the object had just moved")                             \
  X(hysteresis_overrides, "moves made nevertheless, demand having no other victim")                   \
  X(joins, "requests that found the move they asked for under way")                                   \
  X(cancels, "moves that ended early on request")                                                     \
  X(stale_moves, "moves thrown away because the object changed meanwhile")                            \
  X(pinned_moves, "moves thrown away because the object was pinned meanwhile")                        \
  X(failed_moves, "moves that a tier failed; the object stayed where it was")                         \
  X(corrupt_reads, "transfers that came back with bytes that were not those written")                 \
  X(lost_copies, "copies that a tier's medium had lost or spoilt, and that were forgotten")           \
  X(found_copies, "objects of other processes that were found on a shared tier")                      \
  X(second_copy_reads, "reads served by another copy, the first one's tier having failed")            \
  X(full_refusals, "requests refused because no room could be made")                                  \
  X(tier_failures, "times a tier was taken out of service")                                           \
  X(tier_returns, "times one came back")                                                              \
  X(lease_expiries, "pins that ended because their time was over")                                    \
  X(session_releases, "pins that ended because their session closed")                                 \
  X(recommended_loads, "decisions for loading")                                                       \
  X(recommended_recomputes, "decisions for making the object anew")                                   \
  X(recommended_cpu_computes, "decisions for computing on the CPU, where the object lies")

struct Counters {
#define NEOTIER_COUNTER(name, help) uint64_t name = 0;
  NEOTIER_COUNTERS(NEOTIER_COUNTER)
#undef NEOTIER_COUNTER
};

}  // namespace neotier::engine

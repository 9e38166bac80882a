/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NeoTier's placement policies for a host that keeps blocks and their slots itself, and asks only what to evict: the cache policy of a
 * serving engine. Nothing here holds a block's bytes. docs/policies.md tells what the policies are and what they bring.
 *
 * A request is told whole, once, with all blocks of its prefix in order: that is what the policies learn from. Then what is missing may
 * be inserted, after as many others were evicted as it takes.
 *
 * Errors and versions are those of neotier.h. Thread safety: one caller at a time.
 */
#ifndef NEOTIER_SLOTS_H
#define NEOTIER_SLOTS_H

#include "neotier.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct neotier_slots neotier_slots;

struct neotier_slots_config {
	uint32_t struct_bytes;
	uint32_t capacity;    /* slots, required: 1 .. 2^30 */
	const char *name;     /* hazard; or another of docs/policies.md, or a shared library's path */
	uint64_t history;     /* blocks remembered that have no slot; four times the capacity, 4096 at least */
	uint64_t block_bytes; /* of a slot; only policies that weigh size see it */
	uint64_t seed;
};

struct neotier_slots_request_info {
	uint32_t struct_bytes;
	uint32_t category;       /* kind of request (chat, search, ...), numbered from 1 as the caller likes; 0: not known */
	uint64_t now_ns;         /* never decreasing; 0: the machine's steady clock */
	const uint64_t *cost_ns; /* [nr], to make each block anew; may be NULL */
	uint32_t first_position; /* blocks of the prefix before the first */
	uint32_t reserved;
};

/* NULL and neotier_error() where the config is none, or there is no such policy. */
NEOTIER_API neotier_slots *neotier_slots_open(const struct neotier_slots_config *config);
NEOTIER_API void neotier_slots_close(neotier_slots *slots);

/* A request uses these blocks. How many of them have a slot. info may be NULL. */
NEOTIER_API int64_t neotier_slots_request(neotier_slots *slots, const struct neotier_object_key *keys, size_t nr,
					   const struct neotier_slots_request_info *info);
/* It has a slot now. NEOTIER_EEXISTS: it has one already. NEOTIER_EFULL: none is left. */
NEOTIER_API int neotier_slots_insert(neotier_slots *slots, const struct neotier_object_key *key);
/* Its slot is free, by the caller's own decision. NEOTIER_ENOTFOUND. */
NEOTIER_API int neotier_slots_remove(neotier_slots *slots, const struct neotier_object_key *key);
/* pinned 1: it must not be evicted, until 0. NEOTIER_ENOTFOUND. */
NEOTIER_API int neotier_slots_pin(neotier_slots *slots, const struct neotier_object_key *key, uint32_t pinned);
/*
 * Writes `nr` blocks to `victims`, best to evict first, none of them pinned or of the `spared`; their slots are free then.
 * NEOTIER_EFULL: there are not so many, and nothing has changed.
 */
NEOTIER_API int neotier_slots_evict(neotier_slots *slots, size_t nr, const struct neotier_object_key *spared, size_t nr_spared,
				     struct neotier_object_key *victims);

#ifdef __cplusplus
}
#endif
#endif

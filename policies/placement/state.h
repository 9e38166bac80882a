/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Cutting a state block into a head and arrays, the same way in state_bytes and in init. */
#ifndef NEOTIER_PLACEMENT_STATE_H
#define NEOTIER_PLACEMENT_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "neotier_placement.h"

/* Next `nr` x `size` bytes of the block, 64-byte aligned. `base` may be NULL: then only the offset moves on. */
static inline void *nt_carve(void *base, size_t *offset, size_t nr, size_t size)
{
	size_t at = *offset;

	*offset = (at + nr * size + 63) & ~(size_t)63;
	return base ? (unsigned char *)base + at : base;
}

static inline int nt_config_ok(const struct neotier_placement_config *config)
{
	return config && config->abi == NEOTIER_PLACEMENT_ABI && config->struct_bytes >= sizeof(*config) &&
	       config->objects >= 1 && config->objects < NEOTIER_NO_OBJECT && config->groups >= 1 &&
	       (config->groups == 1 || (uint64_t)config->groups * config->experts_per_group == config->objects) &&
	       config->capacity >= 1 && config->flags;
}

/* SplitMix64 (Steele et al. 2014): the seed's only consumer, so that equal seeds give equal answers. */
static inline uint64_t nt_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

#endif

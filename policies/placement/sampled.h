/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Policies whose order changes with time alone: the lowest of a random sample of the residents goes, as Redis and the papers named
 * in each policy do. One cache. 16 bytes an object.
 */
#ifndef NEOTIER_PLACEMENT_SAMPLED_H
#define NEOTIER_PLACEMENT_SAMPLED_H

#include <float.h>

#include "base.h"
#include "bits.h"

enum { NT_SAMPLE = 64 };

struct nt_sampled {
	struct nt_base base;
	uint32_t *residents; /* [capacity in use] */
	uint32_t *at;        /* [objects]: index among the residents */
	uint32_t size;
	uint64_t random;
	uint64_t clock;    /* touches so far */
	uint64_t *touched; /* [objects]: clock at the last touch */
};

static inline void nt_sampled_carve(struct nt_sampled *s, void *block, size_t *offset,
				    const struct neotier_placement_config *config)
{
	s->residents = (uint32_t *)nt_carve(block, offset, config->objects, sizeof(uint32_t));
	s->at = (uint32_t *)nt_carve(block, offset, config->objects, sizeof(uint32_t));
	s->touched = (uint64_t *)nt_carve(block, offset, config->objects, sizeof(uint64_t));
}

static inline void nt_sampled_start(struct nt_sampled *s, const struct neotier_placement_config *config)
{
	s->random = config->seed;
}

static inline void nt_sampled_add(struct nt_sampled *s, uint32_t object)
{
	s->base.place[object] = NT_HELD;
	s->at[object] = s->size;
	s->residents[s->size++] = object;
}

static inline void nt_sampled_drop(struct nt_sampled *s, uint32_t object)
{
	uint32_t last = s->residents[--s->size];

	s->base.place[object] = NT_OUT;
	s->residents[s->at[object]] = last;
	s->at[last] = s->at[object];
}

/* Objects to judge: all residents where they are few or most of a sample is pinned, else NT_SAMPLE at random. */
static inline uint32_t nt_sampled_pick(struct nt_sampled *s, uint32_t i)
{
	return s->size <= NT_SAMPLE ? s->residents[i] : s->residents[nt_random(&s->random) % s->size];
}

/* The unpinned object of lowest worth, or 0 found. `worth` is called with the state and an object. */
static inline uint32_t nt_sampled_take(struct nt_sampled *s, double (*worth)(void *state, uint32_t object), uint32_t *out)
{
	uint32_t tries = s->size < NT_SAMPLE ? s->size : NT_SAMPLE, i, object, best = NEOTIER_NO_OBJECT;
	double lowest = DBL_MAX, w;

	for (i = 0; i < tries; i++) {
		object = nt_sampled_pick(s, i);
		if (s->base.flags[object] & NEOTIER_PINNED)
			continue;
		w = worth(s, object);
		/* Ties: least recently touched. */
		if (w < lowest || (w == lowest && s->touched[object] < s->touched[best])) {
			lowest = w;
			best = object;
		}
	}
	for (i = 0; i < s->size && best == NEOTIER_NO_OBJECT; i++)
		if (!(s->base.flags[s->residents[i]] & NEOTIER_PINNED))
			best = s->residents[i];
	out[0] = best;
	return best != NEOTIER_NO_OBJECT;
}

#endif

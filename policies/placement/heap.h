/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Indexed binary heap over object handles: the lowest (score, tie) on top. One heap a group; the slots of a group lie together.
 * 28 bytes an object.
 */
#ifndef NEOTIER_PLACEMENT_HEAP_H
#define NEOTIER_PLACEMENT_HEAP_H

#include <stdint.h>

#include "neotier_placement.h"
#include "state.h"

struct nt_rank {
	double score;
	uint64_t tie;
};

struct nt_heap {
	uint32_t *slots; /* objects, heap-ordered */
	uint32_t size;
};

struct nt_heaps {
	struct nt_heap *heaps; /* [groups] */
	struct nt_rank *rank;  /* [objects] */
	uint32_t *at;          /* [objects]: index in the heap's slots */
	uint32_t *slots;       /* [objects] */
	uint32_t *aside;       /* [objects]: taken out for the length of one nt_heap_take */
};

static inline void nt_heaps_carve(struct nt_heaps *h, void *block, size_t *offset,
				  const struct neotier_placement_config *config)
{
	h->heaps = (struct nt_heap *)nt_carve(block, offset, config->groups, sizeof(struct nt_heap));
	h->rank = (struct nt_rank *)nt_carve(block, offset, config->objects, sizeof(struct nt_rank));
	h->at = (uint32_t *)nt_carve(block, offset, config->objects, sizeof(uint32_t));
	h->slots = (uint32_t *)nt_carve(block, offset, config->objects, sizeof(uint32_t));
	h->aside = (uint32_t *)nt_carve(block, offset, config->objects, sizeof(uint32_t));
}

static inline void nt_heaps_start(struct nt_heaps *h, const struct neotier_placement_config *config)
{
	uint32_t group;

	for (group = 0; group < config->groups; group++)
		h->heaps[group].slots = h->slots + (size_t)group * config->experts_per_group;
}

static inline int nt_rank_below(const struct nt_rank *a, const struct nt_rank *b)
{
	return a->score < b->score || (a->score == b->score && a->tie < b->tie);
}

static inline void nt_heap_put(struct nt_heaps *h, struct nt_heap *heap, uint32_t slot, uint32_t object)
{
	heap->slots[slot] = object;
	h->at[object] = slot;
}

static inline void nt_heap_up(struct nt_heaps *h, struct nt_heap *heap, uint32_t slot)
{
	uint32_t object = heap->slots[slot];

	while (slot > 0) {
		uint32_t parent = (slot - 1) / 2;

		if (!nt_rank_below(&h->rank[object], &h->rank[heap->slots[parent]]))
			break;
		nt_heap_put(h, heap, slot, heap->slots[parent]);
		slot = parent;
	}
	nt_heap_put(h, heap, slot, object);
}

static inline void nt_heap_down(struct nt_heaps *h, struct nt_heap *heap, uint32_t slot)
{
	uint32_t object = heap->slots[slot];

	for (;;) {
		uint32_t child = 2 * slot + 1;

		if (child >= heap->size)
			break;
		if (child + 1 < heap->size &&
		    nt_rank_below(&h->rank[heap->slots[child + 1]], &h->rank[heap->slots[child]]))
			child++;
		if (!nt_rank_below(&h->rank[heap->slots[child]], &h->rank[object]))
			break;
		nt_heap_put(h, heap, slot, heap->slots[child]);
		slot = child;
	}
	nt_heap_put(h, heap, slot, object);
}

/* h->rank[object] is set. */
static inline void nt_heap_add(struct nt_heaps *h, uint32_t group, uint32_t object)
{
	struct nt_heap *heap = &h->heaps[group];

	nt_heap_put(h, heap, heap->size++, object);
	nt_heap_up(h, heap, heap->size - 1);
}

/* h->rank[object] has changed. */
static inline void nt_heap_moved(struct nt_heaps *h, uint32_t group, uint32_t object)
{
	nt_heap_up(h, &h->heaps[group], h->at[object]);
	nt_heap_down(h, &h->heaps[group], h->at[object]);
}

static inline void nt_heap_drop(struct nt_heaps *h, uint32_t group, uint32_t object)
{
	struct nt_heap *heap = &h->heaps[group];
	uint32_t slot = h->at[object], last = heap->slots[--heap->size];

	if (last == object)
		return;
	nt_heap_put(h, heap, slot, last);
	nt_heap_moved(h, group, last);
}

/* Writes up to `want` unpinned objects to `out`, lowest first; returns how many. */
static inline uint32_t nt_heap_take(struct nt_heaps *h, uint32_t group, const uint8_t *flags, uint32_t want, uint32_t *out)
{
	struct nt_heap *heap = &h->heaps[group];
	uint32_t found = 0, aside = 0, i;

	if (want == 1 && heap->size > 0 && !(flags[heap->slots[0]] & NEOTIER_PINNED)) {
		out[0] = heap->slots[0];
		return 1;
	}
	while (heap->size > 0 && found < want) {
		uint32_t object = heap->slots[0];

		nt_heap_drop(h, group, object);
		h->aside[aside++] = object;
		if (!(flags[object] & NEOTIER_PINNED))
			out[found++] = object;
	}
	for (i = 0; i < aside; i++)
		nt_heap_add(h, group, h->aside[i]);
	return found;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Policies whose order between two objects changes only when one of them is touched: a score is set at each touch, the lowest
 * goes. A policy is a function that gives the score; this file keeps the heap. Ties go to the least recently touched; among
 * experts, whose events are atomic, to the lowest handle.
 *
 * Include once in a policy's file, after defining nothing; then NT_SCORE_POLICY(name) with NAME_touch() in scope.
 */
#ifndef NEOTIER_PLACEMENT_SCORE_H
#define NEOTIER_PLACEMENT_SCORE_H

#include "base.h"
#include "bits.h"
#include "heap.h"

struct nt_score {
	struct nt_base base;
	struct nt_heaps heaps;
	uint64_t touches;   /* so far, of all objects: the clock */
	uint32_t by_handle; /* ties */
	double *value;      /* [objects]: the policy's own; outlives residency, 0 for a new or forgotten object */
	double floor;       /* highest score evicted so far */
	double rate;        /* the policy's parameter */
};

static void nt_score_carve(struct nt_score *s, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	nt_heaps_carve(&s->heaps, block, offset, config);
	s->value = (double *)nt_carve(block, offset, config->objects, sizeof(double));
}

static void nt_score_start(struct nt_score *s, const struct neotier_placement_config *config)
{
	nt_heaps_start(&s->heaps, config);
	s->by_handle = config->kind == NEOTIER_KIND_EXPERT;
}

NT_STATE(nt_score, base, UINT32_MAX)

typedef double nt_touch_fn(struct nt_score *s, const struct neotier_access *access);

static inline void nt_score_rank(struct nt_score *s, const struct neotier_access *access, nt_touch_fn *touch)
{
	s->touches++;
	s->heaps.rank[access->object].score = touch(s, access);
	s->heaps.rank[access->object].tie = s->by_handle ? access->object : s->touches;
}

static inline int nt_score_hit(struct nt_score *s, const struct neotier_access *access, nt_touch_fn *touch)
{
	if (!nt_held(&s->base, access->object))
		return NEOTIER_REFUSED;
	nt_score_rank(s, access, touch);
	nt_heap_moved(&s->heaps, nt_group(&s->base, access->object), access->object);
	return NEOTIER_OK;
}

static inline int nt_score_insert(struct nt_score *s, const struct neotier_access *access, nt_touch_fn *touch)
{
	if (!nt_may_insert(&s->base, access->object))
		return NEOTIER_REFUSED;
	s->base.place[access->object] = NT_HELD;
	nt_score_rank(s, access, touch);
	nt_heap_add(&s->heaps, nt_group(&s->base, access->object), access->object);
	return NEOTIER_OK;
}

static int nt_score_remove(void *state, uint32_t object, enum neotier_remove_reason reason)
{
	struct nt_score *s = (struct nt_score *)state;

	if (!nt_may_remove(&s->base, object, reason))
		return NEOTIER_REFUSED;
	if (reason == NEOTIER_FORGOTTEN) {
		s->value[object] = 0;
		return NEOTIER_OK;
	}
	if (reason == NEOTIER_EVICTED && s->heaps.rank[object].score > s->floor)
		s->floor = s->heaps.rank[object].score;
	s->base.place[object] = NT_OUT;
	nt_heap_drop(&s->heaps, nt_group(&s->base, object), object);
	return NEOTIER_OK;
}

static uint32_t nt_score_victims(void *state, const struct neotier_event *event, uint32_t index, uint32_t want,
				 uint32_t *out)
{
	struct nt_score *s = (struct nt_score *)state;

	return nt_heap_take(&s->heaps, nt_group(&s->base, event->access[index].object), s->base.flags, want, out);
}

/* NAME_hit and NAME_insert around NAME_touch, which the including file defines before. */
#define NT_SCORE_POLICY(name)                                                                                          \
	static int name##_hit(void *state, const struct neotier_event *event, uint32_t index)                          \
	{                                                                                                              \
		return nt_score_hit((struct nt_score *)state, &event->access[index], name##_touch);                    \
	}                                                                                                              \
	static int name##_insert(void *state, const struct neotier_event *event, uint32_t index)                       \
	{                                                                                                              \
		return nt_score_insert((struct nt_score *)state, &event->access[index], name##_touch);                 \
	}

#define NT_SCORE_SLOTS(name_, remove_)                                                                                          \
	.abi = NEOTIER_PLACEMENT_ABI, .struct_bytes = sizeof(struct neotier_placement),                                \
	.state_bytes = nt_score_state_bytes, .on_hit = name_##_hit, .on_insert = name_##_insert,                       \
	.on_remove = remove_, .victims = nt_score_victims

#endif

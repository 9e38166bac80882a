/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Least-Stale: experts that the current sweep through the layers has passed (or that earlier tokens left behind) go first, in the
 * order they came; what was fetched ahead for a layer still to come stays. Made for one cache shared by all layers, where LRU
 * throws out exactly the next layer's experts; in a cache a layer only the second half of the rule is left. 13 bytes an expert.
 */
#include "expert.h"

struct least_stale {
	struct nt_expert expert;
	uint64_t arrivals;
};

/* Above every arrival: not stale. */
#define FRESH 0x1p53

static void least_stale_carve(struct least_stale *s, void *block, size_t *offset,
			      const struct neotier_placement_config *config)
{
	(void)s;
	(void)block;
	(void)offset;
	(void)config;
}

static void least_stale_start(struct least_stale *s, const struct neotier_placement_config *config)
{
	(void)s;
	(void)config;
}

NT_EXPERT_STATE(least_stale)

/* The sweep passes this layer now: what waited for it, used or not, is stale from here on. */
static void least_stale_event(void *state, const struct neotier_event *event)
{
	struct least_stale *s = state;
	double *score = s->expert.score + (size_t)event->group * s->expert.base.per_group;
	uint32_t i;

	for (i = 0; i < s->expert.base.per_group; i++) {
		if (score[i] >= FRESH)
			score[i] -= FRESH;
	}
}

static int least_stale_insert(void *state, const struct neotier_event *event, uint32_t index)
{
	struct least_stale *s = state;
	int result = nt_expert_insert(state, event, index);

	if (result == NEOTIER_OK) {
		s->expert.score[event->access[index].object] =
			(double)++s->arrivals + (event->kind == NEOTIER_EVENT_PREFETCH ? FRESH : 0);
	}
	return result;
}

const struct neotier_placement neotier_placement_least_stale = {
	.abi = NEOTIER_PLACEMENT_ABI,
	.struct_bytes = sizeof(struct neotier_placement),
	.flags = NEOTIER_EXPERTS,
	.state_bytes = least_stale_state_bytes,
	.init = least_stale_init,
	.on_event = least_stale_event,
	.on_hit = nt_expert_hit,
	.on_insert = least_stale_insert,
	.on_remove = nt_expert_remove,
	.victims = nt_expert_victims,
	.name = "least-stale",
	.text = "what the sweep through the layers has passed goes first, oldest arrival first",
	.source = "SpecMD (arXiv 2602.03921)",
};

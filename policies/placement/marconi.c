// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * FLOP-aware eviction after Marconi: worth = recency + alpha x compute saved per byte, each scaled to 0 .. 1 over the sample. A
 * block's compute is that of its prefill after its prefix, so blocks deep in a long prefix are kept longer. Right where prefill of
 * long contexts is what hurts; it trades hits for compute. Marconi's admission by reuse class is for recurrent states, which are kept
 * at branches only; blocks of attention KV are all let in. 21 bytes an object.
 */
#include "sampled.h"

struct marconi {
	struct nt_sampled sampled;
	float *saved;  /* [objects]: ns of compute a byte */
	float alpha;
	float highest; /* compute a byte, of all seen */
};

static const struct neotier_placement_param marconi_params[] = {
	{ "alpha", 1, 0, 1000, "weight of compute saved per byte against recency" },
};

static void marconi_carve(struct marconi *s, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	nt_sampled_carve(&s->sampled, block, offset, config);
	s->saved = nt_carve(block, offset, config->objects, sizeof(*s->saved));
}

static void marconi_start(struct marconi *s, const struct neotier_placement_config *config)
{
	nt_sampled_start(&s->sampled, config);
	s->alpha = (float)config->params[0];
}

NT_STATE(marconi, sampled.base, 1)

static int marconi_hit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct marconi *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_held(&s->sampled.base, object))
		return NEOTIER_REFUSED;
	s->sampled.touched[object] = s->sampled.clock++;
	return NEOTIER_OK;
}

static int marconi_insert(void *state, const struct neotier_event *event, uint32_t index)
{
	struct marconi *s = state;
	const struct neotier_access *access = &event->access[index];
	float saved = (float)access->cost_ns / (float)access->bytes;

	if (!nt_may_insert(&s->sampled.base, access->object))
		return NEOTIER_REFUSED;
	nt_sampled_add(&s->sampled, access->object);
	s->sampled.touched[access->object] = s->sampled.clock++;
	s->saved[access->object] = saved;
	if (saved > s->highest)
		s->highest = saved;
	return NEOTIER_OK;
}

static int marconi_remove(void *state, uint32_t object, enum neotier_remove_reason reason)
{
	struct marconi *s = state;

	if (!nt_may_remove(&s->sampled.base, object, reason))
		return NEOTIER_REFUSED;
	if (reason != NEOTIER_FORGOTTEN)
		nt_sampled_drop(&s->sampled, object);
	return NEOTIER_OK;
}

/* Recency against the age at which a block of this room would be gone under LRU. */
static double marconi_worth(void *state, uint32_t object)
{
	struct marconi *s = state;
	double age = (double)(s->sampled.clock - s->sampled.touched[object]), room = (double)s->sampled.base.capacity;

	return room / (room + age) + (s->highest > 0 ? (double)s->alpha * (double)(s->saved[object] / s->highest) : 0);
}

static uint32_t marconi_victims(void *state, const struct neotier_event *event, uint32_t index, uint32_t want, uint32_t *out)
{
	(void)event, (void)index, (void)want;
	return nt_sampled_take(state, marconi_worth, out);
}

const struct neotier_placement neotier_placement_marconi = {
	NT_SLOTS(marconi),
	.name = "flop-aware",
	.text = "recency + alpha x compute saved per byte, lowest of a sample goes",
	.source = "Marconi, MLSys 2025",
	.flags = NEOTIER_KV,
	.nr_params = 1,
	.params = marconi_params,
};

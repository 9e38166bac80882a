// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Hyperbolic caching: worth = touches since insertion / time since insertion (x cost / size), so a newcomer's worth falls like a
 * hyperbola until it is touched, and a popular object's settles at its rate. Lowest of 64 sampled residents goes. Right where
 * popularity is a rate that changes slowly; wrong for bursts with a pause between them, such as turns of a chat. 33 bytes an object.
 */
#include "sampled.h"

struct hyperbolic {
	struct nt_sampled sampled; /* begins with the base */
	uint64_t *inserted;        /* [objects]: clock */
	uint32_t *touches;         /* [objects]: since insertion */
	float *price;              /* [objects]: cost / size */
};

static void hyperbolic_carve(struct hyperbolic *s, void *block, size_t *offset,
			     const struct neotier_placement_config *config)
{
	nt_sampled_carve(&s->sampled, block, offset, config);
	s->inserted = nt_carve(block, offset, config->objects, sizeof(*s->inserted));
	s->touches = nt_carve(block, offset, config->objects, sizeof(*s->touches));
	s->price = nt_carve(block, offset, config->objects, sizeof(*s->price));
}

static void hyperbolic_start(struct hyperbolic *s, const struct neotier_placement_config *config)
{
	nt_sampled_start(&s->sampled, config);
}

NT_STATE(hyperbolic, sampled.base, 1)

static int hyperbolic_hit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct hyperbolic *s = state;
	uint32_t object = event->access[index].object;

	if (!nt_held(&s->sampled.base, object))
		return NEOTIER_REFUSED;
	s->sampled.touched[object] = s->sampled.clock++;
	s->touches[object]++;
	return NEOTIER_OK;
}

static int hyperbolic_insert(void *state, const struct neotier_event *event, uint32_t index)
{
	struct hyperbolic *s = state;
	const struct neotier_access *access = &event->access[index];

	if (!nt_may_insert(&s->sampled.base, access->object))
		return NEOTIER_REFUSED;
	nt_sampled_add(&s->sampled, access->object);
	s->inserted[access->object] = s->sampled.touched[access->object] = s->sampled.clock++;
	s->touches[access->object] = 1;
	s->price[access->object] = access->cost_ns ? (float)access->cost_ns / (float)access->bytes : 1 / (float)access->bytes;
	return NEOTIER_OK;
}

static int hyperbolic_remove(void *state, uint32_t object, enum neotier_remove_reason reason)
{
	struct hyperbolic *s = state;

	if (!nt_may_remove(&s->sampled.base, object, reason))
		return NEOTIER_REFUSED;
	if (reason != NEOTIER_FORGOTTEN)
		nt_sampled_drop(&s->sampled, object);
	return NEOTIER_OK;
}

static double hyperbolic_worth(void *state, uint32_t object)
{
	struct hyperbolic *s = state;

	return s->touches[object] * (double)s->price[object] / (double)(s->sampled.clock - s->inserted[object]);
}

static uint32_t hyperbolic_victims(void *state, const struct neotier_event *event, uint32_t index, uint32_t want,
				   uint32_t *out)
{
	(void)event, (void)index, (void)want;
	return nt_sampled_take(state, hyperbolic_worth, out);
}

const struct neotier_placement neotier_placement_hyperbolic = {
	NT_SLOTS(hyperbolic),
	.name = "hyperbolic",
	.text = "touches / time since insertion x cost / size, lowest of a sample goes",
	.source = "Blankstein, Sen, Freedman, Hyperbolic Caching, USENIX ATC 2017",
	.flags = NEOTIER_KV,
};

// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * LRFU: every touch counts 2^(-age / half-life), summed. Between LRU (half-life 0) and LFU (for ever). Formula at time t:
 * C(t) = 1 + C(last) * 2^(-(t - last) / h). All sums shrink at one rate, so the order is that of log2 C + last / h, which does not
 * change between touches. Time is touches; h is a multiple of the capacity. Wrong where one half-life does not fit all: documents
 * asked for hourly and turns of a chat. 37 bytes an object.
 */
#include "score.h"

/* value: log2 C + last / h, plus one so that 0 stays "never touched" (both terms are >= 0). */
static double lrfu_touch(struct nt_score *s, const struct neotier_access *access)
{
	double now = (double)s->touches * s->rate, before = s->value[access->object];

	return s->value[access->object] = 1 + now + (before > 0 ? nt_log2(1 + nt_exp2(before - 1 - now)) : 0);
}

static const struct neotier_placement_param lrfu_params[] = {
	{ "half_life_capacities", 4, 1e-3, 1e6, "touches until a touch counts half, as a multiple of the capacity" },
};

static int lrfu_init(void *state, const struct neotier_placement_config *config)
{
	struct nt_score *s = state;

	if (nt_score_init(state, config) != NEOTIER_OK)
		return NEOTIER_REFUSED;
	s->rate = 1 / (config->params[0] * (double)config->capacity * (double)config->groups);
	return NEOTIER_OK;
}

NT_SCORE_POLICY(lrfu)

const struct neotier_placement neotier_placement_lrfu = {
	NT_SCORE_SLOTS(lrfu, nt_score_remove),
	.init = lrfu_init,
	.name = "lrfu",
	.text = "recency and frequency combined: touches that fade with age, summed",
	.source = "Lee et al., LRFU, IEEE Trans. Computers 50(12), 2001",
	.flags = NEOTIER_KV | NEOTIER_EXPERTS,
	.nr_params = 1,
	.params = lrfu_params,
};

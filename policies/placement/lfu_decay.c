/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Decayed LFU: a use adds 1, each event of the layer multiplies by `decay`. Metric: recent frequency over some 1 / (1 - decay)
 * tokens. The best of the simple ones on gpt-oss-20b; blind to what follows what. 13 bytes an expert.
 */
#include "expert.h"

struct lfu_decay {
	struct nt_expert expert;
	double decay;
};

static const struct neotier_placement_param lfu_decay_params[] = {
	{ "decay", 0.98, 0, 1, "factor on every score, each event of the layer" },
};

static void lfu_decay_carve(struct lfu_decay *s, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	(void)s;
	(void)block;
	(void)offset;
	(void)config;
}

static void lfu_decay_start(struct lfu_decay *s, const struct neotier_placement_config *config)
{
	s->decay = config->params[0];
}

static void lfu_decay_event(void *state, const struct neotier_event *event)
{
	struct lfu_decay *s = state;
	double *score = s->expert.score + (size_t)event->group * s->expert.base.per_group;
	uint32_t i;

	for (i = 0; i < s->expert.base.per_group; i++)
		score[i] *= s->decay;
	for (i = 0; i < event->nr; i++)
		s->expert.score[event->access[i].object] += 1;
}

NT_EXPERT_STATE(lfu_decay)

const struct neotier_placement neotier_placement_lfu_decay = {
	NT_EXPERT_SLOTS(lfu_decay),
	.name = "lfu-decay",
	.text = "least frequently used, counts fading by the token",
	.source = "classic; score accumulation as in HybriMoE (DAC 2025)",
	.nr_params = 1,
	.params = lfu_decay_params,
};

/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Ours, for experts. Metric: the discounted time to the next use, learned online by expert_reuse.h from recency, transitions,
 * frequency and the layers around; the lowest goes, and an expert that is worth less than all that could make way for it is
 * served without being kept. Learns from every choice of the router, resident or not. Right wherever routing repeats; its first
 * few hundred tokens are those of a decayed LFU. State: see expert_reuse.h, and 13 bytes an expert.
 */
#include "expert.h"
#include "expert_reuse.h"

struct expert_learned {
	struct nt_expert expert;
	struct nt_reuse reuse;
	uint32_t admits;
};

static const struct neotier_placement_param expert_learned_params[] = {
	{ "discount", 0.85, 0, 0.999, "worth of a use one token later" },
	{ "rate", 0.02, 0, 1, "learning rate of the tables" },
	{ "rank", 1, 0, 1, "1: the router's rank of the last use is a signal" },
	{ "transition", 1, 0, 1, "1: the layer's experts at this token and the one before are signals" },
	{ "frequency", 1, 0, 1, "1: fading averages of use are signals" },
	{ "layers", 1, 0, 1, "1: the choices of the layers around are signals" },
	{ "admission", 1, 0, 1, "1: an expert worth less than all residents is not kept" },
};

static void expert_learned_carve(struct expert_learned *s, void *block, size_t *offset,
				 const struct neotier_placement_config *config)
{
	nt_reuse_carve(&s->reuse, block, offset, config);
}

static void expert_learned_start(struct expert_learned *s, const struct neotier_placement_config *config)
{
	const double *p = config->params;

	nt_reuse_start(&s->reuse, config, (float)p[0], (float)p[1],
		       (p[2] != 0 ? NT_REUSE_RANK : 0) | (p[3] != 0 ? NT_REUSE_TRANSITION : 0) |
			       (p[4] != 0 ? NT_REUSE_FREQUENCY : 0) | (p[5] != 0 ? NT_REUSE_LAYERS : 0));
	s->admits = p[6] != 0;
}

NT_EXPERT_STATE(expert_learned)

/* In a batch an expert is worth what it is to any row: 1 - product of (1 - estimate). */
static void expert_learned_event(void *state, const struct neotier_event *event)
{
	struct expert_learned *s = state;
	double *score = s->expert.score + (size_t)event->group * s->reuse.experts;
	uint8_t choice[256];
	uint32_t at = 0, e;
	int first = 1;

	while (at < event->nr) {
		uint32_t row = event->access[at].row;
		uint32_t nr = nt_reuse_choices(event, s->reuse.experts, &at, choice, s->reuse.top_k);
		const float *estimate = nt_reuse_estimate(&s->reuse, event->group, row);

		nt_reuse_visit(&s->reuse, event->group, row, choice, nr);
		for (e = 0; e < s->reuse.experts; e++)
			score[e] = first ? (double)estimate[e] : score[e] + (1 - score[e]) * (double)estimate[e];
		first = 0;
	}
}

static int expert_learned_admit(void *state, const struct neotier_event *event, uint32_t index)
{
	const struct expert_learned *s = state;

	return !s->admits || nt_expert_admit(state, event, index);
}

const struct neotier_placement neotier_placement_expert_learned = {
	NT_EXPERT_SLOTS(expert_learned),
	.admit = expert_learned_admit,
	.name = "learned",
	.text = "lowest learned worth of keeping goes; recommended",
	.source = "NeoTier; online logistic regression with temporal differences (Sutton 1988)",
	.nr_params = sizeof(expert_learned_params) / sizeof(expert_learned_params[0]),
	.params = expert_learned_params,
};

/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * HybriMoE's minus recent score: S = alpha x TopP(s) + (1 - alpha) x S over the router's scores s, of which the top_p highest
 * count; the lowest S goes. Where the host has no router weights, falling ones by rank stand in (1, 1/2, 1/3, ... to sum 1), so
 * that first choices weigh more than last ones. 13 bytes an expert.
 */
#include "expert.h"

struct hybrimoe {
	struct nt_expert expert;
	double alpha, rank_sum;
	uint32_t top_k;
};

static const struct neotier_placement_param hybrimoe_params[] = {
	{ "alpha", 0.1, 0, 1, "weight of the newest scores" },
};

static void hybrimoe_carve(struct hybrimoe *s, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	(void)s;
	(void)block;
	(void)offset;
	(void)config;
}

static void hybrimoe_start(struct hybrimoe *s, const struct neotier_placement_config *config)
{
	uint32_t rank;

	s->alpha = config->params[0];
	s->top_k = config->top_k;
	for (rank = 1; rank <= config->top_k; rank++)
		s->rank_sum += 1.0 / rank;
}

NT_EXPERT_STATE(hybrimoe)

static void hybrimoe_event(void *state, const struct neotier_event *event)
{
	struct hybrimoe *s = state;
	double *score = s->expert.score + (size_t)event->group * s->expert.base.per_group;
	uint32_t i;

	for (i = 0; i < s->expert.base.per_group; i++)
		score[i] *= 1 - s->alpha;
	for (i = 0; i < event->nr; i++) {
		const struct neotier_access *access = &event->access[i];
		double weight = access->weight;

		if (!(weight > 0))
			weight = 1.0 / (access->position + 1.0) / s->rank_sum;
		s->expert.score[access->object] += s->alpha * weight;
	}
}

const struct neotier_placement neotier_placement_hybrimoe = {
	NT_EXPERT_SLOTS(hybrimoe),
	.name = "hybrimoe",
	.text = "lowest running average of router scores goes (minus recent score)",
	.source = "HybriMoE, DAC 2025 (arXiv 2504.05897)",
	.nr_params = 1,
	.params = hybrimoe_params,
};

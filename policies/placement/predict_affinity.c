/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Inter-layer affinity (ExFlow, IPDPS 2024): P(expert of a later layer | expert of this one, same token), counted for the next
 * `lookahead` layers; the chosen experts' probabilities are averaged, over the wrap into the next token as well. Counts halve
 * when one reaches `window`. 4 x lookahead x experts bytes an expert.
 */
#include "predict.h"

struct affinity {
	uint32_t groups, experts, batch, top_k, lookahead;
	float window;
	float *pairs; /* [lookahead][groups][experts][experts]: [lead - 1][target][earlier choice][target's choice] */
	float *seen;  /* [lookahead][groups][experts]: events behind a row of pairs */
	uint8_t *last;    /* [batch][groups][top_k] */
	uint8_t *nr_last; /* [batch][groups] */
};

static const struct neotier_placement_param affinity_params[] = {
	{ "lookahead", 4, 1, 64, "layers ahead that are counted" },
	{ "window", 4096, 16, 1e6, "events after which older counts weigh half" },
};

static void affinity_carve(struct affinity *s, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	size_t rows = (size_t)config->params[0] * config->objects, visits = (size_t)config->batch * config->groups;

	s->pairs = nt_carve(block, offset, rows * config->experts_per_group, sizeof(float));
	s->seen = nt_carve(block, offset, rows, sizeof(float));
	s->last = nt_carve(block, offset, visits * config->top_k, 1);
	s->nr_last = nt_carve(block, offset, visits, 1);
}

static void affinity_start(struct affinity *s, const struct neotier_placement_config *config)
{
	s->groups = config->groups;
	s->experts = config->experts_per_group;
	s->batch = config->batch;
	s->top_k = config->top_k;
	s->lookahead = (uint32_t)config->params[0];
	s->window = (float)config->params[1];
}

NT_PREDICTOR_STATE(affinity)

static void affinity_event(void *state, const struct neotier_event *event)
{
	struct affinity *s = state;
	uint32_t i = 0, lead, k, e;

	while (i < event->nr) {
		uint32_t row = event->access[i].row, begin = i, end;
		size_t visits = (size_t)row * s->groups;
		uint8_t nr = 0;

		while (i < event->nr && event->access[i].row == row)
			i++;
		end = i;
		for (lead = 1; lead <= s->lookahead && lead <= s->groups; lead++) {
			size_t from = visits + (event->group + s->groups - lead) % s->groups;

			for (k = 0; k < s->nr_last[from]; k++) {
				size_t at = ((size_t)(lead - 1) * s->groups + event->group) * s->experts +
					    s->last[from * s->top_k + k];
				float *pairs = s->pairs + at * s->experts;

				for (e = begin; e < end; e++)
					pairs[event->access[e].object % s->experts] += 1;
				s->seen[at] += 1;
				if (s->seen[at] >= s->window) {
					s->seen[at] *= 0.5f;
					for (e = 0; e < s->experts; e++)
						pairs[e] *= 0.5f;
				}
			}
		}
		for (e = begin; e < end && nr < s->top_k; e++)
			s->last[(visits + event->group) * s->top_k + nr++] = (uint8_t)(event->access[e].object % s->experts);
		s->nr_last[visits + event->group] = nr;
	}
}

static uint32_t affinity_prefetch(void *state, const struct neotier_event *event,
				  const struct neotier_prefetch_request *request, struct neotier_prediction *out)
{
	const struct affinity *s = state;
	struct nt_predictions p = { out, 0, request->max };

	NT_FOR_TARGETS(event, request, s->groups, lead, target)
	{
		float not_used[256];
		uint32_t row, k, e;

		if (lead > s->lookahead)
			break;
		for (e = 0; e < s->experts; e++)
			not_used[e] = 1;
		for (row = 0; row < s->batch; row++) {
			size_t from = (size_t)row * s->groups + event->group;
			float sum[256] = { 0 };

			for (k = 0; k < s->nr_last[from]; k++) {
				size_t at = ((size_t)(lead - 1) * s->groups + target) * s->experts + s->last[from * s->top_k + k];

				for (e = 0; e < s->experts && s->seen[at] > 0; e++)
					sum[e] += s->pairs[at * s->experts + e] / s->seen[at];
			}
			for (e = 0; e < s->experts && s->nr_last[from]; e++)
				not_used[e] *= 1 - sum[e] / s->nr_last[from];
		}
		for (e = 0; e < s->experts; e++)
			nt_predict(&p, target, target * s->experts + e, 1 - not_used[e]);
	}
	return p.nr;
}

const struct neotier_placement neotier_predictor_affinity = {
	NT_PREDICTOR_SLOTS(affinity),
	.name = "affinity",
	.text = "which experts of later layers follow those of this one",
	.source = "ExFlow, IPDPS 2024 (arXiv 2401.08383)",
	.nr_params = 2,
	.params = affinity_params,
};

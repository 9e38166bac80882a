/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Previous token: what a layer chose for the last token it chooses again, with the probability that this has come true so far,
 * counted by the router's rank. 8 bytes a rank and layer, 1 a row and expert.
 */
#include "predict.h"

struct previous_token {
	uint32_t groups, experts, batch, top_k;
	uint64_t *repeats; /* [groups][top_k] */
	uint64_t *tries;   /* [groups][top_k] */
	uint8_t *rank;     /* [batch][objects] rank at the last token plus 1, 0: not chosen */
};

static void previous_token_carve(struct previous_token *s, void *block, size_t *offset,
				 const struct neotier_placement_config *config)
{
	s->repeats = nt_carve(block, offset, (size_t)config->groups * config->top_k, sizeof(uint64_t));
	s->tries = nt_carve(block, offset, (size_t)config->groups * config->top_k, sizeof(uint64_t));
	s->rank = nt_carve(block, offset, (size_t)config->batch * config->objects, 1);
}

static void previous_token_start(struct previous_token *s, const struct neotier_placement_config *config)
{
	s->groups = config->groups;
	s->experts = config->experts_per_group;
	s->batch = config->batch;
	s->top_k = config->top_k;
}

NT_PREDICTOR_STATE(previous_token)

static void previous_token_event(void *state, const struct neotier_event *event)
{
	struct previous_token *s = state;
	const size_t first = (size_t)event->group * s->experts, objects = (size_t)s->groups * s->experts;
	uint32_t i, e, row = NEOTIER_NO_OBJECT;
	uint8_t *rank;

	for (i = 0; i < event->nr; i++) {
		rank = s->rank + event->access[i].row * objects + event->access[i].object;
		if (*rank)
			s->repeats[event->group * s->top_k + *rank - 1]++;
	}
	for (i = 0; i < event->nr; i++) {
		const struct neotier_access *access = &event->access[i];

		rank = s->rank + access->row * objects + first;
		for (e = 0; access->row != row && e < s->experts; e++) {
			if (rank[e])
				s->tries[event->group * s->top_k + rank[e] - 1]++;
			rank[e] = 0;
		}
		row = access->row;
		if (access->position < s->top_k)
			s->rank[row * objects + access->object] = (uint8_t)(access->position + 1);
	}
}

static uint32_t previous_token_prefetch(void *state, const struct neotier_event *event,
					const struct neotier_prefetch_request *request, struct neotier_prediction *out)
{
	const struct previous_token *s = state;
	const size_t objects = (size_t)s->groups * s->experts;
	struct nt_predictions p = { out, 0, request->max };

	NT_FOR_TARGETS(event, request, s->groups, lead, target)
	{
		uint32_t object = target * s->experts, end = object + s->experts, row;

		for (; object < end; object++) {
			float not_used = 1;

			for (row = 0; row < s->batch; row++) {
				uint32_t rank = s->rank[row * objects + object], at = target * s->top_k + rank - 1;

				if (rank && s->tries[at])
					not_used *= 1 - (float)s->repeats[at] / (float)s->tries[at];
			}
			if (not_used < 1)
				nt_predict(&p, target, object, 1 - not_used);
		}
	}
	return p.nr;
}

const struct neotier_placement neotier_predictor_previous_token = {
	NT_PREDICTOR_SLOTS(previous_token),
	.name = "previous-token",
	.text = "what the layer chose for the last token, by how often that repeats",
	.source = "classic",
};

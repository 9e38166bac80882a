/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Popularity: the share of a layer's events that used the expert, since the start. 8 bytes an expert. */
#include "predict.h"

struct popularity {
	uint32_t groups, experts;
	uint64_t *events; /* [groups] */
	uint64_t *uses;   /* [objects] events that used it */
	uint64_t *stamp;  /* [objects] the event that counted it last, plus 1: once an event, also in a batch */
};

static void popularity_carve(struct popularity *s, void *block, size_t *offset, const struct neotier_placement_config *config)
{
	s->events = nt_carve(block, offset, config->groups, sizeof(uint64_t));
	s->uses = nt_carve(block, offset, config->objects, sizeof(uint64_t));
	s->stamp = nt_carve(block, offset, config->objects, sizeof(uint64_t));
}

static void popularity_start(struct popularity *s, const struct neotier_placement_config *config)
{
	s->groups = config->groups;
	s->experts = config->experts_per_group;
}

NT_PREDICTOR_STATE(popularity)

static void popularity_event(void *state, const struct neotier_event *event)
{
	struct popularity *s = state;
	uint32_t i;

	s->events[event->group]++;
	for (i = 0; i < event->nr; i++) {
		uint32_t object = event->access[i].object;

		s->uses[object] += s->stamp[object] != s->events[event->group];
		s->stamp[object] = s->events[event->group];
	}
}

static uint32_t popularity_prefetch(void *state, const struct neotier_event *event,
				    const struct neotier_prefetch_request *request, struct neotier_prediction *out)
{
	const struct popularity *s = state;
	struct nt_predictions p = { out, 0, request->max };

	NT_FOR_TARGETS(event, request, s->groups, lead, target)
	{
		uint32_t object = target * s->experts, end = object + s->experts;

		for (; object < end && s->events[target]; object++)
			nt_predict(&p, target, object, (float)s->uses[object] / (float)s->events[target]);
	}
	return p.nr;
}

const struct neotier_placement neotier_predictor_popularity = {
	NT_PREDICTOR_SLOTS(popularity),
	.name = "popularity",
	.text = "share of the layer's events so far that used the expert",
	.source = "Fiddler (ICLR 2025) and others profile it",
};

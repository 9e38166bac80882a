/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Static popularity: the experts used most during a profile stay, nothing moves afterwards. Metric: uses in the first
 * profile_steps events of the layer. Right where routing is skewed and steady; wrong where each text has its own experts. 13 bytes
 * an expert.
 */
#include "expert.h"

struct static_popularity {
	struct nt_expert expert;
	uint64_t *steps; /* [groups] events seen */
	uint64_t profile_steps;
};

static const struct neotier_placement_param static_popularity_params[] = {
	{ "profile_steps", 512, 1, 1e9, "events of a layer that are counted before its experts are fixed" },
};

static void static_popularity_carve(struct static_popularity *s, void *block, size_t *offset,
				    const struct neotier_placement_config *config)
{
	s->steps = nt_carve(block, offset, config->groups, sizeof(uint64_t));
}

static void static_popularity_start(struct static_popularity *s, const struct neotier_placement_config *config)
{
	s->profile_steps = (uint64_t)config->params[0];
}

NT_EXPERT_STATE(static_popularity)

static void static_popularity_event(void *state, const struct neotier_event *event)
{
	struct static_popularity *s = state;
	uint32_t i;

	if (s->steps[event->group]++ >= s->profile_steps)
		return;
	for (i = 0; i < event->nr; i++)
		s->expert.score[event->access[i].object] += 1;
}

/* While profiling it is LFU; then only an expert that beats a resident one comes in, so that the cache settles and stays. */
static int static_popularity_admit(void *state, const struct neotier_event *event, uint32_t index)
{
	const struct static_popularity *s = state;

	return s->steps[event->group] <= s->profile_steps || nt_expert_admit(state, event, index);
}

const struct neotier_placement neotier_placement_static_popularity = {
	NT_EXPERT_SLOTS(static_popularity),
	.admit = static_popularity_admit,
	.name = "static",
	.text = "the experts most used during a profile, fixed afterwards",
	.source = "KTransformers, Fiddler (ICLR 2025): hot experts on the GPU",
	.nr_params = 1,
	.params = static_popularity_params,
};

/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
#include "expert.h"

int nt_expert_hit(void *state, const struct neotier_event *event, uint32_t index)
{
	const struct nt_expert *s = state;

	return nt_held(&s->base, event->access[index].object) ? NEOTIER_OK : NEOTIER_REFUSED;
}

int nt_expert_insert(void *state, const struct neotier_event *event, uint32_t index)
{
	struct nt_expert *s = state;
	uint32_t object = event->access[index].object, group;

	if (!nt_may_insert(&s->base, object))
		return NEOTIER_REFUSED;
	group = object / s->base.per_group;
	s->base.place[object] = NT_HELD;
	s->held[group * s->base.per_group + s->nr_held[group]++] = object;
	return NEOTIER_OK;
}

int nt_expert_remove(void *state, uint32_t object, enum neotier_remove_reason reason)
{
	struct nt_expert *s = state;
	uint32_t group, *held, i = 0;

	if (!nt_may_remove(&s->base, object, reason))
		return NEOTIER_REFUSED;
	if (reason == NEOTIER_FORGOTTEN) {
		s->score[object] = 0;
		return NEOTIER_OK;
	}
	s->base.place[object] = NT_OUT;
	group = object / s->base.per_group;
	held = s->held + group * s->base.per_group;
	while (held[i] != object)
		i++;
	held[i] = held[--s->nr_held[group]];
	return NEOTIER_OK;
}

static int goes_before(const struct nt_expert *s, uint32_t a, uint32_t b)
{
	return s->score[a] < s->score[b] || (s->score[a] == s->score[b] && a < b);
}

/* Insertion into a list of the first to go so far: a layer holds a handful. */
uint32_t nt_expert_victims(void *state, const struct neotier_event *event, uint32_t index, uint32_t want, uint32_t *out)
{
	const struct nt_expert *s = state;
	const uint32_t group = event->access[index].object / s->base.per_group;
	const uint32_t *held = s->held + group * s->base.per_group, *end = held + s->nr_held[group];
	uint32_t found = 0, at;

	for (; held < end && want; held++) {
		if (s->base.flags[*held] & NEOTIER_PINNED)
			continue;
		if (found == want && !goes_before(s, *held, out[found - 1]))
			continue;
		for (at = found < want ? found++ : found - 1; at > 0 && goes_before(s, *held, out[at - 1]); at--)
			out[at] = out[at - 1];
		out[at] = *held;
	}
	return found;
}

int nt_expert_admit(void *state, const struct neotier_event *event, uint32_t index)
{
	const struct nt_expert *s = state;
	const uint32_t object = event->access[index].object, group = object / s->base.per_group;
	const uint32_t *held = s->held + group * s->base.per_group, *end = held + s->nr_held[group];
	double score = s->score[object];

	if (s->nr_held[group] < s->base.capacity)
		return 1;
	while (held < end && ((s->base.flags[*held] & NEOTIER_PINNED) || s->score[*held] > score))
		held++;
	return held < end;
}

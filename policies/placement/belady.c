// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Belady's optimum, as a bound beside the policies: evicts what is used again last, from the host's oracle. `belady` may also let
 * an object pass by (no policy can hit more, objects being equal in size); `belady-forced` must insert every one, as engines do
 * that cannot serve an object without placing it. 37 bytes an object.
 */
#include "score.h"

static double belady_touch(struct nt_score *s, const struct neotier_access *access)
{
	(void)s;
	return -(double)access->next_use; /* exact below 2^53 */
}

static int belady_admit(void *state, const struct neotier_event *event, uint32_t index)
{
	struct nt_score *s = state;
	const struct neotier_access *access = &event->access[index];
	const struct nt_heap *heap = &s->heaps.heaps[nt_group(&s->base, access->object)];

	if (access->next_use == NEOTIER_NEVER)
		return 0;
	return heap->size < s->base.capacity || belady_touch(s, access) > s->heaps.rank[heap->slots[0]].score;
}

NT_SCORE_POLICY(belady)

const struct neotier_placement neotier_placement_belady = {
	NT_SCORE_SLOTS(belady, nt_score_remove),
	.init = nt_score_init,
	.admit = belady_admit,
	.name = "belady",
	.text = "bound: the optimum, which may let objects pass by",
	.source = "Belady, IBM Systems Journal 5(2), 1966",
	.flags = NEOTIER_KV | NEOTIER_EXPERTS | NEOTIER_NEEDS_ORACLE,
};

const struct neotier_placement neotier_placement_belady_forced = {
	NT_SCORE_SLOTS(belady, nt_score_remove),
	.init = nt_score_init,
	.name = "belady-forced",
	.text = "bound: the optimum that must insert every object",
	.source = "Belady, IBM Systems Journal 5(2), 1966",
	.flags = NEOTIER_KV | NEOTIER_EXPERTS | NEOTIER_NEEDS_ORACLE,
};

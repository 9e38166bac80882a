// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Greedy dual, size and frequency. Metric: H = L + count * cost / size, L the highest H evicted so far, which ages what is not
 * touched. Right where objects differ in size or cost; with equal blocks it is LFU with ageing, leaning to blocks deep in a prefix
 * (dearer to recompute), which cannot be used without their prefix. Counts restart at insertion. 37 bytes an object.
 */
#include "score.h"

static double gdsf_touch(struct nt_score *s, const struct neotier_access *access)
{
	double cost = access->cost_ns ? (double)access->cost_ns * 1e-3 : 1;

	if (s->rate <= 0)
		s->rate = (double)access->bytes / cost; /* the first object costs 1: keeps H in a range where L + 1 > L */
	return s->floor + (s->value[access->object] += 1) * cost / (double)access->bytes * s->rate;
}

static int gdsf_remove(void *state, uint32_t object, enum neotier_remove_reason reason)
{
	int result = nt_score_remove(state, object, reason);

	if (result == NEOTIER_OK)
		((struct nt_score *)state)->value[object] = 0;
	return result;
}

NT_SCORE_POLICY(gdsf)

const struct neotier_placement neotier_placement_gdsf = {
	NT_SCORE_SLOTS(gdsf, gdsf_remove),
	.init = nt_score_init,
	.name = "gdsf",
	.text = "greedy dual: frequency x cost / size above an inflation that ages the rest",
	.source = "Cherkasova, HPL-98-69R1, 1998",
	.flags = NEOTIER_KV,
};

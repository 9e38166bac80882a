// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Least frequently used, with counts for ever. Metric: touches since the start, also while not resident. Right where popularity
 * is fixed; wrong where it drifts: yesterday's favourites never leave. Ties: least recently touched. 37 bytes an object.
 */
#include "score.h"

static double lfu_touch(struct nt_score *s, const struct neotier_access *access)
{
	return s->value[access->object] += 1;
}

NT_SCORE_POLICY(lfu)

const struct neotier_placement neotier_placement_lfu = {
	NT_SCORE_SLOTS(lfu, nt_score_remove),
	.init = nt_score_init,
	.name = "lfu",
	.text = "least frequently used, counts kept for ever",
	.source = "classic",
	.flags = NEOTIER_KV | NEOTIER_EXPERTS,
};

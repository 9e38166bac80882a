/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A promotion law as a shared library: the hottest eighth of what the DRAM holds is hot, a part at a time.
 *   cc -shared -fPIC -I policies -o mine.so policies/example/law.c && neotier score --law ./mine.so
 */
#include "neotier_policy.h"

static void init(void *state, const struct neotier_policy_params *params)
{
	*(u32 *)state = params->threshold;
}

static void decide(void *state, const struct neotier_snapshot *s, struct neotier_plan *plan)
{
	u32 top = neotier_histogram_top(s->histogram, s->fast_total_pages / 8);

	*(u32 *)state = neotier_threshold_clamp(top > 4 ? top : 4, s->counter_max);
	plan->threshold = *(u32 *)state;
	plan->promote_max = s->fast_total_pages / 16;
}

static const struct neotier_policy mine = {
	.name = "example",
	.text = "the hottest eighth of DRAM",
	.init = init,
	.decide = decide,
	.histogram = true,
};

const struct neotier_policy_entry neotier_policy_entry = NEOTIER_POLICY_ENTRY_OF(mine);

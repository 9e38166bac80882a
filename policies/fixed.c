// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * fixed: the operator's threshold, always. For a workload whose heat is known, for calibrating a device, and as the
 * line every adaptive policy has to beat.
 *
 * What it gives up: the right threshold grows with the epoch's length and the load, so one chosen on another machine
 * promotes either next to nothing or whatever is touched. Watch promoted against quota_skipped to see which.
 *
 * A threshold above the device's counter_max would never match; it is lowered to counter_max.
 */
#include "neotier_policy.h"

struct fixed_state {
	u32 threshold;
};

_Static_assert(sizeof(struct fixed_state) <= NEOTIER_POLICY_STATE_BYTES, "fixed: state");

static void fixed_init(void *state, const struct neotier_policy_params *params)
{
	struct fixed_state *s = state;

	s->threshold = params->threshold;
}

static void fixed_decide(void *state, const struct neotier_snapshot *snapshot, struct neotier_plan *plan)
{
	const struct fixed_state *s = state;

	plan->threshold = neotier_threshold_clamp(s->threshold, snapshot->counter_max);
	plan->promote_max = NEOTIER_NO_LIMIT;
}

const struct neotier_policy neotier_policy_fixed = {
	.name = "fixed",
	.text = "the threshold the operator set, always",
	.init = fixed_init,
	.decide = fixed_decide,
};

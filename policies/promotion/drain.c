// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
#include "promotion/drain.h"
#include "promotion/room.h"

/* At least one, so that a small ring is not left alone. */
static u32 neotier_drain_allowance(const struct neotier_drain *drain, u32 hotlist_size)
{
	u32 share = hotlist_size / (drain->idle < NEOTIER_DRAIN_PATIENCE ? 2 : 8);

	return share ? share : 1;
}

bool neotier_drain_begin(struct neotier_drain *drain, u64 now_ns, u64 epoch_ns, u32 hotlist_size, u64 confirmed)
{
	bool discard;

	if (now_ns - drain->epoch_ns < epoch_ns)
		return false;
	discard = !drain->allowed;
	drain->epoch_ns = now_ns;
	if (confirmed != drain->confirmed) {
		drain->confirmed = confirmed;
		drain->idle = 0;
	} else if (drain->idle < NEOTIER_DRAIN_PATIENCE) {
		drain->idle++;
	}
	drain->allowed = neotier_drain_allowance(drain, hotlist_size);
	return discard;
}

u32 neotier_drain_most(struct neotier_drain *drain, u32 waiting)
{
	drain->left = waiting >= NEOTIER_ENOUGH || !drain->allowed;
	return drain->left ? 0 : drain->allowed;
}

void neotier_drain_done(struct neotier_drain *drain, u32 reports)
{
	drain->allowed -= reports;
	drain->left = !drain->allowed;
}

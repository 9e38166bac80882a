// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
#include "promotion/drain.h"
#include "promotion/room.h"

bool neotier_drain_begin(struct neotier_drain *drain, u64 now_ns, u64 epoch_ns, u32 hotlist_size)
{
	bool discard;

	if (now_ns - drain->epoch_ns < epoch_ns)
		return false;
	discard = !drain->allowed;
	drain->epoch_ns = now_ns;
	drain->allowed = hotlist_size / 2;
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

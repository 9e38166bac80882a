// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
#include "promotion/drain.h"
#include "promotion/room.h"

/*
 * Two reports for a page that may be promoted: the hottest are chosen among them. At least one, so that a small ring is not left
 * alone.
 */
static u32 neotier_drain_allowance(const struct neotier_drain *drain, u32 hotlist_size, u64 pages)
{
	u32 least = hotlist_size / 8, most = drain->idle < NEOTIER_DRAIN_PATIENCE ? hotlist_size / 2 : least;
	u32 share = pages < most ? (u32)neotier_clamp_u64(2 * pages, least, most) : most;

	return share ? share : 1;
}

void neotier_drain_phase(struct neotier_drain *drain, u64 now_ns, u64 ticks, u64 epochs, u32 length, u64 tick_ns)
{
	u64 most = length > drain->length ? length : drain->length, left;

	if (!drain->length)
		drain->ends = length;
	drain->ends += (epochs - drain->epochs) * length;
	/* An epoch that ends late, as one may, moves those after it. */
	left = drain->ends - ticks;
	if (left > most)
		left = (s64)left < 0 ? 1 : length;
	else if (!left)
		left = 1;
	drain->ends = ticks + left;
	drain->epochs = epochs;
	drain->length = length;
	/* One that has begun, and was not looked at yet, is not put off; but what is about to begin was early by the host's clock. */
	drain->due = now_ns >= drain->next_ns && left > length / 4;
	drain->next_ns = now_ns + left * tick_ns;
}

bool neotier_drain_begin(struct neotier_drain *drain, u64 now_ns, u64 epoch_ns, u32 hotlist_size, u64 confirmed,
			 u64 pages)
{
	bool watch = pages != NEOTIER_NO_LIMIT, discard;

	if (now_ns < drain->next_ns && !drain->due)
		return false;
	/* What is counted has to be of the epoch before. */
	discard = !drain->allowed || (watch && drain->left);
	/* Also where looks are late, or far between. */
	if (!drain->next_ns)
		drain->next_ns = now_ns + epoch_ns;
	else if (now_ns >= drain->next_ns)
		drain->next_ns += ((now_ns - drain->next_ns) / epoch_ns + 1) * epoch_ns;
	drain->due = false;
	if (confirmed != drain->confirmed) {
		drain->confirmed = confirmed;
		drain->idle = 0;
	} else if (drain->idle < NEOTIER_DRAIN_PATIENCE) {
		drain->idle++;
	}
	drain->allowed = neotier_drain_allowance(drain, hotlist_size, pages);
	drain->watched = watch ? hotlist_size / 8 : 0;
	return discard;
}

u32 neotier_drain_most(struct neotier_drain *drain, u32 waiting)
{
	u32 most = waiting < NEOTIER_ENOUGH || drain->watched > drain->allowed ? drain->allowed : drain->watched;

	drain->left = !most;
	return most;
}

void neotier_drain_done(struct neotier_drain *drain, u32 reports)
{
	drain->allowed -= reports;
	drain->watched -= reports < drain->watched ? reports : drain->watched;
	drain->left = !drain->allowed;
}

// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
#include "promotion/whole.h"

u32 neotier_whole_wanted(const struct neotier_whole *whole, const struct neotier_huge *huge, u64 left, u64 now_ns)
{
	u64 may = left / NEOTIER_HUGE_PAGES;

	if (!huge->starved || now_ns < whole->until_ns)
		return 0;
	return huge->nr < may ? huge->nr : (u32)may;
}

/* Of what is free now the pieces that are owed are a part: with less others have some of it, and one more would not help. */
static bool neotier_whole_helps(const struct neotier_whole *whole, u64 above_floor)
{
	return whole->owed < NEOTIER_WHOLE_OWED &&
	       above_floor + NEOTIER_WHOLE_SHORT * NEOTIER_HUGE_PAGES >= (u64)whole->owed * NEOTIER_HUGE_PAGES;
}

bool neotier_whole_may(const struct neotier_whole *whole, u64 above_floor, u64 now_ns)
{
	return now_ns >= whole->until_ns && neotier_whole_helps(whole, above_floor);
}

void neotier_whole_down(struct neotier_whole *whole, u64 now_ns)
{
	whole->owed++;
	whole->down_ns = now_ns;
}

void neotier_whole_up(struct neotier_whole *whole)
{
	if (!whole->owed)
		return;
	whole->owed--;
	whole->retry_ns = 0;
}

void neotier_whole_failed(struct neotier_whole *whole, u64 now_ns)
{
	whole->retry_ns = neotier_clamp_u64(2 * whole->retry_ns, NEOTIER_WHOLE_RETRY_NS, NEOTIER_WHOLE_RETRY_MAX_NS);
	whole->until_ns = now_ns + whole->retry_ns;
}

u32 neotier_whole_lost(struct neotier_whole *whole, u64 above_floor, u64 now_ns)
{
	u32 lost = whole->owed;

	if (neotier_whole_helps(whole, above_floor))
		return 0;
	whole->owed = 0;
	neotier_whole_failed(whole, now_ns);
	return lost;
}

u32 neotier_whole_expire(struct neotier_whole *whole, u64 now_ns)
{
	u32 owed = whole->owed;

	if (!owed || now_ns - whole->down_ns <= NEOTIER_WHOLE_OWED_NS)
		return 0;
	whole->owed = 0;
	return owed;
}

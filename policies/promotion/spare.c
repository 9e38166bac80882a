// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
#include "promotion/spare.h"

static void neotier_spare_fill(struct neotier_spare *spare, u64 now_ns)
{
	u64 gained_ns = (now_ns - spare->filled_ns) / NEOTIER_SPARE_SHARE;

	/* What is less than a nanosecond is not lost. */
	if (!gained_ns)
		return;
	spare->left_ns = neotier_clamp_u64(gained_ns, 0, NEOTIER_SPARE_SAVED_NS - spare->left_ns) + spare->left_ns;
	spare->filled_ns = now_ns;
}

/* Numbers wrap: programs may have less than before. A huge page is one allocation and many pages. */
void neotier_spare_watch(struct neotier_spare *spare, u64 missed, u64 grown, u64 above_low, u64 node_pages, u64 now_ns)
{
	s64 programs = (s64)(grown - spare->grown);
	u64 all = missed > spare->missed ? missed - spare->missed : 0;

	spare->missed = missed;
	spare->grown = grown;
	spare->many = spare->watched_ns && all >= NEOTIER_SPARE_WORTH && (programs <= 0 || (u64)programs < all / 2 + all % 2);
	if (!spare->watched_ns) {
		spare->watched_ns = spare->calm_ns = spare->filled_ns = now_ns;
		return;
	}
	spare->watched_ns = now_ns;
	if (spare->many) {
		spare->calm_ns = now_ns;
		if (above_low >= spare->pages)
			spare->pages = neotier_clamp_u64(spare->pages * 2, node_pages / NEOTIER_SPARE_LEAST_SHARE,
							 node_pages / NEOTIER_SPARE_MOST_SHARE);
	} else if (now_ns - spare->calm_ns >= NEOTIER_SPARE_CALM_NS) {
		spare->calm_ns = now_ns;
		spare->pages /= 2;
	}
}

u64 neotier_spare_wanted(struct neotier_spare *spare, u64 above_low, u64 page_ns, u64 now_ns)
{
	u64 lacking = spare->pages > above_low ? spare->pages - above_low : 0, paid;

	if (!lacking || !spare->many)
		return 0;
	neotier_spare_fill(spare, now_ns);
	paid = spare->left_ns / page_ns;
	return lacking < paid ? lacking : paid;
}

void neotier_spare_spent(struct neotier_spare *spare, u64 took_ns)
{
	spare->left_ns -= took_ns < spare->left_ns ? took_ns : spare->left_ns;
}

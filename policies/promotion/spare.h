/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Free memory that a full fast node keeps for the kernel's own: socket buffers, page tables. Only with exchange, which else leaves
 * a node as full as it was; where kswapd makes room it makes this as well.
 *
 * The kernel's memory is mostly in use at once, and can never be promoted: what is on the slow node stays there. So pages that
 * nobody uses go down before it comes. How many are kept free follows what the kernel counts: allocations that were meant for the
 * node and found no room there. While there are many, and most of them are not programs that grow, pages are demoted until so many
 * are free; where so many were free, twice as much is kept. After a while without, half. A node where little is missed keeps
 * nothing.
 *
 * A program that grows gets none: it would take all that is made free, and what turns out hot of it comes up by itself.
 *
 * Invariant: looking for such pages and moving them take one part in NEOTIER_SPARE_SHARE of the time.
 *
 * Freestanding C, the same object in neotier.ko and the unit test; all numbers are of 4 KiB pages. Thread safety: one caller at
 * a time.
 */
#ifndef NEOTIER_SPARE_H
#define NEOTIER_SPARE_H

#include "neotier_policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of a CPU's time, and as much of it can be saved up. */
#define NEOTIER_SPARE_SHARE 200U
#define NEOTIER_SPARE_SAVED_NS 10000000ULL
/* Of the node's pages: what is kept free once allocations are missed, and at most. */
#define NEOTIER_SPARE_LEAST_SHARE 1024U
#define NEOTIER_SPARE_MOST_SHARE 64U
/* Between two looks at what was missed: that takes a read for each CPU and zone. */
#define NEOTIER_SPARE_INTERVAL_NS 100000000ULL
/* Allocations missed in it that are worth making room for. */
#define NEOTIER_SPARE_WORTH 64U
/* Without so many for so long: half is kept. */
#define NEOTIER_SPARE_CALM_NS 2000000000ULL

/* All zero at first. */
struct neotier_spare {
	u64 pages;	/* to keep free above the low watermark */
	u64 missed;	/* allocations so far */
	u64 grown;	/* pages of programs so far */
	u64 watched_ns;	/* when that was seen; 0: never */
	u64 calm_ns;	/* not many since then */
	bool many;	/* when that was seen */
	u64 left_ns;	/* of CPU time */
	u64 filled_ns;	/* when left_ns was right */
};

/* Whether it is time to say what was missed. */
static inline bool neotier_spare_due(const struct neotier_spare *spare, u64 now_ns)
{
	return !spare->watched_ns || now_ns - spare->watched_ns >= NEOTIER_SPARE_INTERVAL_NS;
}

/**
 * neotier_spare_watch() - what was missed
 * @spare: state
 * @missed: allocations meant for the node that found no room there, so far; one that runs backwards counts from there
 * @grown: pages that programs have on the slow node and that nobody moved there, up to a constant
 * @above_low: free pages above the low watermark
 * @node_pages: of the node
 * @now_ns: now
 */
void neotier_spare_watch(struct neotier_spare *spare, u64 missed, u64 grown, u64 above_low, u64 node_pages, u64 now_ns);

/**
 * neotier_spare_wanted() - pages to demote now
 * @spare: state
 * @above_low: free pages above the low watermark
 * @page_ns: what the move of one takes, 1 or more
 * @now_ns: now
 */
u64 neotier_spare_wanted(struct neotier_spare *spare, u64 above_low, u64 page_ns, u64 now_ns);

/* So long was spent on looking for such pages, or on moving them. */
void neotier_spare_spent(struct neotier_spare *spare, u64 took_ns);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Configuration of the module as a whole.
 */
#ifndef NEOTIER_KNOBS_H
#define NEOTIER_KNOBS_H

#include <linux/compiler.h>
#include <linux/time64.h>
#include <linux/types.h>

struct neotier_policy;

#define NEOTIER_BATCH_MAX 512U
#define NEOTIER_PAYBACK_MAX_MS 60000U

/* Who makes room on a full target node. */
enum neotier_room_mode {
	NEOTIER_ROOM_KSWAPD,
	NEOTIER_ROOM_EXCHANGE,	/* the module: one page goes down for each that comes up */
};

/* What is done with huge folios that are worth their move. */
enum neotier_promote_huge {
	NEOTIER_HUGE_LEAVE,
	NEOTIER_HUGE_PIN,	/* those in ZONE_MOVABLE: by a long-term pin, released at once */
	NEOTIER_HUGE_CLAIM,	/* others too: their memory is claimed from under them */
};

/**
 * struct neotier_knobs - module-wide settings, each a file in /sys/kernel/neotier
 *
 * Written by sysfs with WRITE_ONCE after a range check, read anywhere with READ_ONCE.
 */
struct neotier_knobs {
	u32 enabled;		/* 0: devices stand still */
	u32 dry_run;		/* 1: all but the move */
	u32 quota_mb_per_s;	/* MiB/s over all devices; 0: nothing is promoted */
	u32 period_us;
	u32 decide_interval_ms;
	u32 headroom_pages;
	u32 reserve_pages;
	u32 batch;		/* 1 .. NEOTIER_BATCH_MAX */
	u32 room;		/* enum neotier_room_mode */
	u32 promote_huge;	/* enum neotier_promote_huge */
	u32 split_huge;		/* 1: huge folios are split where pages of theirs alone should move */
	u32 page_cache;		/* 1: page cache and shared memory that nobody maps moves, too */
	u32 confirm_epochs;	/* epochs that have to report a page; 1: the first one is enough */
	u32 p_start_ppm, p_min_ppm, p_max_ppm;
	u32 saved_ns, payback_ms;	/* payback_ms: 1 .. NEOTIER_PAYBACK_MAX_MS */
	u32 log_interval_s;	/* between two lines in the log; 0: none */
	u32 loss_ppm, loss_base_ms;	/* that promotion and looking may cost at most: promotion/ledger.h */
	const struct neotier_policy *policy;
};

extern struct neotier_knobs neotier_knobs;

static inline u64 neotier_payback_ns(void)
{
	return READ_ONCE(neotier_knobs.payback_ms) * (u64)NSEC_PER_MSEC;
}

#endif

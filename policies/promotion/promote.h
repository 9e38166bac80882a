/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What is done with the pages that wait: one batch within plan, quota and room; without room, kswapd is asked for some if
 * that is worth it.
 *
 * Freestanding C, the same object in neotier.ko, the replay and the unit test. Thread safety: one caller at a time.
 */
#ifndef NEOTIER_PROMOTE_H
#define NEOTIER_PROMOTE_H

#include "neotier_policy.h"
#include "promotion/hotlist.h"
#include "promotion/huge.h"

#ifdef __cplusplus
extern "C" {
#endif

/* While kswapd makes room: short enough to use each bit of it at once, doubled up to the period when none comes. */
#define NEOTIER_ROOM_WAIT_US 100U

enum neotier_next {
	NEOTIER_AGAIN,		/* more to do at once */
	NEOTIER_SLEEP,		/* until the next period */
	NEOTIER_WAIT_ROOM,	/* until kswapd has made room */
};

enum neotier_promote_event {
	NEOTIER_EVENT_DRY_RUN,		/* pages that would have been tried */
	NEOTIER_EVENT_DRY_RUN_HUGE,	/* huge folios that would have been tried */
	NEOTIER_EVENT_ROOM_HOLD,	/* no room, and kswapd was not worth waking */
	NEOTIER_EVENT_ROOM_WAIT,	/* no room, and kswapd was woken */
};

struct neotier_promote_ops {
	u32 (*quota_take)(void *owner, u32 pages);
	void (*quota_return)(void *owner, u32 pages);
	/* Pages that may be promoted now. */
	u64 (*room)(void *owner);
	/* Wakes kswapd; false when that is not worth it. */
	bool (*room_make)(void *owner);
	/* Pages moved of the batch, whose reports are done with or back in the list; < 0: there was no memory for any. */
	int (*migrate)(void *owner, struct neotier_hot *batch, u32 nr);
	void (*event)(void *owner, enum neotier_promote_event event, u32 n);
};

struct neotier_promotion {
	struct neotier_hotlist *list;
	struct neotier_hot *batch;	/* as many as batch_max */
	const struct neotier_promote_ops *ops;
	void *owner;			/* as the ops get it */
	u64 left;			/* of the plan's promote_max */
};

/**
 * neotier_promote_some() - promote one batch of what waits
 * @promotion: the list is not empty
 * @batch_max: pages at most
 * @dry_run: all but the move
 * @now_ns: now
 *
 * Return: what to do next.
 */
enum neotier_next neotier_promote_some(struct neotier_promotion *promotion, u32 batch_max, bool dry_run, u64 now_ns);

/**
 * neotier_promote_huge() - promote one of the huge folios that wait
 * @promotion: plan and ops
 * @huge: some wait
 * @dry_run: all but the move
 * @now_ns: now
 *
 * Return: what to do next; NEOTIER_SLEEP also where there is no room, which is not worth a short sleep.
 */
enum neotier_next neotier_promote_huge(struct neotier_promotion *promotion, struct neotier_huge *huge, bool dry_run, u64 now_ns);

#ifdef __cplusplus
}
#endif
#endif

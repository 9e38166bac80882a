/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The ledger's controls and witnesses, counted exactly by a device that can count what it is told to. Invariant: a slot with
 * since_ns counts its page, alone, and has from then on, while the device counts at all.
 *
 * The device is not trusted: whatever number it says is taken as one of requests.
 *
 * Freestanding C, the same object in neotier.ko, the replay and the unit test. Thread safety: one caller at a time.
 */
#ifndef NEOTIER_WATCH_H
#define NEOTIER_WATCH_H

#include "promotion/clock.h"
#include "promotion/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

struct neotier_watch_slot {
	u32 page;
	u32 count;		/* of requests, when it was read last; modulo 2^32 */
	u64 since_ns;		/* when that was; 0: nothing is known */
};

struct neotier_watch_ops {
	/* The device counts the requests for @page in @slot from now on, from 0. */
	void (*name)(void *owner, u32 slot, u32 page);
	/* That count, modulo 2^32. */
	u32 (*count)(void *owner, u32 slot);
	/* What lies in @page now, as neotier_ledger_page.identity() says it. */
	u64 (*identity)(void *owner, u32 page);
};

struct neotier_watch {
	struct neotier_watch_slot slots[NEOTIER_LEDGER_SLOTS];
	u32 nr;			/* of slots that the device has, at most NEOTIER_LEDGER_SLOTS; 0: it counts nothing so */
	const struct neotier_watch_ops *ops;
	void *owner;
};

/* Nothing is known: the device stood still, or was reset. */
void neotier_watch_forget(struct neotier_watch *watch);

/**
 * neotier_watch_name() - tells the device which pages are to be counted now
 * @watch: watch
 * @ledger: whose they are
 * @now_ns: not 0, by the driver's own clock
 *
 * Once after each settlement, before anything is chosen, and again when something may have been.
 */
void neotier_watch_name(struct neotier_watch *watch, struct neotier_ledger *ledger, u64 now_ns);

/**
 * neotier_watch_count() - tells the ledger what those were asked for, before it settles
 * @watch: watch
 * @ledger: ledger
 * @clock: by which the ledger's time passes
 * @now_ns: by the driver's own clock
 *
 * Return: whether it did: neotier_ledger_period.counted.
 */
bool neotier_watch_count(struct neotier_watch *watch, struct neotier_ledger *ledger, const struct neotier_clock *clock, u64 now_ns);

#ifdef __cplusplus
}
#endif
#endif

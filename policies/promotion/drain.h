/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * How many of its reports a device is asked for. In each epoch the first reports are of the hottest pages, which reach the
 * threshold first, and later ones more and more of cold pages and of the same: after half a ring the rest is left, and thrown
 * away unread when the next epoch begins. Where reports have confirmed no page for some epochs an eighth of a ring is enough to
 * notice when that changes: reading costs time.
 *
 * Invariant: where the caller looks then, an epoch here begins with the device's, or right after it. Elsewhere in the device's
 * epoch the first reports that come are those of some pages and not of others, and never of the hottest.
 *
 * Freestanding C, the same object in neotier.ko, the replay and the unit test. Thread safety: one caller at a time.
 */
#ifndef NEOTIER_DRAIN_H
#define NEOTIER_DRAIN_H

#include "neotier_policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Epochs in which no page was confirmed, after which fewer reports are read. */
#define NEOTIER_DRAIN_PATIENCE 4U

/* All zero at first. */
struct neotier_drain {
	u64 next_ns;	/* when the next allowance begins */
	bool due;	/* one has to begin now, before that */
	u64 ends;	/* tick of the device with which its epoch ends, as far as is known */
	u64 epochs;	/* of the device, before that one */
	u32 length;	/* of those to come, in ticks; 0: nothing is known */
	u32 allowed;	/* reports that may still be read in this epoch */
	u32 watched;	/* of these, so many whatever waits: somebody counts them */
	bool left;	/* reports stay in the device for want of use now */
	u64 confirmed;	/* pages so far, when that last changed */
	u32 idle;	/* epochs since then */
};

/**
 * neotier_drain_phase() - where the device is in its epoch
 * @drain: state
 * @now_ns: now
 * @ticks: that the device has counted, a total
 * @epochs: that it has ended, a total
 * @length: ticks of an epoch, >= 1; a change begins with the device's next epoch
 * @tick_ns: of a tick, >= 1
 *
 * Without a call epochs begin with the first neotier_drain_begin(). What the device says may be anything.
 */
void neotier_drain_phase(struct neotier_drain *drain, u64 now_ns, u64 ticks, u64 epochs, u32 length, u64 tick_ns);

/**
 * neotier_drain_begin() - an allowance for each epoch
 * @drain: state
 * @now_ns: now
 * @epoch_ns: length of an epoch
 * @hotlist_size: entries of the device's ring
 * @confirmed: pages confirmed so far, a total
 * @pages: that may be promoted; other than NEOTIER_NO_LIMIT: some reports are counted in each epoch whatever waits
 *
 * Return: whether the reports that are in the device are to be thrown away first.
 */
bool neotier_drain_begin(struct neotier_drain *drain, u64 now_ns, u64 epoch_ns, u32 hotlist_size, u64 confirmed,
			 u64 pages);

/* Reports to read at most, while so many pages wait. */
u32 neotier_drain_most(struct neotier_drain *drain, u32 waiting);

/* So many were read. */
void neotier_drain_done(struct neotier_drain *drain, u32 reports);

#ifdef __cplusplus
}
#endif
#endif

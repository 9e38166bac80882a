/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Hot pages that wait for their turn: the hottest first, by the count that the device reported. Freestanding C, the same
 * object in neotier.ko, the replay and the unit test.
 *
 * Counts are put into classes, each a quarter of a power of two wide; within a class who came first goes first. So each
 * operation costs the same however many wait, and nothing has to be sorted. What stays behind hotter pages is not kept for
 * ever: it expires (neotier_waiting_expire), and when all places are taken the coldest one gives way.
 *
 * Thread safety: one caller at a time.
 */
#ifndef NEOTIER_WAITING_H
#define NEOTIER_WAITING_H

#include "neotier_policy.h" /* u16 and the like, in user space as well */

#ifdef __cplusplus
extern "C" {
#endif

/* Places, at most: 64 MiB worth of 4 KiB pages, four times what the device's own list holds. */
#define NEOTIER_WAITING_MAX 16384U
#define NEOTIER_WAITING_MIN 1024U
#define NEOTIER_WAITING_CLASSES 64U

/* A report that waits. */
struct neotier_hot {
	u64 drained_ns;	/* when it was read from the device */
	u32 page;	/* index in the region */
	u16 count;	/* requests in the epoch, as the device estimated them */
	bool counted;	/* among those that have to wait: neotier_waiting_uncounted() */
};

struct neotier_waiting_place {
	struct neotier_hot hot;
	u16 next;	/* in its class, or free */
};

struct neotier_waiting {
	struct neotier_waiting_place *places;
	u64 classes;	/* bit n: class n is not empty */
	u16 first[NEOTIER_WAITING_CLASSES], last[NEOTIER_WAITING_CLASSES];
	u16 free;
	u32 max;	/* places */
	u32 nr;
	u64 uncounted[NEOTIER_WAITING_MAX / 64];	/* a bit for each place */
	u32 nr_uncounted;	/* of them, that are set */
};

/**
 * neotier_waiting_init() - an empty list
 * @waiting: list
 * @places: the caller's, for as long as the list is used
 * @max: of them, 1 .. NEOTIER_WAITING_MAX
 */
void neotier_waiting_init(struct neotier_waiting *waiting, struct neotier_waiting_place *places, u32 max);

/* Places for a slow tier of so many pages: for an eighth of them, within bounds. */
static inline u32 neotier_waiting_places(u64 slow_pages)
{
	return (u32)neotier_clamp_u64(slow_pages / 8, NEOTIER_WAITING_MIN, NEOTIER_WAITING_MAX);
}

/**
 * neotier_waiting_add() - one more
 * @waiting: list
 * @hot: what
 * @dropped: filled when all places were taken: the coldest, which may be the new one
 *
 * Return: false when there is one dropped.
 */
bool neotier_waiting_add(struct neotier_waiting *waiting, const struct neotier_hot *hot, struct neotier_hot *dropped);

/**
 * neotier_waiting_take() - take out the hottest
 * @waiting: list
 * @hot: filled
 *
 * Return: false when the list is empty.
 */
bool neotier_waiting_take(struct neotier_waiting *waiting, struct neotier_hot *hot);

/**
 * neotier_waiting_untake() - put back what was taken, before anything was added; the last one taken first
 * @waiting: list
 * @hot: what
 */
void neotier_waiting_untake(struct neotier_waiting *waiting, const struct neotier_hot *hot);

/**
 * neotier_waiting_expire() - take out one that came before a time
 * @waiting: list
 * @before_ns: time
 * @cursor: 0 before the first call of a round; begins where the previous call ended
 * @hot: filled
 *
 * Return: false when there are no more.
 */
bool neotier_waiting_expire(struct neotier_waiting *waiting, u64 before_ns, u32 *cursor, struct neotier_hot *hot);

/**
 * neotier_waiting_uncounted() - find one that has not been counted as waiting, and mark it so
 * @waiting: list
 * @cursor: 0 before the first call of a round
 * @hot: filled
 *
 * Return: false when there are no more.
 */
bool neotier_waiting_uncounted(struct neotier_waiting *waiting, u32 *cursor, struct neotier_hot *hot);

#ifdef __cplusplus
}
#endif

#endif

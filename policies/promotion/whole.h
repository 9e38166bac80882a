/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Room for whole huge folios on a full node: how many idle ones may go down for hot ones that wait.
 *
 * A folio that goes down leaves a piece of 2 MiB, which is no reservation: a program that grows may take it. So one more goes
 * down only while few are owed, that is have left a piece for which no hot folio has come up yet. The hot one is moved where
 * twice its size is free above the level at which promotion stops, so that its parts find room if the kernel has to split it.
 * Programs' huge pages are taken from below that level too. That is why four may be owed.
 *
 * Invariant: never more go down than came up and NEOTIER_WHOLE_OWED, but for what others took; and after each time that others
 * took it nothing goes down for a while, twice as long each time in a row.
 *
 * Freestanding C, the same object in neotier.ko and the unit test. Thread safety: one caller at a time.
 */
#ifndef NEOTIER_WHOLE_H
#define NEOTIER_WHOLE_H

#include "neotier_policy.h"
#include "promotion/huge.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NEOTIER_WHOLE_OWED 4U
/* So far below the level a node may be at first, in folios. */
#define NEOTIER_WHOLE_SHORT 2U
/* What is owed for longer is given to whoever wants it. */
#define NEOTIER_WHOLE_OWED_NS 1000000000ULL
/* After a move down that failed, or was for nothing. */
#define NEOTIER_WHOLE_RETRY_NS 100000000ULL
#define NEOTIER_WHOLE_RETRY_MAX_NS 102400000000ULL
/* Victims that are tried for one hot folio: to look at one that has to stay takes some microseconds. */
#define NEOTIER_WHOLE_TRIES 8U

/* All zero at first. */
struct neotier_whole {
	u32 owed;	/* folios that went down and for which none has come up */
	u64 down_ns;	/* when the last of them did */
	u64 until_ns;	/* none goes down before */
	u64 retry_ns;	/* how long that was; 0: the last exchange was one */
};

/* Huge folios to look for: one for each hot one that waits for want of a piece and may move; pages left to the plan. */
u32 neotier_whole_wanted(const struct neotier_whole *whole, const struct neotier_huge *huge, u64 left, u64 now_ns);

/* Whether one may go down now, with so many pages free above the level where promotion stops. */
bool neotier_whole_may(const struct neotier_whole *whole, u64 above_floor, u64 now_ns);

/* One went down. */
void neotier_whole_down(struct neotier_whole *whole, u64 now_ns);

/* A hot one came up. */
void neotier_whole_up(struct neotier_whole *whole);

/* One could not go down, and trying that was dear. */
void neotier_whole_failed(struct neotier_whole *whole, u64 now_ns);

/* There is no room for a hot one. Return: how many had gone down for it, if there ought to be: others have their room. */
u32 neotier_whole_lost(struct neotier_whole *whole, u64 above_floor, u64 now_ns);

/* Once a step. Return: how many pieces are given up, since they have been owed for long. */
u32 neotier_whole_expire(struct neotier_whole *whole, u64 now_ns);

#ifdef __cplusplus
}
#endif
#endif

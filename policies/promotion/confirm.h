/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Pages seen hot lately. A program that streams through memory makes each page hot for one epoch and never comes
 * back: moving such a page costs more than it can bring. A page has to be reported in several epochs, with at most
 * NEOTIER_SEEN_GAP of them without a report in between. A set of 4 ways is 32 bytes; the one unseen for longest gives
 * way, which costs that page one more epoch. A page's set: the upper bits of its product with 0x61C88647.
 *
 * Freestanding C, the same object in neotier.ko, the replay and the unit test. Thread safety: one caller at a time.
 */
#ifndef NEOTIER_CONFIRM_H
#define NEOTIER_CONFIRM_H

#include "neotier_policy.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NEOTIER_SEEN_WAYS 4U
#define NEOTIER_SEEN_SETS_LOG2 14
#define NEOTIER_SEEN_ENTRIES (NEOTIER_SEEN_WAYS << NEOTIER_SEEN_SETS_LOG2)
#define NEOTIER_SEEN_GAP 2U

struct neotier_seen {
	u32 page1;		/* index in the region + 1; 0: free */
	u32 epoch : 28, times : 4;
};

/**
 * neotier_confirmed() - note a report of a page
 * @seen: NEOTIER_SEEN_ENTRIES entries, zeroed before the first call
 * @page: index in the region, below 2^32 - 1
 * @epoch: in which it was reported; counted up, wraps
 * @wanted: epochs that have to report a page, 0 .. 15
 *
 * Return: whether that many have; then the page is forgotten.
 */
bool neotier_confirmed(struct neotier_seen *seen, u32 page, u64 epoch, u32 wanted);

#ifdef __cplusplus
}
#endif
#endif

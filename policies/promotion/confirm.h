/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Pages seen hot lately. A program that streams through memory makes each page hot for one epoch and never comes
 * back: moving such a page costs more than it can bring. A page has to be reported in several epochs. Reports count as
 * those of different epochs when three quarters of an epoch lie between them, by the host's clock alone. The device
 * begins its epochs at other times than the host, so by numbers of epochs one short use can count twice. More than two
 * and a half epochs without a report begin anew, and where only some reports are read as many times longer. A set of 4
 * ways is 32 bytes; the one unseen for longest gives way, which costs that page one more epoch. A page's set: the upper
 * bits of its product with 0x61C88647.
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
/*
 * Time between two reports is counted in parts of an epoch: at least APART of them, at most GAP, and where few reports are
 * read RARE times that.
 */
#define NEOTIER_SEEN_PARTS 8U
#define NEOTIER_SEEN_APART 6U
#define NEOTIER_SEEN_GAP 20U
#define NEOTIER_SEEN_RARE 8U

struct neotier_seen {
	u32 page1;		/* index in the region + 1; 0: free */
	u32 part : 28, times : 4;	/* when it was last counted; how often */
};

struct neotier_seen_table {
	struct neotier_seen *entries;	/* NEOTIER_SEEN_WAYS << sets_log2, zeroed at first */
	u32 sets_log2;			/* 1 .. 31 */
};

/* For a slow tier of so many pages: half an entry each, within bounds. */
u32 neotier_seen_sets_log2(u64 slow_pages);

/**
 * neotier_confirmed() - note a report of a page
 * @seen: table
 * @page: index in the region, below 2^32 - 1
 * @now_ns: when it was reported; rises
 * @epoch_ns: length of an epoch, NEOTIER_SEEN_PARTS or more
 * @wanted: epochs that have to report a page, 0 .. 15
 * @read_ppm: of all reports those that are read, of late
 *
 * Return: whether that many have; then the page is forgotten.
 */
bool neotier_confirmed(const struct neotier_seen_table *seen, u32 page, u64 now_ns, u64 epoch_ns, u32 wanted, u64 read_ppm);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Pages promoted so far, by what a demotion does not change: the anonymous mapping and the offset in it. A set of 4 ways
 * is 32 bytes; the oldest way gives way. Wrong in two directions, both rare: an entry pushed out is a ping-pong missed,
 * and a mapping freed and allocated again, or equal 32-bit signatures, is one too many.
 *
 * Freestanding C, the same object in neotier.ko, the replay and the unit test. Thread safety: one caller at a time.
 */
#ifndef NEOTIER_PING_PONG_H
#define NEOTIER_PING_PONG_H

#include "neotier_policy.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NEOTIER_PING_PONG_WAYS 4U

struct neotier_ping_pong_entry {
	u32 signature;	/* 0: free */
	u32 when;	/* units of 2^20 ns, wraps after 52 days */
};

struct neotier_ping_pong {
	struct neotier_ping_pong_entry *entries;	/* NEOTIER_PING_PONG_WAYS << sets_log2, zeroed at first */
	u32 sets_log2;					/* 1 .. 31 */
};

/* For a fast tier of so many pages: an entry for one in four, within bounds. */
u32 neotier_ping_pong_sets_log2(u64 fast_pages);

/* What a page is, wherever it lies. */
u64 neotier_page_identity(u64 mapping, u64 index);

/* Remember a page that is promoted. */
void neotier_ping_pong_note(struct neotier_ping_pong *table, u64 identity, u64 now_ns);

/* Of a page that was not noted. */
#define NEOTIER_NEVER (~(u64)0)

/**
 * neotier_ping_pong_age() - how long ago a page was noted
 * @table: table
 * @identity: of the page
 * @now_ns: now
 *
 * Return: ns, to the millisecond; NEOTIER_NEVER: it is not there.
 */
u64 neotier_ping_pong_age(const struct neotier_ping_pong *table, u64 identity, u64 now_ns);

/**
 * neotier_ping_pong_check() - whether a page on the slow node has been promoted before: it has been demoted since
 * @table: table
 * @identity: of the page
 *
 * Return: true once for each promotion that was noted: the page is forgotten.
 */
bool neotier_ping_pong_check(struct neotier_ping_pong *table, u64 identity);

#ifdef __cplusplus
}
#endif
#endif

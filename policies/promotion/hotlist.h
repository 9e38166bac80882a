/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * From reports to pages worth moving: duplicates out, confirmation, bounded waiting, and a look at each page when it comes
 * and when its turn comes. What a page is, only the caller knows.
 *
 * Freestanding C, the same object in neotier.ko, the replay and the unit test. Thread safety: one caller at a time.
 */
#ifndef NEOTIER_HOTLIST_H
#define NEOTIER_HOTLIST_H

#include "neotier_policy.h"
#include "promotion/confirm.h"
#include "promotion/ledger.h"
#include "promotion/skip.h"
#include "promotion/waiting.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A report says that a page was hot within an epoch; a second later that is no reason to move it any more. */
#define NEOTIER_EXPIRE_NS 1000000000ULL

struct neotier_hotlist_ops {
	/* Whether the page may move now, with its owner's rules when @owners. NR_NEOTIER_SKIP: it may; else why not. */
	enum neotier_skip (*look)(void *owner, u32 page, bool owners);
	/* A report that moved nothing or has to wait. */
	void (*skip)(void *owner, u32 page, enum neotier_skip reason);
	/* Whether a page was demoted to make room, in this horizon of the ledger or the last one. */
	bool (*demoted)(void *owner, u32 page);
	/* What lies there, as neotier_page_identity(). */
	u64 (*identity)(void *owner, u32 page);
};

/* Reports that wait for their turn; every page at most once. */
struct neotier_hotlist {
	struct neotier_waiting waiting;
	u64 confirmed;			/* reports so far of pages that were hot for long enough */
	u64 *queued;			/* bit for each page of the region: waits or is in a batch */
	struct neotier_seen_table seen;	/* reports that wait for confirmation */
	struct neotier_ledger ledger;	/* what moves may cost */
	const struct neotier_hotlist_ops *ops;
	void *owner;			/* as the ops get it */
};

/* Words of neotier_hotlist.queued for so many pages. */
static inline u64 neotier_hotlist_words(u64 pages)
{
	return (pages + 63) / 64;
}

/**
 * neotier_hotlist_init() - an empty list
 * @list: list; queued and seen are set and zeroed, ops and owner are set; the ledger is started
 * @places: the caller's, for as long as the list is used
 * @nr: of them, 1 .. NEOTIER_WAITING_MAX
 */
void neotier_hotlist_init(struct neotier_hotlist *list, struct neotier_waiting_place *places, u32 nr);

/**
 * neotier_hotlist_report() - queue one report
 * @list: list
 * @page: index in the region
 * @count: estimate as reported
 * @now_ns: when it was drained
 * @epoch_ns: length of an epoch, > 0
 * @confirm_epochs: epochs that have to report a page
 *
 * Return: NR_NEOTIER_SKIP when the page waits now, else why not, which has been counted.
 */
enum neotier_skip neotier_hotlist_report(struct neotier_hotlist *list, u32 page, u32 count, u64 now_ns, u64 epoch_ns,
					 u32 confirm_epochs);

/**
 * neotier_hotlist_take() - collect pages worth trying; others are counted and dropped
 * @list: list
 * @batch: filled
 * @max: at most this many
 * @now_ns: now
 *
 * Return: number collected. Each must go to neotier_hotlist_done() or back by neotier_hotlist_untake().
 */
u32 neotier_hotlist_take(struct neotier_hotlist *list, struct neotier_hot *batch, u32 max, u64 now_ns);
void neotier_hotlist_done(struct neotier_hotlist *list, const struct neotier_hot *hot, u32 nr);
void neotier_hotlist_untake(struct neotier_hotlist *list, const struct neotier_hot *hot, u32 nr);
void neotier_hotlist_clear(struct neotier_hotlist *list);

/* None may move: the hottest that wait become controls of the ledger, as many as it lacks. */
void neotier_hotlist_pilots(struct neotier_hotlist *list);

/* Count the reports that have to wait, each once. */
void neotier_hotlist_wait(struct neotier_hotlist *list, enum neotier_skip reason);

#ifdef __cplusplus
}
#endif
#endif

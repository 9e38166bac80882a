/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Huge folios that are worth moving whole: hot pages are gathered by folio until together they repay the move of all 512.
 *
 * A page is hot when its requests in an epoch, the device's threshold or more, repay the move of one page. So a folio is when
 * those of its hot pages together repay NEOTIER_HUGE_COST such moves: 205 pages at the threshold, fewer that are hotter. What
 * is asked of every page still is: it was confirmed before it comes here. Pages count as hot at the same time when a second
 * lies between them at most, since the driver reads only some of the reports of an epoch.
 *
 * Invariant: a page is counted at most once for the same folio within that time, so that one hot page can never move 512.
 *
 * Why 205: on the emulated machine 4.3 million instructions move a whole folio and 21,000 one page (docs/decisions/0041).
 *
 * A folio of which a few pages are hot is split, so that these can move alone, where their requests repay the split and a move
 * of each.
 *
 * Freestanding C, the same object in neotier.ko and the unit test. Thread safety: one caller at a time.
 */
#ifndef NEOTIER_HUGE_H
#define NEOTIER_HUGE_H

#include "neotier_policy.h"
#include "promotion/hotlist.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A huge folio: 2 MiB of 4 KiB pages. */
#define NEOTIER_HUGE_ORDER 9U
#define NEOTIER_HUGE_PAGES (1U << NEOTIER_HUGE_ORDER)
/* Moves of one page that the move of a huge folio costs. */
#define NEOTIER_HUGE_COST 205U
/* And those that splitting it costs: .73 million instructions. */
#define NEOTIER_SPLIT_COST 35U
/* Where folios move whole, so long is waited for more hot pages before one is split. */
#define NEOTIER_SPLIT_WAIT_NS 200000000ULL

/*
 * Folios of which hot pages are remembered: all of the region, and of a large one 8 GiB of them, 352 KiB. In sets of 4; the one
 * begun first gives way.
 */
#define NEOTIER_GATHERED_WAYS 4U
#define NEOTIER_GATHERED_SETS_LOG2_MAX 10U
/* Folios that wait for their turn. */
#define NEOTIER_HUGE_MAX 64U
/* Between two tries while there is no room: asking for 2 MiB in one piece wakes kswapd. */
#define NEOTIER_HUGE_RETRY_NS 10000000ULL

/* Folios are named by their first page. */
struct neotier_huge_ops {
	/* Whether the folio may move now, with its owner's rules when @owners. NR_NEOTIER_SKIP: it may; else why not. */
	enum neotier_skip (*look)(void *owner, u32 page, bool owners);
	/* A folio that did not move or has to wait. */
	void (*skip)(void *owner, u32 page, enum neotier_skip reason);
	/* Pages moved: all of the folio or none; < 0: there was no memory for it, and nothing was done. */
	int (*migrate)(void *owner, const struct neotier_hot *hot);
	/* Wakes kswapd for room in one piece. */
	void (*room_make)(void *owner);
	/* Splits the folio, now. NR_NEOTIER_SKIP: it is split; else why not. */
	enum neotier_skip (*split)(void *owner, u32 page);
};

struct neotier_gathered {
	u64 since_ns;	/* when its first page was counted */
	u64 requests;	/* in an epoch, of its pages so far together */
	u32 folio1;	/* index in the region, in folios, + 1; 0: free */
	u32 nr;		/* pages that were counted */
	u64 pages[NEOTIER_HUGE_PAGES / 64];	/* bit for each that was counted */
};

struct neotier_huge {
	struct neotier_gathered *gathered;	/* NEOTIER_GATHERED_WAYS << sets_log2, zeroed at first */
	u32 sets_log2;
	bool whole, pieces;	/* whether folios move whole, and whether they are split */
	struct neotier_hot waiting[NEOTIER_HUGE_MAX];
	u32 nr;		/* of those that wait */
	u64 retry_ns;	/* there was no room: not before */
	const struct neotier_huge_ops *ops;
	void *owner;	/* as the ops get it */
};

/* Pages promoted, those of huge folios among them, as so many moves of one page by what they cost. */
static inline u64 neotier_huge_as_moves(u64 pages, u64 huge)
{
	return pages - huge * (NEOTIER_HUGE_PAGES - NEOTIER_HUGE_COST);
}

/* For a region of so many pages. */
u32 neotier_gathered_sets_log2(u64 nr_pages);

/**
 * neotier_huge_report() - one more hot page of a huge folio
 * @huge: gathered, ops and owner are set
 * @page: index in the region, whose folios begin at multiples of NEOTIER_HUGE_PAGES
 * @count: its requests in an epoch
 * @now_ns: when it was reported; rises
 * @threshold: requests in an epoch that repay the move of one page, > 0
 *
 * Once its folio repays its move, and may move, it waits, with the requests of its pages over NEOTIER_HUGE_COST as its count.
 * One that may not move whole, or where folios do not, is split once its pages repay that and their moves.
 */
void neotier_huge_report(struct neotier_huge *huge, u32 page, u32 count, u64 now_ns, u32 threshold);

/**
 * neotier_huge_take() - the hottest folio that waits and may still move; others are counted and dropped
 * @huge: folios
 * @hot: filled; its page is the folio's first
 * @now_ns: now
 *
 * Return: false when there is none.
 */
bool neotier_huge_take(struct neotier_huge *huge, struct neotier_hot *hot, u64 now_ns);

/* Back, for another turn. Nothing came in between. */
void neotier_huge_untake(struct neotier_huge *huge, const struct neotier_hot *hot);

/* Count the folios that have to wait, each once. */
void neotier_huge_wait(struct neotier_huge *huge, enum neotier_skip reason);

/* Forget those that wait. What is gathered is not counted any more after a second. */
static inline void neotier_huge_clear(struct neotier_huge *huge)
{
	huge->nr = 0;
}

#ifdef __cplusplus
}
#endif
#endif

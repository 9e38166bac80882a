/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What promotion may cost. Invariant: what was spent is at most what was won, as far as that was measured, plus a share of
 * the time, plus a base. A program for which nothing can be won loses no more than that, and then is left alone.
 *
 *	balance = base + share * time + won - regret - spent
 *
 * spent	time of the driver's thread and of kswapd on its behalf: moves, room, and looking; and what waking it takes, and what a
 *		move does to the caches.
 * won		what promoted pages save. The device does not see them any more, so controls stand for them: of the pages whose
 *		turn it is to move one in NEOTIER_LEDGER_ONE_IN stays where it is, for a horizon on average. Before the first move
 *		NEOTIER_LEDGER_PILOTS of those that wait do; then as many are let go as are too many. A page counts as promoted for one horizon: what it brings later is
 *		won, and not believed.
 * regret	what pages lose that were demoted to make room, for one horizon each. Where the device counts, up to
 *		NEOTIER_LEDGER_WITNESSES of them are counted, drawn by lot. Else these are the requests to pages that were demoted in
 *		this horizon or the last one, as the device reports them.
 *
 * Two things are asked of the controls: how much they are used, and how much of what they were used at first is left. Who is cold
 * for long is dropped, and takes its share of the promoted pages with it. A device may count what the host names exactly. Then
 * that is known of each. Else what is left is told by those that are reported again, of those that would have been, by the share
 * of reports that was read; and how hot a hot one is by what the report says, or, from a device that reports at the threshold, by
 * the device's histogram.
 *
 * No more is risked than what could be won is worth: all reads of the device times what one saves. Where that is next to nothing
 * the ledger stops long before the bound, and only looks at the device's totals from then on. Where much could be won, and what
 * is hot does not last, it looks for a third of the time.
 *
 * A page may move while the balance pays for it, and while heat has lasted for so long that one and a half times that repays the move, at
 * the price of the moves of late. What the page that makes room would have had counts against it. A balance below 0 stops all
 * looking until the share has paid for it; not while what has just moved is about to.
 *
 * Writes do not wait for memory, so they count neither way. Where it errs to the careful side: of a control that is hotter than
 * four medians only four are counted. Where it errs to the other side: where nothing is counted exactly, a demoted page below
 * the threshold is not reported, and where few reports are read, it takes some epochs until pages that went cold are missed.
 *
 * Source: ours. That a group chosen by chance stands for what cannot be seen is Fisher's (1926).
 *
 * Freestanding C, the same object in neotier.ko, the replay and the unit test. Thread safety: one caller at a time.
 */
#ifndef NEOTIER_LEDGER_H
#define NEOTIER_LEDGER_H

#include "neotier_policy.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NEOTIER_LEDGER_ONE_IN 16U
#define NEOTIER_LEDGER_CONTROLS 40U
#define NEOTIER_LEDGER_WITNESSES 24U
/* Of a device's counters: one for each control and witness. */
#define NEOTIER_LEDGER_SLOTS (NEOTIER_LEDGER_CONTROLS + NEOTIER_LEDGER_WITNESSES)
#define NEOTIER_LEDGER_PILOTS 32U
/* Of a hot set of few pages more than one in NEOTIER_LEDGER_ONE_IN stay, but no more than these. */
#define NEOTIER_LEDGER_FEW 8U
#define NEOTIER_LEDGER_FILTER 8U
#define NEOTIER_LEDGER_HORIZON_NS 8000000000ULL
/* For longer than that no heat is expected to last, however long it has. */
#define NEOTIER_LEDGER_STEADY_NS 1000000000ULL
/* And longer than that it is not asked for how long it has. */
#define NEOTIER_LEDGER_LASTED_NS 8000000000ULL
/* For which heat has to have lasted before a page moves for it. */
#define NEOTIER_LEDGER_PROOF_NS 100000000ULL
/* Of a horizon, in which promoted pages are counted. */
#define NEOTIER_LEDGER_PARTS 16U
/* Who can pay for no more pages waits. From kswapd room for fewer costs as much; one by one, a look still has its price. */
#define NEOTIER_LEDGER_LEAST_KSWAPD 256U
#define NEOTIER_LEDGER_LEAST_EXCHANGE 64U
/* So many bases are kept at most: an old win pays for no long harm. */
#define NEOTIER_LEDGER_CAP 20U
#define NEOTIER_LEDGER_BASE_MAX_NS 10000000000ULL
/*
 * What a wake-up costs the program beside the thread's own time, which is all that the thread can measure: the interrupt, two
 * switches, and caches that are filled again. Seen on the emulated server: 3.3 and 3.6 us
 * (docs/decisions/0048-ledger.md).
 */
#define NEOTIER_LEDGER_WAKE_NS 3500U
/* And a move, for each page promoted: copies displace lines that were in use. Seen there: 2.2 to 2.8 us (docs/decisions/0073-move-cost.md). */
#define NEOTIER_LEDGER_MOVE_NS 2500U
/*
 * Of what could be won at most, so much is risked: one part in so many of the share of the time, and of the base what it takes so
 * long to win. Of the base a quarter in any case: a program that has yet to begin is worth a look.
 */
#define NEOTIER_LEDGER_HOPE_PART 16U
#define NEOTIER_LEDGER_HOPE_NS 125000000ULL
/*
 * Settlements. Where nothing that lasts was found in so many of them, though much could be won, a pause follows, and after it a
 * look is for a few. A program that fills its memory first needs most of these (docs/decisions/0068-hope.md).
 */
#define NEOTIER_LEDGER_PATIENCE 12U
#define NEOTIER_LEDGER_LOOK 4U
#define NEOTIER_LEDGER_PAUSE 8U
/* Of the time, that could be won: who could win less looks for little anyway. */
#define NEOTIER_LEDGER_MUCH_PPM 50000U
/* Of the time: who wins less is in no hurry. */
#define NEOTIER_LEDGER_HURRY_PPM 10000
/* loss_ppm that bounds nothing. */
#define NEOTIER_LEDGER_NO_BOUND 1000000U
/* What the module and the replay begin with. */
#define NEOTIER_LEDGER_LOSS_PPM 5000U
#define NEOTIER_LEDGER_BASE_MS 10U

struct neotier_ledger_terms {
	u64 base_ns;	/* 0 .. NEOTIER_LEDGER_BASE_MAX_NS */
	u32 loss_ppm;	/* share of the time, 0 .. 10^6 */
	u32 saved_ns;	/* that a read saves in the fast tier, 1 .. 100000 */
};

/* Since the last settlement, all by one clock. */
struct neotier_ledger_period {
	u64 interval_ns;
	u64 promoted;		/* 4 KiB pages */
	u64 waiting;		/* pages that are hot enough and wait */
	u64 returned;		/* reported pages that had been promoted before: they had been demoted again */
	u64 moves_ns, looking_ns;	/* spent: on moves and their room; on all else */
	u64 wakes;		/* of the thread, as far as the times do not have what they cost the program */
	u32 cpus;		/* whose time it is: all of them lose and win, >= 1 */
	u64 reads, writes;	/* of the device, of the kinds that it counts for pages */
	u64 reports, missed;	/* read from it; lost or thrown away: each stands for as much as one that was read */
	u64 epoch_ns;
	u32 downsampling;	/* the device counts one request in so many, >= 1 */
	u32 hot;		/* requests to a hot page in an epoch, neotier_histogram_hot(); 0: reports have their page's own */
	bool counted;		/* neotier_ledger_count() has told what each that is watched was asked for */
};

struct neotier_ledger_control {
	u32 page, count;	/* requests in an epoch in which it was reported, of late */
	u64 identity;		/* of what lay there when it was chosen */
	u64 seen_ns;		/* of ledger.watched_ns: when it was reported last */
	/* What is counted exactly; of a witness that alone, with page and identity. Rates are of requests that are sampled, in an epoch, times NEOTIER_LEDGER_FINE. */
	u32 slot;		/* of the device's counters; nobody else's */
	u32 requests;		/* since the last settlement, or since it was chosen */
	u64 counted_ns;		/* in which they came; 0: not known */
	bool gone;		/* something else lies there by now */
	u64 rate, first;	/* at the last settlement; at the first one, in which it may have been cold again already; 0: not known */
	u32 cold;		/* settlements in a row in which it was */
};

struct neotier_ledger {
	struct neotier_ledger_terms terms;
	s64 balance_ns;
	u64 spent_ns, won_ns, regret_ns;	/* totals, for people */
	struct neotier_ledger_control controls[NEOTIER_LEDGER_CONTROLS];
	struct neotier_ledger_control witnesses[NEOTIER_LEDGER_WITNESSES];	/* demoted pages */
	u32 nr_witnesses, cast;		/* cast: pages that they were drawn from, less those of witnesses that are gone */
	bool witnessed;			/* demoted_heat is known */
	u64 demoted_heat;		/* requests to a demoted page in an epoch, times NEOTIER_LEDGER_FINE */
	u64 slots;			/* that are somebody's, a bit each */
	u64 filter[NEOTIER_LEDGER_FILTER];	/* bits of hashes: a page without one is no control */
	u32 nr_controls, salt, drawn;	/* drawn: pages that could have been controls, less those of controls that are gone */
	u32 known;			/* controls at the last settlement */
	u64 reported, expected_ppm;	/* of these, that were reported since their number was told last; that would have been if all were hot */
	u64 watched_ns;			/* passed while reports were read */
	u64 regret_requests, regrets;	/* since the last settlement */
	bool hoped;			/* hope_ppm is known */
	u64 hope_ppm;			/* of the time, that would be won if no read waited for the slow tier any more */
	u64 reads_ppm;			/* of the requests that count, while there were any */
	u64 seen_ppm;			/* of the reports, that were read of late */
	u32 hot;			/* of the last period */
	bool warmed;			/* warm_ppm is known */
	u64 warm_ppm, warm_peak_ppm;	/* of the controls, that are still hot; of late and at most */
	u64 heat;			/* requests to a control that did not cool in an epoch, times NEOTIER_LEDGER_FINE */
	u64 average;			/* to a control, likewise */
	u64 steady_ns;			/* for which as many stayed hot, as far as that is expected to go on */
	u64 lasted_ns;			/* the same, up to NEOTIER_LEDGER_LASTED_NS */
	u64 unknown_ns;			/* since then, while it is not known how many do */
	u64 page_ns;			/* that a page will win if heat lasts for as long again */
	s64 gain_ppm;			/* what the promoted pages win now, less what is regretted, of the time */
	u64 promoted[NEOTIER_LEDGER_PARTS];	/* ring of the horizon's parts */
	u64 demoted[NEOTIER_LEDGER_PARTS];	/* likewise, to make room */
	u32 part;
	u64 part_ns;			/* passed of this part */
	u64 priced_ns, priced_pages;	/* that moves and their room took, and how many; the older the less */
	u64 exchange_ns;		/* of one */
	u32 vain;			/* settlements in which a look found nothing; in a pause: that are left of it */
	bool paused, stopped;
};

/* Begins anew, with nothing won or spent. Terms out of range are moved to the nearest value in range. */
void neotier_ledger_start(struct neotier_ledger *ledger, const struct neotier_ledger_terms *terms);

/* A report, as far as the ledger is concerned. */
struct neotier_ledger_page {
	u32 page, count;	/* index in the region; requests in the epoch */
	/* What is known of it, by the owner that the list's ops get. Asked only where it matters. */
	u64 (*identity)(void *owner, u32 page);
	void *owner;
};

/* A page was demoted to make room: @page is where it lies now. */
void neotier_ledger_demoted(struct neotier_ledger *ledger, const struct neotier_ledger_page *page);

/* Those whose requests are worth counting one by one: controls, then witnesses. */
static inline u32 neotier_ledger_nr_watched(const struct neotier_ledger *ledger)
{
	return ledger->nr_controls + ledger->nr_witnesses;
}

/* One of them, @i below their number. */
static inline struct neotier_ledger_control *neotier_ledger_watched(struct neotier_ledger *ledger, u32 i)
{
	return i < ledger->nr_controls ? &ledger->controls[i] : &ledger->witnesses[i - ledger->nr_controls];
}

/* A page was reported that was demoted lately. */
void neotier_ledger_regret(struct neotier_ledger *ledger, u32 count);

/**
 * neotier_ledger_report() - a page was reported
 * @ledger: ledger
 * @page: it
 *
 * Return: whether it is a control, which stays. Once something else lies there it is none any more, and counts as cold.
 */
bool neotier_ledger_report(struct neotier_ledger *ledger, const struct neotier_ledger_page *page);

/**
 * neotier_ledger_pilot() - a page waits, and none may move
 * @ledger: ledger
 * @page: it; no control so far
 *
 * Return: whether it is a control now, because there are too few to tell for how long heat lasts.
 */
bool neotier_ledger_pilot(struct neotier_ledger *ledger, const struct neotier_ledger_page *page);

/**
 * neotier_ledger_choose() - a page is about to be promoted
 * @ledger: ledger
 * @page: it; no control so far
 *
 * Return: whether it is chosen as a control, and stays.
 */
bool neotier_ledger_choose(struct neotier_ledger *ledger, const struct neotier_ledger_page *page);

/**
 * neotier_ledger_count() - requests to one that is watched, since the last settlement, or since it was chosen
 * @ledger: ledger
 * @i: which one, below neotier_ledger_nr_watched()
 * @requests: so many that count, whatever down-sampling leaves out
 * @ns: in which they came, by the clock of the period
 * @gone: something else lies there by now
 *
 * Of each, before a settlement whose period says that they were counted.
 */
void neotier_ledger_count(struct neotier_ledger *ledger, u32 i, u32 requests, u64 ns, bool gone);

/**
 * neotier_ledger_settle() - what has happened since the last time
 * @ledger: ledger
 * @period: it
 *
 * Return: whether a horizon has passed: pages that were demoted before it are to be forgotten.
 */
bool neotier_ledger_settle(struct neotier_ledger *ledger, const struct neotier_ledger_period *period);

/* Pages that may be promoted until the next settlement, for which reports are worth reading: @least or more, or 0; NEOTIER_NO_LIMIT. */
u64 neotier_ledger_pages(const struct neotier_ledger *ledger, u32 least);

/* Whether it bounds anything: then reports have to be read in each epoch. */
static inline bool neotier_ledger_bounds(const struct neotier_ledger *ledger)
{
	return ledger->terms.loss_ppm < NEOTIER_LEDGER_NO_BOUND;
}

/*
 * Whether a look is worth the moment at which it comes. One that interrupts a program costs it more than its own time: programs
 * that take turns on a CPU take others then (docs/decisions/0077-turns.md).
 */
static inline bool neotier_ledger_hurries(const struct neotier_ledger *ledger)
{
	return !neotier_ledger_bounds(ledger) || ledger->gain_ppm >= NEOTIER_LEDGER_HURRY_PPM;
}

/* Of the device's reports, those that were read of late, in parts per million. */
static inline u64 neotier_ledger_read_ppm(const struct neotier_ledger *ledger)
{
	return ledger->watched_ns ? ledger->seen_ppm : 1000000;
}

/* Whether there are fewer controls than it takes to tell for how long heat lasts. */
static inline bool neotier_ledger_wants_pilots(const struct neotier_ledger *ledger)
{
	return neotier_ledger_bounds(ledger) && ledger->nr_controls < NEOTIER_LEDGER_PILOTS;
}

/* Whether even looking costs too much now. */
static inline bool neotier_ledger_stopped(const struct neotier_ledger *ledger)
{
	return ledger->stopped;
}

#ifdef __cplusplus
}
#endif
#endif

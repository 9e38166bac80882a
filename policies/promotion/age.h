/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Which pages of the fast node are not in use, so that they can make room, and when it is worth to look.
 *
 * A pass goes through the node in groups of pages. Each is looked at twice: armed, which clears its Accessed bit, and checked
 * after a window of time. Not accessed in the window: it is idle. Not accessed since it was armed in the pass before: it is
 * old. Victims are taken from the old ones first, then from the idle ones, each in the order in which they were found. So a
 * page is a victim that was not accessed for a window or longer, a short while ago. That it was accessed once since then says
 * little: after a few windows nearly every page has been.
 *
 * Invariant: the window does not depend on how long a pass takes. A bit that is set says "once at least": in a long window
 * nearly every page is accessed once, and hot ones cannot be told from others. So it follows what is found: it is halved where
 * fewer than one page in eight is idle, and doubled where every other one is.
 *
 * A look costs time, so none is made unless somebody wants victims, and it is as long as what is lacking asks for, by what looks
 * brought of late. Looks take one part in NEOTIER_AGE_SHARE of the time, saved up while nobody looks, so that the first victims
 * are found soon; and what those that made room have paid. So where nothing is found little is lost. Frames where there was
 * nothing to look at are looked at again in one pass of eight.
 *
 * Freestanding C, the same object in neotier.ko, the replay and the unit test. Thread safety: one caller at a time.
 */
#ifndef NEOTIER_AGE_H
#define NEOTIER_AGE_H

#include "neotier_policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of a CPU's time, 1 part for looking while victims are wanted; and as much of it can be saved up. */
#define NEOTIER_AGE_SHARE 100U
#define NEOTIER_AGE_SAVED_NS 10000000ULL
/* And for each victim that made room: as much as its move and the hot page's take, so that looking at most doubles that. */
#define NEOTIER_AGE_VICTIM_NS 40000U
/* Of each age, found and not taken; of more, the last ones. A power of 2. */
#define NEOTIER_AGE_FOUND 4096U
/* So many times what is wanted now is looked for: hot pages come in waves, and the next would wait for a window. */
#define NEOTIER_AGE_STOCK 2U
/* Page table entries, and frames to start from, of a group: some 50 microseconds a look. */
#define NEOTIER_AGE_GROUP 4096U
/* Groups of a look at most. */
#define NEOTIER_AGE_GROUPS 16U
/* After this they are victims no more, and after half of it at the earliest. */
#define NEOTIER_AGE_KEPT_NS 250000000ULL
#define NEOTIER_AGE_NOTHING_PASSES 8U
/*
 * A huge folio has one Accessed bit for all of its pages. Where nothing cheaper is found it is split, so that they can be told
 * apart. What that takes before the first one is measured, and how many of its pages are taken for idle then.
 */
#define NEOTIER_AGE_HUGE_PAGES 512U
#define NEOTIER_AGE_SPLIT_NS 700000U
#define NEOTIER_AGE_SPLIT_YIELD 256U
/* Fewer victims that lack are not worth a split of a folio that is in use; and what a victim may cost by it. */
#define NEOTIER_AGE_SPLIT_LEAST 64U
#define NEOTIER_AGE_SPLIT_VICTIM_NS 10000U
/* After so many looks in a row that left so many lacking, victims that looks find are too few, however cheap. */
#define NEOTIER_AGE_SPLIT_LOOKS 3U
/* Of a look at most. */
#define NEOTIER_AGE_SPLITS 16U
/* Where splits bring too little one more is tried after so long, and twice as long from time to time. */
#define NEOTIER_AGE_SPLIT_RETRY_NS 1000000000ULL
#define NEOTIER_AGE_SPLIT_RETRY_MAX_NS 1024000000000ULL
#define NEOTIER_NO_FRAME (~(u32)0)
/* Pages that came up lately, of one page in so many of the node, within bounds: beyond that the first ones are forgotten. */
#define NEOTIER_AGE_CAME_SHARE 4U
#define NEOTIER_AGE_CAME_MIN 1024U
#define NEOTIER_AGE_CAME_MAX 65536U

enum neotier_age {
	NEOTIER_AGE_UNKNOWN,	/* not seen, or no page that could leave */
	NEOTIER_AGE_IN_USE,	/* accessed in the window, or not checked yet */
	NEOTIER_AGE_IDLE,
	NEOTIER_AGE_OLD,
};

/* Of a frame: bits 0 and 1 an enum neotier_age, 2: armed and not checked, 3: its page came up lately, 4 to 7 the pass that armed it. */
#define NEOTIER_AGE_MASK 3U
#define NEOTIER_AGE_ARMED 4U
#define NEOTIER_AGE_CAME 8U
#define NEOTIER_AGE_PASS_SHIFT 4U

/* Frames found in an age, in order. Some may not be of it any more. */
struct neotier_age_found {
	u32 *frames;		/* NEOTIER_AGE_FOUND */
	u32 first, nr;
	u32 turned;		/* first of those that were found since the last turn */
};

struct neotier_age_came {
	u32 frame;
	u32 when;		/* units of 2^20 ns, wraps after 52 days */
};

/* All zero at first, but for what is said. */
struct neotier_ages {
	u8 *frames;		/* nr of them, zeroed */
	u32 nr;			/* 1 or more */
	u32 pass;		/* 1 .. 15, over and over; 0: none yet */
	struct neotier_age_found idle, old; /* each with its frames */
	struct neotier_age_came *came;	/* those that came up lately, the first one first; neotier_ages_came_max(nr) */
	u32 first_came, nr_came;
	u64 armed, found;	/* pages so far: armed, found in both */
};

enum neotier_age_look {
	NEOTIER_AGE_LOOK_NONE,
	NEOTIER_AGE_LOOK_ARM,
	NEOTIER_AGE_LOOK_CHECK,
};

/* A new pass begins: nothing is armed in it. */
void neotier_ages_begin(struct neotier_ages *ages);

/* Entries of `came`, for a node of @nr frames: a power of 2. */
u32 neotier_ages_came_max(u32 nr);

/*
 * A page has come up to this frame. Until neotier_ages_settle() has it no more it is a victim only if it is old: a hot page that
 * rests for one window would go down again before it has paid for its move.
 */
void neotier_ages_came(struct neotier_ages *ages, u32 frame, u64 now_ns);

/* Those that came up @after_ns ago or earlier are as any other. */
void neotier_ages_settle(struct neotier_ages *ages, u64 after_ns, u64 now_ns);

/* Whether such a look has to go to the frame. */
static inline bool neotier_ages_due(const struct neotier_ages *ages, u32 frame, enum neotier_age_look look)
{
	u32 is = ages->frames[frame], pass = is >> NEOTIER_AGE_PASS_SHIFT;

	if (look == NEOTIER_AGE_LOOK_CHECK)
		return pass == ages->pass && (is & NEOTIER_AGE_ARMED);
	if (pass == ages->pass)
		return false;
	return !pass || (is & NEOTIER_AGE_MASK) != NEOTIER_AGE_UNKNOWN || (frame + ages->pass) % NEOTIER_AGE_NOTHING_PASSES == 0;
}

/**
 * neotier_ages_see() - what a look found of a page
 * @ages: ages
 * @frame: less than nr
 * @look: arm or check; whoever arms clears an Accessed bit that is set
 * @accessed: the bit was set; for a page that several map, once for each: one that is set is enough
 */
void neotier_ages_see(struct neotier_ages *ages, u32 frame, enum neotier_age_look look, bool accessed);

/* As neotier_ages_see(), of a huge folio by its first frame: its age is kept, and it is no victim. */
void neotier_ages_see_huge(struct neotier_ages *ages, u32 frame, enum neotier_age_look look, bool accessed);

/*
 * As neotier_ages_see(), of page cache that nobody maps. @accessed: it was used since it came, or since it was armed. One that was
 * not is old at once. So it makes room before what programs have mapped: each use of it is a system call, beside which slower
 * memory is little.
 */
void neotier_ages_see_cached(struct neotier_ages *ages, u32 frame, enum neotier_age_look look, bool accessed);

/* Whether a huge folio that was checked, by its first frame, was not accessed. */
static inline bool neotier_ages_huge_idle(const struct neotier_ages *ages, u32 frame)
{
	return (ages->frames[frame] & NEOTIER_AGE_MASK) >= NEOTIER_AGE_IDLE;
}

/* A huge folio that was idle is split: each of its pages is a victim. @frame: its first one; NEOTIER_AGE_HUGE_PAGES of them. */
void neotier_ages_pieces(struct neotier_ages *ages, u32 frame);

/* Nothing is there that could leave, or the page there is a victim no more. */
static inline void neotier_ages_forget(struct neotier_ages *ages, u32 frame)
{
	ages->frames[frame] = (u8)(ages->pass << NEOTIER_AGE_PASS_SHIFT | (ages->frames[frame] & NEOTIER_AGE_CAME) |
				   NEOTIER_AGE_UNKNOWN);
}

/* Frames that may be victims; some may be none any more. */
static inline u32 neotier_ages_victims(const struct neotier_ages *ages)
{
	return ages->idle.nr + ages->old.nr;
}

/* A victim that was chosen, and whose turn it was not: one again, behind all others. */
void neotier_ages_again(struct neotier_ages *ages, u32 frame);

/* None of them is a victim any more: to be looked at anew. */
void neotier_ages_stale(struct neotier_ages *ages);

/* Those that were found before the last turn are victims no more. */
void neotier_ages_turn(struct neotier_ages *ages);

/* Chooses a victim, and forgets it. Return: its frame; NEOTIER_NO_FRAME: there is none. */
u32 neotier_ages_victim(struct neotier_ages *ages);

/* When to look at what. All zero at first. */
struct neotier_age_pace {
	u32 first, end;		/* what is looked at: frames that a look starts from */
	u32 groups;		/* of how many groups it is, 1 .. NEOTIER_AGE_GROUPS; less at the node's end */
	u32 yield;		/* victims that a group brought of late; 0: none */
	u64 took_ns;		/* by the looks at what is armed, so far */
	u64 group_ns;		/* that a group took of late, both looks */
	u64 armed_ns;		/* when it was armed; 0: it is checked, or there is none */
	u64 window_ns;		/* from arming to the check */
	u64 armed, found;	/* as of the ages, before the group */
	u64 left_ns;		/* of CPU time */
	u64 owed_ns;		/* used beyond that */
	u64 filled_ns;		/* when left_ns was right; 0: never */
	u64 turned_ns;		/* the last turn of what was found */
	u32 wanted;		/* victims, when a look was chosen */
	u32 lacked;		/* looks in a row after which many were still lacking */
	u32 splits;		/* of folios in use, whose pages are armed and not checked */
	u32 split_yield;	/* victims that such a split brought of late; 0: not known */
	u64 split_ns;		/* that a split took of late; 0: not known */
	u64 tried_ns, retry_ns;	/* when splits brought too little, and after how long one more is tried */
};

/*
 * The shortest window for victims of pages that have `threshold` requests or more in an epoch of `epoch_ns`: such a page has
 * eight requests in it.
 */
u64 neotier_age_window(u64 epoch_ns, u32 threshold);

/**
 * neotier_age_next() - which look to make now
 * @pace: pace; for an arming look, first is where it begins
 * @ages: ages; a new pass begins here
 * @wanted: victims
 * @least_ns: the shortest window
 * @now_ns: now
 */
enum neotier_age_look neotier_age_next(struct neotier_age_pace *pace, struct neotier_ages *ages, u32 wanted, u64 least_ns,
				       u64 now_ns);

/**
 * neotier_age_split() - whether to split a huge folio of the target node now
 * @pace: pace; a check has just been made
 * @ages: ages
 * @idle: it was not accessed in the window: all its pages are victims
 * @now_ns: now
 *
 * It is where its pages are cheaper victims than those that the last look found, or where looks find too few. One in use where
 * splits bring enough, too.
 */
bool neotier_age_split(const struct neotier_age_pace *pace, const struct neotier_ages *ages, bool idle, u64 now_ns);

/* It was split, which took so long. One that was in use: its pages have been armed. Those that were idle come first. */
void neotier_age_split_done(struct neotier_age_pace *pace, const struct neotier_ages *ages, bool idle, u64 now_ns, u64 took_ns);

/* It could not be split, which took so long: paid for as a look. One in use counts as tried. */
void neotier_age_split_failed(struct neotier_age_pace *pace, bool idle, u64 now_ns, u64 took_ns);

/* So many victims have made room. */
void neotier_age_earn(struct neotier_age_pace *pace, u32 victims);

/* It was made, up to frame @end when it armed, and took so long. */
void neotier_age_done(struct neotier_age_pace *pace, const struct neotier_ages *ages, enum neotier_age_look look, u32 end,
		      u64 now_ns, u64 took_ns);

#ifdef __cplusplus
}
#endif
#endif

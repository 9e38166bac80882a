/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * How many pages may be promoted now, whether kswapd is worth waking, and what is kept in reserve.
 *
 * Why a reserve. kswapd, once woken, demotes a high watermark's worth, some hundred times what waits for promotion. A
 * program that grows takes the rest before the next hot page comes, so every few promotions cost another thousand
 * demotions: memory of the program goes down for no other reason than that its new memory may go up. The reserve keeps
 * what was freed on promotion's behalf for promotion; new memory then goes where it would have gone without the module.
 *
 * Only what kswapd freed after promotion woke it goes into it, only down to the low watermark, so that nobody reclaims for
 * its sake; it is given back when promotion has had no use for it for a while, before memory goes offline, and whenever
 * the device stands still.
 *
 * Freestanding C, the same object in neotier.ko, the replay and the unit test; all numbers are of 4 KiB pages. Thread
 * safety: one caller at a time.
 */
#ifndef NEOTIER_ROOM_H
#define NEOTIER_ROOM_H

#include "neotier_policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Each report is an uncached read, about as dear as a tenth of a promotion. While this many pages wait, more reports could
 * only make them wait longer.
 */
#define NEOTIER_ENOUGH 512U
/* Hot pages that wait, for which kswapd is woken: some 1,300 demotions for fewer are a loss, and so few do not matter. */
#define NEOTIER_WORTH_WAKING 32U
/* The reserve is given back after this long without a promotion. */
#define NEOTIER_RESERVE_IDLE_NS 1000000000ULL
/* And holds at most this share of the node, however large the knob. */
#define NEOTIER_RESERVE_SHARE 16U
/*
 * Pages that victims left and that are on no list of free ones yet: on a CPU's list of pages for the LRU (31), and on its list of
 * free pages (64). There they stay until others come after them.
 */
#define NEOTIER_ROOM_LATE 128U
/* kswapd's short sleep before it looks whether it may sleep for good: HZ / 10 in kswapd_try_to_sleep(). */
#define NEOTIER_NAP_NS 100000000ULL

/* Of a zone. */
struct neotier_zone_levels {
	u64 free, min, low, high;
	u64 kept;	/* for allocations that can only come from this zone */
};

/* Of a node. */
struct neotier_levels {
	u64 free;
	u64 above_low;	/* free above each zone's low watermark */
	u64 gap;	/* between the low and the high watermark */
	/*
	 * Free above half-way between min and low, where promotion stops. Lower than low, because the allocator wakes kswapd
	 * only when an allocation finds less than low, and kswapd then demotes until high: a floor above low would leave
	 * promotion waiting for room that nobody makes. Higher than min, because below min other allocations reclaim directly.
	 */
	u64 above_floor;
};

/* New memory that programs take on both nodes. */
struct neotier_growth {
	u64 since_ns;	/* 0: not watched yet */
	u64 free;	/* pages, then */
	bool fast;	/* see neotier_room_watch() */
};

/* All zero at first. */
struct neotier_room {
	struct neotier_growth growth;
	u64 reserved;	/* pages in the reserve */
	u64 owed;	/* in exchange: pages that victims left and that are not used yet, those in the reserve included */
	bool fill;	/* kswapd was asked for room, and the reserve may have some */
	u64 used_ns;	/* when promotion last used it, as far as seen, or asked for room */
	u64 promoted;	/* pages, then */
};

/* Adds a zone to its node. */
void neotier_levels_add(struct neotier_levels *levels, const struct neotier_zone_levels *zone);

/* After the last zone: takes off what the administrator wants left free. */
void neotier_levels_headroom(struct neotier_levels *levels, u64 headroom);

/**
 * neotier_room_watch() - once a step: notice whether programs take memory faster than kswapd makes it free
 * @room: state
 * @free: pages on both nodes and in all reserves
 * @gap: of the target node
 * @now_ns: now
 */
void neotier_room_watch(struct neotier_room *room, u64 free, u64 gap, u64 now_ns);

/* Whether kswapd is left asleep for so many pages that wait. */
bool neotier_room_hold(const struct neotier_room *room, u32 waiting);

/* Pages that may be promoted now, when so many wait. */
u64 neotier_room_pages(const struct neotier_room *room, u32 waiting, const struct neotier_levels *target);

/* kswapd was asked for room: what becomes free may go to the reserve. */
void neotier_room_asked(struct neotier_room *room, u64 now_ns);

/* In exchange: so many victims left, or so many of the pages that they left were used. */
void neotier_room_owe(struct neotier_room *room, u64 pages, u64 now_ns);
void neotier_room_paid(struct neotier_room *room, u64 pages);

/* None of what is owed was there: whether that is only late, so that more victims bring it. Else others have taken it. */
static inline bool neotier_room_late(const struct neotier_room *room)
{
	return room->owed && room->owed < NEOTIER_ROOM_LATE;
}

/**
 * neotier_room_keep() - once a step: whether the reserve is still of use
 * @room: state
 * @promoted: pages so far
 * @most: pages that the reserve may hold
 * @now_ns: now
 *
 * Return: false when all of it is to be given back now.
 */
bool neotier_room_keep(struct neotier_room *room, u64 promoted, u64 most, u64 now_ns);

/* Pages to put into the reserve now, with so many free above the low watermark; counted in reserved by the caller. */
u64 neotier_room_fill(const struct neotier_room *room, u64 above_low, u64 most);

/* Pages that the reserve may hold. */
static inline u64 neotier_room_most(u64 wanted, u64 node_pages)
{
	u64 share = node_pages / NEOTIER_RESERVE_SHARE;

	return wanted < share ? wanted : share;
}

#ifdef __cplusplus
}
#endif
#endif

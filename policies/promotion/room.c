// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
#include "promotion/room.h"

static u64 neotier_above(u64 free, u64 level)
{
	return free > level ? free - level : 0;
}

void neotier_levels_add(struct neotier_levels *levels, const struct neotier_zone_levels *zone)
{
	levels->free += zone->free;
	levels->gap += zone->high - zone->low;
	levels->above_low += neotier_above(zone->free, zone->low + zone->kept);
	levels->above_floor += neotier_above(zone->free, (zone->min + zone->low) / 2 + zone->kept);
}

void neotier_levels_headroom(struct neotier_levels *levels, u64 headroom)
{
	levels->above_low = neotier_above(levels->above_low, headroom);
	levels->above_floor = neotier_above(levels->above_floor, headroom);
}

/*
 * fast: programs take more new memory in one nap of kswapd's than lies between the low and the high watermark. Then
 * kswapd, once awake, does not rest again before they stop: each nap ends below high. Whoever wakes it pays for all that
 * with demotions, and gets little of the room. At this rate memory is soon full, so it cannot last.
 */
void neotier_room_watch(struct neotier_room *room, u64 free, u64 gap, u64 now_ns)
{
	struct neotier_growth *growth = &room->growth;
	u64 grown = neotier_above(growth->free, free);
	u64 naps = (now_ns - growth->since_ns) / NEOTIER_NAP_NS;

	if (naps)
		growth->fast = growth->since_ns && grown > gap * naps;
	else if (grown > gap)
		growth->fast = true;
	if (naps || free > growth->free) {
		growth->since_ns = now_ns;
		growth->free = free;
	}
}

/*
 * Waking kswapd costs a high watermark's worth of demotions, whatever it is woken for. While programs grow fast, many
 * pages that wait are worth it all the same; and what grows may be hot as well: a server's buffers.
 */
bool neotier_room_hold(const struct neotier_room *room, u32 waiting)
{
	return waiting < (room->growth.fast ? NEOTIER_ENOUGH : NEOTIER_WORTH_WAKING);
}

u64 neotier_room_pages(const struct neotier_room *room, u32 waiting, const struct neotier_levels *target)
{
	return (neotier_room_hold(room, waiting) ? target->above_low : target->above_floor) + room->reserved;
}

void neotier_room_asked(struct neotier_room *room, u64 now_ns)
{
	room->fill = true;
	room->used_ns = now_ns;
}

/* What is owed keeps the reserve, so that victims whose room others took are forgotten only when promotion rests. */
void neotier_room_owe(struct neotier_room *room, u64 pages, u64 now_ns)
{
	room->owed += pages;
	room->used_ns = now_ns;
}

void neotier_room_paid(struct neotier_room *room, u64 pages)
{
	room->owed = neotier_above(room->owed, pages);
}

bool neotier_room_keep(struct neotier_room *room, u64 promoted, u64 most, u64 now_ns)
{
	if (room->promoted != promoted) {
		room->promoted = promoted;
		room->used_ns = now_ns;
	}
	/* What becomes free later was not freed for promotion's sake. */
	return room->reserved <= most && (now_ns < room->used_ns || now_ns - room->used_ns <= NEOTIER_RESERVE_IDLE_NS);
}

u64 neotier_room_fill(const struct neotier_room *room, u64 above_low, u64 most)
{
	u64 wanted = neotier_above(most, room->reserved);

	if (!room->fill)
		return 0;
	return above_low < wanted ? above_low : wanted;
}

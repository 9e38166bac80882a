// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
#include "promotion/waiting.h"

#define NEOTIER_NOWHERE 0xffffU

/* 0 to 3 as they are, then four classes to each power of two: 59 for 65535. */
static u32 neotier_class_of(u16 count)
{
	u32 log2;

	if (count < 4)
		return count;
	log2 = 31 - (u32)__builtin_clz(count);
	return (log2 - 1) << 2 | (count >> (log2 - 2) & 3);
}

static void neotier_mark_uncounted(struct neotier_waiting *waiting, u16 place, bool uncounted)
{
	u64 bit = 1ULL << (place % 64), *word = &waiting->uncounted[place / 64];

	waiting->nr_uncounted += uncounted - !!(*word & bit);
	*word = uncounted ? *word | bit : *word & ~bit;
}

static u16 neotier_place_get(struct neotier_waiting *waiting, const struct neotier_hot *hot)
{
	u16 place = waiting->free;

	waiting->free = waiting->places[place].next;
	waiting->places[place].hot = *hot;
	waiting->nr++;
	neotier_mark_uncounted(waiting, place, !hot->counted);
	return place;
}

/* Takes the first of a class that has one. */
static void neotier_class_pop(struct neotier_waiting *waiting, u32 class, struct neotier_hot *hot)
{
	u16 place = waiting->first[class];
	struct neotier_waiting_place *at = &waiting->places[place];

	*hot = at->hot;
	waiting->first[class] = at->next;
	if (at->next == NEOTIER_NOWHERE)
		waiting->classes &= ~(1ULL << class);
	neotier_mark_uncounted(waiting, place, false);
	at->next = waiting->free;
	waiting->free = place;
	waiting->nr--;
}

void neotier_waiting_init(struct neotier_waiting *waiting, struct neotier_waiting_place *places, u32 max)
{
	u32 i;

	waiting->places = places;
	waiting->classes = 0;
	waiting->free = 0;
	waiting->nr = 0;
	waiting->max = max;
	for (i = 0; i < max; i++)
		places[i].next = i + 1 < max ? (u16)(i + 1) : NEOTIER_NOWHERE;
	for (i = 0; i < NEOTIER_WAITING_MAX / 64; i++)
		waiting->uncounted[i] = 0;
	waiting->nr_uncounted = 0;
}

bool neotier_waiting_add(struct neotier_waiting *waiting, const struct neotier_hot *hot, struct neotier_hot *dropped)
{
	bool full = waiting->nr == waiting->max;
	u32 class = neotier_class_of(hot->count);
	u16 place;

	if (full) {
		u32 coldest = (u32)__builtin_ctzll(waiting->classes);

		if (class <= coldest) {
			*dropped = *hot;
			return false;
		}
		neotier_class_pop(waiting, coldest, dropped);
	}
	place = neotier_place_get(waiting, hot);
	waiting->places[place].next = NEOTIER_NOWHERE;
	if (waiting->classes & 1ULL << class)
		waiting->places[waiting->last[class]].next = place;
	else
		waiting->first[class] = place;
	waiting->last[class] = place;
	waiting->classes |= 1ULL << class;
	return !full;
}

bool neotier_waiting_take(struct neotier_waiting *waiting, struct neotier_hot *hot)
{
	if (!waiting->classes)
		return false;
	neotier_class_pop(waiting, 63 - (u32)__builtin_clzll(waiting->classes), hot);
	return true;
}

void neotier_waiting_untake(struct neotier_waiting *waiting, const struct neotier_hot *hot)
{
	u32 class = neotier_class_of(hot->count);
	u16 place = neotier_place_get(waiting, hot);

	if (waiting->classes & 1ULL << class) {
		waiting->places[place].next = waiting->first[class];
	} else {
		waiting->places[place].next = NEOTIER_NOWHERE;
		waiting->last[class] = place;
	}
	waiting->first[class] = place;
	waiting->classes |= 1ULL << class;
}

bool neotier_waiting_expire(struct neotier_waiting *waiting, u64 before_ns, u32 *cursor, struct neotier_hot *hot)
{
	for (; *cursor < NEOTIER_WAITING_CLASSES; ++*cursor) {
		if (!(waiting->classes & 1ULL << *cursor) ||
		    waiting->places[waiting->first[*cursor]].hot.drained_ns >= before_ns)
			continue;
		neotier_class_pop(waiting, *cursor, hot);
		return true;
	}
	return false;
}

bool neotier_waiting_uncounted(struct neotier_waiting *waiting, u32 *cursor, struct neotier_hot *hot)
{
	/* At each look of the thread, mostly for nothing. */
	if (!waiting->nr_uncounted)
		return false;
	for (; *cursor < NEOTIER_WAITING_MAX / 64; ++*cursor) {
		u64 *word = &waiting->uncounted[*cursor];
		u32 bit;

		if (!*word)
			continue;
		bit = (u32)__builtin_ctzll(*word);
		*word &= *word - 1;
		waiting->nr_uncounted--;
		waiting->places[*cursor * 64 + bit].hot.counted = true;
		*hot = waiting->places[*cursor * 64 + bit].hot;
		return true;
	}
	return false;
}

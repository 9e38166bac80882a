// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
#include "promotion/huge.h"

u32 neotier_gathered_sets_log2(u64 nr_pages)
{
	u64 folios = nr_pages / NEOTIER_HUGE_PAGES;
	u32 log2 = 1;

	while (log2 < NEOTIER_GATHERED_SETS_LOG2_MAX && (u64)NEOTIER_GATHERED_WAYS << log2 < 2 * folios)
		log2++;
	return log2;
}

static u32 neotier_gathered_set(const struct neotier_huge *huge, u32 folio)
{
	return folio * 0x61C88647U >> (32 - huge->sets_log2);
}

static void neotier_gather_begin(struct neotier_gathered *entry, u32 folio, u64 now_ns)
{
	*entry = (struct neotier_gathered){ .since_ns = now_ns, .folio1 = folio + 1 };
}

static bool neotier_gathered_old(const struct neotier_gathered *entry, u64 now_ns)
{
	return now_ns - entry->since_ns > NEOTIER_EXPIRE_NS;
}

static struct neotier_gathered *neotier_gathered_of(struct neotier_huge *huge, u32 folio, u64 now_ns)
{
	struct neotier_gathered *set = &huge->gathered[neotier_gathered_set(huge, folio) * NEOTIER_GATHERED_WAYS], *first = set;
	u32 i;

	for (i = 0; i < NEOTIER_GATHERED_WAYS; i++) {
		if (set[i].folio1 == folio + 1) {
			if (neotier_gathered_old(&set[i], now_ns))
				neotier_gather_begin(&set[i], folio, now_ns);
			return &set[i];
		}
		if (first->folio1 && (!set[i].folio1 || set[i].since_ns < first->since_ns))
			first = &set[i];
	}
	neotier_gather_begin(first, folio, now_ns);
	return first;
}

static void neotier_huge_remove(struct neotier_huge *huge, u32 i)
{
	huge->waiting[i] = huge->waiting[--huge->nr];
}

static void neotier_huge_add(struct neotier_huge *huge, const struct neotier_hot *hot)
{
	struct neotier_hot dropped = *hot;
	u32 i, coldest = 0;

	for (i = 0; i < huge->nr; i++) {
		if (huge->waiting[i].page == hot->page) {
			huge->ops->skip(huge->owner, hot->page, NEOTIER_SKIP_DUPLICATE);
			return;
		}
		if (huge->waiting[i].count < huge->waiting[coldest].count)
			coldest = i;
	}
	if (huge->nr < NEOTIER_HUGE_MAX) {
		huge->waiting[huge->nr++] = *hot;
		return;
	}
	if (huge->waiting[coldest].count < hot->count) {
		dropped = huge->waiting[coldest];
		huge->waiting[coldest] = *hot;
	}
	huge->ops->skip(huge->owner, dropped.page, NEOTIER_SKIP_OVERFLOW);
}

/* Where folios move whole, more of its pages may turn out hot for a while. */
static bool neotier_huge_worth_pieces(const struct neotier_huge *huge, const struct neotier_gathered *gathered, u64 now_ns,
				      u32 threshold)
{
	if (!huge->pieces || (huge->whole && now_ns - gathered->since_ns < NEOTIER_SPLIT_WAIT_NS))
		return false;
	return gathered->requests >= (u64)threshold * (gathered->nr + NEOTIER_SPLIT_COST);
}

static void neotier_huge_pieces(struct neotier_huge *huge, struct neotier_gathered *gathered, u32 page)
{
	enum neotier_skip reason = huge->ops->split(huge->owner, page);

	gathered->folio1 = 0;
	if (reason != NR_NEOTIER_SKIP)
		huge->ops->skip(huge->owner, page, reason);
}

static void neotier_huge_whole(struct neotier_huge *huge, struct neotier_gathered *gathered, u32 page, u64 now_ns)
{
	u64 worth = gathered->requests / NEOTIER_HUGE_COST;
	struct neotier_hot hot = { .drained_ns = now_ns, .page = page, .count = (u16)(worth < 0xffff ? worth : 0xffff) };
	enum neotier_skip reason = huge->ops->look(huge->owner, page, true);

	if (reason == NEOTIER_SKIP_ZONE && huge->pieces) {
		neotier_huge_pieces(huge, gathered, page);
		return;
	}
	gathered->folio1 = 0;
	if (reason != NR_NEOTIER_SKIP)
		huge->ops->skip(huge->owner, page, reason);
	else
		neotier_huge_add(huge, &hot);
}

void neotier_huge_report(struct neotier_huge *huge, u32 page, u32 count, u64 now_ns, u32 threshold)
{
	u32 folio = page >> NEOTIER_HUGE_ORDER, at = page % NEOTIER_HUGE_PAGES;
	struct neotier_gathered *gathered = neotier_gathered_of(huge, folio, now_ns);

	if (!(gathered->pages[at / 64] & 1ULL << at % 64)) {
		gathered->pages[at / 64] |= 1ULL << at % 64;
		gathered->nr++;
		gathered->requests += count;
	}
	if (huge->whole && gathered->requests / NEOTIER_HUGE_COST >= threshold)
		neotier_huge_whole(huge, gathered, page - at, now_ns);
	else if (neotier_huge_worth_pieces(huge, gathered, now_ns, threshold))
		neotier_huge_pieces(huge, gathered, page - at);
}

bool neotier_huge_take(struct neotier_huge *huge, struct neotier_hot *hot, u64 now_ns)
{
	u32 i;

	for (i = huge->nr; i--;) {
		if (now_ns - huge->waiting[i].drained_ns <= NEOTIER_EXPIRE_NS)
			continue;
		huge->ops->skip(huge->owner, huge->waiting[i].page, NEOTIER_SKIP_EXPIRED);
		neotier_huge_remove(huge, i);
	}
	while (huge->nr) {
		enum neotier_skip reason;
		u32 hottest = 0;

		for (i = 1; i < huge->nr; i++)
			if (huge->waiting[i].count > huge->waiting[hottest].count)
				hottest = i;
		*hot = huge->waiting[hottest];
		neotier_huge_remove(huge, hottest);
		reason = huge->ops->look(huge->owner, hot->page, false);
		if (reason == NR_NEOTIER_SKIP)
			return true;
		huge->ops->skip(huge->owner, hot->page, reason);
	}
	return false;
}

void neotier_huge_untake(struct neotier_huge *huge, const struct neotier_hot *hot)
{
	huge->waiting[huge->nr++] = *hot;
}

void neotier_huge_wait(struct neotier_huge *huge, enum neotier_skip reason)
{
	u32 i;

	for (i = 0; i < huge->nr; i++) {
		if (huge->waiting[i].counted)
			continue;
		huge->waiting[i].counted = true;
		huge->ops->skip(huge->owner, huge->waiting[i].page, reason);
	}
}

// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
#include "promotion/hotlist.h"

static bool neotier_queued_set(struct neotier_hotlist *list, u32 page)
{
	u64 bit = 1ULL << (page % 64), *word = &list->queued[page / 64];
	bool was = *word & bit;

	*word |= bit;
	return was;
}

static void neotier_queued_clear(struct neotier_hotlist *list, u32 page)
{
	list->queued[page / 64] &= ~(1ULL << (page % 64));
}

static enum neotier_skip neotier_hotlist_drop(struct neotier_hotlist *list, u32 page, enum neotier_skip reason)
{
	neotier_queued_clear(list, page);
	list->ops->skip(list->owner, page, reason);
	return reason;
}

void neotier_hotlist_init(struct neotier_hotlist *list, struct neotier_waiting_place *places, u32 nr)
{
	neotier_waiting_init(&list->waiting, places, nr);
}

static struct neotier_ledger_page neotier_hotlist_page(const struct neotier_hotlist *list, u32 page, u32 count)
{
	return (struct neotier_ledger_page){
		.page = page, .count = count, .identity = list->ops->identity, .owner = list->owner,
	};
}

enum neotier_skip neotier_hotlist_report(struct neotier_hotlist *list, u32 page, u32 count, u64 now_ns, u64 epoch_ns,
					 u32 confirm_epochs)
{
	struct neotier_hot hot = {
		.drained_ns = now_ns, .page = page, .count = (u16)(count < 0xffff ? count : 0xffff),
	};
	const struct neotier_ledger_page reported = neotier_hotlist_page(list, page, count);
	struct neotier_hot dropped;
	enum neotier_skip reason;

	if (list->ops->demoted(list->owner, page))
		neotier_ledger_regret(&list->ledger, count);
	if (neotier_ledger_report(&list->ledger, &reported)) {
		list->ops->skip(list->owner, page, NEOTIER_SKIP_CONTROL);
		return NEOTIER_SKIP_CONTROL;
	}
	if (neotier_queued_set(list, page)) {
		list->ops->skip(list->owner, page, NEOTIER_SKIP_DUPLICATE);
		return NEOTIER_SKIP_DUPLICATE;
	}
	if (!neotier_confirmed(&list->seen, page, now_ns, epoch_ns, confirm_epochs, neotier_ledger_read_ppm(&list->ledger)))
		return neotier_hotlist_drop(list, page, NEOTIER_SKIP_UNCONFIRMED);
	list->confirmed++;
	/* Here as well as before the move: kswapd is woken, and others demoted, for what waits. */
	reason = list->ops->look(list->owner, page, true);
	if (reason != NR_NEOTIER_SKIP)
		return neotier_hotlist_drop(list, page, reason);
	if (!neotier_waiting_add(&list->waiting, &hot, &dropped)) {
		neotier_hotlist_drop(list, dropped.page, NEOTIER_SKIP_OVERFLOW);
		return dropped.page == page ? NEOTIER_SKIP_OVERFLOW : NR_NEOTIER_SKIP;
	}
	return NR_NEOTIER_SKIP;
}

u32 neotier_hotlist_take(struct neotier_hotlist *list, struct neotier_hot *batch, u32 max, u64 now_ns)
{
	u64 before = now_ns > NEOTIER_EXPIRE_NS ? now_ns - NEOTIER_EXPIRE_NS : 0;
	struct neotier_ledger_page page;
	struct neotier_hot hot;
	u32 cursor = 0, nr = 0;

	/* Of all that wait, not only of those whose turn it is: what others always overtake must not be taken for hot for ever. */
	while (neotier_waiting_expire(&list->waiting, before, &cursor, &hot))
		neotier_hotlist_drop(list, hot.page, NEOTIER_SKIP_EXPIRED);
	while (nr < max && neotier_waiting_take(&list->waiting, &hot)) {
		enum neotier_skip reason = list->ops->look(list->owner, hot.page, false);

		page = neotier_hotlist_page(list, hot.page, hot.count);
		/* Here, not when it was reported: controls have to be as hot as the pages that move, the hottest of those that wait. */
		if (reason == NR_NEOTIER_SKIP && neotier_ledger_choose(&list->ledger, &page))
			reason = NEOTIER_SKIP_CONTROL;
		if (reason != NR_NEOTIER_SKIP)
			neotier_hotlist_drop(list, hot.page, reason);
		else
			batch[nr++] = hot;
	}
	return nr;
}

void neotier_hotlist_pilots(struct neotier_hotlist *list)
{
	struct neotier_ledger_page page;
	struct neotier_hot hot;

	while (neotier_ledger_wants_pilots(&list->ledger) && neotier_waiting_take(&list->waiting, &hot)) {
		enum neotier_skip reason = list->ops->look(list->owner, hot.page, false);

		page = neotier_hotlist_page(list, hot.page, hot.count);
		if (reason == NR_NEOTIER_SKIP && neotier_ledger_pilot(&list->ledger, &page))
			reason = NEOTIER_SKIP_CONTROL;
		neotier_hotlist_drop(list, hot.page, reason);
	}
}

void neotier_hotlist_done(struct neotier_hotlist *list, const struct neotier_hot *hot, u32 nr)
{
	u32 i;

	for (i = 0; i < nr; i++)
		neotier_queued_clear(list, hot[i].page);
}

void neotier_hotlist_untake(struct neotier_hotlist *list, const struct neotier_hot *hot, u32 nr)
{
	while (nr)
		neotier_waiting_untake(&list->waiting, &hot[--nr]);
}

void neotier_hotlist_clear(struct neotier_hotlist *list)
{
	struct neotier_hot hot;

	while (neotier_waiting_take(&list->waiting, &hot))
		neotier_queued_clear(list, hot.page);
}

void neotier_hotlist_wait(struct neotier_hotlist *list, enum neotier_skip reason)
{
	struct neotier_hot hot;
	u32 cursor = 0;

	while (neotier_waiting_uncounted(&list->waiting, &cursor, &hot))
		list->ops->skip(list->owner, hot.page, reason);
}

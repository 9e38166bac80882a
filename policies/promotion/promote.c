// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
#include "promotion/promote.h"

static enum neotier_next neotier_promote_no_room(struct neotier_promotion *p)
{
	neotier_hotlist_wait(p->list, NEOTIER_SKIP_NO_ROOM);
	if (!p->ops->room_make(p->owner)) {
		p->ops->event(p->owner, NEOTIER_EVENT_ROOM_HOLD, 1);
		return NEOTIER_SLEEP;
	}
	p->ops->event(p->owner, NEOTIER_EVENT_ROOM_WAIT, 1);
	return NEOTIER_WAIT_ROOM;
}

/* Pages moved; < 0: no memory for any. As if there were room in a dry run, so that none is made. */
static int neotier_promote_dry(struct neotier_promotion *p, u32 granted, u64 now_ns)
{
	u32 nr = neotier_hotlist_take(p->list, p->batch, granted, now_ns);

	neotier_hotlist_done(p->list, p->batch, nr);
	p->ops->event(p->owner, NEOTIER_EVENT_DRY_RUN, nr);
	return (int)nr;
}

enum neotier_next neotier_promote_some(struct neotier_promotion *p, u32 batch_max, bool dry_run, u64 now_ns)
{
	u32 want = batch_max < p->left ? batch_max : (u32)p->left, granted;
	int moved;

	if (!want) {
		neotier_hotlist_pilots(p->list);
		neotier_hotlist_wait(p->list, NEOTIER_SKIP_PLAN);
		return NEOTIER_SLEEP;
	}
	granted = p->ops->quota_take(p->owner, want);
	if (!granted) {
		neotier_hotlist_wait(p->list, NEOTIER_SKIP_QUOTA);
		return NEOTIER_SLEEP;
	}
	if (dry_run) {
		moved = neotier_promote_dry(p, granted, now_ns);
	} else {
		u64 room = p->ops->room(p->owner);
		u32 nr;

		if (!room) {
			p->ops->quota_return(p->owner, granted);
			return neotier_promote_no_room(p);
		}
		nr = neotier_hotlist_take(p->list, p->batch, granted < room ? granted : (u32)room, now_ns);
		if (!nr) {
			p->ops->quota_return(p->owner, granted);
			return NEOTIER_SLEEP;
		}
		moved = p->ops->migrate(p->owner, p->batch, nr);
	}
	p->ops->quota_return(p->owner, granted - (u32)(moved > 0 ? moved : 0));
	if (moved < 0) {
		neotier_hotlist_wait(p->list, NEOTIER_SKIP_NO_MEMORY);
		return neotier_promote_no_room(p);
	}
	if (p->left != NEOTIER_NO_LIMIT)
		p->left -= (u32)moved;
	return p->list->waiting.nr ? NEOTIER_AGAIN : NEOTIER_SLEEP;
}

static void neotier_promote_huge_no_room(struct neotier_promotion *p, struct neotier_huge *huge, const struct neotier_hot *hot,
					 u64 now_ns)
{
	neotier_huge_untake(huge, hot);
	neotier_huge_wait(huge, NEOTIER_SKIP_NO_ROOM);
	huge->retry_ns = now_ns + NEOTIER_HUGE_RETRY_NS;
	huge->ops->room_make(huge->owner);
	p->ops->event(p->owner, NEOTIER_EVENT_ROOM_WAIT, 1);
}

/* As if there were room in a dry run, so that none is made. */
static int neotier_promote_huge_one(struct neotier_promotion *p, struct neotier_huge *huge, const struct neotier_hot *hot,
				    bool dry_run)
{
	if (!dry_run)
		return huge->ops->migrate(huge->owner, hot);
	p->ops->event(p->owner, NEOTIER_EVENT_DRY_RUN_HUGE, 1);
	return NEOTIER_HUGE_PAGES;
}

enum neotier_next neotier_promote_huge(struct neotier_promotion *p, struct neotier_huge *huge, bool dry_run, u64 now_ns)
{
	struct neotier_hot hot;
	u32 granted;
	int moved;

	if (now_ns < huge->retry_ns)
		return NEOTIER_SLEEP;
	if (p->left < NEOTIER_HUGE_PAGES) {
		neotier_huge_wait(huge, NEOTIER_SKIP_PLAN);
		return NEOTIER_SLEEP;
	}
	granted = p->ops->quota_take(p->owner, NEOTIER_HUGE_PAGES);
	if (granted < NEOTIER_HUGE_PAGES) {
		p->ops->quota_return(p->owner, granted);
		neotier_huge_wait(huge, NEOTIER_SKIP_QUOTA);
		return NEOTIER_SLEEP;
	}
	if (!neotier_huge_take(huge, &hot, now_ns)) {
		p->ops->quota_return(p->owner, granted);
		return NEOTIER_SLEEP;
	}
	moved = neotier_promote_huge_one(p, huge, &hot, dry_run);
	p->ops->quota_return(p->owner, granted - (u32)(moved > 0 ? moved : 0));
	if (moved < 0) {
		neotier_promote_huge_no_room(p, huge, &hot, now_ns);
		return NEOTIER_SLEEP;
	}
	if (p->left != NEOTIER_NO_LIMIT)
		p->left -= (u32)moved;
	return huge->nr ? NEOTIER_AGAIN : NEOTIER_SLEEP;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Huge folios: promotion/huge.h gathers their hot pages and says which are worth their move; here is what only the kernel
 * knows of them. A folio is named by its first page, and looked at again whenever its turn comes: by then it may have been
 * split, freed, or be another one.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include "compat.h"
#include "neotier.h"

enum neotier_skip neotier_huge_check(const struct neotier_device *dev, struct folio *folio)
{
	unsigned long pfn = folio_pfn(folio), n;
	enum neotier_skip reason;

	if (folio_order(folio) != NEOTIER_HUGE_ORDER)
		return NEOTIER_SKIP_LARGE;
	if (!is_zone_movable_page(&folio->page) &&
	    (READ_ONCE(neotier_knobs.promote_huge) != NEOTIER_HUGE_CLAIM || dev->claim_stopped))
		return NEOTIER_SKIP_ZONE;
	reason = neotier_folio_check(neotier_way_up(dev), folio, NEOTIER_REFERENCED);
	if (reason != NR_NEOTIER_SKIP)
		return reason;
	if (folio_maybe_dma_pinned(folio))
		return NEOTIER_SKIP_PINNED;
	if (folio_test_locked(folio))
		return NEOTIER_SKIP_BUSY;
	for (n = 1; n < NEOTIER_HUGE_PAGES; n++)
		if (!neotier_rules_range(pfn + n))
			return NEOTIER_SKIP_EXCLUDED_RANGE;
	return NR_NEOTIER_SKIP;
}

static enum neotier_skip neotier_huge_look(void *owner, u32 page, bool owners)
{
	struct neotier_device *dev = owner;
	unsigned long pfn = dev->base_pfn + page;
	struct folio *folio = neotier_folio_get(pfn);
	struct neotier_owner held;
	enum neotier_skip reason;

	if (!folio)
		return NEOTIER_SKIP_NOT_LRU;
	reason = folio_pfn(folio) == pfn ? neotier_huge_check(dev, folio) : NEOTIER_SKIP_LARGE;
	if (reason == NR_NEOTIER_SKIP && owners) {
		neotier_huge_returns_count(dev, &folio->page);
		reason = neotier_owner_hold(neotier_way_up(dev), folio, &held);
		if (reason == NR_NEOTIER_SKIP)
			neotier_owner_release(&held);
	}
	folio_put(folio);
	return reason;
}

static void neotier_huge_skip(void *owner, u32 page, enum neotier_skip reason)
{
	struct neotier_device *dev = owner;

	neotier_skip(dev, dev->base_pfn + page, reason);
}

static int neotier_huge_migrate(void *owner, const struct neotier_hot *hot)
{
	return neotier_migrate_huge(owner, hot);
}

static void neotier_huge_room_make(void *owner)
{
	neotier_room_make_huge(owner);
}

/* Its time is the price of the pages that move then. The plan counts it as so many moves. */
static enum neotier_skip neotier_huge_split(void *owner, u32 page)
{
	struct neotier_device *dev = owner;
	u64 *left = &dev->promotion.left, took_ns;
	struct neotier_time start, end;
	enum neotier_skip reason;

	if (*left < NEOTIER_SPLIT_COST || READ_ONCE(neotier_knobs.dry_run))
		return NEOTIER_SKIP_PLAN;
	start = neotier_clock_now(dev);
	reason = neotier_split(dev, neotier_way_up(dev), dev->base_pfn + page);
	end = neotier_clock_now(dev);
	took_ns = neotier_clock_span(&dev->clock, &start, &end);
	neotier_stat_add(dev, NEOTIER_STAT_SPLIT_NS, took_ns);
	neotier_stat_add(dev, NEOTIER_STAT_PROMOTE_NS, took_ns);
	neotier_stat_add(dev, NEOTIER_STAT_SPLIT_UP, reason == NR_NEOTIER_SKIP);
	if (*left != NEOTIER_NO_LIMIT)
		*left -= NEOTIER_SPLIT_COST;
	return reason;
}

static const struct neotier_huge_ops neotier_huge_ops = {
	.look = neotier_huge_look,
	.skip = neotier_huge_skip,
	.migrate = neotier_huge_migrate,
	.room_make = neotier_huge_room_make,
	.split = neotier_huge_split,
};

void neotier_huge_restart(struct neotier_device *dev)
{
	struct neotier_huge *huge = &dev->huge;

	lockdep_assert_held(&dev->lock);
	dev->claim_stopped = false;
	huge->whole = READ_ONCE(neotier_knobs.promote_huge);
	huge->pieces = READ_ONCE(neotier_knobs.split_huge);
	if (!huge->whole)
		neotier_huge_clear(huge);
	if (!huge->whole && !huge->pieces) {
		neotier_huge_free(dev);
		return;
	}
	huge->ops = &neotier_huge_ops;
	huge->owner = dev;
	if (huge->gathered)
		return;
	huge->sets_log2 = neotier_gathered_sets_log2(dev->nr_pages);
	if (IS_ALIGNED(dev->base_pfn, NEOTIER_HUGE_PAGES))
		huge->gathered = kvcalloc(NEOTIER_GATHERED_WAYS << huge->sets_log2, sizeof(*huge->gathered),
					  GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN);
	if (!huge->gathered)
		dev_warn(&dev->pdev->dev, "promote_huge: no memory to gather pages in, or memory that does not begin at a multiple of 2 MiB: huge folios stay\n");
}

void neotier_huge_free(struct neotier_device *dev)
{
	kvfree(dev->huge.gathered);
	dev->huge.gathered = NULL;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * From what the device reports to pages: unit -> DPA -> HPA -> PFN by the region's interleave, and the checks of each page,
 * for promotion/hotlist.h. Nothing the device says is believed: a unit is an index that has to lie in the range which probe
 * found online on one node, and each page is looked at again when its turn comes.
 */
#include <linux/ktime.h>
#include <linux/memory_hotplug.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include "compat.h"
#include "neotier.h"
#include "trace.h"

struct folio *neotier_folio_get(unsigned long pfn)
{
	struct page *page = pfn_to_online_page(pfn);
	struct folio *folio;

	if (!page)
		return NULL;
	folio = page_folio(page);
	if (!folio_try_get(folio))
		return NULL;
	/* Split, freed or joined with others in between. */
	if (unlikely(page_folio(page) != folio)) {
		folio_put(folio);
		return NULL;
	}
	return folio;
}

static bool neotier_folio_protected(struct folio *folio)
{
	bool protected;

	rcu_read_lock();
	protected = neotier_memcg_protected(neotier_folio_memcg(folio));
	rcu_read_unlock();
	return protected;
}

enum neotier_skip neotier_folio_check(struct neotier_way way, struct folio *folio, enum neotier_hold hold)
{
	if (folio_nid(folio) != way.from)
		return NEOTIER_SKIP_RANGE;
	if (hold != NEOTIER_LOCKED && !folio_test_lru(folio))
		return NEOTIER_SKIP_NOT_LRU;
	if (folio_test_unevictable(folio) || folio_test_mlocked(folio))
		return NEOTIER_SKIP_UNEVICTABLE;
	if (folio_test_swapcache(folio))
		return NEOTIER_SKIP_SWAPCACHE;
	if (folio_test_writeback(folio))
		return NEOTIER_SKIP_WRITEBACK;
	if (neotier_folio_is_ksm(folio))
		return NEOTIER_SKIP_SHARED;
	if (!folio_test_anon(folio)) {
		enum neotier_skip reason = neotier_cached_check(folio, hold);

		if (reason != NR_NEOTIER_SKIP)
			return reason;
	}
	if (neotier_folio_poisoned(folio))
		return NEOTIER_SKIP_BUSY;
	if (way.down ? !neotier_rules_victim(folio_pfn(folio)) : !neotier_rules_range(folio_pfn(folio)))
		return NEOTIER_SKIP_EXCLUDED_RANGE;
	if (!neotier_rules_nodes(way))
		return NEOTIER_SKIP_NODE;
	if (!neotier_rules_cgroup(folio))
		return NEOTIER_SKIP_EXCLUDED;
	if (way.down && neotier_folio_protected(folio))
		return NEOTIER_SKIP_PROTECTED;
	return NR_NEOTIER_SKIP;
}

enum neotier_skip neotier_page_check(struct neotier_way way, struct folio *folio, enum neotier_hold hold)
{
	enum neotier_skip reason;

	if (folio_nid(folio) == way.from && folio_test_large(folio))
		return NEOTIER_SKIP_LARGE;
	reason = neotier_folio_check(way, folio, hold);
	if (reason != NR_NEOTIER_SKIP)
		return reason;
	if (hold != NEOTIER_LOCKED) {
		/* The page cache has one reference of its own. */
		int file = !folio_test_anon(folio), references = neotier_folio_mapcount(folio) + file;

		if (!file && references > 1)
			return NEOTIER_SKIP_SHARED;
		if (folio_maybe_dma_pinned(folio))
			return NEOTIER_SKIP_PINNED;
		/* One that is neither of these nor the caller's is somebody at work: unmapping would be for nothing. */
		if (references < 1 || folio_ref_count(folio) > references + 1 || folio_test_locked(folio))
			return NEOTIER_SKIP_BUSY;
	}
	return NR_NEOTIER_SKIP;
}

/* Whether a page may move now; with its owner's rules when @owners. */
static enum neotier_skip neotier_page_look(const struct neotier_device *dev, unsigned long pfn, bool owners)
{
	struct neotier_owner owner;
	enum neotier_skip reason;
	struct folio *folio;

	if (!pfn_to_online_page(pfn))
		return NEOTIER_SKIP_OFFLINE;
	folio = neotier_folio_get(pfn);
	if (!folio)
		return NEOTIER_SKIP_NOT_LRU;
	reason = neotier_page_check(neotier_way_up(dev), folio, NEOTIER_REFERENCED);
	if (reason == NR_NEOTIER_SKIP && owners) {
		reason = neotier_owner_hold(neotier_way_up(dev), folio, &owner);
		if (reason == NR_NEOTIER_SKIP)
			neotier_owner_release(&owner);
	}
	folio_put(folio);
	return reason;
}

static enum neotier_skip neotier_hotlist_look(void *owner, u32 page, bool owners)
{
	struct neotier_device *dev = owner;

	return neotier_page_look(dev, dev->base_pfn + page, owners);
}

static void neotier_hotlist_skip(void *owner, u32 page, enum neotier_skip reason)
{
	struct neotier_device *dev = owner;

	neotier_skip(dev, dev->base_pfn + page, reason);
}

static bool neotier_hotlist_demoted(void *owner, u32 page)
{
	return neotier_demoted_lately(owner, page);
}

u64 neotier_identity_of(struct page *page)
{
	struct folio *folio = page_folio(page);

	return neotier_page_identity((unsigned long)READ_ONCE(folio->mapping), READ_ONCE(folio->index));
}

/* Without a reference. */
u64 neotier_hotlist_identity(void *owner, u32 page)
{
	struct neotier_device *dev = owner;
	struct page *found = pfn_to_online_page(dev->base_pfn + page);

	return found ? neotier_identity_of(found) : 0;
}

static const struct neotier_hotlist_ops neotier_hotlist_ops = {
	.look = neotier_hotlist_look,
	.skip = neotier_hotlist_skip,
	.demoted = neotier_hotlist_demoted,
	.identity = neotier_hotlist_identity,
};

int neotier_hotlist_alloc(struct neotier_device *dev)
{
	struct neotier_hotlist *list = &dev->hotlist;
	u32 places = neotier_waiting_places(dev->nr_pages);

	dev->ping_pong.sets_log2 = neotier_ping_pong_sets_log2(node_present_pages(dev->target_nid));
	dev->ping_pong.entries = kvcalloc(NEOTIER_PING_PONG_WAYS << dev->ping_pong.sets_log2,
					  sizeof(*dev->ping_pong.entries), GFP_KERNEL);
	list->seen.sets_log2 = neotier_seen_sets_log2(dev->nr_pages);
	list->seen.entries = kvcalloc(NEOTIER_SEEN_WAYS << list->seen.sets_log2, sizeof(*list->seen.entries), GFP_KERNEL);
	dev->places = kvcalloc(places, sizeof(*dev->places), GFP_KERNEL);
	list->queued = vzalloc(neotier_hotlist_words(dev->nr_pages) * sizeof(*list->queued));
	if (!dev->ping_pong.entries || !list->seen.entries || !dev->places || !list->queued || neotier_demoted_alloc(dev)) {
		neotier_hotlist_free(dev);
		return -ENOMEM;
	}
	list->ops = &neotier_hotlist_ops;
	list->owner = dev;
	neotier_hotlist_init(list, dev->places, places);
	return 0;
}

void neotier_hotlist_free(struct neotier_device *dev)
{
	neotier_demoted_free(dev);
	vfree(dev->hotlist.queued);
	kvfree(dev->hotlist.seen.entries);
	kvfree(dev->places);
	kvfree(dev->ping_pong.entries);
	dev->hotlist.queued = NULL;
	dev->hotlist.seen.entries = NULL;
	dev->places = NULL;
	dev->ping_pong.entries = NULL;
}

/* True of this moment. What is gathered is looked at again as a whole. */
static bool neotier_is_huge(unsigned long pfn)
{
	struct folio *folio = neotier_folio_get(pfn);
	bool huge = folio && folio_order(folio) == NEOTIER_HUGE_ORDER;

	if (folio)
		folio_put(folio);
	return huge;
}

void neotier_hotlist_add(struct neotier_device *dev, u64 unit, u32 count, u64 now_ns)
{
	u64 epoch_ns = READ_ONCE(dev->conf.epoch_us) * (u64)NSEC_PER_USEC;
	u32 confirm_epochs = READ_ONCE(neotier_knobs.confirm_epochs), i;
	struct neotier_page_run run;

	unit -= PHYS_PFN(dev->region.dpa_base);
	if (unit >= dev->nr_units) {
		trace_neotier_report(~0UL, count);
		neotier_skip(dev, ~0UL, NEOTIER_SKIP_RANGE);
		return;
	}
	run = neotier_interleave_pages(&dev->region.interleave, dev->region.position, unit);
	if (run.pages > 1)
		neotier_stat_add(dev, NEOTIER_STAT_AMBIGUOUS, 1);
	for (i = 0; i < run.pages; i++) {
		u32 page = run.first + i * run.stride;
		enum neotier_skip reason;

		trace_neotier_report(dev->base_pfn + page, count);
		reason = neotier_hotlist_report(&dev->hotlist, page, count, now_ns, epoch_ns, confirm_epochs);
		if (reason == NEOTIER_SKIP_LARGE && dev->huge.gathered && neotier_is_huge(dev->base_pfn + page))
			neotier_huge_report(&dev->huge, page, count, now_ns, READ_ONCE(dev->conf.threshold));
	}
}

void neotier_returns_note(struct neotier_device *dev, struct page *page)
{
	neotier_ping_pong_note(&dev->ping_pong, neotier_identity_of(page), ktime_get_ns());
}

/* Less than payback_ms ago, by the clock that payback_ms is of: what moved then has not paid for it yet. */
static bool neotier_too_soon(const struct neotier_device *dev, const struct neotier_ping_pong *moved, u64 identity)
{
	u64 age_ns = neotier_ping_pong_age(moved, identity, ktime_get_ns());

	return age_ns <= NEOTIER_PAYBACK_MAX_MS * (u64)NSEC_PER_MSEC &&
	       neotier_clock_scale(&dev->clock, age_ns) < neotier_payback_ns();
}

void neotier_regrets_note(struct neotier_device *dev, struct page *page)
{
	u64 identity = neotier_identity_of(page);

	if (neotier_too_soon(dev, &dev->ping_pong, identity))
		neotier_stat_add(dev, NEOTIER_STAT_SHORT_STAYS, 1);
	neotier_ping_pong_note(&dev->regrets, identity, ktime_get_ns());
}

void neotier_huge_returns_count(struct neotier_device *dev, struct page *page)
{
	if (neotier_ping_pong_check(&dev->ping_pong, neotier_identity_of(page)))
		neotier_stat_add(dev, NEOTIER_STAT_PING_PONG_HUGE, 1);
}

void neotier_returns_count(struct neotier_device *dev, const struct neotier_hot *hot, unsigned int nr)
{
	unsigned int i;

	for (i = 0; i < nr; i++) {
		u64 identity = neotier_identity_of(pfn_to_page(neotier_hot_pfn(dev, &hot[i])));

		if (neotier_ping_pong_check(&dev->ping_pong, identity))
			neotier_stat_add(dev, NEOTIER_STAT_PING_PONG, 1);
		if (!dev->exchange)
			continue;
		if (neotier_too_soon(dev, &dev->regrets, identity))
			neotier_stat_add(dev, NEOTIER_STAT_REGRETS, 1);
		neotier_ping_pong_check(&dev->regrets, identity);
	}
}

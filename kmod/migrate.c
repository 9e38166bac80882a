// SPDX-License-Identifier: GPL-2.0-only
/*
 * Moving pages, by PFN and with exported functions alone: migrate_device_range() isolates, locks and unmaps a page wherever
 * it is mapped, migrate_device_pages() hands its identity to the new page, migrate_device_finalize() maps that (or the old
 * page again) and frees whichever is left over. The only file that calls the kernel's migration.
 *
 * Invariant: while a page is unmapped whoever touches it sleeps, so at most one page is, and nothing is waited for between
 * its unmapping and its finalize: the new page is there before. migrate_device_range() may wait for all CPUs
 * (lru_add_drain_all), but only before it unmaps, and then no other page is out. Gathering pages in a batch would save
 * nothing: it flushes the TLB page by page (docs/decisions/0017-tlb-shootdowns.md).
 *
 * Not here: large folios, page cache, KSM (see neotier_page_check()).
 */
#include <linux/ktime.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/vmstat.h>
#include "compat.h"
#include "neotier.h"
#include "trace.h"

/* What a page is, apart from where it lies: equal before and after, it was the same page all the time. */
struct neotier_identity {
	void *mapping;
	unsigned long index;
};

static struct neotier_identity neotier_identity(struct folio *folio)
{
	return (struct neotier_identity){ READ_ONCE(folio->mapping), READ_ONCE(folio->index) };
}

/* The owner is held: the page is unmapped, copied to *@slot (which is free, and no one else's), and mapped there. */
static enum neotier_skip neotier_migrate_held(struct neotier_device *dev, unsigned long pfn, struct neotier_identity identity,
					      struct page **slot)
{
	enum neotier_skip reason = NEOTIER_SKIP_BUSY;
	struct neotier_identity now;
	struct page *from, *to = *slot;

	dev->dst[0] = 0;
	from = neotier_migrate_unmap(dev->src, pfn);
	if (!from)
		return NEOTIER_SKIP_BUSY;
	now = neotier_identity(page_folio(from));
	/* Between the look and the lock it may have been freed and used again. */
	if (page_to_pfn(from) == pfn && now.mapping == identity.mapping && now.index == identity.index)
		reason = neotier_page_check(dev, page_folio(from), NEOTIER_LOCKED);
	if (reason == NR_NEOTIER_SKIP) {
		/* Before the page is published: its users must never see an unfinished copy. */
		if (neotier_copy_page(to, from)) {
			reason = NEOTIER_SKIP_BUSY;
		} else {
			lock_page(to);
			dev->dst[0] = migrate_pfn(page_to_pfn(to));
		}
	}
	migrate_device_pages(dev->src, dev->dst, 1);
	if (dev->dst[0]) {
		if (dev->src[0] & MIGRATE_PFN_MIGRATE) {
			/*
			 * A page that was demoted comes without a sign of use, and would be among the first to be demoted
			 * again: the device's report is that sign.
			 */
			folio_set_active(page_folio(to));
			neotier_returns_note(dev, to);
		} else {
			reason = NEOTIER_SKIP_BUSY;
		}
		/* The old page is freed with those of the whole batch, in one go. */
		get_page(from);
		*slot = from;
	}
	/* Without a destination, or refused, the page is mapped where it was; then it frees @to. */
	migrate_device_finalize(dev->src, dev->dst, 1);
	return reason;
}

/*
 * @slot: the page to move to; when that is used up, the old page takes its place, for the caller to put.
 * Return: NR_NEOTIER_SKIP when the page has moved, else why not.
 */
static enum neotier_skip neotier_migrate_page(struct neotier_device *dev, unsigned long pfn, struct page **slot)
{
	struct folio *folio = neotier_folio_get(pfn);
	struct neotier_identity identity;
	struct neotier_owner owner;
	enum neotier_skip reason;

	if (!folio)
		return NEOTIER_SKIP_NOT_LRU;
	reason = neotier_page_check(dev, folio, NEOTIER_REFERENCED);
	if (reason == NR_NEOTIER_SKIP)
		reason = neotier_owner_hold(dev, folio, &owner);
	identity = neotier_identity(folio);
	/* A reference would keep it from moving. */
	folio_put(folio);
	if (reason != NR_NEOTIER_SKIP)
		return reason;
	reason = neotier_migrate_held(dev, pfn, identity, slot);
	neotier_owner_release(&owner);
	return reason;
}

/* As the kernel's own moves count in /proc/vmstat, where those who watch a machine look. */
static void neotier_count_moves(const struct neotier_device *dev, unsigned int moved)
{
	count_vm_events(PGMIGRATE_SUCCESS, moved);
#ifdef CONFIG_NUMA_BALANCING
	mod_node_page_state(NODE_DATA(dev->target_nid), PGPROMOTE_SUCCESS, moved);
#endif
}

int neotier_migrate_batch(struct neotier_device *dev, unsigned int nr)
{
	unsigned int got, used = 0, moved = 0, i;
	struct neotier_hot *hot = dev->batch;
	struct neotier_time start = neotier_clock_now(dev), end;
	u64 spent;

	lockdep_assert_held(&dev->lock);
	for (got = 0; got < nr; got++) {
		dev->pool[got] = neotier_room_take(dev);
		if (!dev->pool[got])
			break;
	}
	if (got < nr)
		neotier_hotlist_untake(&dev->hotlist, hot + got, nr - got);
	if (!got)
		return -ENOMEM;
	neotier_hotlist_done(&dev->hotlist, hot, got);
	neotier_returns_count(dev, hot, got);

	for (i = 0; i < got; i++) {
		unsigned long pfn = neotier_hot_pfn(dev, &hot[i]);
		struct page *to = dev->pool[used];
		enum neotier_skip reason;

		reason = neotier_migrate_page(dev, pfn, &dev->pool[used]);
		used += dev->pool[used] != to;
		if (reason != NR_NEOTIER_SKIP) {
			neotier_skip(dev, pfn, reason);
			continue;
		}
		trace_neotier_promote_page(pfn, page_to_pfn(to), ktime_get_ns() - hot[i].drained_ns);
		moved++;
	}
	release_pages(dev->pool, used);
	for (i = used; i < got; i++)
		__free_page(dev->pool[i]);

	neotier_count_moves(dev, moved);
	end = neotier_clock_now(dev);
	spent = neotier_clock_span(&dev->clock, &start, &end);
	neotier_stat_add(dev, NEOTIER_STAT_TRIED, got);
	neotier_stat_add(dev, NEOTIER_STAT_PROMOTED, moved);
	neotier_stat_add(dev, NEOTIER_STAT_PROMOTE_FAILED, got - moved);
	neotier_stat_add(dev, NEOTIER_STAT_BATCHES, 1);
	neotier_stat_add(dev, NEOTIER_STAT_PROMOTE_NS, spent);
	trace_neotier_promote(got, moved, spent);
	return moved;
}

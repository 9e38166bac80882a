// SPDX-License-Identifier: GPL-2.0-only
/*
 * Moving pages, by PFN and with exported functions alone: migrate_device_range() isolates, locks and unmaps a page wherever
 * it is mapped, migrate_device_pages() hands its identity to the new page, migrate_device_finalize() maps that (or the old
 * page again) and frees whichever is left over. The only file that calls the kernel's migration.
 *
 * Huge folios go another way, since none of those functions moves one whole on every kernel: a long-term pin has the kernel
 * itself move what lies in ZONE_MOVABLE, and is released at once (docs/decisions/0041-huge-folios.md).
 *
 * Invariant: while a page is unmapped whoever touches it sleeps, so at most one page is, and nothing is waited for between
 * its unmapping and its finalize: the new page is there before. migrate_device_range() may wait for all CPUs
 * (lru_add_drain_all), but only before it unmaps, and then no other page is out. Gathering pages in a batch would save
 * nothing: it flushes the TLB page by page (docs/decisions/0017-tlb-shootdowns.md).
 *
 * Down goes as up does: page by page, so that room for a hot page is made by one that is not in use.
 *
 * Page cache and shared memory go the same way. Not here: large folios of other sizes, KSM (see neotier_page_check()).
 */
#include <linux/cpuset.h>
#include <linux/ktime.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/preempt.h>
#include <linux/swap.h>
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
static enum neotier_skip neotier_migrate_held(struct neotier_device *dev, struct neotier_way way, unsigned long pfn,
					      struct neotier_identity identity, struct page **slot)
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
		reason = neotier_page_check(way, page_folio(from), NEOTIER_LOCKED);
	if (reason == NR_NEOTIER_SKIP && !folio_test_anon(page_folio(from)))
		reason = neotier_sharers_check(way, page_folio(from), NEOTIER_LOCKED);
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
		/* That of a file is left to the caller, and without it the old page could not be freed. */
		if ((dev->src[0] & MIGRATE_PFN_MIGRATE) && !folio_test_anon(page_folio(from)))
			WRITE_ONCE(from->mapping, NULL);
		if (!(dev->src[0] & MIGRATE_PFN_MIGRATE)) {
			reason = NEOTIER_SKIP_BUSY;
		} else if (way.down) {
			neotier_regrets_note(dev, to);
			neotier_demoted_note(dev, page_to_pfn(to));
		} else {
			/*
			 * A page that was demoted comes without a sign of use, and would be among the first to be demoted
			 * again: the device's report is that sign.
			 */
			folio_set_active(page_folio(to));
			neotier_returns_note(dev, to);
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
static enum neotier_skip neotier_migrate_page(struct neotier_device *dev, struct neotier_way way, unsigned long pfn,
					      struct page **slot)
{
	struct folio *folio = neotier_folio_get(pfn);
	struct neotier_identity identity;
	struct neotier_owner owner;
	enum neotier_skip reason;

	if (!folio)
		return NEOTIER_SKIP_NOT_LRU;
	reason = neotier_page_check(way, folio, NEOTIER_REFERENCED);
	if (reason == NR_NEOTIER_SKIP)
		reason = neotier_owner_hold(way, folio, &owner);
	identity = neotier_identity(folio);
	/* A reference would keep it from moving. */
	folio_put(folio);
	if (reason != NR_NEOTIER_SKIP)
		return reason;
	reason = neotier_migrate_held(dev, way, pfn, identity, slot);
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

/* Whoever changes what it maps now does so for a moment: others' victims are tried, and then it is left for another time. */
#define NEOTIER_CONTENDED_MAX 16U

/* Pages of the target node that are not in use move to the device's. Return: how many, of nr. */
static unsigned int neotier_demote(struct neotier_device *dev, unsigned int nr)
{
	struct neotier_time start = neotier_clock_now(dev), end;
	/* Most may be somebody's who wants to keep them. */
	unsigned int most = min(16 * nr, NEOTIER_BATCH_MAX), tried, used = 0, moved = 0, contended = 0;
	struct page *to = NULL;

	for (tried = 0; moved < nr && tried < most && contended < NEOTIER_CONTENDED_MAX; tried++) {
		struct page **slot = &dev->victims[used];
		enum neotier_skip reason;
		unsigned long pfn;

		if (!to)
			to = neotier_room_take_slow(dev);
		if (!to || !neotier_exchange_victim(dev, &pfn))
			break;
		*slot = to;
		reason = neotier_migrate_page(dev, neotier_way_down(dev), pfn, slot);
		if (reason == NR_NEOTIER_SKIP) {
			trace_neotier_demote_page(pfn, page_to_pfn(to));
			moved++;
		} else {
			neotier_keep(dev, pfn, reason);
		}
		if (reason == NEOTIER_SKIP_CONTENDED) {
			neotier_exchange_again(dev, pfn);
			contended++;
		}
		if (*slot != to) {
			used++;
			to = NULL;
		}
	}
	if (to)
		__free_page(to);
	release_pages(dev->victims, used);
	neotier_exchange_done(dev, moved, tried == most && !moved && !contended);
	count_vm_events(PGMIGRATE_SUCCESS, moved);
	neotier_count_demoted(dev->target_nid, moved);
	end = neotier_clock_now(dev);
	neotier_stat_add(dev, NEOTIER_STAT_DEMOTED, moved);
	neotier_stat_add(dev, NEOTIER_STAT_DEMOTE_FAILED, tried - moved);
	neotier_stat_add(dev, NEOTIER_STAT_DEMOTE_NS, neotier_clock_span(&dev->clock, &start, &end));
	return moved;
}

void neotier_migrate_spare(struct neotier_device *dev, unsigned int nr)
{
	u64 took_ns = dev->stats[NEOTIER_STAT_DEMOTE_NS];
	unsigned int moved;

	lockdep_assert_held(&dev->lock);
	nr = neotier_quota_take(min(nr, NEOTIER_BATCH_MAX));
	moved = nr ? neotier_demote(dev, nr) : 0;
	neotier_quota_return(nr - moved);
	neotier_spare_spent(&dev->spare, dev->stats[NEOTIER_STAT_DEMOTE_NS] - took_ns);
	neotier_stat_add(dev, NEOTIER_STAT_SPARED, moved);
}

static void neotier_exchange_pay(struct neotier_device *dev, unsigned int nr)
{
	unsigned int moved = neotier_demote(dev, nr);

	if (moved)
		neotier_room_owe(&dev->room, moved, ktime_get_ns());
}

static unsigned int neotier_pool_fill(struct neotier_device *dev, unsigned int got, unsigned int nr)
{
	for (; got < nr; got++) {
		dev->pool[got] = neotier_room_take(dev);
		if (!dev->pool[got])
			break;
	}
	return got;
}

/*
 * Pages of the target node for a batch, in dev->pool. In exchange each is paid for by a victim, unless nobody misses it. What a
 * victim leaves may take a while to be free, and may be taken by a program that grows: it stays owed to us, no other victim is
 * taken for it, and the reserve has it as soon as it can. Return: how many.
 */
static unsigned int neotier_pool(struct neotier_device *dev, unsigned int nr)
{
	unsigned int got, paid;
	u64 unpaid;

	if (!dev->exchange)
		return neotier_pool_fill(dev, 0, nr);
	unpaid = neotier_room_unpaid(dev);
	if (unpaid + dev->room.owed < nr)
		neotier_exchange_pay(dev, nr - unpaid - dev->room.owed);
	paid = min_t(u64, nr, unpaid + dev->room.owed);
	got = neotier_pool_fill(dev, 0, paid);
	if (!got && neotier_room_late(&dev->room)) {
		neotier_exchange_pay(dev, nr);
		got = neotier_pool_fill(dev, 0, nr);
	}
	neotier_room_paid(&dev->room, got > unpaid ? got - unpaid : 0);
	neotier_reserve_owed(dev);
	return got;
}

int neotier_migrate_batch(struct neotier_device *dev, unsigned int nr)
{
	struct neotier_time start = neotier_clock_now(dev), end;
	u64 demote_ns = dev->stats[NEOTIER_STAT_DEMOTE_NS], spent;
	unsigned int got, used = 0, moved = 0, i;
	struct neotier_hot *hot = dev->batch;

	lockdep_assert_held(&dev->lock);
	got = neotier_pool(dev, nr);
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

		reason = neotier_migrate_page(dev, neotier_way_up(dev), pfn, &dev->pool[used]);
		used += dev->pool[used] != to;
		if (reason != NR_NEOTIER_SKIP) {
			neotier_skip(dev, pfn, reason);
			continue;
		}
		trace_neotier_promote_page(pfn, page_to_pfn(to), ktime_get_ns() - hot[i].drained_ns);
		neotier_exchange_came(dev, page_to_pfn(to));
		moved++;
	}
	release_pages(dev->pool, used);
	for (i = used; i < got; i++)
		__free_page(dev->pool[i]);

	neotier_count_moves(dev, moved);
	end = neotier_clock_now(dev);
	/* Victims have a time of their own. */
	demote_ns = dev->stats[NEOTIER_STAT_DEMOTE_NS] - demote_ns;
	spent = neotier_clock_span(&dev->clock, &start, &end);
	spent -= min(spent, demote_ns);
	neotier_stat_add(dev, NEOTIER_STAT_TRIED, got);
	neotier_stat_add(dev, NEOTIER_STAT_PROMOTED, moved);
	neotier_stat_add(dev, NEOTIER_STAT_PROMOTE_FAILED, got - moved);
	neotier_stat_add(dev, NEOTIER_STAT_BATCHES, 1);
	neotier_stat_add(dev, NEOTIER_STAT_PROMOTE_NS, spent);
	trace_neotier_promote(got, moved, spent);
	return moved;
}

/*
 * One at a time, whatever the number of devices, so that the piece which was seen free just before is still there when the
 * kernel allocates. Without it the kernel splits the folio. Invariant: it has memory for the parts then, and kills nobody.
 */
static DEFINE_MUTEX(neotier_huge_lock);

/* Which owner maps the folio, where it was looked for; false: none any more. */
static bool neotier_huge_find(const struct neotier_owner *owner, unsigned long pfn, unsigned int *which)
{
	for (*which = 0; *which < owner->nr; ++*which) {
		struct page *page = neotier_page_at(owner->mms[*which], owner->addresses[*which]);

		if (!page)
			continue;
		put_page(page);
		if (page_to_pfn(page) == pfn + owner->pages[*which])
			return true;
	}
	return false;
}

/* Return: NR_NEOTIER_SKIP: what is mapped there now is to be looked at; else why it stayed. */
static enum neotier_skip neotier_huge_pin(const struct neotier_owner *owner, unsigned int which)
{
	struct page *page = neotier_pin_at(owner->mms[which], owner->addresses[which]);

	if (!page)
		return NEOTIER_SKIP_SHARED;
	unpin_user_page(page);
	return NR_NEOTIER_SKIP;
}

/*
 * The kernel looks for new memory on the folio's own node first. mems_allowed keeps it from that, if any cpuset exists: else
 * nothing looks at it, and the folio stays on its node, for nothing.
 */
static enum neotier_skip neotier_huge_claim(struct neotier_device *dev, unsigned long pfn)
{
	nodemask_t before = cpuset_current_mems_allowed;
	int err;

	set_mems_allowed(nodemask_of_node(dev->target_nid));
	err = neotier_claim(pfn, NEOTIER_HUGE_PAGES);
	set_mems_allowed(before);
	if (err)
		return NEOTIER_SKIP_BUSY;
	free_contig_range(pfn, NEOTIER_HUGE_PAGES);
	return NR_NEOTIER_SKIP;
}

/* What became of it. The first page's identity is noted while its owner is held. */
static enum neotier_skip neotier_huge_result(struct neotier_device *dev, const struct neotier_owner *owner, unsigned int which,
					     bool claimed)
{
	struct page *page = neotier_page_at(owner->mms[which], owner->addresses[which]);
	enum neotier_skip reason = NEOTIER_SKIP_BUSY;
	struct folio *folio;

	if (!page)
		return reason;
	folio = page_folio(page);
	if (folio_order(folio) != NEOTIER_HUGE_ORDER) {
		neotier_stat_add(dev, NEOTIER_STAT_SPLIT_HUGE, 1);
	} else if (folio_nid(folio) == dev->target_nid) {
		/* The device's report is the sign of use that one which was demoted comes without. */
		folio_mark_accessed(folio);
		neotier_returns_note(dev, &folio->page);
		reason = NR_NEOTIER_SKIP;
	} else if (claimed && folio_nid(folio) == dev->nid) {
		dev->claim_stopped = true;
		dev_warn(&dev->pdev->dev, "promote_huge=2 moves no folio off node %d: this kernel obeys it only once a cpuset exists; make one, then write promote_huge again\n",
			 dev->nid);
		reason = NEOTIER_SKIP_ZONE;
	}
	put_page(page);
	return reason;
}

/* The owner is held. Return: NR_NEOTIER_SKIP when it has moved, else why not. */
static enum neotier_skip neotier_huge_held(struct neotier_device *dev, unsigned long pfn, const struct neotier_owner *owner)
{
	bool claim = READ_ONCE(neotier_knobs.promote_huge) == NEOTIER_HUGE_CLAIM && !dev->claim_stopped, claimed = false;
	enum neotier_skip reason = NEOTIER_SKIP_ZONE;
	unsigned int which;

	if (!neotier_huge_find(owner, pfn, &which))
		return NEOTIER_SKIP_BUSY;
	if (is_zone_movable_page(pfn_to_page(pfn)))
		reason = neotier_huge_pin(owner, which);
	if (reason != NR_NEOTIER_SKIP && claim) {
		claimed = true;
		reason = neotier_huge_claim(dev, pfn);
	}
	return reason == NR_NEOTIER_SKIP ? neotier_huge_result(dev, owner, which, claimed) : reason;
}

/* Return: NR_NEOTIER_SKIP when it has moved, NEOTIER_SKIP_NO_ROOM when nothing was done for want of room, else why not. */
static enum neotier_skip neotier_huge_move(struct neotier_device *dev, unsigned long pfn)
{
	struct folio *folio = neotier_folio_get(pfn);
	struct neotier_owner owner;
	enum neotier_skip reason;

	if (!folio)
		return NEOTIER_SKIP_NOT_LRU;
	reason = folio_pfn(folio) == pfn ? neotier_huge_check(dev, folio) : NEOTIER_SKIP_LARGE;
	if (reason == NR_NEOTIER_SKIP)
		reason = neotier_owner_hold(neotier_way_up(dev), folio, &owner);
	/* A reference would keep it from moving. */
	folio_put(folio);
	if (reason != NR_NEOTIER_SKIP)
		return reason;
	/* The piece is on this CPU's list now, where no other CPU finds it. */
	migrate_disable();
	reason = neotier_room_huge(dev) ? neotier_huge_held(dev, pfn, &owner) : NEOTIER_SKIP_NO_ROOM;
	migrate_enable();
	neotier_owner_release(&owner);
	return reason;
}

/* Of a huge folio that should be split. */
static enum neotier_skip neotier_split_check(struct neotier_way way, struct folio *folio)
{
	enum neotier_skip reason;

	if (folio_order(folio) != NEOTIER_HUGE_ORDER)
		return NEOTIER_SKIP_LARGE;
	reason = neotier_folio_check(way, folio, NEOTIER_REFERENCED);
	if (reason != NR_NEOTIER_SKIP)
		return reason;
	if (folio_maybe_dma_pinned(folio))
		return NEOTIER_SKIP_PINNED;
	return folio_test_locked(folio) ? NEOTIER_SKIP_BUSY : NR_NEOTIER_SKIP;
}

enum neotier_skip neotier_split(struct neotier_device *dev, struct neotier_way way, unsigned long pfn)
{
	struct folio *folio = neotier_folio_get(pfn);
	struct neotier_owner owner;
	enum neotier_skip reason;
	unsigned int which;

	lockdep_assert_held(&dev->lock);
	if (!folio)
		return NEOTIER_SKIP_NOT_LRU;
	reason = folio_pfn(folio) == pfn ? neotier_split_check(way, folio) : NEOTIER_SKIP_LARGE;
	if (reason == NR_NEOTIER_SKIP)
		reason = neotier_owner_hold(way, folio, &owner);
	/* A reference would keep it from being split. */
	folio_put(folio);
	if (reason != NR_NEOTIER_SKIP)
		return reason;
	if (!neotier_huge_find(&owner, pfn, &which)) {
		reason = NEOTIER_SKIP_BUSY;
	} else {
		neotier_split_at(dev->src, dev->dst, owner.mms[which], owner.addresses[which]);
		reason = PageCompound(pfn_to_page(pfn)) ? NEOTIER_SKIP_BUSY : NR_NEOTIER_SKIP;
	}
	neotier_owner_release(&owner);
	return reason;
}

int neotier_migrate_huge(struct neotier_device *dev, const struct neotier_hot *hot)
{
	struct neotier_time start = neotier_clock_now(dev), end;
	unsigned long pfn = neotier_hot_pfn(dev, hot);
	enum neotier_skip reason;
	unsigned int moved;
	u64 spent;

	lockdep_assert_held(&dev->lock);
	mutex_lock(&neotier_huge_lock);
	reason = neotier_huge_move(dev, pfn);
	mutex_unlock(&neotier_huge_lock);
	if (reason == NEOTIER_SKIP_NO_ROOM)
		return -ENOMEM;
	moved = reason == NR_NEOTIER_SKIP ? NEOTIER_HUGE_PAGES : 0;
	if (!moved)
		neotier_skip(dev, pfn, reason);
#ifdef CONFIG_NUMA_BALANCING
	/* The rest of what it counts of moves the kernel has counted: it made this one. */
	mod_node_page_state(NODE_DATA(dev->target_nid), PGPROMOTE_SUCCESS, moved);
#endif
	end = neotier_clock_now(dev);
	spent = neotier_clock_span(&dev->clock, &start, &end);
	neotier_stat_add(dev, NEOTIER_STAT_TRIED, NEOTIER_HUGE_PAGES);
	neotier_stat_add(dev, NEOTIER_STAT_PROMOTED, moved);
	neotier_stat_add(dev, NEOTIER_STAT_PROMOTED_HUGE, !!moved);
	neotier_stat_add(dev, NEOTIER_STAT_PROMOTE_FAILED, NEOTIER_HUGE_PAGES - moved);
	neotier_stat_add(dev, NEOTIER_STAT_BATCHES, 1);
	neotier_stat_add(dev, NEOTIER_STAT_PROMOTE_NS, spent);
	neotier_stat_add(dev, NEOTIER_STAT_PROMOTE_HUGE_NS, spent);
	trace_neotier_promote(NEOTIER_HUGE_PAGES, moved, spent);
	return moved;
}

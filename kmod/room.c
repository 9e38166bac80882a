// SPDX-License-Identifier: GPL-2.0-only
/*
 * Free memory on the target node for pages to be promoted: the kernel's side of promotion/room.h, which decides.
 *
 * The reserve's pages are on no list from which the kernel could move them, so they do not come from memory that is
 * promised to be movable (ZONE_MOVABLE, and but for exchange CMA and movable page blocks), and they are marked as pages that
 * are let go when their memory goes offline, which the memory notifier does.
 */
#include <linux/atomic.h>
#include <linux/gfp.h>
#include <linux/ktime.h>
#include <linux/list.h>
#include <linux/lockdep.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/vmstat.h>
#include "compat.h"
#include "neotier.h"

/*
 * No direct reclaim: the thread must not wait inside the allocator while hot pages wait for it. Nor the reserves of the
 * kernel. Waking kswapd is the point: that is how the kernel comes to demote cold pages and make room for the next batch.
 */
#define NEOTIER_GFP ((GFP_HIGHUSER_MOVABLE & ~__GFP_RECLAIM) | __GFP_KSWAPD_RECLAIM | \
		     __GFP_THISNODE | __GFP_NOMEMALLOC | __GFP_NOWARN)
/*
 * A page for one that a victim has left, or is about to. The kernel raises a zone's watermarks by a share of it after it had to
 * mix kinds of pages in a block, and lowers them again when kswapd has freed so much; where it cannot, they stay. An exchange
 * takes nothing that was free, so it goes by the watermarks as they are set. Invariant: never below where promotion stops.
 */
#define NEOTIER_EXCHANGE_GFP ((NEOTIER_GFP & ~__GFP_KSWAPD_RECLAIM) | NEOTIER_GFP_PAST_BOOST)
/* As a long-term pin allocates, which takes no memory that has to stay movable; and without reclaim. */
#define NEOTIER_HUGE_GFP ((GFP_TRANSHUGE_LIGHT & ~__GFP_MOVABLE) | __GFP_THISNODE)
#define NEOTIER_RESERVE_GFP (NEOTIER_GFP & ~(__GFP_MOVABLE | __GFP_KSWAPD_RECLAIM))
/*
 * In exchange it holds what victims have just left, for a moment, on a node where no page block has anything else free: to ask
 * for unmovable memory there would change the kind of a block each time, and that raises the watermarks and wakes kswapd
 * (boost_watermark()). Memory that is promised to be movable as a zone is left alone here too.
 */
#define NEOTIER_EXCHANGE_RESERVE_GFP (NEOTIER_EXCHANGE_GFP & ~__GFP_HIGHMEM)

/* In the reserves of all devices: not taken by programs. */
static atomic_long_t neotier_reserved = ATOMIC_LONG_INIT(0);

static struct neotier_levels neotier_node_levels(int nid, bool boosted)
{
	struct neotier_levels levels = { };
	int i;

	for (i = 0; i <= ZONE_MOVABLE; i++) {
		struct zone *zone = &NODE_DATA(nid)->node_zones[i];

		if (managed_zone(zone)) {
			unsigned long boost = boosted ? READ_ONCE(zone->watermark_boost) : 0;
			struct neotier_zone_levels now = {
				.free = zone_page_state(zone, NR_FREE_PAGES),
				.min = zone->_watermark[WMARK_MIN] + boost,
				.low = zone->_watermark[WMARK_LOW] + boost,
				.high = zone->_watermark[WMARK_HIGH] + boost,
				.kept = zone->lowmem_reserve[ZONE_MOVABLE],
			};

			neotier_levels_add(&levels, &now);
		}
	}
	neotier_levels_headroom(&levels, READ_ONCE(neotier_knobs.headroom_pages));
	return levels;
}

static struct neotier_levels neotier_target_levels(const struct neotier_device *dev)
{
	return neotier_node_levels(dev->target_nid, !dev->exchange);
}

static bool neotier_hold(const struct neotier_device *dev)
{
	return neotier_room_hold(&dev->room, neotier_hotlist_waiting(dev));
}

/* Whoever takes memory stops at low; what is above high nobody misses. */
u64 neotier_room_unpaid(const struct neotier_device *dev)
{
	struct neotier_levels target = neotier_target_levels(dev);
	u64 kept = max(target.gap, dev->exchange ? dev->spare.pages : 0);

	return target.above_low > kept ? target.above_low - kept : 0;
}

/* Allocations that were meant for the node and went elsewhere. */
static u64 neotier_missed(int nid)
{
	u64 missed = 0;
	int i, cpu;

	for (i = 0; i <= ZONE_MOVABLE; i++) {
		struct zone *zone = &NODE_DATA(nid)->node_zones[i];

		if (!populated_zone(zone))
			continue;
		missed += atomic_long_read(&zone->vm_numa_event[NUMA_FOREIGN]);
		for_each_online_cpu(cpu)
			missed += READ_ONCE(per_cpu_ptr(zone->per_cpu_zonestats, cpu)->vm_numa_event[NUMA_FOREIGN]);
	}
	return missed;
}

/* Of programs on the device's node, but for what was moved there or from there; up to a constant. */
static u64 neotier_grown(const struct neotier_device *dev)
{
	u64 pages = dev->stats[NEOTIER_STAT_PROMOTED] - dev->stats[NEOTIER_STAT_DEMOTED];
	enum lru_list lru;

	for_each_lru(lru)
		pages += atomic_long_read(&NODE_DATA(dev->nid)->vm_stat[NR_LRU_BASE + lru]);
	return pages;
}

u64 neotier_room_spare(struct neotier_device *dev, u64 now_ns)
{
	u64 above_low = neotier_target_levels(dev).above_low, demoted = dev->stats[NEOTIER_STAT_DEMOTED];
	u64 page_ns = demoted ? dev->stats[NEOTIER_STAT_DEMOTE_NS] / demoted : 0;

	lockdep_assert_held(&dev->lock);
	if (!dev->exchange || READ_ONCE(neotier_knobs.dry_run))
		return 0;
	if (neotier_spare_due(&dev->spare, now_ns))
		neotier_spare_watch(&dev->spare, neotier_missed(dev->target_nid), neotier_grown(dev), above_low,
				    node_present_pages(dev->target_nid), now_ns);
	return neotier_spare_wanted(&dev->spare, above_low, clamp(page_ns, 1 * NSEC_PER_USEC, NSEC_PER_MSEC), now_ns);
}

u64 neotier_room(const struct neotier_device *dev)
{
	struct neotier_levels target = neotier_target_levels(dev);

	lockdep_assert_held(&dev->lock);
	if (dev->exchange)
		return neotier_room_unpaid(dev) + neotier_exchange_victims(dev);
	return neotier_room_pages(&dev->room, neotier_hotlist_waiting(dev), &target);
}

bool neotier_room_make(struct neotier_device *dev)
{
	struct page *page;

	lockdep_assert_held(&dev->lock);
	/* A victim is found in time, or is not. */
	if (dev->exchange || neotier_hold(dev))
		return false;
	page = alloc_pages_node(dev->target_nid, NEOTIER_GFP, 0);
	if (page)
		__free_page(page);
	neotier_room_asked(&dev->room, ktime_get_ns());
	return true;
}

static void neotier_reserve_take(struct neotier_device *dev, struct page *page)
{
	list_del(&page->lru);
	__ClearPageOffline(page);
	dev->room.reserved--;
	atomic_long_dec(&neotier_reserved);
}

static struct page *neotier_room_exchange(const struct neotier_device *dev, gfp_t flags)
{
	return neotier_target_levels(dev).above_floor ? alloc_pages_node(dev->target_nid, flags, 0) : NULL;
}

struct page *neotier_room_take(struct neotier_device *dev)
{
	struct page *page = list_first_entry_or_null(&dev->reserve, struct page, lru);

	lockdep_assert_held(&dev->lock);
	if (!page) {
		if (dev->exchange)
			return neotier_room_exchange(dev, NEOTIER_EXCHANGE_GFP);
		if (neotier_hold(dev))
			return alloc_pages_node(dev->target_nid, NEOTIER_GFP & ~__GFP_KSWAPD_RECLAIM, 0);
		/* Below low the allocation wakes kswapd. */
		if (!dev->room.fill)
			dev->room.fill = !neotier_target_levels(dev).above_low;
		return alloc_pages_node(dev->target_nid, NEOTIER_GFP, 0);
	}
	neotier_reserve_take(dev, page);
	return page;
}

struct page *neotier_room_take_slow(const struct neotier_device *dev)
{
	return alloc_pages_node(dev->nid, NEOTIER_GFP & ~__GFP_KSWAPD_RECLAIM, 0);
}

bool neotier_room_huge(const struct neotier_device *dev)
{
	struct page *page;

	/* Twice: should the piece be gone by then, the kernel splits the folio, and finds room for its parts. */
	if (neotier_target_levels(dev).above_floor < 2 * NEOTIER_HUGE_PAGES)
		return false;
	page = alloc_pages_node(dev->target_nid, NEOTIER_HUGE_GFP, NEOTIER_HUGE_ORDER);
	if (page)
		__free_pages(page, NEOTIER_HUGE_ORDER);
	return page;
}

void neotier_room_make_huge(const struct neotier_device *dev)
{
	struct page *page;

	if (dev->exchange)
		return;
	page = alloc_pages_node(dev->target_nid, NEOTIER_HUGE_GFP | __GFP_KSWAPD_RECLAIM, NEOTIER_HUGE_ORDER);
	if (page)
		__free_pages(page, NEOTIER_HUGE_ORDER);
}

static bool neotier_reserve_add(struct neotier_device *dev)
{
	struct page *page;

	if (dev->exchange)
		page = neotier_room_exchange(dev, NEOTIER_EXCHANGE_RESERVE_GFP);
	else
		page = alloc_pages_node(dev->target_nid, NEOTIER_RESERVE_GFP, 0);
	if (!page)
		return false;
	__SetPageOffline(page);
	list_add(&page->lru, &dev->reserve);
	dev->room.reserved++;
	atomic_long_inc(&neotier_reserved);
	neotier_stat_add(dev, NEOTIER_STAT_RESERVED, 1);
	return true;
}

void neotier_reserve_owed(struct neotier_device *dev)
{
	u64 most = neotier_room_most(READ_ONCE(neotier_knobs.reserve_pages), node_present_pages(dev->target_nid));

	lockdep_assert_held(&dev->lock);
	most = min(most, dev->room.owed);
	while (dev->room.reserved < most && neotier_reserve_add(dev))
		;
}

void neotier_reserve_keep(struct neotier_device *dev, u64 now_ns)
{
	u64 most = neotier_room_most(READ_ONCE(neotier_knobs.reserve_pages), node_present_pages(dev->target_nid)), pages;
	struct neotier_levels target = neotier_target_levels(dev);

	lockdep_assert_held(&dev->lock);
	if (dev->exchange) {
		if (!neotier_room_keep(&dev->room, dev->stats[NEOTIER_STAT_PROMOTED], most, now_ns))
			neotier_reserve_drop(dev);
		return;
	}
	neotier_room_watch(&dev->room, neotier_node_levels(dev->nid, true).free + target.free + atomic_long_read(&neotier_reserved),
			   target.gap, now_ns);
	if (!neotier_room_keep(&dev->room, dev->stats[NEOTIER_STAT_PROMOTED], most, now_ns))
		neotier_reserve_drop(dev);
	if (!dev->room.fill)
		return;
	for (pages = neotier_room_fill(&dev->room, target.above_low, most); pages; pages--)
		if (!neotier_reserve_add(dev))
			break;
	dev->room.fill = dev->room.reserved < most;
}

void neotier_reserve_drop(struct neotier_device *dev)
{
	struct page *page, *next;

	lockdep_assert_held(&dev->lock);
	list_for_each_entry_safe(page, next, &dev->reserve, lru) {
		neotier_reserve_take(dev, page);
		__free_page(page);
	}
	dev->room.fill = false;
	dev->room.owed = 0;
}

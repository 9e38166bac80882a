// SPDX-License-Identifier: GPL-2.0-only
/*
 * Free memory on the target node for pages to be promoted: what is free, what kswapd is asked for, and a reserve.
 *
 * Why a reserve. kswapd, once woken, demotes a high watermark's worth, some hundred times what waits for promotion. A
 * program that grows takes the rest before the next hot page comes, so every few promotions cost another thousand
 * demotions: memory of the program goes down for no other reason than that its new memory may go up. The reserve keeps
 * what was freed on promotion's behalf for promotion; new memory then goes where it would have gone without the module.
 *
 * Only what kswapd freed after promotion woke it goes into it, only down to the low watermark, so that nobody reclaims for
 * its sake; it is given back when promotion has had no use for it for a while, before memory goes offline, and whenever
 * the device stands still. Its pages are on no list from which the kernel could move them, so they do not come from memory
 * that is promised to be movable (ZONE_MOVABLE, CMA, movable page blocks), and they are marked as pages that are let go when
 * their memory goes offline, which the memory notifier does.
 */
#include <linux/atomic.h>
#include <linux/gfp.h>
#include <linux/ktime.h>
#include <linux/list.h>
#include <linux/lockdep.h>
#include <linux/math64.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/vmstat.h>
#include "neotier.h"

/*
 * No direct reclaim: the thread must not wait inside the allocator while hot pages wait for it. Nor the reserves of the
 * kernel. Waking kswapd is the point: that is how the kernel comes to demote cold pages and make room for the next batch.
 */
#define NEOTIER_GFP ((GFP_HIGHUSER_MOVABLE & ~__GFP_RECLAIM) | __GFP_KSWAPD_RECLAIM | \
		     __GFP_THISNODE | __GFP_NOMEMALLOC | __GFP_NOWARN)
#define NEOTIER_RESERVE_GFP (NEOTIER_GFP & ~(__GFP_MOVABLE | __GFP_KSWAPD_RECLAIM))

/* Hot pages that wait, for which kswapd is woken: some 1,300 demotions for fewer are a loss, and so few do not matter. */
#define NEOTIER_WORTH_WAKING 32U
/* The reserve is given back after this long without a promotion. */
#define NEOTIER_RESERVE_IDLE_NS NSEC_PER_SEC
/* And holds at most this share of the node, however large the knob. */
#define NEOTIER_RESERVE_SHARE 16
/* kswapd's short sleep before it looks whether it may sleep for good: HZ / 10 in kswapd_try_to_sleep(). */
#define NEOTIER_NAP_NS (100 * NSEC_PER_MSEC)

/* In the reserves of all devices: not taken by programs. */
static atomic_long_t neotier_reserved = ATOMIC_LONG_INIT(0);

/* Of a node, in pages. */
struct neotier_levels {
	unsigned long free;
	unsigned long above_low;	/* free above each zone's low watermark */
	unsigned long gap;		/* between the low and the high watermark */
	/*
	 * Free above half-way between min and low, where promotion stops. Lower than low, because the allocator wakes kswapd
	 * only when an allocation finds less than low, and kswapd then demotes until high: a floor above low would leave
	 * promotion waiting for room that nobody makes. Higher than min, because below min other allocations reclaim directly.
	 */
	unsigned long above_floor;
};

static unsigned long neotier_above(unsigned long free, unsigned long level)
{
	return free > level ? free - level : 0;
}

static struct neotier_levels neotier_levels(int nid)
{
	unsigned long headroom = READ_ONCE(neotier_knobs.headroom_pages);
	struct neotier_levels levels = { };
	int i;

	for (i = 0; i <= ZONE_MOVABLE; i++) {
		struct zone *zone = &NODE_DATA(nid)->node_zones[i];
		unsigned long free, low, kept;

		if (!managed_zone(zone))
			continue;
		free = zone_page_state(zone, NR_FREE_PAGES);
		low = low_wmark_pages(zone);
		kept = zone->lowmem_reserve[ZONE_MOVABLE];
		levels.free += free;
		levels.gap += high_wmark_pages(zone) - low;
		levels.above_low += neotier_above(free, low + kept);
		levels.above_floor += neotier_above(free, (min_wmark_pages(zone) + low) / 2 + kept);
	}
	levels.above_low = neotier_above(levels.above_low, headroom);
	levels.above_floor = neotier_above(levels.above_floor, headroom);
	return levels;
}

/*
 * Whether programs take more new memory in one nap of kswapd's than lies between the low and the high watermark. Then
 * kswapd, once awake, does not rest again before they stop: each nap ends below high. Whoever wakes it pays for all that
 * with demotions, and gets little of the room. At this rate memory is soon full, so it cannot last.
 */
static void neotier_room_watch(struct neotier_device *dev, u64 now_ns)
{
	struct neotier_growth *growth = &dev->growth;
	struct neotier_levels target = neotier_levels(dev->target_nid);
	unsigned long free = neotier_levels(dev->nid).free + target.free + atomic_long_read(&neotier_reserved);
	unsigned long grown = neotier_above(growth->free, free);
	u64 naps = div_u64(now_ns - growth->since_ns, NEOTIER_NAP_NS);

	if (naps)
		growth->fast = growth->since_ns && grown > target.gap * naps;
	else
		growth->fast |= grown > target.gap;
	if (naps || free > growth->free) {
		growth->since_ns = now_ns;
		growth->free = free;
	}
}

/*
 * Whether kswapd is left asleep: waking it costs a high watermark's worth of demotions, whatever it is woken for. While
 * programs grow fast, many pages that wait are worth it all the same; and what grows may be hot as well: a server's buffers.
 */
static bool neotier_room_hold(const struct neotier_device *dev)
{
	return neotier_hotlist_waiting(dev) < (dev->growth.fast ? NEOTIER_ENOUGH : NEOTIER_WORTH_WAKING);
}

unsigned long neotier_room(const struct neotier_device *dev)
{
	struct neotier_levels target = neotier_levels(dev->target_nid);

	return (neotier_room_hold(dev) ? target.above_low : target.above_floor) + dev->reserve.nr;
}

bool neotier_room_make(struct neotier_device *dev)
{
	struct page *page;

	if (neotier_room_hold(dev))
		return false;
	page = alloc_pages_node(dev->target_nid, NEOTIER_GFP, 0);
	if (page)
		__free_page(page);
	dev->reserve.fill = true;
	dev->reserve.used_ns = ktime_get_ns();
	return true;
}

static void neotier_reserve_take(struct neotier_reserve *reserve, struct page *page)
{
	list_del(&page->lru);
	__ClearPageOffline(page);
	reserve->nr--;
	atomic_long_dec(&neotier_reserved);
}

struct page *neotier_room_take(struct neotier_device *dev)
{
	struct neotier_reserve *reserve = &dev->reserve;
	struct page *page = list_first_entry_or_null(&reserve->pages, struct page, lru);

	lockdep_assert_held(&dev->lock);
	if (!page) {
		if (neotier_room_hold(dev))
			return alloc_pages_node(dev->target_nid, NEOTIER_GFP & ~__GFP_KSWAPD_RECLAIM, 0);
		/* Below low the allocation wakes kswapd. */
		if (!reserve->fill)
			reserve->fill = !neotier_levels(dev->target_nid).above_low;
		return alloc_pages_node(dev->target_nid, NEOTIER_GFP, 0);
	}
	neotier_reserve_take(reserve, page);
	return page;
}

void neotier_room_keep(struct neotier_device *dev, u64 now_ns)
{
	struct neotier_reserve *reserve = &dev->reserve;
	unsigned long most = min_t(unsigned long, READ_ONCE(neotier_knobs.reserve_pages),
				   node_present_pages(dev->target_nid) / NEOTIER_RESERVE_SHARE);
	unsigned long room;

	lockdep_assert_held(&dev->lock);
	neotier_room_watch(dev, now_ns);
	if (reserve->promoted != dev->stats[NEOTIER_STAT_PROMOTED]) {
		reserve->promoted = dev->stats[NEOTIER_STAT_PROMOTED];
		reserve->used_ns = now_ns;
	}
	/* What becomes free later was not freed for promotion's sake. */
	if (reserve->nr > most || (s64)(now_ns - reserve->used_ns) > (s64)NEOTIER_RESERVE_IDLE_NS)
		neotier_room_drop(dev);
	if (!reserve->fill)
		return;
	room = neotier_levels(dev->target_nid).above_low;
	for (; room && reserve->nr < most; room--) {
		struct page *page = alloc_pages_node(dev->target_nid, NEOTIER_RESERVE_GFP, 0);

		if (!page)
			break;
		__SetPageOffline(page);
		list_add(&page->lru, &reserve->pages);
		reserve->nr++;
		atomic_long_inc(&neotier_reserved);
		neotier_stat_add(dev, NEOTIER_STAT_RESERVED, 1);
	}
	reserve->fill = reserve->nr < most;
}

void neotier_room_drop(struct neotier_device *dev)
{
	struct neotier_reserve *reserve = &dev->reserve;
	struct page *page, *next;

	lockdep_assert_held(&dev->lock);
	list_for_each_entry_safe(page, next, &reserve->pages, lru) {
		neotier_reserve_take(reserve, page);
		__free_page(page);
	}
	reserve->fill = false;
}

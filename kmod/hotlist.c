// SPDX-License-Identifier: GPL-2.0-only
/*
 * From what the device reports to pages worth moving: unit -> DPA -> HPA -> PFN by the region's interleave, duplicates
 * out, bounded waiting, and the checks of each page. Nothing the device says is believed: a unit is an index that has to
 * lie in the range which probe found online on one node, and each page is looked at again when its turn comes.
 */
#include <linux/bitmap.h>
#include <linux/hash.h>
#include <linux/ktime.h>
#include <linux/memory_hotplug.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include "compat.h"
#include "neotier.h"
#include "trace.h"

/* A report says that a page was hot within an epoch; a second later that is no reason to move it any more. */
#define NEOTIER_EXPIRE_NS (u64)NSEC_PER_SEC

/*
 * Pages promoted so far, by what a demotion does not change: the anonymous mapping and the offset in it. A set of 4 ways
 * is 32 bytes; the oldest way gives way. Wrong in two directions, both rare: an entry pushed out is a ping-pong missed,
 * and an anon_vma freed and allocated again, or equal 32-bit signatures, is one too many.
 */
#define NEOTIER_PING_PONG_WAYS 4
struct neotier_ping_pong {
	u32 sets_log2;
	struct {
		u32 signature;	/* 0: free */
		u32 when;	/* units of 2^20 ns, wraps after 52 days */
	} entries[];
};

static u64 neotier_page_identity(struct page *page)
{
	struct folio *folio = page_folio(page);

	u64 identity = (unsigned long)READ_ONCE(folio->mapping) * GOLDEN_RATIO_64;

	/* hash_64() has 32 bits at most; the set and the signature need different ones. */
	identity = (identity ^ identity >> 29 ^ READ_ONCE(folio->index)) * GOLDEN_RATIO_64;
	return identity ^ identity >> 32;
}

static int neotier_ping_pong_find(struct neotier_ping_pong *table, u64 identity, u32 *signature)
{
	u32 set = identity >> (64 - table->sets_log2);
	int i;

	*signature = (u32)identity ? : 1;
	for (i = 0; i < NEOTIER_PING_PONG_WAYS; i++)
		if (table->entries[set * NEOTIER_PING_PONG_WAYS + i].signature == *signature)
			return set * NEOTIER_PING_PONG_WAYS + i;
	return -1;
}

void neotier_ping_pong_note(struct neotier_device *dev, struct page *page)
{
	struct neotier_ping_pong *table = dev->ping_pong;
	u64 identity = neotier_page_identity(page);
	u32 signature, now = ktime_get_ns() >> 20;
	int slot = neotier_ping_pong_find(table, identity, &signature), i;

	if (slot < 0) {
		int set = (identity >> (64 - table->sets_log2)) * NEOTIER_PING_PONG_WAYS;

		slot = set;
		for (i = set; i < set + NEOTIER_PING_PONG_WAYS; i++) {
			if (!table->entries[i].signature) {
				slot = i;
				break;
			}
			if (now - table->entries[i].when > now - table->entries[slot].when)
				slot = i;
		}
	}
	table->entries[slot].signature = signature;
	table->entries[slot].when = now;
}

/* A page of ours that is hot on the slow node again has been demoted since. Forgotten here: each return counts once. */
static void neotier_ping_pong_check(struct neotier_device *dev, struct page *page)
{
	u32 signature;
	int slot = neotier_ping_pong_find(dev->ping_pong, neotier_page_identity(page), &signature);

	if (slot < 0)
		return;
	dev->ping_pong->entries[slot].signature = 0;
	neotier_stat_add(dev, NEOTIER_STAT_PING_PONG, 1);
}

static int neotier_ping_pong_init(struct neotier_device *dev)
{
	unsigned long entries = clamp(node_present_pages(dev->target_nid), 4096UL, 1UL << 20);
	u32 sets_log2 = ilog2(roundup_pow_of_two(entries) / NEOTIER_PING_PONG_WAYS);

	dev->ping_pong = kvzalloc(struct_size(dev->ping_pong, entries, NEOTIER_PING_PONG_WAYS << sets_log2), GFP_KERNEL);
	if (!dev->ping_pong)
		return -ENOMEM;
	dev->ping_pong->sets_log2 = sets_log2;
	return 0;
}

/*
 * Pages seen hot lately. A program that streams through memory makes each page hot for one epoch and never comes
 * back: moving such a page costs more than it can bring. A page has to be reported in confirm_epochs epochs, with at most
 * NEOTIER_SEEN_GAP of them without a report in between. A set of 4 ways is 32 bytes; the one unseen for longest gives way,
 * which costs that page one more epoch.
 */
#define NEOTIER_SEEN_WAYS 4
#define NEOTIER_SEEN_SETS_LOG2 14
#define NEOTIER_SEEN_GAP 2
struct neotier_seen {
	u32 page1;		/* index in the region + 1; 0: free */
	u32 epoch : 28, times : 4;
};

static bool neotier_confirmed(struct neotier_device *dev, u32 page, u64 now_ns)
{
	u32 epoch = div64_u64(now_ns, READ_ONCE(dev->conf.epoch_us) * (u64)NSEC_PER_USEC) & GENMASK(27, 0);
	struct neotier_seen *set = &dev->seen[hash_32(page, NEOTIER_SEEN_SETS_LOG2) * NEOTIER_SEEN_WAYS], *entry = set;
	u32 wanted = READ_ONCE(neotier_knobs.confirm_epochs);
	int i;

	if (wanted <= 1)
		return true;
	for (i = 0; i < NEOTIER_SEEN_WAYS; i++) {
		if (set[i].page1 == page + 1) {
			entry = &set[i];
			break;
		}
		if (!set[i].page1 || (entry->page1 && epoch - set[i].epoch > epoch - entry->epoch))
			entry = &set[i];
	}
	if (entry->page1 != page + 1) {
		entry->page1 = page + 1;
		entry->times = 1;
	} else if (epoch != entry->epoch) {
		entry->times = epoch - entry->epoch <= NEOTIER_SEEN_GAP ? entry->times + 1 : 1;
	}
	entry->epoch = epoch;
	if (entry->times < wanted)
		return false;
	entry->page1 = 0;
	return true;
}

int neotier_hotlist_init(struct neotier_device *dev)
{
	int err = neotier_ping_pong_init(dev);

	if (err)
		return err;
	dev->seen = kvcalloc(NEOTIER_SEEN_WAYS << NEOTIER_SEEN_SETS_LOG2, sizeof(*dev->seen), GFP_KERNEL);
	dev->hotlist.places = kvcalloc(NEOTIER_WAITING_MAX, sizeof(*dev->hotlist.places), GFP_KERNEL);
	dev->hotlist.queued = vzalloc(BITS_TO_LONGS(dev->nr_pages) * sizeof(long));
	if (!dev->seen || !dev->hotlist.places || !dev->hotlist.queued) {
		neotier_hotlist_free(dev);
		return -ENOMEM;
	}
	neotier_waiting_init(&dev->hotlist.waiting, dev->hotlist.places);
	return 0;
}

void neotier_hotlist_free(struct neotier_device *dev)
{
	vfree(dev->hotlist.queued);
	kvfree(dev->hotlist.places);
	kvfree(dev->seen);
	kvfree(dev->ping_pong);
	dev->hotlist.queued = NULL;
	dev->hotlist.places = NULL;
	dev->seen = NULL;
	dev->ping_pong = NULL;
}

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

enum neotier_skip neotier_page_check(const struct neotier_device *dev, struct folio *folio, enum neotier_hold hold)
{
	if (folio_nid(folio) != dev->nid)
		return NEOTIER_SKIP_RANGE;
	if (folio_test_large(folio))
		return NEOTIER_SKIP_LARGE;
	if (hold != NEOTIER_LOCKED && !folio_test_lru(folio))
		return NEOTIER_SKIP_NOT_LRU;
	if (!folio_test_anon(folio))
		return NEOTIER_SKIP_FILE;
	if (folio_test_unevictable(folio) || folio_test_mlocked(folio))
		return NEOTIER_SKIP_UNEVICTABLE;
	if (folio_test_swapcache(folio))
		return NEOTIER_SKIP_SWAPCACHE;
	if (folio_test_writeback(folio))
		return NEOTIER_SKIP_WRITEBACK;
	if (neotier_folio_is_ksm(folio))
		return NEOTIER_SKIP_SHARED;
	if (PageHWPoison(&folio->page))
		return NEOTIER_SKIP_BUSY;
	if (hold != NEOTIER_LOCKED) {
		int mapcount = neotier_folio_mapcount(folio);

		if (mapcount > 1)
			return NEOTIER_SKIP_SHARED;
		if (folio_maybe_dma_pinned(folio))
			return NEOTIER_SKIP_PINNED;
		/* A reference that is neither a mapping nor the caller's is somebody at work: unmapping would be for nothing. */
		if (mapcount < 1 || folio_ref_count(folio) > mapcount + 1 || folio_test_locked(folio))
			return NEOTIER_SKIP_BUSY;
	}
	if (!neotier_rules_range(folio_pfn(folio)))
		return NEOTIER_SKIP_EXCLUDED_RANGE;
	if (!neotier_rules_nodes(dev->nid, dev->target_nid))
		return NEOTIER_SKIP_NODE;
	if (!neotier_rules_cgroup(folio))
		return NEOTIER_SKIP_EXCLUDED;
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
	reason = neotier_page_check(dev, folio, NEOTIER_REFERENCED);
	if (reason == NR_NEOTIER_SKIP && owners) {
		reason = neotier_owner_hold(dev, folio, &owner);
		if (reason == NR_NEOTIER_SKIP)
			neotier_owner_release(&owner);
	}
	folio_put(folio);
	return reason;
}

static void neotier_hotlist_add_page(struct neotier_device *dev, u32 page, u32 count, u64 now_ns)
{
	struct neotier_hotlist *list = &dev->hotlist;
	unsigned long pfn = dev->base_pfn + page;
	struct neotier_hot hot = { .drained_ns = now_ns, .page = page, .count = min_t(u32, count, U16_MAX) }, dropped;
	enum neotier_skip reason;

	trace_neotier_report(pfn, count);
	if (__test_and_set_bit(page, list->queued)) {
		neotier_skip(dev, pfn, NEOTIER_SKIP_DUPLICATE);
		return;
	}
	if (!neotier_confirmed(dev, page, now_ns)) {
		__clear_bit(page, list->queued);
		neotier_skip(dev, pfn, NEOTIER_SKIP_UNCONFIRMED);
		return;
	}
	/* Here as well as before the move: kswapd is woken, and others demoted, for what waits. */
	reason = neotier_page_look(dev, pfn, true);
	if (reason != NR_NEOTIER_SKIP) {
		__clear_bit(page, list->queued);
		neotier_skip(dev, pfn, reason);
		return;
	}
	if (neotier_waiting_add(&list->waiting, &hot, &dropped))
		return;
	__clear_bit(dropped.page, list->queued);
	neotier_skip(dev, neotier_hot_pfn(dev, &dropped), NEOTIER_SKIP_OVERFLOW);
}

void neotier_hotlist_add(struct neotier_device *dev, u64 unit, u32 count, u64 now_ns)
{
	struct neotier_page_run run;
	u32 i;

	unit -= PHYS_PFN(dev->region.dpa_base);
	if (unit >= dev->nr_units) {
		trace_neotier_report(~0UL, count);
		neotier_skip(dev, ~0UL, NEOTIER_SKIP_RANGE);
		return;
	}
	run = neotier_interleave_pages(&dev->region.interleave, dev->region.position, unit);
	if (run.pages > 1)
		neotier_stat_add(dev, NEOTIER_STAT_AMBIGUOUS, 1);
	for (i = 0; i < run.pages; i++)
		neotier_hotlist_add_page(dev, run.first + i * run.stride, count, now_ns);
}

unsigned int neotier_hotlist_take(struct neotier_device *dev, unsigned int max, u64 now_ns)
{
	struct neotier_hotlist *list = &dev->hotlist;
	unsigned int nr = 0;
	struct neotier_hot hot;
	u32 cursor = 0;

	/* Of all that wait, not only of those whose turn it is: what others always overtake must not be taken for hot for ever. */
	while (neotier_waiting_expire(&list->waiting, now_ns - min(now_ns, NEOTIER_EXPIRE_NS), &cursor, &hot)) {
		__clear_bit(hot.page, list->queued);
		neotier_skip(dev, neotier_hot_pfn(dev, &hot), NEOTIER_SKIP_EXPIRED);
	}
	while (nr < max && neotier_waiting_take(&list->waiting, &hot)) {
		unsigned long pfn = neotier_hot_pfn(dev, &hot);
		enum neotier_skip reason = neotier_page_look(dev, pfn, false);

		if (reason != NR_NEOTIER_SKIP) {
			__clear_bit(hot.page, list->queued);
			neotier_skip(dev, pfn, reason);
			continue;
		}
		dev->batch[nr++] = hot;
	}
	return nr;
}

void neotier_hotlist_done(struct neotier_device *dev, const struct neotier_hot *hot, unsigned int nr)
{
	unsigned int i;

	for (i = 0; i < nr; i++) {
		__clear_bit(hot[i].page, dev->hotlist.queued);
		neotier_ping_pong_check(dev, pfn_to_page(neotier_hot_pfn(dev, &hot[i])));
	}
}

void neotier_hotlist_untake(struct neotier_device *dev, const struct neotier_hot *hot, unsigned int nr)
{
	while (nr)
		neotier_waiting_untake(&dev->hotlist.waiting, &hot[--nr]);
}

void neotier_hotlist_clear(struct neotier_device *dev)
{
	struct neotier_hot hot;

	while (neotier_waiting_take(&dev->hotlist.waiting, &hot))
		__clear_bit(hot.page, dev->hotlist.queued);
}

void neotier_hotlist_wait(struct neotier_device *dev, enum neotier_skip reason)
{
	struct neotier_hot hot;
	u32 cursor = 0;

	while (neotier_waiting_uncounted(&dev->hotlist.waiting, &cursor, &hot))
		neotier_skip(dev, neotier_hot_pfn(dev, &hot), reason);
}

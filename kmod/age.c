// SPDX-License-Identifier: GPL-2.0-only
/*
 * How long the target node's pages have not been accessed, and which of them make room for hot ones. promotion/age.h
 * decides; here are the Accessed bits, by a walk of our own over page tables.
 *
 * The walk goes by frame, and from a frame to all pages of the page table that maps it, since the owner is what costs. A bit
 * that it clears is handed on as the folio's young flag, so that the kernel's reclaim still knows of the access. No TLB is
 * flushed, as the kernel does not for this: a translation that stays cached hides accesses for a while.
 *
 * Invariant: page tables are walked with the anon_vma's lock held, read, or the file's. A process takes it for writing before it
 * frees the tables of a VMA, and khugepaged before it takes a table's place, or it lets RCU free the table.
 *
 * Memory of virtual machines is left alone: what a guest accesses is not in these page tables.
 */
#include <linux/ktime.h>
#include <linux/memory_hotplug.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/page_idle.h>
#include <linux/pgtable.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include "compat.h"
#include "neotier.h"

/* It is done without, if need be. */
#define NEOTIER_AGE_GFP (GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN)

/* A node's, shared by the devices that promote to it: an access that one sees and clears counts for all. */
struct neotier_exchange {
	struct list_head list;
	unsigned int users;
	int nid;
	unsigned long base_pfn;
	struct mutex lock;	/* inside a device's */
	struct neotier_ages ages;
	struct neotier_age_pace pace;
};

struct neotier_age_walk {
	struct neotier_exchange *exchange;
	enum neotier_age_look look;
	unsigned int vmas, entries;
	bool huge;		/* huge folios are looked at as well */
	bool huge_folio, anon;	/* what is looked at now, from this frame on */
	u32 frame;
	/* Huge folios that were checked, by their first frame. */
	u32 checked[NEOTIER_AGE_SPLITS];
	unsigned int nr_checked;
};

/* As expensive as so many entries of a table. */
#define NEOTIER_AGE_HUGE_ENTRIES 8U

static LIST_HEAD(neotier_exchanges);
static DEFINE_MUTEX(neotier_exchanges_lock);

/* The entry that maps pages of this address by a table; NULL: none does. */
static pmd_t *neotier_pmd_at(struct mm_struct *mm, unsigned long address)
{
	pgd_t *pgd = pgd_offset(mm, address);
	p4d_t *p4d;
	pud_t *pud;

	if (pgd_none(*pgd) || pgd_bad(*pgd))
		return NULL;
	p4d = p4d_offset(pgd, address);
	if (p4d_none(*p4d) || p4d_bad(*p4d))
		return NULL;
	pud = pud_offset(p4d, address);
	if (pud_none(*pud) || pud_bad(*pud))
		return NULL;
	return pmd_offset(pud, address);
}

/* The locked entry of an address in its page table, for neotier_pte_unlock(); NULL: there is none. */
static pte_t *neotier_pte_lock(struct mm_struct *mm, unsigned long address, spinlock_t **lock)
{
	pmd_t *pmd = neotier_pmd_at(mm, address), value;

	if (!pmd)
		return NULL;
	rcu_read_lock();
	value = neotier_pmd_read(pmd);
	if (!pmd_none(value) && pmd_present(value) && !pmd_bad(value)) {
		*lock = pte_lockptr(mm, &value);
		spin_lock(*lock);
		if (pmd_same(value, neotier_pmd_read(pmd)))
			return pte_offset_kernel(&value, address);
		spin_unlock(*lock);
	}
	rcu_read_unlock();
	return NULL;
}

static void neotier_pte_unlock(spinlock_t *lock)
{
	spin_unlock(lock);
	rcu_read_unlock();
}

static bool neotier_pte_maps_page(pte_t pte)
{
	return pte_present(pte) && !pte_special(pte) && !pte_protnone(pte);
}

/* Others than those whose tables are walked may map what is of the other kind. */
static bool neotier_age_of_walk(const struct neotier_age_walk *walk, struct page *page)
{
	if (PageAnon(page) || walk->anon)
		return PageAnon(page) && walk->anon;
	return neotier_cached_check(page_folio(page), NEOTIER_REFERENCED) == NR_NEOTIER_SKIP;
}

/* Whether system calls have used a file's page that is mapped. */
static bool neotier_age_called(const struct neotier_age_walk *walk, pte_t pte)
{
	return !walk->anon && neotier_cached_accessed(page_folio(pfn_to_page(pte_pfn(pte))), walk->look == NEOTIER_AGE_LOOK_ARM);
}

/* All pages that the page table of @address maps for the VMA. */
static void neotier_age_table(struct vm_area_struct *vma, unsigned long address, struct neotier_age_walk *walk)
{
	unsigned long at = max(vma->vm_start, address & PMD_MASK), end = min(vma->vm_end, (address & PMD_MASK) + PMD_SIZE);
	struct neotier_exchange *x = walk->exchange;
	spinlock_t *lock;
	pte_t *entry = neotier_pte_lock(vma->vm_mm, at, &lock);

	if (!entry)
		return;
	walk->entries += (end - at) >> PAGE_SHIFT;
	for (; at < end; at += PAGE_SIZE, entry++) {
		pte_t pte = READ_ONCE(*entry);
		unsigned long frame = pte_pfn(pte) - x->base_pfn;

		if (!neotier_pte_maps_page(pte) || frame >= x->ages.nr)
			continue;
		if (vma->vm_file && !neotier_age_of_walk(walk, pfn_to_page(pte_pfn(pte))))
			continue;
		if (pte_young(pte) && walk->look == NEOTIER_AGE_LOOK_ARM) {
			neotier_pte_clear_young(entry);
			folio_set_young(page_folio(pfn_to_page(pte_pfn(pte))));
		}
		neotier_ages_see(&x->ages, frame, walk->look, pte_young(pte) || neotier_age_called(walk, pte));
	}
	neotier_pte_unlock(lock);
}

/* A huge folio that one entry maps whole. */
static void neotier_age_huge(struct vm_area_struct *vma, unsigned long address, struct neotier_age_walk *walk)
{
	pmd_t *entry = neotier_pmd_at(vma->vm_mm, address), pmd;
	struct neotier_exchange *x = walk->exchange;
	spinlock_t *lock;

	if (!entry || !pmd_trans_huge(neotier_pmd_read(entry)))
		return;
	walk->entries += NEOTIER_AGE_HUGE_ENTRIES;
	lock = pmd_lock(vma->vm_mm, entry);
	pmd = *entry;
	if (pmd_present(pmd) && pmd_trans_huge(pmd) && !pmd_protnone(pmd) && pmd_pfn(pmd) == x->base_pfn + walk->frame) {
		if (pmd_young(pmd) && walk->look == NEOTIER_AGE_LOOK_ARM) {
			neotier_pmd_clear_young(entry);
			folio_set_young(page_folio(pmd_page(pmd)));
		}
		neotier_ages_see_huge(&x->ages, walk->frame, walk->look, pmd_young(pmd));
	}
	spin_unlock(lock);
}

static bool neotier_age_vma(struct vm_area_struct *vma, unsigned long address, void *arg)
{
	struct neotier_age_walk *walk = arg;

	if (!(vma->vm_flags & VM_LOCKED) && !mm_has_notifiers(vma->vm_mm)) {
		if (walk->huge_folio)
			neotier_age_huge(vma, address, walk);
		else
			neotier_age_table(vma, address, walk);
	}
	/* More could not be held for a move either; of a file's mappings all are to be seen. */
	return ++walk->vmas < NEOTIER_OWNERS_MAX || !walk->anon;
}

static void neotier_age_folio(struct neotier_age_walk *walk, struct folio *folio)
{
	bool small = !folio_test_large(folio), file = !walk->anon && neotier_cached_check(folio, NEOTIER_REFERENCED) == NR_NEOTIER_SKIP;

	if ((walk->anon && (walk->huge_folio || small)) || (file && neotier_folio_mapcount(folio)))
		neotier_owner_each(folio, neotier_age_vma, walk);
	else if (file)
		neotier_ages_see_cached(&walk->exchange->ages, walk->frame, walk->look,
					neotier_cached_accessed(folio, walk->look == NEOTIER_AGE_LOOK_ARM));
}

/* Of the pages that its table maps, or of the huge folio that it is the first page of. Return: pages that it stands for. */
static u32 neotier_age_page(struct neotier_age_walk *walk, u32 frame)
{
	unsigned long pfn = walk->exchange->base_pfn + frame;
	struct folio *folio = neotier_folio_get(pfn);
	u32 pages = 1;

	if (!folio)
		return pages;
	walk->vmas = 0;
	walk->frame = frame;
	walk->huge_folio = walk->huge && folio_order(folio) == NEOTIER_HUGE_ORDER && folio_pfn(folio) == pfn;
	walk->anon = folio_test_anon(folio);
	if (folio_test_lru(folio))
		neotier_age_folio(walk, folio);
	if (walk->huge_folio) {
		pages = NEOTIER_HUGE_PAGES;
		if (walk->look == NEOTIER_AGE_LOOK_CHECK && walk->nr_checked < ARRAY_SIZE(walk->checked))
			walk->checked[walk->nr_checked++] = frame;
	}
	folio_put(folio);
	return pages;
}

/* Most of what cannot leave is told by its flags, as they are now, and no reference is held for that. */
static inline bool neotier_age_could_leave(struct page *page, bool huge)
{
	if (!PageLRU(page))
		return false;
	if (PageAnon(page))
		return !PageCompound(page) || (huge && PageHead(page));
	return READ_ONCE(neotier_knobs.page_cache) && !PageCompound(page);
}

/* From frame @first on, up to @end or the size of a group. Return: where it ended. */
static u32 neotier_age_group(struct neotier_age_walk *walk, u32 first, u32 end)
{
	struct neotier_exchange *x = walk->exchange;
	u32 frame = first, started = 0, pages;

	while (frame < end && started + walk->entries < NEOTIER_AGE_GROUP) {
		unsigned long pfn = x->base_pfn + frame;
		u32 section = min(frame + (u32)(PAGES_PER_SECTION - pfn % PAGES_PER_SECTION), end);

		/* A whole section is online or not. One that goes offline now still has its struct pages for a while. */
		started++;
		if (!pfn_to_online_page(pfn))
			frame = section;
		for (; frame < section && started + walk->entries < NEOTIER_AGE_GROUP; frame++) {
			if (!neotier_ages_due(&x->ages, frame, walk->look))
				continue;
			started++;
			pages = 1;
			if (neotier_age_could_leave(pfn_to_page(x->base_pfn + frame), walk->huge))
				pages = neotier_age_page(walk, frame);
			/* Its table did not show it. */
			if (neotier_ages_due(&x->ages, frame, walk->look))
				neotier_ages_forget(&x->ages, frame);
			frame += pages - 1;
		}
	}
	return frame;
}

/* From frame @first on, up to @end or so many groups. Return: where it ended. */
static u32 neotier_age_groups(struct neotier_age_walk *walk, u32 first, u32 end, u32 most)
{
	unsigned int entries = 0;
	u32 frame = first, nr;

	for (nr = 0; frame < end && nr < most; nr++) {
		walk->entries = 0;
		frame = neotier_age_group(walk, frame, end);
		entries += walk->entries;
		cond_resched();
	}
	walk->entries = entries;
	return frame;
}

/* Its pages can be told apart from now on. */
static bool neotier_age_split_one(struct neotier_device *dev, struct neotier_age_walk *walk, u32 frame, bool idle)
{
	struct neotier_exchange *x = walk->exchange;
	unsigned long pfn = x->base_pfn + frame;
	enum neotier_skip reason = neotier_split(dev, neotier_way_down(dev), pfn);

	neotier_ages_forget(&x->ages, frame);
	if (reason != NR_NEOTIER_SKIP) {
		neotier_keep(dev, pfn, reason);
		neotier_stat_add(dev, NEOTIER_STAT_DEMOTE_FAILED, 1);
		return false;
	}
	if (idle) {
		neotier_ages_pieces(&x->ages, frame);
	} else {
		walk->look = NEOTIER_AGE_LOOK_ARM;
		neotier_age_page(walk, frame);
	}
	neotier_stat_add(dev, NEOTIER_STAT_SPLIT_DOWN, 1);
	return true;
}

/* Of those that were checked: all that were idle, or all that were in use, as far as they are wanted. */
static void neotier_age_splits(struct neotier_device *dev, struct neotier_age_walk *walk, bool idle)
{
	struct neotier_exchange *x = walk->exchange;
	struct neotier_time start, stop;
	u64 span_ns, waited, took_ns;
	unsigned int i;

	for (i = 0; i < walk->nr_checked; i++) {
		u32 frame = walk->checked[i];
		bool split;

		if (frame == NEOTIER_NO_FRAME || neotier_ages_huge_idle(&x->ages, frame) != idle)
			continue;
		start = neotier_clock_now(dev);
		if (!neotier_age_split(&x->pace, &x->ages, idle, start.own_ns))
			break;
		/* Tried once: what is not split says nothing of whether it was idle any more. */
		walk->checked[i] = NEOTIER_NO_FRAME;
		waited = neotier_waited_ns();
		split = neotier_age_split_one(dev, walk, frame, idle);
		stop = neotier_clock_now(dev);
		took_ns = stop.own_ns - start.own_ns;
		took_ns -= min(took_ns, neotier_waited_ns() - waited);
		if (split)
			neotier_age_split_done(&x->pace, &x->ages, idle, stop.own_ns, took_ns);
		else
			neotier_age_split_failed(&x->pace, idle, stop.own_ns, took_ns);
		span_ns = neotier_clock_span(&dev->clock, &start, &stop);
		neotier_stat_add(dev, NEOTIER_STAT_SPLIT_NS, span_ns);
		neotier_stat_add(dev, NEOTIER_STAT_AGE_NS, span_ns);
	}
}

void neotier_exchange_step(struct neotier_device *dev, u64 spare, u64 now_ns)
{
	u64 least_ns = neotier_age_window(READ_ONCE(dev->conf.epoch_us) * (u64)NSEC_PER_USEC, READ_ONCE(dev->conf.threshold));
	/* No more than may move: what is looked for and not used was for nothing. */
	u64 waiting = min(neotier_hotlist_waiting(dev), dev->promotion.left), unpaid, found, wanted, waited, took_ns;
	struct neotier_time start, stop;
	struct neotier_exchange *x = dev->exchange;
	struct neotier_age_walk walk = { .exchange = x };
	u32 end = 0;

	lockdep_assert_held(&dev->lock);
	walk.huge = READ_ONCE(neotier_knobs.split_huge) && !READ_ONCE(neotier_knobs.dry_run);
	/* Another device that promotes to the node looks, or chooses. */
	if (!x || !mutex_trylock(&x->lock))
		return;
	neotier_ages_settle(&x->ages, neotier_clock_unscale(&dev->clock, neotier_payback_ns()), now_ns);
	unpaid = neotier_room_unpaid(dev);
	wanted = waiting > unpaid ? waiting - unpaid : 0;
	walk.look = neotier_age_next(&x->pace, &x->ages, wanted + spare, least_ns, now_ns);
	if (walk.look != NEOTIER_AGE_LOOK_NONE) {
		start = neotier_clock_now(dev);
		waited = neotier_waited_ns();
		found = x->ages.found;
		if (walk.look == NEOTIER_AGE_LOOK_ARM)
			end = neotier_age_groups(&walk, x->pace.first, x->ages.nr, x->pace.groups);
		else
			neotier_age_groups(&walk, x->pace.first, x->pace.end, U32_MAX);
		stop = neotier_clock_now(dev);
		/* Where programs ran meanwhile, that time was theirs. */
		took_ns = stop.own_ns - start.own_ns;
		took_ns -= min(took_ns, neotier_waited_ns() - waited);
		neotier_age_done(&x->pace, &x->ages, walk.look, end, stop.own_ns, took_ns);
		if (!wanted)
			neotier_spare_spent(&dev->spare, took_ns);
		neotier_stat_add(dev, NEOTIER_STAT_AGE_PASSES, walk.look == NEOTIER_AGE_LOOK_ARM && end == x->ages.nr);
		neotier_stat_add(dev, NEOTIER_STAT_AGE_LOOKS, walk.entries);
		neotier_stat_add(dev, NEOTIER_STAT_AGE_FOUND, x->ages.found - found);
		neotier_stat_add(dev, NEOTIER_STAT_AGE_NS, neotier_clock_span(&dev->clock, &start, &stop));
		/* Those that were idle first: their pages are victims. */
		neotier_age_splits(dev, &walk, true);
		neotier_age_splits(dev, &walk, false);
	}
	mutex_unlock(&x->lock);
}

u32 neotier_exchange_victims(const struct neotier_device *dev)
{
	struct neotier_exchange *x = dev->exchange;
	u32 nr;

	mutex_lock(&x->lock);
	nr = neotier_ages_victims(&x->ages);
	mutex_unlock(&x->lock);
	return nr;
}

bool neotier_exchange_victim(struct neotier_device *dev, unsigned long *pfn)
{
	struct neotier_exchange *x = dev->exchange;
	u32 frame;

	mutex_lock(&x->lock);
	frame = neotier_ages_victim(&x->ages);
	mutex_unlock(&x->lock);
	*pfn = x->base_pfn + frame;
	return frame != NEOTIER_NO_FRAME;
}

void neotier_exchange_again(struct neotier_device *dev, unsigned long pfn)
{
	struct neotier_exchange *x = dev->exchange;

	mutex_lock(&x->lock);
	neotier_ages_again(&x->ages, pfn - x->base_pfn);
	mutex_unlock(&x->lock);
}

void neotier_exchange_came(struct neotier_device *dev, unsigned long pfn)
{
	struct neotier_exchange *x = dev->exchange;
	unsigned long frame;

	if (!x)
		return;
	frame = pfn - x->base_pfn;
	mutex_lock(&x->lock);
	if (frame < x->ages.nr)
		neotier_ages_came(&x->ages, frame, ktime_get_ns());
	mutex_unlock(&x->lock);
}

void neotier_exchange_done(struct neotier_device *dev, unsigned int demoted, bool stale)
{
	struct neotier_exchange *x = dev->exchange;

	mutex_lock(&x->lock);
	neotier_age_earn(&x->pace, demoted);
	if (stale)
		neotier_ages_stale(&x->ages);
	mutex_unlock(&x->lock);
}

static void neotier_exchange_free(struct neotier_exchange *x)
{
	vfree(x->ages.frames);
	vfree(x->ages.idle.frames);
	vfree(x->ages.old.frames);
	vfree(x->ages.came);
	kfree(x);
}

static struct neotier_exchange *neotier_exchange_new(int nid)
{
	struct neotier_exchange *x = kzalloc(sizeof(*x), NEOTIER_AGE_GFP);

	if (!x)
		return NULL;
	mutex_init(&x->lock);
	x->nid = nid;
	x->base_pfn = node_start_pfn(nid);
	x->ages.nr = min(node_spanned_pages(nid), (unsigned long)NEOTIER_NO_FRAME - 1);
	x->ages.frames = __vmalloc(x->ages.nr, NEOTIER_AGE_GFP | __GFP_ZERO);
	x->ages.idle.frames = __vmalloc(NEOTIER_AGE_FOUND * sizeof(u32), NEOTIER_AGE_GFP);
	x->ages.old.frames = __vmalloc(NEOTIER_AGE_FOUND * sizeof(u32), NEOTIER_AGE_GFP);
	x->ages.came = __vmalloc(neotier_ages_came_max(x->ages.nr) * sizeof(*x->ages.came), NEOTIER_AGE_GFP);
	if (!x->ages.frames || !x->ages.idle.frames || !x->ages.old.frames || !x->ages.came) {
		neotier_exchange_free(x);
		return NULL;
	}
	list_add(&x->list, &neotier_exchanges);
	return x;
}

static struct neotier_exchange *neotier_exchange_get(int nid)
{
	struct neotier_exchange *x;

	mutex_lock(&neotier_exchanges_lock);
	list_for_each_entry(x, &neotier_exchanges, list)
		if (x->nid == nid)
			goto found;
	x = neotier_exchange_new(nid);
found:
	if (x)
		x->users++;
	mutex_unlock(&neotier_exchanges_lock);
	return x;
}

void neotier_exchange_put(struct neotier_device *dev)
{
	struct neotier_exchange *x = dev->exchange;

	dev->exchange = NULL;
	kvfree(dev->regrets.entries);
	dev->regrets.entries = NULL;
	if (!x)
		return;
	mutex_lock(&neotier_exchanges_lock);
	if (--x->users)
		x = NULL;
	else
		list_del(&x->list);
	mutex_unlock(&neotier_exchanges_lock);
	if (x)
		neotier_exchange_free(x);
}

void neotier_exchange_restart(struct neotier_device *dev)
{
	lockdep_assert_held(&dev->lock);
	if (READ_ONCE(neotier_knobs.room) != NEOTIER_ROOM_EXCHANGE) {
		neotier_exchange_put(dev);
		return;
	}
	if (dev->exchange)
		return;
	dev->regrets.sets_log2 = dev->ping_pong.sets_log2;
	dev->regrets.entries = kvcalloc(NEOTIER_PING_PONG_WAYS << dev->regrets.sets_log2, sizeof(*dev->regrets.entries),
					GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN);
	if (dev->regrets.entries)
		dev->exchange = neotier_exchange_get(dev->target_nid);
	if (!dev->exchange) {
		neotier_exchange_put(dev);
		dev_warn(&dev->pdev->dev, "room=exchange: no memory for the ages of node %d's pages: kswapd makes room\n",
			 dev->target_nid);
	}
}

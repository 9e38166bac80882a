// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which pages of the devices' memory reclaim has demoted lately: what their reports cost is the price of the room that was
 * made (promotion/ledger.h).
 *
 * Nothing that a module may call tells of kswapd's moves. But each page table entry that a migration restores passes a
 * tracepoint, and probes of tracepoints are for modules. There the page is known by its new PFN, and who moves it by the
 * task's flags: reclaim. A kernel without that tracepoint tells nothing, and no regret is counted.
 *
 * Invariant: a device's bits outlive every probe that may see them (RCU).
 */
#include <linux/bitmap.h>
#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/rculist.h>
#include <linux/sched.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/tracepoint.h>
#include <linux/vmalloc.h>
#include "neotier.h"

static LIST_HEAD(neotier_watched);
static DEFINE_SPINLOCK(neotier_watched_lock);
static struct tracepoint *neotier_restored;

static void neotier_demoted_set(struct neotier_demoted *demoted, unsigned long pfn)
{
	unsigned long page = pfn - demoted->base_pfn;

	if (page >= demoted->nr_pages)
		return;
	set_bit(page, demoted->bits[READ_ONCE(demoted->now)]);
	WRITE_ONCE(demoted->any[demoted->now], true);
}

/* Under the page table's lock. */
static void neotier_demoted_probe(void *unused, unsigned long address, unsigned long pte, int order)
{
	struct neotier_demoted *demoted;

	if (!(current->flags & (PF_KSWAPD | PF_MEMALLOC)))
		return;
	rcu_read_lock();
	list_for_each_entry_rcu(demoted, &neotier_watched, node)
		neotier_demoted_set(demoted, pte_pfn(__pte(pte)));
	rcu_read_unlock();
}

static void neotier_demoted_find(struct tracepoint *tp, void *unused)
{
	if (!strcmp(tp->name, "remove_migration_pte"))
		neotier_restored = tp;
}

void neotier_demoted_init(void)
{
	for_each_kernel_tracepoint(neotier_demoted_find, NULL);
	if (neotier_restored && tracepoint_probe_register(neotier_restored, neotier_demoted_probe, NULL))
		neotier_restored = NULL;
	if (!neotier_restored)
		pr_info("neotier: this kernel does not tell which pages it demotes: regrets are not counted\n");
}

void neotier_demoted_exit(void)
{
	if (!neotier_restored)
		return;
	tracepoint_probe_unregister(neotier_restored, neotier_demoted_probe, NULL);
	tracepoint_synchronize_unregister();
}

int neotier_demoted_alloc(struct neotier_device *dev)
{
	struct neotier_demoted *demoted = &dev->demoted;
	size_t bytes = BITS_TO_LONGS(dev->nr_pages) * sizeof(long);

	demoted->base_pfn = dev->base_pfn;
	demoted->nr_pages = dev->nr_pages;
	demoted->bits[0] = vzalloc(bytes);
	demoted->bits[1] = vzalloc(bytes);
	if (!demoted->bits[0] || !demoted->bits[1]) {
		vfree(demoted->bits[0]);
		vfree(demoted->bits[1]);
		demoted->bits[0] = demoted->bits[1] = NULL;
		return -ENOMEM;
	}
	spin_lock(&neotier_watched_lock);
	list_add_rcu(&demoted->node, &neotier_watched);
	spin_unlock(&neotier_watched_lock);
	return 0;
}

void neotier_demoted_free(struct neotier_device *dev)
{
	struct neotier_demoted *demoted = &dev->demoted;

	if (!demoted->bits[0])
		return;
	spin_lock(&neotier_watched_lock);
	list_del_rcu(&demoted->node);
	spin_unlock(&neotier_watched_lock);
	synchronize_rcu();
	vfree(demoted->bits[0]);
	vfree(demoted->bits[1]);
	demoted->bits[0] = demoted->bits[1] = NULL;
}

void neotier_demoted_note(struct neotier_device *dev, unsigned long pfn)
{
	neotier_demoted_set(&dev->demoted, pfn);
}

bool neotier_demoted_lately(const struct neotier_device *dev, u32 page)
{
	const struct neotier_demoted *demoted = &dev->demoted;

	return test_bit(page, demoted->bits[0]) || test_bit(page, demoted->bits[1]);
}

/* A bit that is set while the oldest are cleared may be lost: one page less that is regretted. */
void neotier_demoted_pass(struct neotier_device *dev)
{
	struct neotier_demoted *demoted = &dev->demoted;
	unsigned int oldest = !demoted->now;

	if (demoted->any[oldest]) {
		WRITE_ONCE(demoted->any[oldest], false);
		bitmap_zero(demoted->bits[oldest], demoted->nr_pages);
	}
	WRITE_ONCE(demoted->now, oldest);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which pages of the devices' memory have been demoted lately: what their reports cost is the price of the room that was made
 * (promotion/ledger.h). A byte for each page frame has the parity of the horizon and a tag of what was put there. What comes to
 * lie there after the demoted page was freed has another tag: to read that is no regret, but for one page in 127.
 *
 * Nothing that a module may call tells of kswapd's moves. But each page table entry that a migration restores passes a
 * tracepoint, and probes of tracepoints are for modules. There the page is known by its new PFN, and who moves it by the
 * task's flags: reclaim. A kernel without that tracepoint tells nothing, and no regret is counted.
 *
 * Invariant: a device's marks outlive every probe that may see them (RCU).
 */
#include <linux/memory_hotplug.h>
#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/rculist.h>
#include <linux/sched.h>
#include <linux/sizes.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/tracepoint.h>
#include <linux/vmalloc.h>
#include "neotier.h"

static LIST_HEAD(neotier_watched);
static DEFINE_SPINLOCK(neotier_watched_lock);
static struct tracepoint *neotier_restored;

/* Of what lies there; 1 .. 127. */
static u8 neotier_demoted_tag(unsigned long pfn)
{
	return neotier_identity_of(pfn_to_page(pfn)) % 127 + 1;
}

static void neotier_demoted_set(struct neotier_demoted *demoted, unsigned long pfn)
{
	unsigned long page = pfn - demoted->base_pfn;
	unsigned int now = READ_ONCE(demoted->now);

	if (page >= demoted->nr_pages)
		return;
	WRITE_ONCE(demoted->marks[page], (u8)(neotier_demoted_tag(pfn) << 1 | now));
	WRITE_ONCE(demoted->any[now], true);
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

	demoted->base_pfn = dev->base_pfn;
	demoted->nr_pages = dev->nr_pages;
	demoted->marks = vzalloc(round_up(dev->nr_pages, sizeof(long)));
	if (!demoted->marks)
		return -ENOMEM;
	spin_lock(&neotier_watched_lock);
	list_add_rcu(&demoted->node, &neotier_watched);
	spin_unlock(&neotier_watched_lock);
	return 0;
}

void neotier_demoted_free(struct neotier_device *dev)
{
	struct neotier_demoted *demoted = &dev->demoted;

	if (!demoted->marks)
		return;
	spin_lock(&neotier_watched_lock);
	list_del_rcu(&demoted->node);
	spin_unlock(&neotier_watched_lock);
	synchronize_rcu();
	vfree(demoted->marks);
	demoted->marks = NULL;
}

void neotier_demoted_note(struct neotier_device *dev, unsigned long pfn)
{
	const struct neotier_ledger_page page = {
		.page = pfn - dev->base_pfn, .identity = neotier_hotlist_identity, .owner = dev,
	};

	neotier_demoted_set(&dev->demoted, pfn);
	/* It may lie on another device of the same node. */
	if (pfn - dev->base_pfn < dev->nr_pages)
		neotier_ledger_demoted(&dev->hotlist.ledger, &page);
}

/* Without a reference: a page in between is another one than it was. */
bool neotier_demoted_lately(const struct neotier_device *dev, u32 page)
{
	u8 mark = READ_ONCE(dev->demoted.marks[page]);

	return mark && pfn_to_online_page(dev->base_pfn + page) && mark >> 1 == neotier_demoted_tag(dev->base_pfn + page);
}

static void neotier_demoted_forget(u8 *marks, unsigned int horizon)
{
	unsigned int i;

	for (i = 0; i < sizeof(long); i++) {
		u8 mark = READ_ONCE(marks[i]);

		if (mark && (mark & 1) == horizon)
			WRITE_ONCE(marks[i], 0);
	}
}

/* A page that is marked while the oldest marks are cleared may lose its own: one page less that is regretted. */
void neotier_demoted_pass(struct neotier_device *dev)
{
	struct neotier_demoted *demoted = &dev->demoted;
	unsigned int oldest = !demoted->now;
	unsigned long page;

	if (demoted->any[oldest]) {
		WRITE_ONCE(demoted->any[oldest], false);
		for (page = 0; page < demoted->nr_pages; page += sizeof(long)) {
			if (READ_ONCE(*(unsigned long *)&demoted->marks[page]))
				neotier_demoted_forget(&demoted->marks[page], oldest);
			if (page % SZ_1M == 0)
				cond_resched();
		}
	}
	WRITE_ONCE(demoted->now, oldest);
}

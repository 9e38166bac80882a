/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Every branch on the kernel's version. Built and tested on Debian's 6.1 and 6.12.
 */
#ifndef NEOTIER_COMPAT_H
#define NEOTIER_COMPAT_H

#include <linux/cpumask.h>
#include <linux/highmem.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/version.h>
#include <linux/vmstat.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "neotier needs Linux 6.1 or newer: migrate_device_range() is not there before"
#endif

/* Mappings of an order-0 folio; folio_mapcount() is not for modules before it became inline. */
static inline int neotier_folio_mapcount(struct folio *folio)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
	return folio_mapcount(folio);
#else
	return page_mapcount(&folio->page);
#endif
}

/*
 * Copies a page and survives uncorrectable memory errors where the kernel can.
 * Return: 0 or -EIO.
 */
static inline int neotier_copy_page(struct page *to, struct page *from)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	return copy_mc_highpage(to, from) ? -EIO : 0;
#else
	copy_highpage(to, from);
	return 0;
#endif
}

#ifdef CONFIG_MEMCG
/* The memory cgroup of a folio, which may be of any kind; NULL: none. Under RCU. */
static inline struct mem_cgroup *neotier_folio_memcg(struct folio *folio)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	return folio_memcg_check(folio);
#else
	return page_memcg_check(&folio->page);
#endif
}
#endif

/* Pages demoted so far from a node; where the kernel counts no nodes, from all of them. A sum of counters in motion. */
static inline u64 neotier_node_demoted(int nid)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 8, 0)
	return max(atomic_long_read(&NODE_DATA(nid)->vm_stat[PGDEMOTE_KSWAPD]), 0L) +
	       max(atomic_long_read(&NODE_DATA(nid)->vm_stat[PGDEMOTE_DIRECT]), 0L);
#elif defined(CONFIG_VM_EVENT_COUNTERS)
	u64 demoted = 0;
	int cpu;

	for_each_online_cpu(cpu)
		demoted += per_cpu(vm_event_states, cpu).event[PGDEMOTE_KSWAPD] +
			   per_cpu(vm_event_states, cpu).event[PGDEMOTE_DIRECT];
	return demoted;
#else
	return 0;
#endif
}

static inline bool neotier_folio_is_ksm(struct folio *folio)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 1, 0) && defined(CONFIG_KSM)
	return folio_test_ksm(folio);
#else
	return false;
#endif
}

#endif

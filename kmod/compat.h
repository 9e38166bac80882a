/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Every branch on the kernel's version. Built and tested on Debian's 6.1 and 6.12.
 */
#ifndef NEOTIER_COMPAT_H
#define NEOTIER_COMPAT_H

#include <linux/highmem.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/version.h>

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

static inline bool neotier_folio_is_ksm(struct folio *folio)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 1, 0) && defined(CONFIG_KSM)
	return folio_test_ksm(folio);
#else
	return false;
#endif
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Every branch on the kernel's version. What this module calls is not all meant for modules, so a kernel newer than those it
 * has been tested on is refused when it loads.
 */
#ifndef NEOTIER_COMPAT_H
#define NEOTIER_COMPAT_H

#include <linux/buffer_head.h>
#include <linux/gfp.h>
#include <linux/highmem.h>
#include <linux/memcontrol.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/page_counter.h>
#include <linux/pgtable.h>
#include <linux/sched.h>
#include <linux/version.h>
#include <linux/vmstat.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "neotier needs Linux 6.1 or newer: migrate_device_range() is not there before"
#endif

#if !defined(CONFIG_MEMCG) || !defined(CONFIG_NUMA)
#error "neotier needs CONFIG_MEMCG and CONFIG_NUMA: the owner of a page and its rules cannot be found without"
#endif

/* The newest series that the module's tests have run on. */
#ifndef NEOTIER_TESTED_MAJOR
#define NEOTIER_TESTED_MAJOR 7
#define NEOTIER_TESTED_MINOR 3
#endif
#define NEOTIER_KERNEL_UNTESTED \
	(KERNEL_VERSION(LINUX_VERSION_MAJOR, LINUX_VERSION_PATCHLEVEL, 0) > \
	 KERNEL_VERSION(NEOTIER_TESTED_MAJOR, NEOTIER_TESTED_MINOR, 0))

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

typedef int neotier_migrate_fn(struct address_space *mapping, struct folio *to, struct folio *from, enum migrate_mode mode);

/* Without buffers this one does what migrate_folio() does. A kernel may be built without it. */
static inline bool neotier_migrates_buffers(neotier_migrate_fn *migrate)
{
#if defined(CONFIG_BUFFER_HEAD) || (LINUX_VERSION_CODE < KERNEL_VERSION(6, 6, 0) && defined(CONFIG_BLOCK))
	return migrate == buffer_migrate_folio;
#else
	return false;
#endif
}

/* How long this task has waited for a CPU so far; 0 where the kernel does not count it. */
static inline u64 neotier_waited_ns(void)
{
#ifdef CONFIG_SCHED_INFO
	return current->sched_info.run_delay;
#else
	return 0;
#endif
}

/* The memory cgroup of a folio, which may be of any kind; NULL: none. Under RCU. */
static inline struct mem_cgroup *neotier_folio_memcg(struct folio *folio)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	return folio_memcg_check(folio);
#else
	return page_memcg_check(&folio->page);
#endif
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 9, 0)
#define NEOTIER_CASE_WEIGHTED_INTERLEAVE case MPOL_WEIGHTED_INTERLEAVE:
#else
#define NEOTIER_CASE_WEIGHTED_INTERLEAVE
#endif

/* The policy of the file that a VMA maps; NULL: none. Refcounted when it has MPOL_F_SHARED. */
static inline struct mempolicy *neotier_shared_policy(struct vm_area_struct *vma, unsigned long address)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 7, 0)
	pgoff_t unused;

	return vma->vm_ops->get_policy(vma, address, &unused);
#else
	return vma->vm_ops->get_policy(vma, address);
#endif
}

#ifndef FOLIO_MAPPING_ANON
#define FOLIO_MAPPING_ANON PAGE_MAPPING_ANON
#define FOLIO_MAPPING_FLAGS PAGE_MAPPING_FLAGS
#endif

/* NULL: not anonymous memory, or KSM. What comes back may be stale: see neotier_owner_hold(). */
static inline struct anon_vma *neotier_folio_anon_vma(struct folio *folio)
{
	unsigned long mapping = (unsigned long)READ_ONCE(folio->mapping);

	return (mapping & FOLIO_MAPPING_FLAGS) == FOLIO_MAPPING_ANON ? (void *)(mapping - FOLIO_MAPPING_ANON) : NULL;
}

/*
 * For one PFN newer kernels write an entry for each page of the folio that it belongs to by then: a page that was small when
 * it was looked at may be part of a 2 MiB one. Larger ones (hugetlb) take far longer to make than the page is out of sight.
 */
#define NEOTIER_MIGRATE_WORDS (1U << (PMD_SHIFT - PAGE_SHIFT))

/**
 * neotier_migrate_unmap() - isolate, lock and unmap one page wherever it is mapped
 * @src: NEOTIER_MIGRATE_WORDS entries; the first one says how that went, as migrate_device_pages() takes it
 * @pfn: page of an online section
 *
 * Return: the page; NULL when it could not be had. Context: may sleep, but not once the page is unmapped.
 */
static inline struct page *neotier_migrate_unmap(unsigned long *src, unsigned long pfn)
{
	src[0] = 0;
	if (migrate_device_range(src, pfn, 1) || !(src[0] & MIGRATE_PFN_MIGRATE))
		return NULL;
	return migrate_pfn_to_page(src[0]);
}

/*
 * Splits the huge folio that is mapped at an address, if it can be: to set up the migration of one page of it does, and nothing
 * is migrated. Under the mmap_lock, may sleep. @src, @dst: NEOTIER_MIGRATE_WORDS entries.
 */
static inline void neotier_split_at(unsigned long *src, unsigned long *dst, struct mm_struct *mm, unsigned long address)
{
	struct migrate_vma args = {
		.vma = vma_lookup(mm, address),
		.start = address,
		.end = address + PAGE_SIZE,
		.src = src,
		.dst = dst,
		.flags = MIGRATE_VMA_SELECT_SYSTEM,
	};

	src[0] = 0;
	dst[0] = 0;
	if (!args.vma || migrate_vma_setup(&args))
		return;
	migrate_vma_pages(&args);
	migrate_vma_finalize(&args);
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 5, 0)
#define NEOTIER_GUP(call, mm, address, flags, page) call(mm, address, 1, flags, page, NULL)
#else
#define NEOTIER_GUP(call, mm, address, flags, page) call(mm, address, 1, flags, page, NULL, NULL)
#endif

/* The page mapped at an address, without a fault; NULL: none. For put_page(). Under the mmap_lock. */
static inline struct page *neotier_page_at(struct mm_struct *mm, unsigned long address)
{
	struct page *page;

	return NEOTIER_GUP(get_user_pages_remote, mm, address, FOLL_GET | FOLL_NOFAULT, &page) == 1 ? page : NULL;
}

/*
 * The page mapped at an address, out of memory that has to stay movable: its folio is moved as a whole first when it lies
 * there. Without a fault; NULL: shared, or could not be moved. For unpin_user_page(). Under the mmap_lock, may sleep.
 */
static inline struct page *neotier_pin_at(struct mm_struct *mm, unsigned long address)
{
	struct page *page;

	return NEOTIER_GUP(pin_user_pages_remote, mm, address, FOLL_LONGTERM | FOLL_NOFAULT, &page) == 1 ? page : NULL;
}

/**
 * neotier_claim() - have the kernel empty a range, for free_contig_range()
 * @pfn: the first page, a multiple of @nr
 * @nr: pages, all of one zone
 *
 * What is in it moves to memory that the caller's mems_allowed has. Return: 0 or an errno. Context: may sleep.
 */
static inline int neotier_claim(unsigned long pfn, unsigned long nr)
{
#ifdef NEOTIER_HAVE_ACR_FLAGS
	return alloc_contig_range(pfn, pfn + nr, ACR_FLAGS_NONE, GFP_KERNEL | __GFP_NOWARN);
#else
	return alloc_contig_range(pfn, pfn + nr, MIGRATE_MOVABLE, GFP_KERNEL | __GFP_NOWARN);
#endif
}

/* With these an allocation of one page, which the caller has made sure of, goes by the watermarks as set, without their boost. */
#ifdef __GFP_ATOMIC
#define NEOTIER_GFP_PAST_BOOST (__GFP_HIGH | __GFP_ATOMIC)
#else
#define NEOTIER_GFP_PAST_BOOST __GFP_HIGH
#endif

/* An entry that others change meanwhile, in one piece. */
static inline pmd_t neotier_pmd_read(pmd_t *pmd)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 5, 0)
	return pmdp_get_lockless(pmd);
#else
	return READ_ONCE(*pmd);
#endif
}

/* The kernel's own function for this is not for modules. */
static inline void neotier_pte_clear_young(pte_t *entry)
{
#ifdef CONFIG_X86
	clear_bit(_PAGE_BIT_ACCESSED, (unsigned long *)&entry->pte);
#else
#error "neotier does not know how this architecture clears an Accessed bit"
#endif
}

static inline void neotier_pmd_clear_young(pmd_t *entry)
{
#ifdef CONFIG_X86
	clear_bit(_PAGE_BIT_ACCESSED, (unsigned long *)entry);
#else
#error "neotier does not know how this architecture clears an Accessed bit"
#endif
}

/* Moves out of a node count as the kernel's own demotions in the background do. */
static inline void neotier_count_demoted(int nid, unsigned int pages)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 9, 0)
	mod_node_page_state(NODE_DATA(nid), PGDEMOTE_KSWAPD, pages);
#else
	count_vm_events(PGDEMOTE_KSWAPD, pages);
#endif
}

/* memory.low or memory.min of the cgroup, or of one that it is part of, keeps its memory. Under RCU. */
static inline bool neotier_memcg_protected(struct mem_cgroup *memcg)
{
	for (; memcg; memcg = parent_mem_cgroup(memcg)) {
		unsigned long keeps = max(READ_ONCE(memcg->memory.low), READ_ONCE(memcg->memory.min));

		if (keeps && keeps >= page_counter_read(&memcg->memory))
			return true;
	}
	return false;
}

/* Any page of it has an uncorrectable memory error. */
static inline bool neotier_folio_poisoned(struct folio *folio)
{
	return PageHWPoison(&folio->page) || (folio_test_large(folio) && folio_test_has_hwpoisoned(folio));
}

static inline bool neotier_folio_is_ksm(struct folio *folio)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 1, 0) && defined(CONFIG_KSM)
	return folio_test_ksm(folio);
#else
	return false;
#endif
}

/*
 * Where a VMA begins in the index of its anonymous pages: what folio->index of them counts in, and what the kernel's tree of an
 * anon_vma is sorted by. Kernels that have an index of its own for private file mappings say so in their headers (Kbuild).
 */
static inline unsigned long neotier_vma_anon_pgoff(const struct vm_area_struct *vma)
{
#ifdef NEOTIER_HAVE_ANON_PGOFF
	return vma_start_anon_pgoff(vma);
#else
	return vma->vm_pgoff;
#endif
}

/* From 6.3 on, and in later releases of 6.1. */
#ifndef NEOTIER_HAVE_LIST_COUNT
static inline size_t list_count_nodes(struct list_head *head)
{
	struct list_head *at;
	size_t nr = 0;

	list_for_each(at, head)
		nr++;
	return nr;
}
#endif

#endif

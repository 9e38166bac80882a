/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later */
/*
 * Line fills of the guest's pages, epoch by epoch: what the emulator writes of a region of interest. All fields are
 * little-endian. A file is the header, then `nr_counts` counts in the order of their epochs, then `nr_pages` pages.
 * A page is what one owner has in one frame: (mapping, index) of the kernel's struct page, from when it was first seen
 * there. A frame that is freed and given out again is another page.
 */
#ifndef NEOTIER_PAGE_COUNTS_H
#define NEOTIER_PAGE_COUNTS_H

#include <stdint.h>

#define NEOTIER_PAGE_COUNTS_MAGIC 0x315345474150544eull /* "NTPAGES1" */

enum neotier_page_kind {
	NEOTIER_PAGE_ANONYMOUS = 0, /* 4 KiB page of a process */
	NEOTIER_PAGE_HUGE = 1,      /* 4 KiB of a large anonymous folio */
	NEOTIER_PAGE_SHMEM = 2,     /* shared memory and tmpfs */
	NEOTIER_PAGE_FILE = 3,      /* page cache */
	NEOTIER_PAGE_KERNEL = 4,    /* the kernel's own, page tables among them, and free pages */
	NR_NEOTIER_PAGE_KIND
};

struct neotier_page_fills {
	uint64_t fills, writebacks; /* of 64 bytes */
	uint64_t stall_ps;          /* of the fills, as the model charged them */
};

struct neotier_page_counts_header {
	uint64_t magic;
	uint64_t epoch_ps;          /* of modelled time; an epoch ends at the first look at the clock after it */
	uint64_t nr_epochs;         /* begun */
	uint64_t nr_counts, nr_pages;
	struct neotier_page_fills sum[2][NR_NEOTIER_PAGE_KIND]; /* of {dram, cxl} */
};

/* Of one page in one epoch in which it had any. */
struct neotier_page_count {
	uint32_t page;              /* its place among the pages */
	uint32_t epoch;
	uint32_t fills, writebacks;
	uint64_t stall_ps;
};

struct neotier_page {
	uint64_t frame;             /* host-physical address / 4096 */
	uint64_t mapping, index;    /* as the kernel keeps them: equal for pages of one owner; 0 for the kernel's own */
	uint32_t birth, last;       /* epochs: in which it was first seen, at whose end it was last seen (or birth) */
	uint8_t kind;               /* enum neotier_page_kind, as last seen */
	uint8_t cxl;
	uint8_t locked;             /* unevictable: its owner chose where it stays */
	uint8_t seen;               /* at the end of an epoch; else it came and went within `birth` */
	uint8_t pad[4];
};

#ifdef __cplusplus
static_assert(sizeof(neotier_page_count) == 24 && sizeof(neotier_page) == 40, "as documented");
#endif
#endif

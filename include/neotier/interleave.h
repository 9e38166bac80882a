/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later */
/*
 * Where the bytes of an interleaved CXL region lie. A region of 2^ways_log2 devices deals out its memory in chunks of
 * 2^gran_log2 bytes: chunk n belongs to the device at position n modulo ways (CXL 3.2, section 9.13.1.1, modulo
 * arithmetic; not its XOR variant, nor 3, 6 or 12 ways). Offsets count bytes from the region's first; a DPA here counts
 * bytes from the first that the region uses of a device.
 *
 * Pure arithmetic without division, for the kernel, the emulator and the tests alike. No function checks its arguments
 * but neotier_interleave_valid().
 */
#ifndef NEOTIER_INTERLEAVE_H
#define NEOTIER_INTERLEAVE_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stdint.h>
#endif

#define NEOTIER_PAGE_LOG2 12

struct neotier_interleave {
	uint8_t ways_log2; /* 0 to 4 */
	uint8_t gran_log2; /* 8 to 14; no meaning with one way */
};

/* A unit that a device counts (4 KiB of DPA) as pages of the region: first, first + stride, ... */
struct neotier_page_run {
	uint64_t first; /* index of a page in the region */
	uint32_t pages; /* 1; 2 to 16 where a chunk is smaller than a page */
	uint32_t stride;
};

/* Fills `to` from numbers as sysfs has them. False: not an interleave this arithmetic knows. */
static inline bool neotier_interleave_valid(struct neotier_interleave *to, uint64_t ways, uint64_t granularity)
{
	to->ways_log2 = 0;
	to->gran_log2 = 8;
	while (to->ways_log2 < 4 && ways > 1ull << to->ways_log2)
		to->ways_log2++;
	while (to->gran_log2 < 14 && granularity > 1ull << to->gran_log2)
		to->gran_log2++;
	return ways == 1ull << to->ways_log2 && granularity == 1ull << to->gran_log2;
}

/* The position of the device that has the byte at `offset` of the region. */
static inline uint32_t neotier_interleave_position(const struct neotier_interleave *il, uint64_t offset)
{
	return (uint32_t)(offset >> il->gran_log2) & ((1u << il->ways_log2) - 1);
}

/* That byte's DPA. */
static inline uint64_t neotier_interleave_dpa(const struct neotier_interleave *il, uint64_t offset)
{
	uint64_t in_chunk = offset & ((1ull << il->gran_log2) - 1);

	return (offset >> (il->gran_log2 + il->ways_log2)) << il->gran_log2 | in_chunk;
}

/* The other way: the region's offset of a DPA of the device at `position`. */
static inline uint64_t neotier_interleave_offset(const struct neotier_interleave *il, uint32_t position, uint64_t dpa)
{
	uint64_t in_chunk = dpa & ((1ull << il->gran_log2) - 1);

	return (dpa >> il->gran_log2) << (il->gran_log2 + il->ways_log2) | (uint64_t)position << il->gran_log2 | in_chunk;
}

/*
 * The pages of the region that hold bytes of a unit. With chunks of a page or more that is one page, exactly. With
 * smaller ones a unit holds a share of several pages, and no device can tell which of them was used.
 */
static inline struct neotier_page_run neotier_interleave_pages(const struct neotier_interleave *il, uint32_t position,
							       uint64_t unit)
{
	struct neotier_page_run run = { 0, 1, 1 };
	uint64_t offset = neotier_interleave_offset(il, position, unit << NEOTIER_PAGE_LOG2);

	run.first = offset >> NEOTIER_PAGE_LOG2;
	if (il->ways_log2 && il->gran_log2 < NEOTIER_PAGE_LOG2) {
		uint8_t chunks_log2 = NEOTIER_PAGE_LOG2 - il->gran_log2;

		if (il->ways_log2 <= chunks_log2) {
			run.pages = 1u << il->ways_log2;
		} else {
			run.pages = 1u << chunks_log2;
			run.stride = 1u << (il->ways_log2 - chunks_log2);
		}
	}
	return run;
}

#endif

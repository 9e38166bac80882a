/* SPDX-License-Identifier: GPL-2.0-or-later */
#define _GNU_SOURCE
#include "dram.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest.h"

#define MIB (1024ull * 1024)
#define PAGE 4096ull
#define HUGE_PAGE (2 * MIB)
#define SETTLE_TRIES 16
/* Of linux/mman.h, since Linux 5.18. */
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

/* Single locked pages: the first `held` of the region are there. */
static struct {
	char *base;
	uint64_t held, room; /* bytes */
} ballast;

/* Bytes of a node that nobody has; how many of them a process can have without waking the kernel's reclaim. */
struct free_memory {
	uint64_t all, easy;
};

static struct free_memory free_memory(int node)
{
	static char text[256 * 1024];
	struct free_memory found = { 0 };
	long in_zone = 0, low = 0, n;
	bool ours = false;
	char *at;
	int of;

	/* Each CPU counts for itself up to a limit; reading this adds them up. */
	read_file("/proc/sys/vm/stat_refresh", text, sizeof text);
	if (!read_file("/proc/zoneinfo", text, sizeof text))
		fail("cannot read /proc/zoneinfo: %s", strerror(errno));
	for (char *line = strtok_r(text, "\n", &at); line; line = strtok_r(NULL, "\n", &at)) {
		if (sscanf(line, "Node %d, zone", &of) == 1)
			ours = of == node;
		if (!ours)
			continue;
		if (sscanf(line, " pages free %ld", &n) == 1) {
			in_zone = n;
			found.all += (uint64_t)n * PAGE;
		} else if (sscanf(line, " low %ld", &n) == 1) {
			low = n;
		} else if (sscanf(line, " protection: (%*d, %*d, %*d, %ld", &n) == 1) {
			if (in_zone > low + n)
				found.easy += (uint64_t)(in_zone - low - n) * PAGE;
		} else if (sscanf(line, " count: %ld", &n) == 1) {
			found.all += (uint64_t)n * PAGE;
		}
	}
	return found;
}

uint64_t dram_free_bytes(int node)
{
	return free_memory(node).all;
}

static void ballast_grow(uint64_t bytes)
{
	if (bytes > ballast.room - ballast.held)
		bytes = ballast.room - ballast.held;
	for (uint64_t end = ballast.held + bytes; ballast.held < end; ballast.held += PAGE)
		*(volatile char *)(ballast.base + ballast.held) = 1;
}

static void ballast_shrink(uint64_t bytes)
{
	if (bytes > ballast.held)
		bytes = ballast.held;
	if (bytes && madvise(ballast.base + ballast.held - bytes, bytes, MADV_DONTNEED_LOCKED))
		fail("cannot give memory of node 0 back: %s", strerror(errno));
	ballast.held -= bytes;
}

void dram_settle(uint64_t target)
{
	/* The pages' own page tables, and what the kernel frees late, make it more than one step. */
	for (int i = 0; ballast.base && i < SETTLE_TRIES; i++) {
		const struct free_memory now = free_memory(0);
		const uint64_t above = now.all > target ? now.all - target : 0;

		/* What is not easy to have is PROGRAM's. */
		if (above)
			ballast_grow(above < now.easy ? above : now.easy);
		else
			ballast_shrink(target - now.all);
		if (now.all == target || (above && !now.easy))
			return;
	}
}

void dram_trim(uint64_t target)
{
	/* For a module: its code, and what it keeps for each page of node 1. */
	uint64_t lent = 2 * MIB + dram_free_bytes(1) / 128 / PAGE * PAGE;
	uint64_t free_bytes = dram_free_bytes(0);
	unsigned long node0 = 1;
	char setting[160];

	if (free_bytes < target)
		fail("node 0 has %llu MiB free after kernel and initramfs, %llu MiB were asked for",
		     (unsigned long long)(free_bytes / MIB), (unsigned long long)(target / MIB));
	/* The bulk as huge pages of the pool: they cost neither page tables nor the LRU lists anything. */
	if (free_bytes - target >= lent + HUGE_PAGE) {
		snprintf(setting, sizeof setting,
			 "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages %llu",
			 (unsigned long long)((free_bytes - target - lent) / HUGE_PAGE));
		write_setting(setting);
		free_bytes = dram_free_bytes(0);
	}
	/* Where no more huge pages could be had, single ones fill in. To prefer node 0, not to bind: the latter can kill. */
	ballast.room = free_bytes - target + lent + 16 * MIB;
	ballast.base = mmap(NULL, ballast.room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (ballast.base == MAP_FAILED || madvise(ballast.base, ballast.room, MADV_NOHUGEPAGE) ||
	    syscall(SYS_mbind, ballast.base, ballast.room, MPOL_PREFERRED, &node0, 8 * sizeof node0, 0) ||
	    mlock2(ballast.base, ballast.room, MLOCK_ONFAULT))
		fail("cannot lock %llu bytes of node 0: %s", (unsigned long long)ballast.room, strerror(errno));
	dram_settle(target);
}

uint64_t dram_lend(void)
{
	uint64_t before;

	if (!ballast.base)
		return 0;
	before = dram_free_bytes(0);
	ballast_shrink(ballast.held);
	return before;
}

// SPDX-License-Identifier: Apache-2.0
/*
 * kmod_content: memory on the slow node that is written, read and checked all the time while its pages are promoted.
 *
 *	kmod_content mb=<size>|pages=<number> seconds=<time> [node=<slow node>] [cold=<MiB on the fast node first>] [sleep]
 *		     [want=<pages that must have moved; 0 means none may have>] [stop=<pages: end once so many moved>]
 *		     [mlock] [shared] [huge] [back] [enable]
 *
 * Prints one line "content: pages=.. moved=.. errors=.. checks=.. ms=.." and returns 0 when every word was as written and
 * `want` was met. Tells kmod_device (KMOD_FEED_PATH, when it is there) which pages are hot. sleep: touch nothing between
 * the fill and the last check. mlock, shared (with a forked child), huge (2 MiB pages): pages that have to stay.
 * enable: writes 1 to /sys/kernel/neotier/enabled when the memory is ready.
 * back: once `stop` pages have moved, moves all of them to the slow node again, as a demotion would, and goes on.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "kmod_feed.h"

#define PAGE 4096UL
#define HUGE (2UL << 20)
#define WORDS (PAGE / sizeof(uint64_t))
#define MPOL_DEFAULT 0
#define MPOL_BIND 2
#define MPOL_PREFERRED 1

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000ULL + ts.tv_nsec / 1000000;
}

static void policy(int mode, int node)
{
	unsigned long mask = 1UL << node;

	if (syscall(SYS_set_mempolicy, mode, mode == MPOL_DEFAULT ? NULL : &mask, mode == MPOL_DEFAULT ? 0 : 64)) {
		perror("content: set_mempolicy");
		exit(2);
	}
}

static uint64_t word_of(uint64_t page, uint64_t word, uint64_t version)
{
	uint64_t x = (page * 0x9e3779b97f4a7c15ULL) ^ (word << 32) ^ version * 0xd1b54a32d192ed03ULL;

	x ^= x >> 29;
	return x * 0xbf58476d1ce4e5b9ULL;
}

static void fill(uint64_t *memory, uint64_t page, uint64_t version)
{
	uint64_t w;

	for (w = 0; w < WORDS; w++)
		memory[page * WORDS + w] = word_of(page, w, version);
}

static uint64_t check(const uint64_t *memory, uint64_t page, uint64_t version)
{
	uint64_t w, errors = 0;

	for (w = 0; w < WORDS; w++)
		errors += memory[page * WORDS + w] != word_of(page, w, version);
	return errors;
}

/* Pages not on `node`; those that cannot be asked about (in the middle of a move) count as still there. */
static uint64_t count_moved(uint64_t *memory, uint64_t pages, int node)
{
	static void *address[1024];
	static int status[1024];
	uint64_t at, i, n, moved = 0;

	for (at = 0; at < pages; at += n) {
		n = pages - at < 1024 ? pages - at : 1024;
		for (i = 0; i < n; i++)
			address[i] = (char *)memory + (at + i) * PAGE;
		if (syscall(SYS_move_pages, 0, n, address, NULL, status, 0)) {
			perror("content: move_pages");
			exit(2);
		}
		for (i = 0; i < n; i++)
			moved += status[i] >= 0 && status[i] != node;
	}
	return moved;
}

static void move_back(uint64_t *memory, uint64_t pages, int node)
{
	static void *address[1024];
	static int status[1024], nodes[1024];
	uint64_t at, i, n;

	for (at = 0; at < pages; at += n) {
		n = pages - at < 1024 ? pages - at : 1024;
		for (i = 0; i < n; i++) {
			address[i] = (char *)memory + (at + i) * PAGE;
			nodes[i] = node;
		}
		if (syscall(SYS_move_pages, 0, n, address, nodes, status, 2) < 0) {
			perror("content: move_pages");
			exit(2);
		}
	}
}

/* Tells the device's stand-in which of our pages are on the slow node now. */
static void tell(struct kmod_feed *feed, const uint64_t *memory, uint64_t pages, uint64_t base_pfn)
{
	static uint64_t entry[KMOD_FEED_MAX];
	int fd = open("/proc/self/pagemap", O_RDONLY);
	uint64_t i, n = 0;

	if (pages > KMOD_FEED_MAX)
		pages = KMOD_FEED_MAX;
	if (fd < 0 || pread(fd, entry, pages * 8, (uintptr_t)memory / PAGE * 8) != (ssize_t)(pages * 8)) {
		perror("content: pagemap");
		exit(2);
	}
	close(fd);
	feed->count = 0;
	for (i = 0; i < pages; i++) {
		uint64_t pfn = entry[i] & ((1ULL << 55) - 1);

		if ((entry[i] >> 63) && pfn >= base_pfn)
			feed->pfn[n++] = pfn;
	}
	feed->count = n;
}

int main(int argc, char **argv)
{
	uint64_t mb = 16, seconds = 5, cold = 0, pages = 0, page, errors = 0, checks = 0, moved, start, told, *memory, *version;
	uint64_t base_pfn = 0x100000, stop = 0;
	long want = -1;
	int node = 1, n, idle = 0, back = 0, enable = 0, locked = 0, shared = 0, huge = 0, fd;
	struct kmod_feed *feed = NULL;
	uint32_t random = 1;

	for (n = 1; n < argc; n++) {
		if (!strncmp(argv[n], "mb=", 3))
			mb = strtoull(argv[n] + 3, NULL, 0);
		else if (!strncmp(argv[n], "pages=", 6))
			pages = strtoull(argv[n] + 6, NULL, 0);
		else if (!strncmp(argv[n], "seconds=", 8))
			seconds = strtoull(argv[n] + 8, NULL, 0);
		else if (!strncmp(argv[n], "node=", 5))
			node = atoi(argv[n] + 5);
		else if (!strncmp(argv[n], "cold=", 5))
			cold = strtoull(argv[n] + 5, NULL, 0);
		else if (!strncmp(argv[n], "want=", 5))
			want = atol(argv[n] + 5);
		else if (!strncmp(argv[n], "stop=", 5))
			stop = strtoull(argv[n] + 5, NULL, 0);
		else if (!strncmp(argv[n], "base_pfn=", 9))
			base_pfn = strtoull(argv[n] + 9, NULL, 0);
		else if (!strcmp(argv[n], "sleep"))
			idle = 1;
		else if (!strcmp(argv[n], "enable"))
			enable = 1;
		else if (!strcmp(argv[n], "back"))
			back = 1;
		else if (!strcmp(argv[n], "mlock"))
			locked = 1;
		else if (!strcmp(argv[n], "shared"))
			shared = 1;
		else if (!strcmp(argv[n], "huge"))
			huge = 1;
		else {
			fprintf(stderr, "content: unknown argument %s\n", argv[n]);
			return 2;
		}
	}
	fd = open(KMOD_FEED_PATH, O_RDWR);
	if (fd >= 0)
		feed = mmap(NULL, sizeof(*feed), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (feed == MAP_FAILED)
		feed = NULL;

	if (cold) {
		char *filler = mmap(NULL, cold << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (filler == MAP_FAILED) {
			perror("content: mmap cold");
			return 2;
		}
		madvise(filler, cold << 20, MADV_NOHUGEPAGE);
		policy(MPOL_PREFERRED, 0);
		for (page = 0; page < cold << 8; page++)
			filler[page * PAGE] = 1;
	}

	pages = pages ? pages : mb << 8;
	/* Room to begin at a multiple of 2 MiB. */
	memory = mmap(NULL, pages * PAGE + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	version = calloc(pages, sizeof(*version));
	if (memory == MAP_FAILED || !version) {
		perror("content: memory");
		return 2;
	}
	memory = (uint64_t *)(((uintptr_t)memory + HUGE - 1) & ~(HUGE - 1));
	madvise(memory, pages * PAGE, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	policy(MPOL_BIND, node);
	for (page = 0; page < pages; page++)
		fill(memory, page, 0);
	policy(MPOL_DEFAULT, 0);
	if (locked && mlock(memory, pages * PAGE)) {
		perror("content: mlock");
		return 2;
	}
	if (shared && fork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}

	if (enable) {
		fd = open("/sys/kernel/neotier/enabled", O_WRONLY);
		if (fd < 0 || write(fd, "1", 1) != 1) {
			perror("content: enabled");
			return 2;
		}
		close(fd);
	}
	start = now_ms();
	told = 0;
	moved = 0;
	do {
		if (feed && now_ms() - told > 200) {
			tell(feed, memory, pages, base_pfn);
			told = now_ms();
		}
		if (stop) {
			moved = count_moved(memory, pages, node);
			if (moved >= stop && back) {
				move_back(memory, pages, node);
				back = 0;
				stop = 0;
				told = 0;
			} else if (moved >= stop) {
				break;
			}
		}
		if (idle) {
			usleep(2000);
			continue;
		}
		for (n = 0; n < 64; n++) {
			random = random * 1664525 + 1013904223;
			page = (random >> 8) % pages;
			errors += check(memory, page, version[page]);
			/* A write would give us a page of our own. */
			if (!shared)
				fill(memory, page, ++version[page]);
			checks++;
		}
	} while (now_ms() - start < seconds * 1000);
	start = now_ms() - start;

	moved = count_moved(memory, pages, node);
	if (feed)
		feed->count = 0;
	for (page = 0; page < pages; page++)
		errors += check(memory, page, version[page]);
	printf("content: pages=%llu moved=%llu errors=%llu checks=%llu ms=%llu\n", (unsigned long long)pages,
	       (unsigned long long)moved, (unsigned long long)errors, (unsigned long long)checks,
	       (unsigned long long)start);
	if (errors || (want == 0 && moved) || (want > 0 && moved < (uint64_t)want))
		return 1;
	return 0;
}

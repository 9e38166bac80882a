// SPDX-License-Identifier: Apache-2.0
/*
 * kmod_file: a file's pages in the page cache, while the module moves them.
 *
 *	kmod_file path=<file> [mb=<size to make it with>] [on=<node for its pages that are not in memory>]
 *		  [seconds=<time>] [feed] [read] [write] [check] [more=<pages that have to leave the slow node before the end>]
 *		  [map] [sharers=<processes that map it besides>] [exec] [lock] [bind=<node>]
 *
 * Without seconds it makes the file, or looks where it lies, and ends. feed: tells kmod_device which of its pages are on the slow node.
 * read, write: its pages over and over, by system calls; read alone in their order, else any. map: all of it is mapped meanwhile, and read and
 * written so; with exec as a program's code, with lock locked, with bind under that memory policy. check: reads all of it in the end, which is a use.
 * Prints one line "file: pages=.. slow=.. errors=.. calls=.." (slow: its pages on the slow node in the end) and returns 0 when
 * every word was as written, and `more` was met. SIGTERM: as if the time were over.
 *
 * Where pages lie is seen through a mapping that is there for a moment and leaves no sign of use (MADV_SEQUENTIAL).
 */
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "kmod_feed.h"

#define PAGE 4096UL
#define WORDS (PAGE / sizeof(uint64_t))
#define MPOL_DEFAULT 0
#define MPOL_BIND 2

static volatile sig_atomic_t ended;

static void on_term(int number)
{
	(void)number;
	ended = 1;
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void die(const char *what)
{
	perror(what);
	exit(2);
}

/* The version is the page's own first word. */
static void fill(uint64_t *words, uint64_t page, uint64_t version)
{
	uint64_t word;

	words[0] = version;
	for (word = 1; word < WORDS; word++)
		words[word] = (page * WORDS + word) * 0x9e3779b97f4a7c15ULL ^ version;
}

/* All of the file, where it is mapped for as long as this runs. */
static volatile char *mapped_at;

static void put(int fd, uint64_t page, uint64_t version)
{
	uint64_t words[WORDS];

	fill(words, page, version);
	if (mapped_at) {
		memcpy((void *)(mapped_at + page * PAGE), words, PAGE);
		return;
	}
	if (pwrite(fd, words, PAGE, (off_t)(page * PAGE)) != (ssize_t)PAGE)
		die("file: write");
}

static int wrong(int fd, uint64_t page)
{
	uint64_t words[WORDS], wanted[WORDS];

	if (mapped_at)
		memcpy(words, (void *)(mapped_at + page * PAGE), PAGE);
	else if (pread(fd, words, PAGE, (off_t)(page * PAGE)) != (ssize_t)PAGE)
		die("file: read");
	fill(wanted, page, words[0]);
	return memcmp(words, wanted, PAGE) != 0;
}

static volatile char *map_all(int fd, uint64_t pages, int protection)
{
	volatile char *memory = mmap(NULL, pages * PAGE, protection, MAP_SHARED, fd, 0);
	uint64_t page;

	if (memory == MAP_FAILED)
		die("file: mmap");
	madvise((void *)memory, pages * PAGE, MADV_SEQUENTIAL);
	for (page = 0; page < pages; page++)
		(void)memory[page * PAGE];
	return memory;
}

/* Processes that map it as well, and end with this one. */
static void share(int fd, uint64_t pages, unsigned int sharers)
{
	while (sharers--) {
		pid_t pid = fork();

		if (pid < 0)
			die("file: fork");
		if (pid)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() == 1 || mmap(NULL, pages * PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED)
			_exit(2);
		for (;;)
			pause();
	}
}

/* Its pages on the slow node; told to the device's stand-in where there is one. */
static uint64_t look(int fd, uint64_t pages, uint64_t base_pfn, struct kmod_feed *feed)
{
	static uint64_t entry[KMOD_FEED_MAX];
	volatile char *memory = map_all(fd, pages, PROT_READ);
	int map = open("/proc/self/pagemap", O_RDONLY);
	uint64_t page, slow = 0;

	if (pages > KMOD_FEED_MAX || map < 0 || pread(map, entry, pages * 8, (off_t)((uintptr_t)memory / PAGE * 8)) != (ssize_t)(pages * 8))
		die("file: pagemap");
	close(map);
	if (feed)
		feed->count = 0;
	for (page = 0; page < pages; page++) {
		uint64_t pfn = entry[page] & ((1ULL << 55) - 1);

		if (!(entry[page] >> 63) || pfn < base_pfn)
			continue;
		if (feed)
			feed->pfn[slow] = pfn;
		slow++;
	}
	munmap((void *)memory, pages * PAGE);
	if (feed)
		feed->count = (uint32_t)slow;
	return slow;
}

int main(int argc, char **argv)
{
	uint64_t mb = 0, seconds = 0, more = 0, pages, page, errors = 0, calls = 0, slow, first, start, told = 0, base_pfn = 0x100000;
	int on = -1, bind = -1, fed = 0, checked = 0, reads = 0, writes = 0, mapped = 0, locked = 0, protection = PROT_READ, n, fd;
	unsigned int sharers = 0;
	uint32_t random = 1;
	const char *path = NULL;
	struct kmod_feed *feed = NULL;
	struct stat about;

	for (n = 1; n < argc; n++) {
		if (!strncmp(argv[n], "path=", 5))
			path = argv[n] + 5;
		else if (!strncmp(argv[n], "mb=", 3))
			mb = strtoull(argv[n] + 3, NULL, 0);
		else if (!strncmp(argv[n], "on=", 3))
			on = atoi(argv[n] + 3);
		else if (!strncmp(argv[n], "seconds=", 8))
			seconds = strtoull(argv[n] + 8, NULL, 0);
		else if (!strncmp(argv[n], "more=", 5))
			more = strtoull(argv[n] + 5, NULL, 0);
		else if (!strncmp(argv[n], "base_pfn=", 9))
			base_pfn = strtoull(argv[n] + 9, NULL, 0);
		else if (!strcmp(argv[n], "feed"))
			fed = 1;
		else if (!strcmp(argv[n], "check"))
			checked = 1;
		else if (!strcmp(argv[n], "read"))
			reads = 1;
		else if (!strcmp(argv[n], "write"))
			writes = 1;
		else if (!strcmp(argv[n], "map"))
			mapped = 1;
		else if (!strncmp(argv[n], "sharers=", 8))
			sharers = (unsigned int)atoi(argv[n] + 8);
		else if (!strncmp(argv[n], "bind=", 5))
			bind = atoi(argv[n] + 5);
		else if (!strcmp(argv[n], "exec"))
			protection |= PROT_EXEC;
		else if (!strcmp(argv[n], "lock"))
			locked = 1;
		else {
			fprintf(stderr, "file: unknown argument %s\n", argv[n]);
			return 2;
		}
	}
	signal(SIGTERM, on_term);
	fd = path ? open(path, writes || mb ? O_RDWR | O_CREAT : O_RDONLY, 0600) : -1;
	if (fd < 0)
		die("file: path");
	if (on >= 0) {
		unsigned long mask = 1UL << on;

		if (syscall(SYS_set_mempolicy, MPOL_BIND, &mask, 64UL))
			die("file: set_mempolicy");
	}
	for (page = 0; page < mb << 8; page++)
		put(fd, page, 0);
	if (fstat(fd, &about))
		die("file: stat");
	pages = (uint64_t)about.st_size / PAGE;
	/* Else newer kernels read ahead into large folios. */
	if (on >= 0)
		posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	for (page = 0; on >= 0 && page < pages; page++)
		errors += (uint64_t)wrong(fd, page);
	syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0UL);
	if (fed) {
		int feed_fd = open(KMOD_FEED_PATH, O_RDWR);

		feed = mmap(NULL, sizeof(*feed), PROT_READ | PROT_WRITE, MAP_SHARED, feed_fd, 0);
		if (feed == MAP_FAILED)
			die("file: feed");
	}
	share(fd, pages, sharers);
	if (mapped) {
		unsigned long mask = bind >= 0 ? 1UL << bind : 0;

		mapped_at = map_all(fd, pages, protection | (writes ? PROT_WRITE : 0));
		madvise((void *)mapped_at, pages * PAGE, MADV_NORMAL);
		if ((locked && mlock((void *)mapped_at, pages * PAGE)) ||
		    (bind >= 0 && syscall(SYS_mbind, mapped_at, pages * PAGE, MPOL_BIND, &mask, 64UL, 0U)))
			die("file: mlock or mbind");
	}
	first = slow = look(fd, pages, base_pfn, NULL);
	start = now_ms();
	while (seconds && !ended && now_ms() - start < seconds * 1000) {
		if ((feed || more) && now_ms() - told > 200) {
			slow = look(fd, pages, base_pfn, feed);
			told = now_ms();
			if (more && first >= slow + more)
				break;
		}
		for (n = 0; (reads || writes) && n < 64; n++, calls++) {
			random = random * 1664525 + 1013904223;
			page = writes ? (random >> 8) % pages : calls % pages;
			if (writes)
				put(fd, page, random);
			if (reads)
				errors += (uint64_t)wrong(fd, page);
		}
		if (!reads && !writes)
			usleep(2000);
	}
	if (feed)
		feed->count = 0;
	slow = look(fd, pages, base_pfn, NULL);
	for (page = 0; checked && page < pages; page++)
		errors += (uint64_t)wrong(fd, page);
	printf("file: pages=%llu slow=%llu errors=%llu calls=%llu\n", (unsigned long long)pages, (unsigned long long)slow,
	       (unsigned long long)errors, (unsigned long long)calls);
	return errors || (more && first < slow + more);
}

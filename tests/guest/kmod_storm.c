// SPDX-License-Identifier: Apache-2.0
/*
 * kmod_storm: processes that do all that programs do with their memory while a device reports every page of it as hot.
 *
 *	kmod_storm [moves=<number>] [operations=<number>] [seconds=<limit>] [seed=<number>] [node=<slow node>]
 *		   [base_pfn=<first>] [pages=<of device>] [cgroup=<folder>] [unexcluded] [settle_ms=<time>] [faults] [stop=<file>]
 *
 * Every word of every page has one value that it may hold, and each page has nodes where it may be:
 *   free      may be anywhere; its process forks, execs, unmaps, moves, protects, locks, advises and demotes it
 *   bind, prefer        its VMA is bound to, or prefers, the slow node
 *   mlock, pin          locked; pinned for long (io_uring's registered buffers)
 *   task_bind           its process has set_mempolicy(MPOL_BIND) for the slow node
 *   cpuset, excluded    its process is in <folder>/slow, whose cpuset.mems is the slow node, or in <folder>/stay
 *   change              free pages for as long as they are locked, bound, or in a pipe, or their cpuset is the slow node
 *   shared              a file in memory, which may be anywhere: mapped by its process and its children, written and read by calls as well,
 *                       cut and punched; and one that two processes write at once
 * All but the free ones are filled on the slow node and have to stay there. Only `free` pages are moved back by the storm.
 *
 * Ends after `moves` promotions and `operations` of the processes, when <file> appears, or after `seconds`. Prints a line a quarter minute, then one
 * "storm: key=value ..."; returns 0 when nothing was wrong and no process died, whatever the number of moves.
 * unexcluded: without the process in <folder>/stay. faults: its threads' allocations fail as often as /sys/kernel/debug/fail* say, so that a
 * call may end with ENOMEM.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "kmod_feed.h"

#define PAGE 4096UL
#define HUGE (2UL << 20)
#define WORDS (PAGE / sizeof(uint64_t))
#define MPOL_DEFAULT 0
#define MPOL_PREFERRED 1
#define MPOL_BIND 2
#define MPOL_MF_MOVE 2
#define MPOL_MF_MOVE_ALL 4
#ifndef MPOL_F_STATIC_NODES
#define MPOL_F_STATIC_NODES (1 << 15)
#endif
#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define MAX_PAGES 1024U		/* of a region */
#define MAX_REGIONS 12
#define HAMMER_PAGES 32U
#define SLICE 2048U		/* of the feed, for each process and for the sweep */
#define THREADS 2

enum kind { FREE, BIND, PREFER, MLOCK, PIN, TASK_BIND, CPUSET, EXCLUDED, CHANGE, SHARED, KINDS };
static const char *const kind_names[KINDS] = {
	"free", "bind", "prefer", "mlock", "pin", "task_bind", "cpuset", "excluded", "change", "shared",
};

/* Shared by all processes. */
struct results {
	volatile int stop;
	uint64_t wrong;			/* words */
	uint64_t checked;		/* pages */
	uint64_t moved[KINDS];		/* pages that were where they must not be */
	uint64_t asked[KINDS];		/* pages whose place was looked at */
	uint64_t ops, demoted, children, deaths, refused;
	uint64_t pins;			/* regions that io_uring has pinned */
	uint64_t said;
};

struct region {
	uint64_t *memory;
	char *room;			/* the address range it moves about in */
	uint32_t pages;
	uint32_t id;
	enum kind kind;
	int fd;				/* of shared ones */
	uint32_t version[MAX_PAGES];	/* 0: all zero */
	pthread_mutex_t lock;
};

static struct results *results;
static struct kmod_feed *feed;
static struct region regions[MAX_REGIONS];
static unsigned int nr_regions;
/* Each word of its pages belongs to one thread, of this process or of the others that map it. */
static uint64_t *hammer;
static uint32_t hammer_version[THREADS][HAMMER_PAGES];
static unsigned int hammer_owners = THREADS, hammer_first;
static int slow = 1, fast, faults, unexcluded, process;
static uint64_t base_pfn = 0x100000, device_pages = 131072, settle_ms = 50, seed = 1;
static const char *cgroup = "", *self = "/proc/self/exe";
static char cpuset_file[256];	/* cpuset.mems of a process whose cpuset changes */
static pthread_mutex_t cpuset_lock = PTHREAD_MUTEX_INITIALIZER;	/* no thread gives the fast node back while another looks */

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000ULL + ts.tv_nsec / 1000000;
}

static void sleep_ms(uint64_t ms)
{
	struct timespec ts = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	nanosleep(&ts, NULL);
}

static void add(uint64_t *counter, uint64_t n)
{
	__atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}

/* The first dozen things that are wrong; the counters have all. Not stdio: children of threads say things too. */
__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
	char line[256];
	va_list args;
	int n;

	if (__atomic_fetch_add(&results->said, 1, __ATOMIC_RELAXED) >= 12)
		return;
	va_start(args, format);
	n = snprintf(line, sizeof(line), "# process %d: ", process);
	n += vsnprintf(line + n, sizeof(line) - n - 1, format, args);
	va_end(args);
	if (n > (int)sizeof(line) - 2)
		n = sizeof(line) - 2;
	line[n++] = '\n';
	if (write(1, line, n) != n)
		_exit(3);
}

/* A call that has to succeed, but for want of memory while allocations are made to fail. */
static int did(int result, const char *what)
{
	if (result >= 0)
		return 1;
	if (faults && (errno == ENOMEM || errno == EAGAIN || errno == ENFILE)) {
		add(&results->refused, 1);
		return 0;
	}
	say("%s: %s", what, strerror(errno));
	add(&results->deaths, 1);
	return 0;
}

static uint64_t next(uint64_t *random)
{
	uint64_t z = *random += 0x9e3779b97f4a7c15ULL;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

static uint64_t word_of(const struct region *r, uint32_t page, uint32_t version, uint64_t word)
{
	uint64_t start = ((uint64_t)process << 48 ^ (uint64_t)r->id << 40 ^ (uint64_t)page << 24) * 0x9e3779b97f4a7c15ULL;

	return version ? (start ^ version * 0xd1b54a32d192ed03ULL) + word * 0xbf58476d1ce4e5b9ULL : 0;
}

static void fill(struct region *r, uint32_t page)
{
	uint64_t *p = r->memory + page * WORDS, w;
	uint32_t version = ++r->version[page];

	for (w = 0; w < WORDS; w++)
		p[w] = word_of(r, page, version, w);
}

static uint64_t differs(const struct region *r, uint32_t page, uint32_t version)
{
	const uint64_t *p = r->memory + page * WORDS;
	uint64_t w, bad = 0;

	for (w = 0; w < WORDS; w++)
		bad += p[w] != word_of(r, page, version, w);
	return bad;
}

static void check(struct region *r, uint32_t first, uint32_t n, const char *after)
{
	uint32_t page;

	for (page = first; page < first + n; page++) {
		uint64_t bad = differs(r, page, r->version[page]);

		if (bad) {
			say("%llu words of page %u of region %u (%s) are wrong after %s", (unsigned long long)bad, page,
			    r->id, kind_names[r->kind], after);
			add(&results->wrong, bad);
			fill(r, page);
		}
	}
	add(&results->checked, n);
}

/* Node of each page; negative: not present, or being moved. */
static int nodes_of(struct region *r, uint32_t first, uint32_t n, int *status)
{
	void *address[MAX_PAGES];
	uint32_t i;

	for (i = 0; i < n; i++) {
		address[i] = (char *)r->memory + (first + i) * PAGE;
		status[i] = -ENOENT;
	}
	return did(syscall(SYS_move_pages, 0, (unsigned long)n, address, NULL, status, 0), "move_pages: ask");
}

static void demote(struct region *r, uint32_t first, uint32_t n)
{
	int flags = r->kind == SHARED ? MPOL_MF_MOVE_ALL : MPOL_MF_MOVE;
	void *address[MAX_PAGES];
	int status[MAX_PAGES], nodes[MAX_PAGES];
	uint32_t i;

	for (i = 0; i < n; i++) {
		address[i] = (char *)r->memory + (first + i) * PAGE;
		nodes[i] = slow;
		status[i] = -1;
	}
	if (!did(syscall(SYS_move_pages, 0, (unsigned long)n, address, nodes, status, flags), "move_pages: demote"))
		return;
	for (i = 0; i < n; i++)
		add(&results->demoted, status[i] == slow);
}

/* Pages of a range that are on the fast node are where they must not be. */
static void stayed(struct region *r, uint32_t first, uint32_t n, enum kind kind, const char *why)
{
	int status[MAX_PAGES];
	uint32_t i, moved = 0;

	if (!nodes_of(r, first, n, status))
		return;
	for (i = 0; i < n; i++)
		moved += status[i] == fast;
	add(&results->asked[kind], n);
	if (!moved)
		return;
	say("%u of %u pages of region %u moved although %s", moved, n, r->id, why);
	add(&results->moved[kind], moved);
	/* So that each move is counted once. */
	demote(r, first, n);
}

/*
 * Pages that are on the slow node now stay there as long as this lasts. Others may have been on the fast node before, and
 * stayed there: a page that a child shares is not demoted.
 */
static void stays(struct region *r, uint32_t first, uint32_t n, uint64_t ms, const char *why)
{
	int before[MAX_PAGES], after[MAX_PAGES];
	uint32_t i, moved = 0;

	if (!nodes_of(r, first, n, before))
		return;
	sleep_ms(ms);
	if (!nodes_of(r, first, n, after))
		return;
	for (i = 0; i < n; i++)
		moved += before[i] == slow && after[i] == fast;
	add(&results->asked[CHANGE], n);
	if (moved)
		say("%u of %u pages of region %u moved although %s", moved, n, r->id, why);
	add(&results->moved[CHANGE], moved);
}

static int bind_range(void *at, uint64_t len, int mode, unsigned int flags)
{
	unsigned long mask = 1UL << slow;

	return syscall(SYS_mbind, at, len, mode, mode == MPOL_DEFAULT ? NULL : &mask, mode == MPOL_DEFAULT ? 0 : 64, flags);
}

static int bind_task(int mode)
{
	unsigned long mask = 1UL << slow;

	return syscall(SYS_set_mempolicy, mode, mode == MPOL_DEFAULT ? NULL : &mask, mode == MPOL_DEFAULT ? 0 : 64);
}

static int write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY), n;

	if (fd < 0)
		return -1;
	n = write(fd, text, strlen(text));
	close(fd);
	return n == (int)strlen(text) ? 0 : -1;
}

/* What is in this process' slice of the feed: its pages on the slow node. */
static void tell(void)
{
	static uint64_t entry[MAX_PAGES];
	uint64_t *slice = feed->pfn + (uint64_t)process * SLICE;
	uint32_t n = 0, i, k;
	int fd = open("/proc/self/pagemap", O_RDONLY);

	if (fd < 0)
		return;
	for (k = 0; k <= nr_regions; k++) {
		uint32_t pages = k < nr_regions ? regions[k].pages : HAMMER_PAGES;
		uint64_t *memory = k < nr_regions ? regions[k].memory : hammer;

		if (!memory || pread(fd, entry, pages * 8, (uintptr_t)memory / PAGE * 8) != (ssize_t)(pages * 8))
			continue;
		for (i = 0; i < pages && n < SLICE; i++) {
			uint64_t pfn = entry[i] & ((1ULL << 55) - 1);

			if ((entry[i] >> 63) && pfn >= base_pfn && pfn < base_pfn + device_pages)
				slice[n++] = pfn;
		}
	}
	close(fd);
	for (i = n; n && i < SLICE; i++)
		slice[i] = slice[i - n];
}

/* Something that a child does with its copy of a region; it is the only thread of its process. */
static void child(struct region *r, uint64_t random)
{
	uint32_t i, page;

	check(r, 0, r->pages, "fork");
	for (i = 0; i < 32 && r->kind != SHARED; i++) {
		page = next(&random) % r->pages;
		fill(r, page);
	}
	if (r->kind != FREE && r->kind != SHARED && r->kind != MLOCK && r->kind != PIN)
		stayed(r, 0, r->pages, r->kind, "its kind says so (in a child)");
	check(r, 0, r->pages, "a child's writes");
	if (next(&random) % 4 == 0)
		raise(SIGKILL);
	_exit(0);
}

static void reap(pid_t pid, int killed_is_fine)
{
	int status;

	if (waitpid(pid, &status, 0) != pid)
		return;
	add(&results->children, 1);
	if (WIFEXITED(status) && (WEXITSTATUS(status) == 0 || (faults && WEXITSTATUS(status) == 9)))
		return;
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && killed_is_fine)
		return;
	/* exec() that finds no memory past the point of no return ends so. */
	if (faults && WIFSIGNALED(status) && (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGSEGV))
		return;
	say("child %d ended with status 0x%x", pid, status);
	add(&results->deaths, 1);
}

static void op_fork(struct region *r, uint64_t *random)
{
	uint64_t its_random = next(random);
	pid_t pid = fork();
	uint32_t i;

	if (pid == 0)
		child(r, its_random);
	if (!did(pid, "fork"))
		return;
	/* What both map only one may write, to know what is right. */
	for (i = 0; i < 32 && r->kind != SHARED; i++)
		fill(r, next(random) % r->pages);
	check(r, 0, r->pages, "writes beside a child");
	reap(pid, 1);
}

static void op_exec(uint64_t *random)
{
	char text[32];
	pid_t pid;

	snprintf(text, sizeof(text), "%llu", (unsigned long long)next(random));
	pid = vfork();
	if (pid == 0) {
		execl(self, "kmod_storm", "child", text, (char *)NULL);
		_exit(9);
	}
	if (did(pid, "vfork"))
		reap(pid, 0);
}

static void op_unmap(struct region *r, uint32_t first, uint32_t n)
{
	char *at = (char *)r->memory + first * PAGE;
	uint32_t page;

	if (!did(munmap(at, n * PAGE), "munmap"))
		return;
	/* Nobody else's: the room belongs to the region, and who maps without an address finds it taken or free. */
	if (mmap(at, n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
		/* Only an honest failure: without its memory the region cannot go on. */
		while (mmap(at, n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
			if (!did(-1, "mmap"))
				sleep_ms(1);
	}
	for (page = first; page < first + n; page++)
		r->version[page] = 0;
	check(r, first, n, "munmap and mmap");
	for (page = first; page < first + n; page++)
		fill(r, page);
}

/* To the other half of its room. */
static void op_mremap(struct region *r)
{
	char *half = r->room + (uint64_t)r->pages * PAGE;
	char *to = (char *)r->memory == r->room ? half : r->room;
	void *got = mremap(r->memory, r->pages * PAGE, r->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	char *hole = got == MAP_FAILED ? to : (char *)r->memory;

	/* EFAULT: it is of several VMAs by now, which older kernels do not move at once. */
	if (got == MAP_FAILED && errno != EFAULT)
		did(-1, "mremap");
	/* What is left behind keeps others out of the room; a failure may have emptied the place it was for. */
	if (mmap(hole, r->pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED)
		did(-1, "mmap behind mremap");
	if (got != MAP_FAILED)
		r->memory = got;
	check(r, 0, r->pages, "mremap");
}

static void op_protect(struct region *r, uint32_t first, uint32_t n, int none)
{
	char *at = (char *)r->memory + first * PAGE;

	/* Also when it failed: half of it may have been done. */
	if (did(mprotect(at, n * PAGE, none ? PROT_NONE : PROT_READ), "mprotect") && !none)
		check(r, first, n, "mprotect to read");
	else
		sleep_ms(1);
	while (mprotect(at, n * PAGE, PROT_READ | PROT_WRITE))
		if (!did(-1, "mprotect back"))
			sleep_ms(1);
	check(r, first, n, "mprotect");
}

static void op_lock(struct region *r, uint32_t first, uint32_t n)
{
	char *at = (char *)r->memory + first * PAGE;

	if (did(mlock(at, n * PAGE), "mlock")) {
		stays(r, first, n, 5, "they are mlocked");
		check(r, first, n, "mlock");
	}
	while (munlock(at, n * PAGE))
		if (!did(-1, "munlock"))
			sleep_ms(1);
}

static void op_advise(struct region *r, uint32_t first, uint32_t n, int advice, const char *name)
{
	char *at = (char *)r->memory + first * PAGE;
	uint32_t page;

	if (madvise(at, n * PAGE, advice)) {
		/* MADV_COLLAPSE says so where there is nothing to collapse, others where the kernel lacks the feature. */
		if (errno != EINVAL && errno != EAGAIN && errno != EBUSY && errno != ENOMEM)
			did(-1, name);
		check(r, first, n, name);
		return;
	}
	if (advice == MADV_DONTNEED)
		memset(r->version + first, 0, n * sizeof(r->version[0]));
	/* Freed lazily: each page is as it was or zero as a whole, and which is known only by looking. */
	for (page = first; advice == MADV_FREE && page < first + n; page++)
		if (!differs(r, page, 0))
			r->version[page] = 0;
	check(r, first, n, name);
	if (advice == MADV_DONTNEED || advice == MADV_FREE) {
		for (page = first; page < first + n; page++)
			fill(r, page);
		check(r, first, n, "fill");
	}
}

/* A policy set on pages that may be on their way: those that were are brought back first. */
static void op_bind(struct region *r, uint32_t first, uint32_t n, int mode)
{
	char *at = (char *)r->memory + first * PAGE;
	/*
	 * Else the kernel maps the policy's nodes anew when the cpuset's change: bound to the slow node while that is the only
	 * one, a range is bound to the fast one when both are there again.
	 */
	int flags = cpuset_file[0] ? MPOL_F_STATIC_NODES : 0;

	if (did(bind_range(at, n * PAGE, mode | flags, 0), "mbind")) {
		sleep_ms(settle_ms);
		check(r, first, n, "mbind");
		demote(r, first, n);
		stays(r, first, n, settle_ms, mode == MPOL_BIND ? "they are bound now" : "they prefer the slow node now");
	}
	while (bind_range(at, n * PAGE, MPOL_DEFAULT, 0))
		if (!did(-1, "mbind to default"))
			sleep_ms(1);
}

/* A pipe that refers to the pages themselves. */
static void op_splice(struct region *r, uint32_t first, uint32_t n)
{
	struct iovec iov;
	uint64_t copy[WORDS];
	int fds[2];
	long got;
	uint32_t i, w;

	if (n > 8)
		n = 8;
	if (!did(pipe(fds), "pipe"))
		return;
	iov.iov_base = (char *)r->memory + first * PAGE;
	iov.iov_len = n * PAGE;
	got = syscall(SYS_vmsplice, fds[1], &iov, 1UL, 1 /* SPLICE_F_NONBLOCK: as many as fit */);
	if (got > 0) {
		n = got / PAGE;
		stays(r, first, n, 5, "a pipe has them");
		for (i = 0; i < n; i++) {
			uint64_t bad = 0;

			if (read(fds[0], copy, PAGE) != (ssize_t)PAGE) {
				say("vmsplice: the pipe has less than was put in");
				add(&results->deaths, 1);
				break;
			}
			for (w = 0; w < WORDS; w++)
				bad += copy[w] != word_of(r, first + i, r->version[first + i], w);
			if (bad)
				say("%llu words of a page in a pipe are wrong", (unsigned long long)bad);
			add(&results->wrong, bad);
		}
	} else {
		did(got, "vmsplice");
	}
	close(fds[0]);
	close(fds[1]);
}

static void op_cpuset(struct region *r)
{
	pthread_mutex_lock(&cpuset_lock);
	if (did(write_file(cpuset_file, slow ? "1" : "0"), "cpuset.mems: the slow node")) {
		sleep_ms(settle_ms);
		check(r, 0, r->pages, "a change of the cpuset");
		demote(r, 0, r->pages);
		stays(r, 0, r->pages, settle_ms, "their cpuset is the slow node now");
		while (write_file(cpuset_file, "0-1"))
			if (!did(-1, "cpuset.mems: both nodes"))
				sleep_ms(1);
	}
	pthread_mutex_unlock(&cpuset_lock);
}

static void operate_free(struct region *r, uint64_t *random)
{
	uint32_t n = 1 + next(random) % r->pages, first = next(random) % (r->pages - n + 1);

	switch (next(random) % 22) {
	case 0: op_fork(r, random); break;
	case 1: op_exec(random); break;
	case 2: op_unmap(r, first, n); break;
	case 3: op_mremap(r); break;
	case 4: op_protect(r, first, n, 0); break;
	case 5: op_protect(r, first, n, 1); break;
	case 6: op_lock(r, first, n); break;
	case 7: op_advise(r, first, n, MADV_DONTNEED, "MADV_DONTNEED"); break;
	case 8: op_advise(r, first, n, MADV_FREE, "MADV_FREE"); break;
	case 9: op_advise(r, first, n, MADV_COLD, "MADV_COLD"); break;
	case 10: op_advise(r, first, n, MADV_PAGEOUT, "MADV_PAGEOUT"); break;
	case 11: op_advise(r, 0, r->pages, MADV_HUGEPAGE, "MADV_HUGEPAGE"); break;
	case 12: op_advise(r, 0, r->pages, MADV_NOHUGEPAGE, "MADV_NOHUGEPAGE"); break;
	case 13:
		if (r->pages >= HUGE / PAGE)
			op_advise(r, 0, r->pages, MADV_COLLAPSE, "MADV_COLLAPSE");
		break;
	case 14: op_bind(r, first, n, next(random) % 2 ? MPOL_BIND : MPOL_PREFERRED); break;
	case 15: op_splice(r, first, n); break;
	case 16:
		if (cpuset_file[0])
			op_cpuset(r);
		break;
	default:
		demote(r, 0, r->pages);
		tell();
		check(r, first, n, "demotion");
		break;
	}
}

static void zeroed(struct region *r, uint32_t first, uint32_t n, const char *after)
{
	uint32_t page;

	memset(r->version + first, 0, n * sizeof(r->version[0]));
	check(r, first, n, after);
	for (page = first; page < first + n; page++)
		fill(r, page);
}

/* By the file: what is written there is read through the mapping, and the other way round. */
static void op_calls(struct region *r, uint32_t first, uint32_t n)
{
	uint64_t copy[WORDS], w, bad;
	uint32_t page;

	for (page = first; page < first + n; page++) {
		uint32_t version = ++r->version[page];

		for (w = 0; w < WORDS; w++)
			copy[w] = word_of(r, page, version, w);
		/* Refused for want of memory: then it may be written in part. */
		while (pwrite(r->fd, copy, PAGE, page * PAGE) != (ssize_t)PAGE)
			if (!did(-1, "pwrite"))
				sleep_ms(1);
		check(r, page, 1, "pwrite");
		fill(r, page);
		if (pread(r->fd, copy, PAGE, page * PAGE) != (ssize_t)PAGE) {
			did(-1, "pread");
			continue;
		}
		for (bad = 0, w = 0; w < WORDS; w++)
			bad += copy[w] != word_of(r, page, r->version[page], w);
		if (bad)
			say("%llu words of a page that was read by a call are wrong", (unsigned long long)bad);
		add(&results->wrong, bad);
	}
	check(r, first, n, "calls");
}

static void op_punch(struct region *r, uint32_t first, uint32_t n)
{
	if (did(fallocate(r->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(first * PAGE), (off_t)(n * PAGE)), "fallocate"))
		zeroed(r, first, n, "a hole");
}

static void op_cut(struct region *r, uint32_t first)
{
	if (did(ftruncate(r->fd, (off_t)(first * PAGE)), "ftruncate")) {
		while (ftruncate(r->fd, (off_t)(r->pages * PAGE)))
			if (!did(-1, "ftruncate back"))
				sleep_ms(1);
		zeroed(r, first, r->pages - first, "a cut");
	}
}

/* Elsewhere, part by part, so that its VMAs show parts of the file. */
static void op_map_anew(struct region *r, uint32_t first, uint32_t n)
{
	while (mmap((char *)r->memory + first * PAGE, n * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, r->fd, (off_t)(first * PAGE)) ==
	       MAP_FAILED)
		if (!did(-1, "mmap of a file"))
			sleep_ms(1);
	check(r, first, n, "mmap of a file");
}

static void operate_shared(struct region *r, uint64_t *random)
{
	uint32_t n = 1 + next(random) % r->pages, first = next(random) % (r->pages - n + 1);

	switch (next(random) % 18) {
	case 0: op_fork(r, random); break;
	case 1: op_map_anew(r, first, n); break;
	case 2: op_mremap(r); break;
	case 3: op_protect(r, first, n, 0); break;
	case 4: op_protect(r, first, n, 1); break;
	case 5: op_lock(r, first, n); break;
	case 6: op_advise(r, first, n, MADV_COLD, "MADV_COLD"); break;
	case 7: op_advise(r, first, n, MADV_PAGEOUT, "MADV_PAGEOUT"); break;
	case 8: op_bind(r, first, n, next(random) % 2 ? MPOL_BIND : MPOL_PREFERRED); break;
	case 9: op_splice(r, first, n); break;
	case 10: op_punch(r, first, n); break;
	case 11: op_cut(r, first); break;
	case 12:
	case 13: op_calls(r, first, n); break;
	default:
		demote(r, 0, r->pages);
		tell();
		check(r, first, n, "demotion");
		break;
	}
}

static void operate_kept(struct region *r, uint64_t *random)
{
	uint32_t n = 1 + next(random) % r->pages, first = next(random) % (r->pages - n + 1), i;

	switch (next(random) % 6) {
	case 0:
		/* After a fork a write makes a copy, which goes where its process' policy says: only a bound one stays. */
		if (r->kind != MLOCK && r->kind != EXCLUDED)
			op_fork(r, random);
		break;
	case 1:
		if (r->kind != PIN && r->kind != MLOCK)
			op_mremap(r);
		break;
	case 2:
		/* Likewise what comes back from swap. */
		if (r->kind != MLOCK && r->kind != EXCLUDED)
			op_advise(r, first, n, MADV_PAGEOUT, "MADV_PAGEOUT");
		break;
	case 3: op_protect(r, first, n, next(random) % 2); break;
	default:
		for (i = 0; i < 16; i++)
			fill(r, next(random) % r->pages);
		check(r, 0, r->pages, "writes");
		break;
	}
	stayed(r, 0, r->pages, r->kind, "its kind says so");
}

/* Words of the same pages that belong to different threads. */
static void hammer_step(int me, uint64_t *random)
{
	uint32_t i, w, page;
	uint64_t bad = 0;

	for (i = 0; i < 4; i++) {
		uint64_t *p;
		uint32_t *version;

		page = next(random) % HAMMER_PAGES;
		p = hammer + page * WORDS;
		version = &hammer_version[me][page];
		for (w = hammer_first + me; w < WORDS; w += hammer_owners)
			bad += __atomic_load_n(p + w, __ATOMIC_RELAXED) != (*version ? (uint64_t)*version << 32 | w << 8 | page : 0);
		++*version;
		for (w = hammer_first + me; w < WORDS; w += hammer_owners)
			__atomic_store_n(p + w, (uint64_t)*version << 32 | w << 8 | page, __ATOMIC_RELAXED);
	}
	if (bad)
		say("%llu words that two threads share pages with are wrong", (unsigned long long)bad);
	add(&results->wrong, bad);
	add(&results->checked, 4);
}

static struct region *region_new(enum kind kind, uint32_t pages)
{
	struct region *r = &regions[nr_regions];
	uint64_t len = pages * PAGE;
	uint32_t page;

	r->id = nr_regions;
	r->kind = kind;
	r->pages = pages;
	pthread_mutex_init(&r->lock, NULL);
	r->room = mmap(NULL, 2 * len + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (r->room == MAP_FAILED) {
		say("mmap: %s", strerror(errno));
		_exit(3);
	}
	r->room = (char *)(((uintptr_t)r->room + HUGE - 1) & ~(HUGE - 1));
	r->memory = (uint64_t *)r->room;
	if (kind == SHARED) {
		r->fd = memfd_create("storm", 0);
		if (r->fd < 0 || ftruncate(r->fd, (off_t)len) ||
		    mmap(r->memory, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, r->fd, 0) == MAP_FAILED) {
			say("memfd: %s", strerror(errno));
			_exit(3);
		}
	} else if (mprotect(r->memory, len, PROT_READ | PROT_WRITE)) {
		say("mprotect: %s", strerror(errno));
		_exit(3);
	}
	if (kind == BIND || kind == PREFER) {
		if (bind_range(r->memory, len, kind == BIND ? MPOL_BIND : MPOL_PREFERRED, 0)) {
			say("mbind: %s", strerror(errno));
			_exit(3);
		}
	} else if (kind != FREE && kind != SHARED) {
		bind_task(MPOL_BIND);
	}
	if (kind != FREE && kind != SHARED)
		madvise(r->memory, len, MADV_NOHUGEPAGE);
	/* Else a write beside a child that another thread has forked would make a copy, on any node. */
	if (kind == MLOCK || kind == EXCLUDED)
		madvise(r->memory, len, MADV_DONTFORK);
	if (kind == MLOCK && mlock(r->memory, len)) {
		say("mlock: %s", strerror(errno));
		_exit(3);
	}
	if (kind == PIN) {
		/* Pinned before the first word is written: from then on it never moves. */
		struct io_uring_params params = { 0 };
		struct iovec iov = { .iov_base = r->memory, .iov_len = len };
		int fd = syscall(SYS_io_uring_setup, 4, &params);

		if (fd < 0 || syscall(SYS_io_uring_register, fd, IORING_REGISTER_BUFFERS, &iov, 1)) {
			/* The test's script finds no pin in the results, and says so. */
			bind_task(MPOL_DEFAULT);
			munmap(r->memory, len);
			return NULL;
		}
		add(&results->pins, 1);
	}
	for (page = 0; page < pages; page++)
		fill(r, page);
	if (kind != FREE && kind != SHARED && kind != BIND && kind != PREFER && kind != TASK_BIND)
		bind_task(MPOL_DEFAULT);
	nr_regions++;
	return r;
}

static void *thread(void *arg)
{
	int me = (int)(intptr_t)arg;
	uint64_t random = seed * 1000003 + process * 101 + me, turns = 0;

	/* Children have it from their parents. */
	if (faults)
		write_file("/proc/thread-self/make-it-fail", "1");
	while (!results->stop) {
		struct region *r = &regions[next(&random) % nr_regions];

		pthread_mutex_lock(&r->lock);
		if (r->kind == FREE)
			operate_free(r, &random);
		else if (r->kind == SHARED)
			operate_shared(r, &random);
		else
			operate_kept(r, &random);
		pthread_mutex_unlock(&r->lock);
		hammer_step(me, &random);
		if (++turns % 16 == 0 && me == 0)
			demote(&(struct region){ .memory = hammer, .pages = HAMMER_PAGES, .kind = hammer_owners > THREADS ? SHARED : FREE }, 0,
			       HAMMER_PAGES);
		add(&results->ops, 1);
	}
	if (faults)
		write_file("/proc/thread-self/make-it-fail", "0");
	return NULL;
}

static void join(const char *group)
{
	char path[256], pid[16];

	snprintf(path, sizeof(path), "%s/%s/cgroup.procs", cgroup, group);
	snprintf(pid, sizeof(pid), "%d", getpid());
	if (write_file(path, pid)) {
		say("%s: %s", path, strerror(errno));
		_exit(3);
	}
}

enum role { MIXED, BOUND, SLOW_CPUSET, CHANGED_CPUSET, STAY, SHARER, OTHER_SHARER };

/* Of those that share it. */
static uint64_t *common;

static void run_process(enum role role)
{
	pthread_t other;
	unsigned int i;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (role == SLOW_CPUSET)
		join("slow");
	if (role == STAY)
		join("stay");
	if (role == CHANGED_CPUSET) {
		join("change");
		snprintf(cpuset_file, sizeof(cpuset_file), "%s/change/cpuset.mems", cgroup);
	}
	if (role == SHARER || role == OTHER_SHARER) {
		hammer = common;
		hammer_owners = 2 * THREADS;
		hammer_first = role == SHARER ? 0 : THREADS;
	} else {
		hammer = mmap(NULL, HAMMER_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (hammer == MAP_FAILED)
			_exit(3);
	}
	switch (role) {
	case MIXED:
		region_new(FREE, MAX_PAGES);
		for (i = 0; i < 3; i++)
			region_new(FREE, 256);
		region_new(BIND, 128);
		region_new(PREFER, 128);
		region_new(MLOCK, 64);
		region_new(PIN, 64);
		break;
	case BOUND:
		bind_task(MPOL_BIND);
		region_new(TASK_BIND, 256);
		break;
	case SLOW_CPUSET: region_new(CPUSET, 256); break;
	case STAY: region_new(EXCLUDED, 256); break;
	case CHANGED_CPUSET:
		for (i = 0; i < 2; i++)
			region_new(FREE, 256);
		break;
	case SHARER:
	case OTHER_SHARER:
		for (i = 0; i < 3; i++)
			region_new(SHARED, 256);
		break;
	}
	tell();
	/* A policy is a thread's, and what the others allocate would not be bound. */
	if (role == BOUND) {
		thread((void *)0);
	} else {
		if (pthread_create(&other, NULL, thread, (void *)1))
			_exit(3);
		thread((void *)0);
		pthread_join(other, NULL);
	}
	for (i = 0; i < nr_regions; i++) {
		check(&regions[i], 0, regions[i].pages, "all");
		if (regions[i].kind != FREE && regions[i].kind != SHARED)
			stayed(&regions[i], 0, regions[i].pages, regions[i].kind, "its kind says so (at the end)");
	}
	_exit(0);
}

/* exec()'s: memory that is short-lived, reported by the sweep only. */
static int exec_child(uint64_t random)
{
	uint64_t *p = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), i;

	if (p == MAP_FAILED)
		return 9;
	for (i = 0; i < 64 * WORDS; i += 8)
		p[i] = i ^ random;
	for (i = 0; i < 64 * WORDS; i += 8)
		if (p[i] != (i ^ random))
			return 1;
	return 0;
}

static uint64_t read_number(const char *path)
{
	char text[32] = "";
	int fd = open(path, O_RDONLY);

	if (fd < 0)
		return UINT64_MAX;
	if (read(fd, text, sizeof(text) - 1) < 0)
		text[0] = 0;
	close(fd);
	return text[0] ? strtoull(text, NULL, 10) : UINT64_MAX;
}

int main(int argc, char **argv)
{
	static const enum role roles[] = { MIXED, MIXED, MIXED, BOUND, SLOW_CPUSET, CHANGED_CPUSET, STAY, SHARER, OTHER_SHARER };
	uint64_t target = 3000, operations = 0, limit = 600, moves = 0, last = UINT64_MAX, start, said = 0, random, dead = 0;
	const char *stop_file = NULL;
	pid_t pids[sizeof(roles) / sizeof(roles[0])] = { 0 };
	unsigned int i, nr = sizeof(roles) / sizeof(roles[0]);
	int fd, n, k;

	if (argc == 3 && !strcmp(argv[1], "child"))
		return exec_child(strtoull(argv[2], NULL, 10));
	for (n = 1; n < argc; n++) {
		if (!strncmp(argv[n], "moves=", 6))
			target = strtoull(argv[n] + 6, NULL, 0);
		else if (!strncmp(argv[n], "operations=", 11))
			operations = strtoull(argv[n] + 11, NULL, 0);
		else if (!strncmp(argv[n], "seconds=", 8))
			limit = strtoull(argv[n] + 8, NULL, 0);
		else if (!strncmp(argv[n], "seed=", 5))
			seed = strtoull(argv[n] + 5, NULL, 0);
		else if (!strncmp(argv[n], "node=", 5))
			slow = atoi(argv[n] + 5);
		else if (!strncmp(argv[n], "base_pfn=", 9))
			base_pfn = strtoull(argv[n] + 9, NULL, 0);
		else if (!strncmp(argv[n], "pages=", 6))
			device_pages = strtoull(argv[n] + 6, NULL, 0);
		else if (!strncmp(argv[n], "settle_ms=", 10))
			settle_ms = strtoull(argv[n] + 10, NULL, 0);
		else if (!strncmp(argv[n], "cgroup=", 7))
			cgroup = argv[n] + 7;
		else if (!strncmp(argv[n], "stop=", 5))
			stop_file = argv[n] + 5;
		else if (!strcmp(argv[n], "faults"))
			faults = 1;
		else if (!strcmp(argv[n], "unexcluded"))
			unexcluded = 1;
		else {
			fprintf(stderr, "storm: unknown argument %s\n", argv[n]);
			return 2;
		}
	}
	fast = !slow;
	fd = open(KMOD_FEED_PATH, O_RDWR);
	feed = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*feed), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	results = mmap(NULL, sizeof(*results), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	common = mmap(NULL, HAMMER_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (feed == MAP_FAILED || results == MAP_FAILED || common == MAP_FAILED) {
		perror("storm: " KMOD_FEED_PATH);
		return 2;
	}
	/* Nothing in a slice yet: beyond the device's memory, which counts as skipped_range. */
	for (i = 0; i < (nr + 1) * SLICE; i++)
		feed->pfn[i] = 0;
	for (i = 0; i < nr; i++) {
		/* Without a folder of cgroups, the processes that would be in one are not there. */
		if (!cgroup[0] && (roles[i] == SLOW_CPUSET || roles[i] == CHANGED_CPUSET || roles[i] == STAY))
			continue;
		if (roles[i] == STAY && unexcluded)
			continue;
		process = i;
		pids[i] = fork();
		if (pids[i] == 0)
			run_process(roles[i]);
	}
	random = seed;
	start = now_ms();
	feed->count = (nr + 1) * SLICE;
	for (;;) {
		uint64_t promoted;
		pid_t gone;
		int status;

		/* Everything else of the device's memory: page tables, page cache, free pages, what dies at the moment. */
		for (i = 0; i < SLICE; i++)
			feed->pfn[nr * SLICE + i] = base_pfn + next(&random) % device_pages;
		sleep_ms(100);
		promoted = read_number("/sys/kernel/neotier/stats/promoted");
		if (promoted != UINT64_MAX) {
			moves += last == UINT64_MAX || promoted < last ? 0 : promoted - last;
			last = promoted;
		}
		if (now_ms() - start >= said) {
			printf("# %llu s: %llu moves, %llu operations\n", (unsigned long long)(now_ms() - start) / 1000,
			       (unsigned long long)moves, (unsigned long long)results->ops);
			fflush(stdout);
			said += 15000;
		}
		gone = waitpid(-1, &status, WNOHANG);
		if (gone > 0) {
			printf("# process %d ended before its time with status 0x%x\n", gone, status);
			dead++;
			for (i = 0; i < nr; i++)
				if (pids[i] == gone)
					pids[i] = 0;
		}
		if ((moves >= target && results->ops >= operations) || now_ms() - start > limit * 1000 || (stop_file && !access(stop_file, F_OK)))
			break;
	}
	results->stop = 1;
	for (i = 0; i < nr; i++) {
		int status;

		if (pids[i] && (waitpid(pids[i], &status, 0) != pids[i] || status)) {
			printf("# process %d of role %d ended with status 0x%x\n", pids[i], roles[i], status);
			dead++;
		}
	}
	feed->count = 0;
	dead += results->deaths;
	printf("storm: seed=%llu seconds=%llu moves=%llu demoted=%llu operations=%llu children=%llu pages_checked=%llu "
	       "wrong_words=%llu deaths=%llu refused=%llu pins=%llu",
	       (unsigned long long)seed, (unsigned long long)(now_ms() - start) / 1000, (unsigned long long)moves,
	       (unsigned long long)results->demoted, (unsigned long long)results->ops,
	       (unsigned long long)results->children, (unsigned long long)results->checked,
	       (unsigned long long)results->wrong, (unsigned long long)dead, (unsigned long long)results->refused,
	       (unsigned long long)results->pins);
	n = dead || results->wrong;
	for (k = BIND; k <= CHANGE; k++) {
		printf(" moved_%s=%llu asked_%s=%llu", kind_names[k], (unsigned long long)results->moved[k], kind_names[k],
		       (unsigned long long)results->asked[k]);
		n |= results->moved[k] != 0;
	}
	printf("\n");
	return n;
}

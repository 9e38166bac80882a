// SPDX-License-Identifier: Apache-2.0
/*
 * kmod_content: memory on the slow node that is written, read and checked all the time while its pages are promoted.
 *
 *	kmod_content mb=<size>|pages=<number> seconds=<time> [node=<slow node>] [cold=<MiB on the fast node first>] [sleep|touch]
 *		     [want=<pages that must have moved; 0 means none may have>] [stop=<pages: end once so many moved>]
 *		     [threads=<number>] [hot=<pages>] [policy=<bind|both|prefer|interleave|task|thread>]
 *		     [mlock] [shared] [huge] [pin] [back] [enable] [filler=<bind|prefer|mlock|pin|shared|use|map>] [coldhuge] [turn]
 *		     [quiet]
 *
 * Prints one line "content: pages=.. moved=.. errors=.. checks=.. ms=.. tlb=.. huge=.." (tlb: shootdown interrupts of the
 * machine while the pages were in use; huge: pages that are mapped as parts of huge ones in the end) and returns 0 when every word was as written and
 * `want` was met. Tells kmod_device (KMOD_FEED_PATH, when it is there) which pages are hot. sleep: touch nothing between
 * the fill and the last check. touch: a word of each page all the time, so that none seems to rest however slow the machine is. mlock, shared (with a forked child), huge (2 MiB pages), pin (registered with io_uring):
 * pages that have to stay. threads: so many threads share the pages between them. policy: once the pages are filled, what
 * their owner asks for: bind, prefer and interleave (over nodes 0 and the slow one) for the memory, task for the process,
 * thread for a second thread of it, all naming the slow node; both binds to node 0 and the slow node.
 * enable: writes 1 to /sys/kernel/neotier/enabled when the memory is ready.
 * back: once `stop` pages have moved, moves all of them to the slow node again, as a demotion would, and goes on until so
 * many have moved again. hot: of each 2 MiB only so many pages are told.
 * coldhuge: the cold memory is of 2 MiB pages, and locked small ones take what these leave free. filler: what is asked for it, or use: a thread reads all of it over and over, or
 * map: a thread changes what else is mapped. It is checked in the end as well, and "gone" in the line are its pages that have
 * left node 0. turn: once `stop` pages have moved, tells the pages of the cold
 * memory that have left instead, until SIGTERM: for each that comes back another one may leave. quiet: tells nothing.
 * SIGTERM: as if the time were over, once the memory is ready.
 */
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include "kmod_feed.h"

#define PAGE 4096UL
#define HUGE (2UL << 20)
#define WORDS (PAGE / sizeof(uint64_t))
#define MPOL_DEFAULT 0
#define MPOL_PREFERRED 1
#define MPOL_BIND 2
#define MPOL_INTERLEAVE 3
#define THREADS_MAX 64
/* What one io_uring buffer may hold. */
#define PIN_MAX (1UL << 30)
/* Bytes that fill what huge pages leave free at most, and pages of which none finds room where nothing is left. */
#define PLUG_MAX (256UL << 20)
#define PLUG_STEP 256UL

static volatile sig_atomic_t ended;

static void on_term(int number)
{
	(void)number;
	ended = 1;
}

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

/* Tells the device's stand-in which of our pages are on the slow node now; of each 2 MiB the first `hot`. */
static void tell(struct kmod_feed *feed, const uint64_t *memory, uint64_t pages, uint64_t hot, uint64_t base_pfn)
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

		if ((entry[i] >> 63) && pfn >= base_pfn && i % (HUGE / PAGE) < hot)
			feed->pfn[n++] = pfn;
	}
	feed->count = n;
}

static void bind_memory(void *memory, uint64_t bytes, int mode, unsigned long mask)
{
	if (syscall(SYS_mbind, memory, bytes, mode, &mask, 64, 0)) {
		perror("content: mbind");
		exit(2);
	}
}

static void *bound_thread(void *node)
{
	policy(MPOL_BIND, *(int *)node);
	for (;;)
		pause();
	return NULL;
}

static void set_policy(const char *name, void *memory, uint64_t bytes, int node)
{
	static int bound;
	pthread_t thread;

	if (!strcmp(name, "bind")) {
		bind_memory(memory, bytes, MPOL_BIND, 1UL << node);
	} else if (!strcmp(name, "both")) {
		bind_memory(memory, bytes, MPOL_BIND, 1UL << node | 1);
	} else if (!strcmp(name, "prefer")) {
		bind_memory(memory, bytes, MPOL_PREFERRED, 1UL << node);
	} else if (!strcmp(name, "interleave")) {
		bind_memory(memory, bytes, MPOL_INTERLEAVE, 1UL << node | 1);
	} else if (!strcmp(name, "task")) {
		policy(MPOL_BIND, node);
	} else if (!strcmp(name, "thread")) {
		bound = node;
		if (pthread_create(&thread, NULL, bound_thread, &bound)) {
			fprintf(stderr, "content: no thread\n");
			exit(2);
		}
		usleep(100000);
	} else {
		fprintf(stderr, "content: unknown policy %s\n", name);
		exit(2);
	}
}

struct filler {
	uint64_t *memory, pages;
	volatile int *stop;
};

static void touch_all(const volatile uint64_t *memory, uint64_t pages)
{
	uint64_t page;

	for (page = 0; page < pages; page++)
		(void)memory[page * WORDS];
}

static void *use_filler(void *arg)
{
	struct filler *filler = arg;

	while (!*filler->stop)
		touch_all(filler->memory, filler->pages);
	return NULL;
}

/* Changes what the process maps all the time. */
static void *map_filler(void *arg)
{
	struct filler *filler = arg;

	while (!*filler->stop) {
		void *memory = mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

		if (memory != MAP_FAILED)
			munmap(memory, HUGE);
	}
	return NULL;
}

/*
 * Huge pages leave what is free in smaller pieces, and how much that is nobody knows: it is taken by small pages that are
 * locked, so that nothing but the cold memory can make room.
 */
static void plug(void)
{
	char *memory = mmap(NULL, PLUG_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t at = 0, page;

	if (memory == MAP_FAILED) {
		perror("content: mmap plug");
		exit(2);
	}
	madvise(memory, PLUG_MAX, MADV_NOHUGEPAGE);
	do {
		if (at == PLUG_MAX) {
			fprintf(stderr, "content: node 0 does not fill\n");
			exit(2);
		}
		for (page = 0; page < PLUG_STEP; page++)
			memory[at + page * PAGE] = 1;
		at += PLUG_STEP * PAGE;
	} while (count_moved((uint64_t *)(memory + at - PLUG_STEP * PAGE), PLUG_STEP, 0) < PLUG_STEP);
	munmap(memory + at, PLUG_MAX - at);
	if (mlock(memory, at)) {
		perror("content: mlock plug");
		exit(2);
	}
}

static void fill_cold(struct filler *filler, uint64_t mb, int huge)
{
	uint64_t page;

	filler->pages = mb << 8;
	filler->memory = mmap(NULL, (mb << 20) + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (filler->memory == MAP_FAILED) {
		perror("content: mmap cold");
		exit(2);
	}
	filler->memory = (uint64_t *)(((uintptr_t)filler->memory + HUGE - 1) & ~(HUGE - 1));
	madvise(filler->memory, mb << 20, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	policy(MPOL_PREFERRED, 0);
	for (page = 0; page < filler->pages; page++)
		filler->memory[page * WORDS + page % WORDS] = word_of(page, 0, 1);
	if (huge)
		plug();
	policy(MPOL_DEFAULT, 0);
}

static uint64_t check_cold(const struct filler *filler)
{
	uint64_t page, errors = 0;

	for (page = 0; page < filler->pages; page++)
		errors += filler->memory[page * WORDS + page % WORDS] != word_of(page, 0, 1);
	return errors;
}

/* Long-term pins, as a driver or RDMA takes them; they last as long as the process. */
static void pin_memory(void *memory, uint64_t bytes)
{
	struct io_uring_params params = { 0 };
	struct iovec buffer = { memory, bytes };
	int ring = syscall(SYS_io_uring_setup, 1, &params);

	if (ring < 0 || bytes > PIN_MAX || syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffer, 1)) {
		perror("content: io_uring");
		exit(2);
	}
}

static void keep_cold(struct filler *filler, const char *how)
{
	static pthread_t thread;
	uint64_t bytes = filler->pages * PAGE;

	if (!strcmp(how, "bind"))
		bind_memory(filler->memory, bytes, MPOL_BIND, 1);
	else if (!strcmp(how, "prefer"))
		bind_memory(filler->memory, bytes, MPOL_PREFERRED, 1);
	else if (!strcmp(how, "pin"))
		pin_memory(filler->memory, bytes);
	else if (!strcmp(how, "mlock") ? mlock(filler->memory, bytes) :
		 !strcmp(how, "use") ? pthread_create(&thread, NULL, use_filler, filler) :
		 !strcmp(how, "map") ? pthread_create(&thread, NULL, map_filler, filler) : strcmp(how, "shared")) {
		fprintf(stderr, "content: filler=%s cannot be had\n", how);
		exit(2);
	}
}

/* TLB shootdown interrupts of all CPUs since boot. */
static uint64_t shootdowns(void)
{
	FILE *file = fopen("/proc/interrupts", "r");
	uint64_t sum = 0;
	char line[4096];

	while (file && fgets(line, sizeof(line), file)) {
		char *at = strstr(line, "TLB:"), *end;

		if (!at)
			continue;
		for (at += 4;; at = end) {
			uint64_t n = strtoull(at, &end, 10);

			if (end == at)
				break;
			sum += n;
		}
	}
	if (file)
		fclose(file);
	return sum;
}

/* Pages of huge ones in the mapping that the memory is in. */
static uint64_t count_huge(const void *memory)
{
	FILE *file = fopen("/proc/self/smaps", "r");
	unsigned long first, last, kb;
	uint64_t pages = 0;
	int ours = 0;
	char line[512];

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%lx-%lx ", &first, &last) == 2)
			ours = (uintptr_t)memory >= first && (uintptr_t)memory < last;
		else if (ours && sscanf(line, "AnonHugePages: %lu kB", &kb) == 1)
			pages = kb * 1024 / PAGE;
	}
	if (file)
		fclose(file);
	return pages;
}

struct worker {
	pthread_t thread;
	uint64_t *memory, *version, pages, errors, checks;
	uint32_t random;
	unsigned int first, step;	/* pages first, first + step, ... are this worker's */
	int read_only;
	volatile int *stop;
};

static void work(struct worker *w)
{
	uint64_t page, own = (w->pages - w->first + w->step - 1) / w->step;
	int n;

	for (n = 0; n < 64; n++) {
		w->random = w->random * 1664525 + 1013904223;
		page = (w->random >> 8) % own * w->step + w->first;
		w->errors += check(w->memory, page, w->version[page]);
		if (!w->read_only)
			fill(w->memory, page, ++w->version[page]);
		w->checks++;
	}
}

static void *work_thread(void *arg)
{
	struct worker *w = arg;

	while (!*w->stop)
		work(w);
	return NULL;
}

int main(int argc, char **argv)
{
	static struct worker worker[THREADS_MAX];
	const char *asked = NULL, *keep = NULL;
	static struct filler filler;
	unsigned long threads = 1, t;
	volatile int end = 0;
	int pin = 0;
	uint64_t mb = 16, seconds = 5, cold = 0, pages = 0, page, errors = 0, checks = 0, moved, start, told, looked, tlb, *memory, *version;
	uint64_t base_pfn = 0x100000, stop = 0, hot = HUGE / PAGE;
	long want = -1;
	uint64_t left = 0;
	int turn = 0, quiet = 0;
	int node = 1, n, idle = 0, touch = 0, back = 0, enable = 0, locked = 0, shared = 0, huge = 0, cold_huge = 0, fd;
	struct kmod_feed *feed = NULL;

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
		else if (!strncmp(argv[n], "threads=", 8))
			threads = strtoul(argv[n] + 8, NULL, 0);
		else if (!strncmp(argv[n], "hot=", 4))
			hot = strtoull(argv[n] + 4, NULL, 0);
		else if (!strncmp(argv[n], "policy=", 7))
			asked = argv[n] + 7;
		else if (!strncmp(argv[n], "base_pfn=", 9))
			base_pfn = strtoull(argv[n] + 9, NULL, 0);
		else if (!strncmp(argv[n], "filler=", 7))
			keep = argv[n] + 7;
		else if (!strcmp(argv[n], "turn"))
			turn = 1;
		else if (!strcmp(argv[n], "quiet"))
			quiet = 1;
		else if (!strcmp(argv[n], "sleep"))
			idle = 1;
		else if (!strcmp(argv[n], "touch"))
			touch = 1;
		else if (!strcmp(argv[n], "enable"))
			enable = 1;
		else if (!strcmp(argv[n], "back"))
			back = 1;
		else if (!strcmp(argv[n], "mlock"))
			locked = 1;
		else if (!strcmp(argv[n], "shared"))
			shared = 1;
		else if (!strcmp(argv[n], "coldhuge"))
			cold_huge = 1;
		else if (!strcmp(argv[n], "huge"))
			huge = 1;
		else if (!strcmp(argv[n], "pin"))
			pin = 1;
		else {
			fprintf(stderr, "content: unknown argument %s\n", argv[n]);
			return 2;
		}
	}
	if (threads < 1 || threads > THREADS_MAX) {
		fprintf(stderr, "content: threads=%lu: 1 to %d\n", threads, THREADS_MAX);
		return 2;
	}
	signal(SIGTERM, on_term);
	fd = open(KMOD_FEED_PATH, O_RDWR);
	if (fd >= 0)
		feed = mmap(NULL, sizeof(*feed), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (feed == MAP_FAILED || quiet)
		feed = NULL;

	filler.stop = &end;
	if (cold)
		fill_cold(&filler, cold, cold_huge);
	if (cold && keep)
		keep_cold(&filler, keep);
	/* Of the cold memory, what found no room on node 0. */
	left = count_moved(filler.memory, filler.pages, 0);

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
	if (asked)
		set_policy(asked, memory, pages * PAGE, node);
	if (pin)
		pin_memory(memory, pages * PAGE);
	if (locked && mlock(memory, pages * PAGE)) {
		perror("content: mlock");
		return 2;
	}
	if ((shared || (keep && !strcmp(keep, "shared"))) && fork() == 0) {
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
	for (t = 0; t < threads; t++) {
		worker[t] = (struct worker){ .memory = memory, .version = version, .pages = pages, .random = t + 1,
					     /* A write would give us a page of our own. */
					     .first = t, .step = threads, .read_only = shared, .stop = &end };
		if (t && !idle && pthread_create(&worker[t].thread, NULL, work_thread, &worker[t])) {
			fprintf(stderr, "content: no thread\n");
			return 2;
		}
	}
	tlb = shootdowns();
	start = now_ms();
	told = 0;
	looked = 0;
	moved = 0;
	do {
		if (feed && now_ms() - told > 200) {
			if (turn == 2)
				tell(feed, filler.memory, filler.pages, HUGE / PAGE, base_pfn);
			else
				tell(feed, memory, pages, hot, base_pfn);
			told = now_ms();
		}
		if (stop && turn < 2 && now_ms() - looked > 20) {
			looked = now_ms();
			moved = count_moved(memory, pages, node);
			if (moved >= stop && turn) {
				turn = 2;
				told = 0;
			} else if (moved >= stop && back) {
				move_back(memory, pages, node);
				back = 0;
				told = 0;
			} else if (moved >= stop) {
				break;
			}
		}
		if (idle) {
			usleep(2000);
			continue;
		}
		if (touch)
			touch_all(memory, pages);
		else
			work(&worker[0]);
	} while (!ended && now_ms() - start < seconds * 1000);
	start = now_ms() - start;
	tlb = shootdowns() - tlb;
	end = 1;
	for (t = 0; t < threads; t++) {
		if (t && !idle)
			pthread_join(worker[t].thread, NULL);
		errors += worker[t].errors;
		checks += worker[t].checks;
	}

	moved = count_moved(memory, pages, node);
	if (feed)
		feed->count = 0;
	for (page = 0; page < pages; page++)
		errors += check(memory, page, version[page]);
	errors += check_cold(&filler);
	printf("content: pages=%llu moved=%llu errors=%llu checks=%llu ms=%llu tlb=%llu huge=%llu gone=%lld\n", (unsigned long long)pages,
	       (unsigned long long)moved, (unsigned long long)errors, (unsigned long long)checks,
	       (unsigned long long)start, (unsigned long long)tlb, (unsigned long long)count_huge(memory),
	       (long long)(count_moved(filler.memory, filler.pages, 0) - left));
	if (errors || (want == 0 && moved) || (want > 0 && moved < (uint64_t)want))
		return 1;
	return 0;
}

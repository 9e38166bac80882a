// SPDX-License-Identifier: Apache-2.0
/*
 * hot_pages: memory on a slow node, of which some pages are read again and again and the others hardly ever; the program
 * knows which, checks each word it reads and all of them at the end.
 *
 *	hot_pages pages=<n> hot=<n> seconds=<n> [want=<pages>] [node=<slow node>] [trace=1]
 *
 * Prints "hot PFN" for each hot page before it reads any, "ready", waits for the module, has its promotions traced if
 * asked to, reads until `want` pages (default: nine tenths of the hot ones) have moved or `seconds` of its clock have
 * passed, then one line "hot_pages: moved=.. errors=.." Returns 0 when every word was as written and enough pages had
 * moved.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define WORDS (PAGE / 8)
#define MPOL_DEFAULT 0
#define MPOL_BIND 2

static uint64_t pages, hot_pages, *memory;

static void die(const char *what)
{
	perror(what);
	exit(2);
}

static uint64_t word_of(uint64_t at)
{
	at = (at ^ at >> 31) * 0x9e3779b97f4a7c15ULL;
	return (at ^ at >> 29) * 0xbf58476d1ce4e5b9ULL;
}

static double seconds_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t random_next(void)
{
	static uint64_t state = 88172645463325252ULL;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/* Hot pages lie all over the memory, so that they lie on every device of an interleave. */
static uint64_t hot_page(uint64_t n)
{
	return n * pages / hot_pages + word_of(n) % (pages / hot_pages);
}

static void print_pfns(void)
{
	int fd = open("/proc/self/pagemap", O_RDONLY);

	if (fd < 0)
		die("hot_pages: pagemap");
	for (uint64_t n = 0; n < hot_pages; n++) {
		uint64_t entry;

		if (pread(fd, &entry, 8, (off_t)((uintptr_t)memory / PAGE + hot_page(n)) * 8) != 8)
			die("hot_pages: pagemap");
		printf("hot %llu\n", (unsigned long long)(entry & ((1ULL << 55) - 1)));
	}
	close(fd);
}

static void write_one(const char *path)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || write(fd, "1", 1) != 1)
		die(path);
	close(fd);
}

static uint64_t count_moved(int node)
{
	uint64_t moved = 0;

	for (uint64_t n = 0; n < hot_pages; n++) {
		void *address = memory + hot_page(n) * WORDS;
		int status = node;

		if (syscall(SYS_move_pages, 0, 1UL, &address, NULL, &status, 0))
			die("hot_pages: move_pages");
		moved += status >= 0 && status != node;
	}
	return moved;
}

static uint64_t argument(int argc, char **argv, const char *name, uint64_t value)
{
	size_t length = strlen(name);

	for (int i = 1; i < argc; i++)
		if (!strncmp(argv[i], name, length) && argv[i][length] == '=')
			value = strtoull(argv[i] + length + 1, NULL, 0);
	return value;
}

int main(int argc, char **argv)
{
	int node = (int)argument(argc, argv, "node", 1);
	unsigned long mask = 1UL << node;
	double limit = (double)argument(argc, argv, "seconds", 5), start;
	uint64_t want, moved = 0, errors = 0, sum = 0;

	pages = argument(argc, argv, "pages", 2048);
	hot_pages = argument(argc, argv, "hot", 512);
	want = argument(argc, argv, "want", hot_pages * 9 / 10);
	if (!hot_pages || pages < hot_pages) {
		fprintf(stderr, "hot_pages: hot must be 1 to pages\n");
		return 2;
	}
	if (syscall(SYS_set_mempolicy, MPOL_BIND, &mask, 8 * sizeof(mask)))
		die("hot_pages: set_mempolicy");
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		die("hot_pages: mmap");
	madvise(memory, pages * PAGE, MADV_NOHUGEPAGE);
	for (uint64_t at = 0; at < pages * WORDS; at++)
		memory[at] = word_of(at);
	if (syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0))
		die("hot_pages: set_mempolicy");
	print_pfns();
	puts("ready");
	fflush(stdout);
	usleep(300000);
	if (argument(argc, argv, "trace", 0))
		write_one("/sys/kernel/tracing/events/neotier/neotier_promote_page/enable");
	write_one("/sys/kernel/neotier/enabled");
	start = seconds_now();
	do {
		for (int i = 0; i < 100000; i++) {
			uint64_t random = random_next();
			uint64_t page = random % 128 ? hot_page((random >> 20) % hot_pages) : (random >> 20) % pages;
			uint64_t at = page * WORDS + (random >> 8) % WORDS / 8 * 8;

			sum += memory[at];
			errors += memory[at] != word_of(at);
		}
		moved = count_moved(node);
	} while (moved < want && seconds_now() - start < limit);
	for (uint64_t at = 0; at < pages * WORDS; at++)
		errors += memory[at] != word_of(at);
	printf("hot_pages: moved=%llu errors=%llu sum=%llx\n", (unsigned long long)moved, (unsigned long long)errors,
	       (unsigned long long)sum);
	return errors || moved < want;
}

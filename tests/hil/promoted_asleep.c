// SPDX-License-Identifier: Apache-2.0
/*
 * Has pages promoted while it sleeps, between the marks `asleep` and `awake`: what the machine does then is the module's
 * work. Before, the quota holds the pages back. It ends with the work, as an idle machine's time passes too.
 * Prints what the module says of that time: pages, promote_ns, and reports that it read.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "neotier/mark.h"

#define SYS_DIR "/sys/kernel/neotier/"
#define PAGE 4096UL
#define PAGES 4096UL	/* twice the last-level cache, so that each access to one reaches memory */
#define WAITING 500L	/* the module reads no more reports while so many wait */
#define PROMOTED 500L	/* as many wait at least: the machine does not idle before they are moved */
#define STEP_US 1000
#define BIND 2	/* MPOL_BIND */

static long number(const char *name)
{
	char path[128];
	long value = -1;
	FILE *file;

	snprintf(path, sizeof(path), SYS_DIR "stats/%s", name);
	file = fopen(path, "r");
	if (!file || fscanf(file, "%ld", &value) != 1) {
		fprintf(stderr, "promoted_asleep: cannot read %s\n", path);
		exit(1);
	}
	fclose(file);
	return value;
}

static void knob(const char *name, const char *value)
{
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), SYS_DIR "%s", name);
	file = fopen(path, "w");
	if (!file || fputs(value, file) < 0 || fclose(file)) {
		fprintf(stderr, "promoted_asleep: cannot write %s\n", path);
		exit(1);
	}
}

/* Sleeps until so many pages were promoted in all. The module lets others run between two batches. */
static long promoted_wait(long pages)
{
	long promoted;
	int step = 0;

	while ((promoted = number("promoted")) < pages) {
		if (step++ == 2000) {
			fprintf(stderr, "promoted_asleep: %ld pages promoted, not %ld\n", promoted, pages);
			exit(1);
		}
		usleep(STEP_US);
	}
	return promoted;
}

int main(void)
{
	struct neotier_marker marker = neotier_marker_open();
	unsigned long node1 = 2;
	volatile unsigned char *memory;
	long reports, pages, ns;
	int rounds;

	knob("quota_mb_per_s", "0");
	/* In what is measured nothing is decided, and the module does not sleep before it begins. */
	knob("decide_interval_ms", "10000");
	knob("period_us", "100");
	/* Filled under a policy that is gone afterwards: memory that is bound stays where it is. */
	if (syscall(SYS_set_mempolicy, BIND, &node1, 8 * sizeof(node1))) {
		perror("promoted_asleep: set_mempolicy");
		return 1;
	}
	memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		perror("promoted_asleep: mmap");
		return 1;
	}
	for (unsigned long i = 0; i < PAGES; i++)
		memory[i * PAGE] = 1;
	if (syscall(SYS_set_mempolicy, 0, NULL, 0)) {
		perror("promoted_asleep: set_mempolicy");
		return 1;
	}
	for (rounds = 0; number("skipped_quota") < WAITING; rounds++) {
		if (rounds == 40) {
			fprintf(stderr, "promoted_asleep: no pages wait for the quota\n");
			return 1;
		}
		for (unsigned long i = 0; i < PAGES * PAGE; i += 64)
			memory[i]++;
	}
	pages = number("promoted");
	ns = number("promote_ns");
	reports = number("drained") + number("discarded");
	/* First the mark: the module may begin before the knob's writer goes on. */
	neotier_mark_phase(&marker, "asleep");
	knob("quota_mb_per_s", "1024");
	pages = promoted_wait(pages + PROMOTED) - pages;
	ns = number("promote_ns") - ns;
	reports = number("drained") + number("discarded") - reports;
	neotier_mark_phase(&marker, "awake");
	printf("%ld pages, %ld ns, %ld reports\n", pages, ns, reports);
	return 0;
}

// SPDX-License-Identifier: Apache-2.0
/*
 * What a program of the emulated machine sees of time. It sleeps for 200 ms, and then waits for memory: how long that took by its
 * clock, how often a timer of 1 ms came, and by how much the latest was late. "NS TIMES LATEST_NS".
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

#define LINES (32u << 20 >> 6)
#define STEPS 1000000u
#define PERIOD_NS 1000000ull

static struct { uint32_t next, pad[15]; } *lines;
static volatile uint64_t start_ns, times, latest_ns;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void came(int signal)
{
	uint64_t late = now_ns() - start_ns - (times + 1) * PERIOD_NS;

	(void)signal;
	times++;
	if (late > latest_ns)
		latest_ns = late;
}

int main(void)
{
	const struct itimerval each = { { 0, PERIOD_NS / 1000 }, { 0, PERIOD_NS / 1000 } };
	uint32_t at = 0;

	lines = aligned_alloc(64, (size_t)LINES * 64);
	if (!lines)
		return 1;
	/* A full period of all lines, each far from the last. */
	for (uint32_t i = 0; i < LINES; i++)
		lines[i].next = (i * 1664525u + 1013904223u) % LINES;
	nanosleep(&(struct timespec){ 0, 200000000 }, NULL);
	signal(SIGALRM, came);
	start_ns = now_ns();
	if (setitimer(ITIMER_REAL, &each, NULL))
		return 1;
	for (uint32_t step = 0; step < STEPS; step++)
		at = lines[at].next;
	start_ns = now_ns() - start_ns;
	printf("%llu %llu %llu\n", (unsigned long long)start_ns, (unsigned long long)times, (unsigned long long)latest_ns);
	return at == UINT32_MAX;
}

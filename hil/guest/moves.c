/* SPDX-License-Identifier: GPL-2.0-or-later */
#define _GNU_SOURCE
#include "moves.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "stats.h"

#define MAX_MOVES 32
#define PERIOD_NS 100000000ull

/* Files stay open: half the cost of a sample. */
static struct {
	bool promoted;
	char key[64];
	char vmstat[64]; /* "\nNAME " in /proc/vmstat, or empty: */
	int fd;          /* file that holds the number */
} move[MAX_MOVES];
static int moves;
static int vmstat_fd = -1;
static uint64_t told_ns;

void moves_add(bool promoted, const char *key, const char *stats)
{
	const char *dot = strchr(key, '.');
	char path[PATH_MAX];

	if (moves == MAX_MOVES || !dot)
		return;
	move[moves].promoted = promoted;
	snprintf(move[moves].key, sizeof move[moves].key, "%s", key);
	move[moves].vmstat[0] = 0;
	move[moves].fd = -1;
	if (!strncmp(key, "vmstat.", 7)) {
		snprintf(move[moves].vmstat, sizeof move[moves].vmstat, "\n%s ", dot + 1);
		if (vmstat_fd < 0)
			vmstat_fd = open("/proc/vmstat", O_RDONLY | O_CLOEXEC);
	} else if (stats) {
		snprintf(path, sizeof path, "%s/%s", stats, dot + 1);
		move[moves].fd = open(path, O_RDONLY | O_CLOEXEC);
	}
	moves++;
}

static const char *read_at(int fd, char *text, size_t size)
{
	ssize_t n, all = 0;

	while (fd >= 0 && (size_t)all < size - 1 && (n = pread(fd, text + all, size - 1 - (size_t)all, all)) > 0)
		all += n;
	text[all] = 0;
	return text;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void tell(volatile struct neotier_mailbox *mailbox, const uint64_t total[2])
{
	mailbox->arg[3] = (total[0] & 0xffffffffu) | total[1] << 32;
	NEOTIER_MARK_OP(NEOTIER_OP_MOVED);
	told_ns = now_ns();
}

void moves_tell_read(volatile struct neotier_mailbox *mailbox, bool begin)
{
	uint64_t total[2] = { 0, 0 };

	if (!moves)
		return;
	for (int i = 0; i < moves; i++)
		total[move[i].promoted ? 0 : 1] += (uint64_t)stats_value(move[i].key, begin);
	tell(mailbox, total);
}

void moves_tell_if_due(volatile struct neotier_mailbox *mailbox)
{
	static char vmstat[32768];
	uint64_t total[2] = { 0, 0 };
	char text[64];

	if (!moves || now_ns() - told_ns < PERIOD_NS)
		return;
	read_at(vmstat_fd, vmstat, sizeof vmstat);
	for (int i = 0; i < moves; i++) {
		uint64_t value = 0;

		if (move[i].vmstat[0]) {
			const char *line = strstr(vmstat, move[i].vmstat);

			if (line)
				value = strtoull(line + strlen(move[i].vmstat), NULL, 10);
		} else {
			value = strtoull(read_at(move[i].fd, text, sizeof text), NULL, 10);
		}
		total[move[i].promoted ? 0 : 1] += value;
	}
	tell(mailbox, total);
}

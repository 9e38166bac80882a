/* SPDX-License-Identifier: GPL-2.0-or-later */
#define _GNU_SOURCE
#include "stats.h"

#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guest.h"

#define MAX_STATS 512
#define MAX_SOURCES 8

static struct {
	char name[96];
	int64_t begin, last;
} stat[MAX_STATS];
static int stat_count;
static char *report_at, *report_end;

static struct {
	char name[32];
	const char *directory;
} source[MAX_SOURCES];
static int sources;
static const char *asked[MAX_SOURCES];
static int asks;

void stats_add(const char *text)
{
	const char *space = strchr(text, ' ');

	if (!space || (size_t)(space - text) >= sizeof source[0].name || sources == MAX_SOURCES)
		fail("bad stats '%s' in /neotier.conf, or too many", text);
	memcpy(source[sources].name, text, (size_t)(space - text));
	source[sources++].directory = space + 1;
}

void stats_ask(const char *setting)
{
	if (asks == MAX_SOURCES)
		fail("too many ask lines in /neotier.conf");
	asked[asks++] = setting;
}

const char *stats_directory(const char *key)
{
	for (int i = 0; i < sources; i++) {
		size_t n = strlen(source[i].name);

		if (!strncmp(key, source[i].name, n) && key[n] == '.')
			return source[i].directory;
	}
	return NULL;
}

static int find_stat(const char *name)
{
	int i = 0;

	while (i < stat_count && strcmp(stat[i].name, name))
		i++;
	return i;
}

int64_t stats_value(const char *key, bool begin)
{
	int i = find_stat(key);

	if (i == stat_count)
		return 0;
	return begin ? stat[i].begin : stat[i].last;
}

static void stat_line(const char *name, int64_t value, bool begin)
{
	int at = find_stat(name);

	if (at == stat_count && at < MAX_STATS)
		snprintf(stat[stat_count++].name, sizeof stat[0].name, "%s", name);
	if (begin) {
		if (at < MAX_STATS)
			stat[at].begin = value;
		return;
	}
	if (at < MAX_STATS) {
		stat[at].last = value;
		value -= stat[at].begin;
	}
	size_t left = (size_t)(report_end - report_at);
	int n = snprintf(report_at, left, "%s %lld\n", name, (long long)value);

	if (n > 0 && (size_t)n < left)
		report_at += n;
	else
		*report_at = 0;
}

static void read_vmstat(bool begin)
{
	static const char *const wanted[] = { "pgpromote_", "pgdemote_", "numa_", "pgmigrate_", "pgfault", "pgmajfault",
					      "oom_kill", "thp_fault_alloc", "thp_split_page ", "kswapd_", "pgsteal_",
					      "pgscan_" };
	static char text[65536];
	char *at;

	if (!read_file("/proc/vmstat", text, sizeof text))
		return;
	for (char *line = strtok_r(text, "\n", &at); line; line = strtok_r(NULL, "\n", &at)) {
		for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
			if (strncmp(line, wanted[i], strlen(wanted[i])))
				continue;
			char *space = strchr(line, ' ');
			char name[96];

			if (!space)
				break;
			snprintf(name, sizeof name, "vmstat.%.*s", (int)(space - line), line);
			stat_line(name, strtoll(space + 1, NULL, 10), begin);
			break;
		}
	}
}

static void read_directory(const char *name, const char *directory, bool begin)
{
	DIR *d = opendir(directory);
	struct dirent *entry;

	while (d && (entry = readdir(d))) {
		char path[PATH_MAX], text[256], key[96], *end;

		snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
		if (entry->d_type != DT_REG || !read_file(path, text, sizeof text))
			continue;
		int64_t value = strtoll(text, &end, 10);

		if (end == text)
			continue;
		snprintf(key, sizeof key, "%s.%.60s", name, entry->d_name);
		stat_line(key, value, begin);
	}
	if (d)
		closedir(d);
}

void stats_read(volatile struct neotier_mailbox *mailbox, bool begin)
{
	report_at = (char *)mailbox->report;
	report_end = report_at + NEOTIER_REPORT_BYTES;
	if (begin)
		stat_count = 0;
	for (int i = 0; i < asks; i++)
		write_setting(asked[i]);
	read_vmstat(begin);
	for (int i = 0; i < sources; i++)
		read_directory(source[i].name, source[i].directory, begin);
}

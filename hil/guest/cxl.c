/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A CXL region made by hand, as an administrator's tool would: decoder mode and capacity of each device, then the region's
 * interleave, size and targets, then commit. Kernel documentation: ABI/testing/sysfs-bus-cxl.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "guest.h"

#define CXL "/sys/bus/cxl/devices"
#define ROOT_DECODER "decoder0.0"
#define WAIT_MS 20000

struct endpoint {
	char decoder[64];
	uint64_t serial, bytes;
};

static bool get_text(char *text, size_t size, const char *device, const char *file)
{
	char path[PATH_MAX];

	snprintf(path, sizeof path, CXL "/%s/%s", device, file);
	if (!read_file(path, text, size))
		return false;
	text[strcspn(text, "\n")] = 0;
	return true;
}

static uint64_t get_number(const char *device, const char *file)
{
	char text[64], *end;

	if (!get_text(text, sizeof text, device, file))
		fail("cannot read " CXL "/%s/%s: %s", device, file, strerror(errno));
	uint64_t value = strtoull(text, &end, 0);

	if (end == text || *end)
		fail(CXL "/%s/%s holds '%s', no number", device, file, text);
	return value;
}

static void put(const char *device, const char *file, const char *text)
{
	char path[PATH_MAX];

	snprintf(path, sizeof path, CXL "/%s/%s", device, file);
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		fail("cannot write '%s' to %s: %s", text, path, strerror(errno));
	close(fd);
}

static void put_number(const char *device, const char *file, uint64_t value)
{
	char text[32];

	snprintf(text, sizeof text, "%llu", (unsigned long long)value);
	put(device, file, text);
}

static void sleep_ms(long ms)
{
	struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

static int by_serial(const void *a, const void *b)
{
	const struct endpoint *x = a, *y = b;

	return (x->serial > y->serial) - (x->serial < y->serial);
}

/* Every endpoint port, with its first decoder and the memory device it leads to; sorted by serial number. */
static unsigned int find_endpoints(struct endpoint *found)
{
	DIR *devices = opendir(CXL);
	struct dirent *entry;
	unsigned int n = 0;

	while (devices && n < NEOTIER_DEVICES && (entry = readdir(devices))) {
		char path[PATH_MAX], target[PATH_MAX], memdev[64];
		unsigned int port;

		if (sscanf(entry->d_name, "endpoint%u", &port) != 1)
			continue;
		snprintf(found[n].decoder, sizeof found[n].decoder, "decoder%u.0", port);
		snprintf(path, sizeof path, CXL "/%s", found[n].decoder);
		if (access(path, F_OK))
			continue;
		snprintf(path, sizeof path, CXL "/%s/uport", entry->d_name);
		ssize_t length = readlink(path, target, sizeof target - 1);
		if (length <= 0)
			continue;
		target[length] = 0;
		const char *name = strrchr(target, '/') ? strrchr(target, '/') + 1 : target;
		snprintf(memdev, sizeof memdev, "%.63s", name);
		found[n].serial = get_number(memdev, "serial");
		found[n].bytes = get_number(memdev, "ram/size");
		n++;
	}
	if (devices)
		closedir(devices);
	qsort(found, n, sizeof *found, by_serial);
	return n;
}

/* Bytes present on all nodes: memory that comes online adds to it. */
static uint64_t memory_bytes(void)
{
	char text[4096];
	const char *line = read_file("/proc/meminfo", text, sizeof text) ? strstr(text, "MemTotal:") : NULL;

	return line ? strtoull(line + 9, NULL, 10) * 1024 : 0;
}

static void bring_online(const char *region, uint64_t bytes, uint64_t before)
{
	int fd = open("/sys/bus/cxl/drivers/cxl_region/bind", O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		fail("no cxl_region driver in this kernel: %s", strerror(errno));
	/* EBUSY, ENODEV: a driver got there first. */
	if (write(fd, region, strlen(region)) < 0 && errno != EBUSY && errno != ENODEV)
		fail("cannot bind %s: %s", region, strerror(errno));
	close(fd);
	/* Its array of pages (1/64) may lie inside it, and does not count as memory then. */
	for (int waited = 0; memory_bytes() < before + bytes - bytes / 32; waited += 100) {
		if (waited > WAIT_MS)
			fail("the memory of %s did not come online within %d s (see the console log)", region, WAIT_MS / 1000);
		sleep_ms(100);
	}
}

void cxl_make_region(unsigned int devices, unsigned int granularity, struct neotier_region *region)
{
	struct endpoint endpoint[NEOTIER_DEVICES];
	char name[64], file[32], text[64];
	uint64_t before = memory_bytes(), total = 0;
	unsigned int n;

	for (int waited = 0; (n = find_endpoints(endpoint)) < devices; waited += 100) {
		if (waited > WAIT_MS)
			fail("%u of %u CXL memory devices showed up within %d s (see the console log)", n, devices,
			     WAIT_MS / 1000);
		sleep_ms(100);
	}
	for (unsigned int i = 0; i < devices; i++) {
		put(endpoint[i].decoder, "mode", "ram");
		put_number(endpoint[i].decoder, "dpa_size", endpoint[i].bytes);
		total += endpoint[i].bytes;
	}
	if (!get_text(name, sizeof name, ROOT_DECODER, "create_ram_region"))
		fail("cannot read " CXL "/" ROOT_DECODER "/create_ram_region: %s", strerror(errno));
	put(ROOT_DECODER, "create_ram_region", name);
	put_number(name, "interleave_granularity", granularity);
	put_number(name, "interleave_ways", devices);
	put_number(name, "size", total);
	for (unsigned int i = 0; i < devices; i++) {
		snprintf(file, sizeof file, "target%u", i);
		put(name, file, endpoint[i].decoder);
	}
	put(name, "commit", "1");
	bring_online(name, total, before);

	memset(region, 0, sizeof *region);
	region->base = get_number(name, "resource");
	region->size = get_number(name, "size");
	region->ways = (uint32_t)get_number(name, "interleave_ways");
	region->granularity = (uint32_t)get_number(name, "interleave_granularity");
	for (unsigned int i = 0; i < region->ways && i < NEOTIER_DEVICES; i++) {
		snprintf(file, sizeof file, "target%u", i);
		if (!get_text(text, sizeof text, name, file))
			fail("cannot read " CXL "/%s/%s: %s", name, file, strerror(errno));
		for (unsigned int j = 0; j < devices; j++)
			if (!strcmp(endpoint[j].decoder, text))
				region->serial[i] = endpoint[j].serial;
	}
}

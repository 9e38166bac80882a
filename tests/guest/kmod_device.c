// SPDX-License-Identifier: Apache-2.0
/*
 * kmod_device: plays a NeoProf device from inside the guest, where ivshmem's BAR 2 is plain memory and no emulator stands
 * behind it. Answers CFG0 and CTRL within a millisecond, and reports the pages that KMOD_FEED_PATH names, over and over.
 * Also the device that lies, which no honest emulator can be.
 *
 *	kmod_device [index=<n>] [base=<bytes>] [size=<bytes>] [lie=<what>] [clock=<how>] [watch=<n>] [set=<offset>:<value>]...
 *
 * index: which of the PCI functions, in the order of their addresses. Of the feed it reports what lies in its own memory.
 * lie: tail (out of range), units (half of them beyond the device's memory), silent (never answers), shuffle (TAIL jumps
 * about within the ring and entries are noise), watch (the table of units that the host names is noise).
 * clock: it has one, which moves on every millisecond or so. A number: so many times as fast as the guest's. stand, back,
 * far: it stands still, runs backwards, or leaps by a thousand seconds at a time.
 * watch: it counts the units that the host names: so many requests every millisecond or so for each that the feed names. Without
 * it there is no such table.
 * set: overwrites a register after the honest ones have been written.
 *
 * SIGUSR1: forgets all that was written to it, as a reset or a power cycle does to a device, and says "forgot".
 * SIGTERM: ends, and leaves a BAR that is no NeoProf's.
 * SIGUSR2: every register reads all ones, as those of a device that is gone, until SIGUSR1; says "gone".
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "kmod_feed.h"
#include "neoprof_regs.h"

/* Of the largest memory whose units can be watched here: 4 GiB. */
#define KMOD_UNITS (1U << 20)

static volatile uint8_t *bar;

static uint64_t reg_read(uint32_t offset)
{
	return *(volatile uint64_t *)(bar + offset);
}

static void reg_write(uint32_t offset, uint64_t value)
{
	*(volatile uint64_t *)(bar + offset) = value;
}

static volatile sig_atomic_t forget, gone, end;

static void on_signal(int number)
{
	if (number == SIGUSR1)
		forget = 1;
	else if (number == SIGUSR2)
		gone = 1;
	else
		end = 1;
}

static unsigned int pci_id(const char *function, const char *which)
{
	char path[512], id[32] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/%s", function, which);
	file = fopen(path, "r");
	if (!file)
		return 0;
	if (!fgets(id, sizeof(id), file))
		id[0] = 0;
	fclose(file);
	return strtoul(id, NULL, 16);
}

static int open_bar(unsigned int index)
{
	struct dirent **entries;
	char path[512];
	int nr = scandir("/sys/bus/pci/devices", &entries, NULL, alphasort), i;

	for (i = 0; i < nr; i++) {
		FILE *file;

		if (pci_id(entries[i]->d_name, "vendor") != 0x1af4 || pci_id(entries[i]->d_name, "device") != 0x1110 || index--)
			continue;
		/* Memory decoding is off until a driver or this turns it on. */
		snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/enable", entries[i]->d_name);
		file = fopen(path, "w");
		if (file) {
			fputs("1", file);
			fclose(file);
		}
		snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/resource2", entries[i]->d_name);
		return open(path, O_RDWR);
	}
	return -1;
}

static uint32_t next_random(void)
{
	static uint64_t state = 88172645463325252ULL;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state >> 32;
}

static uint64_t guest_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

static uint64_t clock_ns(const char *how)
{
	static uint64_t leaps;

	if (!strcmp(how, "stand"))
		return 1;
	if (!strcmp(how, "back"))
		return (1ULL << 62) - guest_ns();
	if (!strcmp(how, "far"))
		return ++leaps * 1000000000000ULL;
	return guest_ns() * strtoul(how, NULL, 10);
}

static const char *option(int argc, char **argv, const char *name)
{
	size_t length = strlen(name);
	int n;

	for (n = 1; n < argc; n++)
		if (!strncmp(argv[n], name, length))
			return argv[n] + length;
	return NULL;
}

static void watch_nothing(void)
{
	uint32_t i;

	for (i = 0; i < NEOPROF_WATCH_COUNT; i++)
		reg_write(NEOPROF_WATCH_OFFSET + i * NEOPROF_WATCH_STRIDE, NEOPROF_WATCH_UNIT_MASK);
}

/* COUNT alone: UNIT in the other half belongs to the host. What the feed names is looked up once in a while. */
static void watch_count(const struct kmod_feed *feed, uint64_t base, uint64_t size, uint32_t requests)
{
	static uint8_t named[KMOD_UNITS / 8];
	static uint32_t looked, seen;
	uint32_t i;

	if (feed->count != seen || looked++ % 64 == 0) {
		seen = feed->count;
		memset(named, 0, sizeof(named));
		for (i = 0; i < seen; i++) {
			uint64_t unit = feed->pfn[i] - (base >> 12);

			if (unit < size >> 12 && unit < KMOD_UNITS)
				named[unit / 8] |= 1 << unit % 8;
		}
	}
	for (i = 0; i < NEOPROF_WATCH_COUNT; i++) {
		uint32_t offset = NEOPROF_WATCH_OFFSET + i * NEOPROF_WATCH_STRIDE, unit = reg_read(offset) >> NEOPROF_WATCH_UNIT_SHIFT;

		if (unit < KMOD_UNITS && named[unit / 8] >> unit % 8 & 1)
			*(volatile uint32_t *)(bar + offset) += requests;
	}
}

static void watch_lie(void)
{
	uint32_t i;

	for (i = 0; i < NEOPROF_WATCH_COUNT; i++)
		reg_write(NEOPROF_WATCH_OFFSET + i * NEOPROF_WATCH_STRIDE, (uint64_t)next_random() << 32 | next_random());
}

/* All registers as after power-on, then what set= wants. */
static void power_on(uint64_t base, uint64_t size, int argc, char **argv)
{
	uint64_t id;
	uint32_t i;
	int n;

	for (i = 0; i < NEOPROF_SIZE; i += 8)
		reg_write(i, 0);
	reg_write(NEOPROF_COMMON_CAP0_OFFSET, NEOPROF_COMMON_CAP0_INIT);
	reg_write(NEOPROF_COMMON_CAP1_OFFSET, NEOPROF_COMMON_CAP1_INIT);
	reg_write(NEOPROF_CAP0_OFFSET, NEOPROF_CAP0_INIT);
	reg_write(NEOPROF_CAP1_OFFSET, NEOPROF_CAP1_INIT);
	reg_write(NEOPROF_CAP2_OFFSET, NEOPROF_CAP2_INIT);
	reg_write(NEOPROF_CAP3_OFFSET, NEOPROF_CAP3_INIT);
	reg_write(NEOPROF_STATUS_OFFSET, NEOPROF_STATUS_INIT);
	id = NEOPROF_ID_INIT & ~NEOPROF_ID_WATCHED_MASK;
	if (option(argc, argv, "watch=") || option(argc, argv, "lie=watch"))
		id = NEOPROF_ID_INIT;
	reg_write(NEOPROF_ID_OFFSET, id);
	watch_nothing();
	reg_write(NEOPROF_TRACKER_OFFSET, NEOPROF_TRACKER_INIT);
	reg_write(NEOPROF_HPA_BASE_OFFSET, base);
	reg_write(NEOPROF_HPA_SIZE_OFFSET, size);
	reg_write(NEOPROF_PEAK_OFFSET, 30000);
	for (n = 1; n < argc; n++) {
		char *colon = strchr(argv[n], ':');

		if (!strncmp(argv[n], "clock=", 6)) {
			reg_write(NEOPROF_ID_OFFSET, id | NEOPROF_ID_CLOCK_MASK);
			reg_write(NEOPROF_CLOCK_OFFSET, clock_ns(argv[n] + 6));
		}
		if (!strncmp(argv[n], "set=", 4) && colon)
			reg_write(strtoul(argv[n] + 4, NULL, 0), strtoull(colon + 1, NULL, 0));
	}
}

int main(int argc, char **argv)
{
	uint64_t base = 0x100000000ULL, size = 256ULL << 20, reported = 0, epochs = 0, status = NEOPROF_STATUS_INIT;
	const struct timespec tick = { .tv_nsec = 500000 };
	const char *lie = "", *clock = NULL, *watch = option(argc, argv, "watch=");
	struct kmod_feed *feed;
	uint32_t next = 0, index = 0, i;
	int fd, n;

	signal(SIGUSR1, on_signal);
	signal(SIGUSR2, on_signal);
	signal(SIGTERM, on_signal);
	for (n = 1; n < argc; n++) {
		if (!strncmp(argv[n], "base=", 5))
			base = strtoull(argv[n] + 5, NULL, 0);
		else if (!strncmp(argv[n], "size=", 5))
			size = strtoull(argv[n] + 5, NULL, 0);
		else if (!strncmp(argv[n], "index=", 6))
			index = strtoul(argv[n] + 6, NULL, 0);
		else if (!strncmp(argv[n], "lie=", 4))
			lie = argv[n] + 4;
		else if (!strncmp(argv[n], "clock=", 6))
			clock = argv[n] + 6;
	}
	fd = open_bar(index);
	if (fd < 0) {
		fprintf(stderr, "kmod_device: no PCI 1af4:1110 number %u whose BAR 2 can be opened\n", index);
		return 1;
	}
	bar = mmap(NULL, NEOPROF_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (bar == MAP_FAILED) {
		perror("kmod_device: mmap BAR 2");
		return 1;
	}
	fd = open(KMOD_FEED_PATH, O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(*feed))) {
		perror("kmod_device: " KMOD_FEED_PATH);
		return 1;
	}
	feed = mmap(NULL, sizeof(*feed), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (feed == MAP_FAILED) {
		perror("kmod_device: mmap feed");
		return 1;
	}

	power_on(base, size, argc, argv);
	puts("ready");
	fflush(stdout);

	for (;; nanosleep(&tick, NULL)) {
		uint64_t cfg0;
		uint32_t head, tail, room;

		if (end) {
			reg_write(NEOPROF_ID_OFFSET, 0);
			return 0;
		}
		if (forget) {
			power_on(base, size, argc, argv);
			reported = 0;
			epochs = 0;
			status = NEOPROF_STATUS_INIT;
			gone = 0;
			forget = 0;
			puts("forgot");
			fflush(stdout);
		}
		if (gone) {
			/* Again and again: the driver may write. Backwards: what is read last shows it first. */
			for (i = NEOPROF_SIZE; i; i -= 8)
				reg_write(i - 8, ~0ULL);
			if (gone == 1) {
				gone = 2;
				puts("gone");
				fflush(stdout);
			}
			continue;
		}
		if (clock) {
			reg_write(NEOPROF_CLOCK_OFFSET, clock_ns(clock));
			reg_write(NEOPROF_TICKS_OFFSET, guest_ns() / (NEOPROF_TICK_US * 1000));
		}
		cfg0 = reg_read(NEOPROF_CFG0_OFFSET);
		if (!strcmp(lie, "silent")) {
			reg_write(NEOPROF_STATUS_OFFSET, NEOPROF_STATUS_INIT | NEOPROF_STATUS_OP_IN_PROGRESS_MASK);
			continue;
		}
		/* A bus reset is on its way, and nobody decodes the address. */
		if (cfg0 == ~0ULL)
			continue;
		if (cfg0 & NEOPROF_CFG0_RESET_MASK) {
			/* Not written back: the driver does not wait for this process and may have written CFG0 since. */
			reg_write(NEOPROF_RING_OFFSET, 0);
			watch_nothing();
			reported = 0;
			status = reg_read(NEOPROF_STATUS_OFFSET);
			if (status & NEOPROF_STATUS_ENABLED_MASK)
				reg_write(NEOPROF_STATUS_OFFSET, status & ~NEOPROF_STATUS_ENABLED_MASK);
			continue;
		}
		/* On a change only: set= may have put something else there. By the register: a write is lost during a reset. */
		status = reg_read(NEOPROF_STATUS_OFFSET);
		if (!(status & NEOPROF_STATUS_ENABLED_MASK) != !(cfg0 & NEOPROF_CFG0_ENABLE_MASK)) {
			status ^= NEOPROF_STATUS_ENABLED_MASK;
			reg_write(NEOPROF_STATUS_OFFSET, status);
		}
		reg_write(NEOPROF_CTRL_OFFSET, 0);
		if (!(cfg0 & NEOPROF_CFG0_ENABLE_MASK))
			continue;
		reg_write(NEOPROF_EPOCHS_OFFSET, ++epochs);
		reg_write(NEOPROF_READS_OFFSET, epochs * 1000);
		reg_write(NEOPROF_REPORTED_OFFSET, reported);
		if (watch)
			watch_count(feed, base, size, strtoul(watch, NULL, 10));
		if (!strcmp(lie, "watch"))
			watch_lie();
		head = reg_read(NEOPROF_RING_OFFSET) & 0xffff;
		tail = (reg_read(NEOPROF_RING_OFFSET) >> 16) & 0xffff;
		if (!strcmp(lie, "tail")) {
			*(volatile uint16_t *)(bar + NEOPROF_RING_OFFSET + 2) = NEOPROF_HOTLIST_ENTRIES + 7;
			continue;
		}
		if (!strcmp(lie, "shuffle")) {
			for (i = 0; i < NEOPROF_HOTLIST_ENTRIES; i++)
				reg_write(NEOPROF_HOTLIST_OFFSET + i * 8,
					  (uint64_t)next_random() << 32 | next_random());
			*(volatile uint16_t *)(bar + NEOPROF_RING_OFFSET + 2) = next_random() % NEOPROF_HOTLIST_ENTRIES;
			continue;
		}
		if (!feed->count)
			continue;
		room = (head + NEOPROF_HOTLIST_ENTRIES - tail - 1) % NEOPROF_HOTLIST_ENTRIES;
		if (room > 512)
			room = 512;
		for (i = 0; i < room; i++) {
			uint64_t unit;

			if (next >= feed->count) {
				next = 0;
				feed->rounds++;
				if (!feed->count)
					break;
			}
			unit = feed->pfn[next++] - (base >> 12);
			if (unit >= size >> 12)
				continue;
			if (!strcmp(lie, "units") && (next & 1))
				unit = ((uint64_t)next_random() << 16 | next_random()) + (size >> 12);
			reg_write(NEOPROF_HOTLIST_OFFSET + tail * 8, unit << 16 | 20);
			tail = (tail + 1) % NEOPROF_HOTLIST_ENTRIES;
			reported++;
		}
		/* TAIL alone: HEAD in the other half belongs to the host. */
		*(volatile uint16_t *)(bar + NEOPROF_RING_OFFSET + 2) = tail;
	}
}

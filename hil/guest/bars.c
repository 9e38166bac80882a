/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The profilers' BARs, as ivshmem devices on the guest's PCI bus. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "guest.h"
#include "neotier/mark.h"

static char bar_path[PATH_MAX];

static bool is_ivshmem(const char *pci)
{
	char path[PATH_MAX], id[64];

	snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/vendor", pci);
	if (!read_file(path, id, sizeof id) || strtoul(id, NULL, 16) != 0x1af4)
		return false;
	snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/device", pci);
	return read_file(path, id, sizeof id) && strtoul(id, NULL, 16) == 0x1110;
}

static int is_ivshmem_entry(const struct dirent *entry)
{
	return is_ivshmem(entry->d_name);
}

/* Memory decoding stays off until somebody enables the function. */
static void enable_function(const char *pci)
{
	char path[PATH_MAX], text[16];

	snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/enable", pci);
	if (read_file(path, text, sizeof text) && strtoul(text, NULL, 10) != 0)
		return; /* a driver has it */
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	if (write(fd, "1", 1) != 1)
		fail("cannot enable the ivshmem device: %s", strerror(errno));
	close(fd);
}

/* Where the guest's PCI bus has BAR 2 of a function. */
static uint64_t bar_address(const char *pci)
{
	char path[PATH_MAX], text[4096], *line = text;

	snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/resource", pci);
	if (!read_file(path, text, sizeof text))
		fail("cannot read %s", path);
	for (int i = 0; i < 2 && line; i++)
		line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL;
	return line ? strtoull(line, NULL, 16) : 0;
}

volatile struct neotier_mailbox *map_bars(void)
{
	volatile struct neotier_mailbox *mailbox;
	struct dirent **functions;
	int count = scandir("/sys/bus/pci/devices", &functions, is_ivshmem_entry, alphasort);

	if (count < 1)
		fail("no ivshmem device (PCI 1af4:1110) in the machine");
	snprintf(bar_path, sizeof bar_path, "/sys/bus/pci/devices/%s/resource2", functions[0]->d_name);
	enable_function(functions[0]->d_name);
	int fd = open(bar_path, O_RDWR | O_CLOEXEC);
	void *map = fd < 0 ? MAP_FAILED
			   : mmap(NULL, NEOTIER_MAILBOX_MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, NEOTIER_MAILBOX_OFFSET);
	if (map == MAP_FAILED)
		fail("cannot map %s: %s", bar_path, strerror(errno));
	close(fd);
	mailbox = map;
	if (mailbox->version != NEOTIER_MAILBOX_VERSION)
		fail("the mailbox has version %u, this init expects %u", mailbox->version, NEOTIER_MAILBOX_VERSION);
	for (int i = 0; i < count; i++) {
		enable_function(functions[i]->d_name);
		mailbox->arg[0] = bar_address(functions[i]->d_name);
		mailbox->arg[1] = (uint64_t)i;
		NEOTIER_MARK_OP(NEOTIER_OP_BAR);
		free(functions[i]);
	}
	free(functions);
	return mailbox;
}

const char *first_bar_path(void)
{
	return bar_path;
}

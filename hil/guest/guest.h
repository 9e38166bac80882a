/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the files of the guest's init share. One thread. */
#ifndef NEOTIER_GUEST_H
#define NEOTIER_GUEST_H

#include <stddef.h>
#include <stdint.h>

#include "neotier/mailbox.h"

/* init.c. Says why, leaves it in the mailbox, powers off (a tool: exits with 1). Does not return. */
__attribute__((format(printf, 1, 2), noreturn)) void fail(const char *format, ...);
/* A whole file as a string, at most size - 1 bytes of it; NULL where it cannot be read. */
char *read_file(const char *path, char *buffer, size_t size);
/* "PATH VALUE": writes VALUE to PATH; fails where it cannot. */
void write_setting(const char *setting);
/* finit_module(2) of a .ko or .ko.xz; fails where it cannot be loaded. */
void load_kernel_module(const char *path, const char *arguments);

/*
 * bars.c. Finds the ivshmem devices, in the order of their PCI addresses, and tells the plugin where they are. BAR 2 of each
 * holds a profiler's registers; that of the first, beyond them, the mailbox, which is mapped. Fails in one line.
 */
volatile struct neotier_mailbox *map_bars(void);
/* File of the first BAR; after map_bars(). */
const char *first_bar_path(void);

/*
 * cxl.c. Makes one region of all CXL memory devices, by sysfs alone, and brings its memory online as a node of its own.
 * `granularity`: bytes, 256 to 16384. Waits until `devices` of them are there. Fills `region` with what the kernel then
 * says of it. Fails in one line.
 */
void cxl_make_region(unsigned int devices, unsigned int granularity, struct neotier_region *region);

#endif

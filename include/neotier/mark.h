/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later */
/*
 * Marks for programs that run on the emulated machine: label points of a run, and name the pages that are hot now (for
 * the bound `ideal`). Outside the machine, every function does nothing. Header-only C; not thread-safe: one thread marks.
 */
#ifndef NEOTIER_MARK_H
#define NEOTIER_MARK_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "neotier/mailbox.h"

/* Environment variable that names the BAR's file; the guest's init sets it. */
#define NEOTIER_MAILBOX_ENV "NEOTIER_MAILBOX"

enum neotier_mark_kind {
	NEOTIER_MARK_WINDOW = 1, /* value: units of work finished so far */
	NEOTIER_MARK_PHASE = 2,  /* value: name of the phase that begins, at most 8 characters, packed */
};

struct neotier_marker {
	unsigned char *map; /* of the BAR from NEOTIER_MAILBOX_OFFSET on; NULL outside the machine */
};

static inline struct neotier_marker neotier_marker_open(void)
{
	struct neotier_marker m = {NULL};
	const char *path = getenv(NEOTIER_MAILBOX_ENV);
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;

	if (fd < 0)
		return m;
	void *p = mmap(NULL, NEOTIER_MAILBOX_MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, NEOTIER_MAILBOX_OFFSET);

	close(fd);
	if (p != MAP_FAILED)
		m.map = (unsigned char *)p;
	return m;
}

static inline volatile struct neotier_mailbox *neotier_marker_mailbox(const struct neotier_marker *m)
{
	return (volatile struct neotier_mailbox *)m->map;
}

/* Records the machine's counters under (kind, value). At most NEOTIER_MARKS a run; more are counted as lost. */
static inline void neotier_mark(const struct neotier_marker *m, enum neotier_mark_kind kind, uint64_t value)
{
	if (!m->map)
		return;
	neotier_marker_mailbox(m)->arg[1] = kind;
	neotier_marker_mailbox(m)->arg[2] = value;
	NEOTIER_MARK_OP(NEOTIER_OP_MARK);
}

/* A phase named `name` (its first 8 characters) begins. */
static inline void neotier_mark_phase(const struct neotier_marker *m, const char *name)
{
	uint64_t value = 0;

	memcpy(&value, name, strnlen(name, sizeof value));
	neotier_mark(m, NEOTIER_MARK_PHASE, value);
}

/*
 * From now on the hot pages are those set in `bitmap` (bit n: the 4 KiB page at base + n x 4096; `pages` bits, at most
 * 8 x NEOTIER_HOTSET_BYTES). Returns 0, or -1 if the bitmap is too large.
 */
static inline int neotier_mark_hot(const struct neotier_marker *m, const void *base, const uint64_t *bitmap, uint64_t pages)
{
	if (!m->map)
		return 0;
	if (pages > 8ull * NEOTIER_HOTSET_BYTES)
		return -1;
	memcpy(m->map + (NEOTIER_HOTSET_OFFSET - NEOTIER_MAILBOX_OFFSET), bitmap, (size_t)((pages + 63) / 64 * 8));
	neotier_marker_mailbox(m)->arg[1] = (uint64_t)(uintptr_t)base;
	neotier_marker_mailbox(m)->arg[2] = pages;
	NEOTIER_MARK_OP(NEOTIER_OP_HOTSET);
	return 0;
}

#endif

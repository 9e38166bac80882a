/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The kernel's counters over the region of interest, reported in the mailbox. Not thread-safe. */
#ifndef NEOTIER_STATS_H
#define NEOTIER_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "neotier/mailbox.h"

/* "NAME DIRECTORY": every file in it that holds a number is reported as NAME.FILE. /proc/vmstat is, always. */
void stats_add(const char *source);
/* "PATH VALUE": to be written before each reading, for counters that are brought up to date on demand. */
void stats_ask(const char *setting);
/* Where the file of "NAME.FILE" lies, or NULL. */
const char *stats_directory(const char *key);

/* begin: remembers them. Else reports what they have grown by since. */
void stats_read(volatile struct neotier_mailbox *mailbox, bool begin);
/* The value of "NAME.FILE" at its first reading, or at its last. 0 where that reading lacked it. */
int64_t stats_value(const char *key, bool begin);

#endif

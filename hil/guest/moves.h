/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Pages promoted and demoted so far, told to the plugin now and then for the timeline. Off unless /neotier.conf asks for
 * it, since reading the kernel's counters costs the guest instructions. Not thread-safe.
 */
#ifndef NEOTIER_MOVES_H
#define NEOTIER_MOVES_H

#include <stdbool.h>
#include <stdint.h>

#include "neotier/mailbox.h"

/*
 * Counts `key` among the promoted (or demoted) pages: "vmstat.NAME" is a line of /proc/vmstat, any other "X.NAME" the file
 * NAME of `stats`, a folder, which may be NULL. What this kernel lacks counts 0.
 */
void moves_add(bool promoted, const char *key, const char *stats);

/*
 * Tells the totals of the first reading of stats_read(), or of the last: pages go on moving between two readings, and what
 * is told is to add up to what is reported. Does nothing unless moves_add() was called.
 */
void moves_tell_read(volatile struct neotier_mailbox *mailbox, bool begin);

/* Tells them if 100 ms of the guest have passed since the last time. */
void moves_tell_if_due(volatile struct neotier_mailbox *mailbox);

#endif

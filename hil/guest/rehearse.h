/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A rehearsal: PROGRAM runs on the host's own files, which it cannot change, and each path that it names to the kernel is
 * written down. Uses ptrace, so a program that traces others finds itself refused. Not thread-safe.
 */
#ifndef NEOTIER_REHEARSE_H
#define NEOTIER_REHEARSE_H

#include <stdint.h>
#include <sys/types.h>

/*
 * Mounts the host's files (9p, read only) under what lies in /neotier/over, with changes kept in memory. Returns where.
 * Fails in one line.
 */
const char *rehearse_mount(void);

/* Memory in use that is no file's cache, bytes. */
uint64_t rehearse_used_bytes(void);

/* Looks whether more is in use than ever before; `peak` is shared between processes. */
void rehearse_sample(volatile uint64_t *peak);

/*
 * Runs `exec_program`, which must not return, in a child, writes to `log` what the child and all its descendants name to the
 * kernel, as the mailbox's NEOTIER_STREAM_FILES has it, and ends as the child does. KIND: x, to be run; w, to be made anew;
 * r, all else. Does not return.
 */
__attribute__((noreturn)) void rehearse_trace(void (*exec_program)(void), int log, volatile uint64_t *peak);

#endif

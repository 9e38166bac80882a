/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Keeps so much of node 0 away from PROGRAM that it can have as many bytes as the run asks for, under every policy the same
 * number of pages. What a policy's own module takes is not PROGRAM's loss: a server has a thousand times this memory, and
 * most of a module does not grow with it. Not thread-safe.
 */
#ifndef NEOTIER_DRAM_H
#define NEOTIER_DRAM_H

#include <stdint.h>

/* Bytes of node `node` that nobody has, those on the lists of its CPUs among them; 0 where there is no such node. */
uint64_t dram_free_bytes(int node);

/* Leaves `target` bytes of node 0 free. Called once, while the machine is set up; fails where there are fewer. */
void dram_trim(uint64_t target);

/* Gives back all single pages that are kept away, for a kernel module to lie in. Returns what was free before. */
uint64_t dram_lend(void);

/* Takes or gives back single pages until `target` bytes are free again, as dram_lend() returned them. */
void dram_settle(uint64_t target);

#endif

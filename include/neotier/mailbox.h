/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-or-later */
/*
 * What the emulated machine, its guest and the command exchange beside the device: the second half of the shared-memory
 * BAR. It belongs to the emulator; no hardware has it. Guest programs use it through neotier/mark.h. All fields are
 * little-endian, zero at power-on; every reader treats what the other side wrote as untrusted.
 */
#ifndef NEOTIER_MAILBOX_H
#define NEOTIER_MAILBOX_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NEOTIER_BAR_BYTES 0x100000u
#define NEOTIER_MAILBOX_OFFSET 0x40000u       /* in the BAR; registers are below 0x10000 */
/* What programs map: not the registers, of which the driver maps some write-combining; a page has one memory type. */
#define NEOTIER_MAILBOX_MAP_BYTES (NEOTIER_BAR_BYTES - NEOTIER_MAILBOX_OFFSET)
#define NEOTIER_HOTSET_OFFSET 0x80000u        /* in the BAR: bitmap of pages for NEOTIER_OP_HOTSET */
#define NEOTIER_HOTSET_BYTES 0x80000u         /* 4 Mi pages: a table of 16 GiB */
#define NEOTIER_OUTPUT_OFFSET 0x70000u        /* in the BAR: a piece of the program's output for NEOTIER_OP_OUTPUT */
#define NEOTIER_OUTPUT_BYTES 0x10000u
#define NEOTIER_MAILBOX_VERSION 6u
#define NEOTIER_DEVICES 4u               /* memory devices with a profiler, at most */
#define NEOTIER_MARKS 2048u
#define NEOTIER_REPORT_BYTES 32768u

/*
 * A mark is an 8-byte no-op, nopl disp32(%rax,%rax,1), whose displacement the plugin recognises when it translates the
 * instruction: no exit, no privilege, harmless on any x86-64 machine. Arguments lie in neotier_mailbox.arg.
 */
#define NEOTIER_MARK_MAGIC 0x4e540000u
enum neotier_op {
	NEOTIER_OP_BAR = 1,        /* init: arg[0] = guest-physical address of the BAR of device arg[1] */
	NEOTIER_OP_INSTRUMENT = 2, /* init: see every memory access from here on */
	NEOTIER_OP_ROI_BEGIN = 3,  /* init: the region of interest begins; arg[0] = CLOCK_MONOTONIC_RAW ns */
	NEOTIER_OP_ROI_END = 4,    /* init: it ends; arg[0] likewise */
	NEOTIER_OP_MARK = 5,       /* program: record the counters; arg[1] = kind, arg[2] = value */
	NEOTIER_OP_HOTSET = 6,     /* program: arg[1] = address of page 0, arg[2] = pages; bitmap at NEOTIER_HOTSET_OFFSET */
	NEOTIER_OP_MOVED = 7,      /* init: arg[3] = pages promoted so far, low 32 bits, and demoted, high 32 bits */
	NEOTIER_OP_REGION = 8,     /* init: the CXL region has been made; `region` says where */
	NEOTIER_OP_OUTPUT = 9,     /* init: arg[2] bytes at NEOTIER_OUTPUT_OFFSET belong to stream arg[1] */
	NR_NEOTIER_OP
};
#define NEOTIER_MARK_OP(op)                                                                      \
	__asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00\n\t.long %c0" ::"i"((int)(NEOTIER_MARK_MAGIC | (op))) : "memory")

enum neotier_stream {
	NEOTIER_STREAM_OUTPUT = 0, /* standard output, or the terminal */
	NEOTIER_STREAM_ERROR = 1,
	NEOTIER_STREAM_FILES = 2,  /* a rehearsal's: paths that were named to the kernel, "KIND/PATH" and a zero byte each */
	NR_NEOTIER_STREAM
};

enum neotier_state {
	NEOTIER_STATE_OFF = 0,     /* the guest's init has not run */
	NEOTIER_STATE_SETUP = 1,
	NEOTIER_STATE_RUNNING = 2, /* between ROI begin and end, or before --roi-after's text */
	NEOTIER_STATE_DONE = 3,    /* program ended; exit_code, term_signal and report are valid */
	NEOTIER_STATE_FAILED = 4,  /* init could not set up; message says why */
	                           /* in NEOTIER_STATE_DONE it names the processes that PROGRAM left running */
};

/* Totals since instrumentation began; monotonic. */
struct neotier_counters {
	uint64_t instructions;        /* all, kernel included */
	uint64_t kernel_instructions;
	uint64_t modelled_ps;         /* instructions x base CPI + stalls */
	uint64_t accesses;            /* loads and stores to memory */
	uint64_t l1_misses, l2_misses;
	uint64_t fills[2];            /* line fills from {dram, cxl} */
	uint64_t writebacks[2];
	uint64_t stall_ps[2];         /* of those fills */
	uint64_t device_reads, device_writes; /* requests to the CXL memory device */
	uint64_t bar_reads, bar_writes;
	uint64_t prefetched, dependent; /* with model parameter `streams`: fills that came early; misses that waited for another */
	uint64_t walks[3];            /* with `tlb`: page walks that ended at a page of 4 KiB, 2 MiB, 1 GiB */
	uint64_t shootdowns;          /* batches of TLB flushes */
};

/* Requests to one memory device since instrumentation began; monotonic. */
struct neotier_device_counters {
	uint64_t reads, writes;
};

/* A CXL region, as the guest's kernel set it up. */
struct neotier_region {
	uint64_t base, size;          /* host-physical, bytes */
	uint32_t ways, granularity;   /* bytes */
	uint64_t serial[NEOTIER_DEVICES]; /* by position in the interleave */
};

struct neotier_mark_record {
	uint64_t kind, value;
	uint64_t instructions, modelled_ps, fills[2], stall_ps[2];
};

struct neotier_mailbox {
	uint32_t version;
	uint32_t state;               /* enum neotier_state */
	uint64_t arg[4];

	/* guest's init */
	int32_t exit_code;            /* -1 unless the program exited */
	int32_t term_signal;          /* 0 unless a signal ended it */
	uint32_t oom_kills;           /* during the region of interest */
	uint32_t pad;
	uint64_t guest_ns[2];         /* CLOCK_MONOTONIC_RAW at ROI begin and end */
	uint64_t free_bytes[2];       /* of nodes 0 and 1 when PROGRAM starts */
	uint64_t peak_bytes;          /* a rehearsal's: most memory that was in use beyond that at the program's start */
	char message[512];
	struct neotier_region region; /* machine `cxl` only */

	/* plugin */
	struct neotier_counters begin, end, now;
	uint32_t roi_state;           /* 0 before, 1 inside, 2 after */
	uint32_t nr_marks;
	uint64_t lost_marks;
	uint64_t device_cycles;       /* clocks of the Verilated devices since power-on */
	struct neotier_device_counters device[2][NEOTIER_DEVICES]; /* at ROI begin and end, in the order of their BARs */
	uint64_t lost_output;         /* bytes of output that found no place on the host */
	uint64_t host_ns[2];          /* host's monotonic clock at ROI begin and end: for speed, never for figures */
	struct neotier_mark_record mark[NEOTIER_MARKS];

	char report[NEOTIER_REPORT_BYTES]; /* init: "key value\n" lines over the ROI */
};

#ifdef __cplusplus
static_assert(sizeof(neotier_mailbox) <= NEOTIER_OUTPUT_OFFSET - NEOTIER_MAILBOX_OFFSET, "mailbox fits before the output");
}
#endif
#endif

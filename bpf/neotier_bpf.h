/* SPDX-License-Identifier: GPL-2.0-only */
/* What the two halves of neotier-bpf share: the layout of its maps. Fixed-width types only (BPF and host differ). */
#ifndef NEOTIER_BPF_H
#define NEOTIER_BPF_H

#define NEOTIER_BPF_SLOTS 64
#define NEOTIER_BPF_REASONS 64

/* Per CPU, one element. Sums are in ns and divided in user space only: sub-microsecond latencies must not vanish. */
struct neotier_bpf_latency {
	__u64 slots[NEOTIER_BPF_SLOTS];	/* slot n: [2^n, 2^(n+1)) ns; slot 0 holds 0 as well */
	__u64 count;
	__u64 sum_ns;
	__u64 max_ns;
};

/* Per CPU, one element. */
struct neotier_bpf_skips {
	__u64 reasons[NEOTIER_BPF_REASONS];
	__u64 unknown;	/* a reason past the table: the tool is older than the module */
};

_Static_assert(sizeof(struct neotier_bpf_latency) == 536, "layout of the latency map");
_Static_assert(sizeof(struct neotier_bpf_skips) == 520, "layout of the skip map");

#endif

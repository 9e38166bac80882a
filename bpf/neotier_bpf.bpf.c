// SPDX-License-Identifier: GPL-2.0-only
/*
 * Kernel side of neotier-bpf: counts the module's tracepoints into per-CPU maps. No event is sent to user space, so none
 * can overflow a buffer on the way; what is missed is a handler that the kernel refused to nest, which it counts itself
 * (recursion_misses of each program).
 *
 * Each tracepoint has two programs, of which user space loads one: tp_btf, whose arguments the verifier checks against
 * the module's BTF, or raw_tp where the module has none. Those take their arguments as plain words, by position, so that
 * they load on a kernel without any BTF.
 */
#include "vmlinux.h"

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "neotier_bpf.h"

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct neotier_bpf_latency);
} latency SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct neotier_bpf_skips);
} skips SEC(".maps");

static __always_inline __u32 log2_slot(__u64 v)
{
	__u32 n = 0;

	if (v >> 32) {
		v >>= 32;
		n += 32;
	}
	if (v >> 16) {
		v >>= 16;
		n += 16;
	}
	if (v >> 8) {
		v >>= 8;
		n += 8;
	}
	if (v >> 4) {
		v >>= 4;
		n += 4;
	}
	if (v >> 2) {
		v >>= 2;
		n += 2;
	}
	return n + (__u32)(v >> 1);
}

static __always_inline int count_promotion(__u64 latency_ns)
{
	__u32 key = 0;
	struct neotier_bpf_latency *l = bpf_map_lookup_elem(&latency, &key);

	if (!l)
		return 0;
	l->slots[log2_slot(latency_ns) & (NEOTIER_BPF_SLOTS - 1)]++;
	l->count++;
	l->sum_ns += latency_ns;
	if (latency_ns > l->max_ns)
		l->max_ns = latency_ns;
	return 0;
}

static __always_inline int count_skip(__u32 reason)
{
	__u32 key = 0;
	struct neotier_bpf_skips *s = bpf_map_lookup_elem(&skips, &key);

	if (!s)
		return 0;
	/* Else clang tests the high bits instead, from which the verifier learns no bound of the index. */
	barrier_var(reason);
	if (reason < NEOTIER_BPF_REASONS)
		s->reasons[reason]++;
	else
		s->unknown++;
	return 0;
}

SEC("tp_btf/neotier_promote_page")
int BPF_PROG(promote_btf, unsigned long src_pfn, unsigned long dst_pfn, __u64 latency_ns)
{
	return count_promotion(latency_ns);
}

SEC("tp_btf/neotier_skip")
int BPF_PROG(skip_btf, unsigned long pfn, __u32 reason)
{
	return count_skip(reason);
}

SEC("raw_tp/neotier_promote_page")
int promote_raw(const __u64 *args)
{
	return count_promotion(args[2]);
}

SEC("raw_tp/neotier_skip")
int skip_raw(const __u64 *args)
{
	return count_skip((__u32)args[1]);
}

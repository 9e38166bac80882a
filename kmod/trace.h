/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tracepoints of neotier.ko. Argument lists are an interface: bpf/ attaches to them by BTF (tp_btf) and by position
 * (raw_tp). Add arguments at the end only. Pages are PFNs, times are nanoseconds.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM neotier

#if !defined(NEOTIER_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define NEOTIER_TRACE_H

#include <linux/tracepoint.h>
#include "promotion/skip.h"

#define NEOTIER_SKIP_SYMBOL(NAME, name, text) { NEOTIER_SKIP_##NAME, #name },

/* One hotlist entry taken from the device. @pfn is ~0 when the unit is outside the device's memory. */
TRACE_EVENT(neotier_report,
	TP_PROTO(unsigned long pfn, unsigned int count),
	TP_ARGS(pfn, count),
	TP_STRUCT__entry(
		__field(unsigned long, pfn)
		__field(unsigned int, count)
	),
	TP_fast_assign(
		__entry->pfn = pfn;
		__entry->count = count;
	),
	TP_printk("pfn=0x%lx count=%u", __entry->pfn, __entry->count)
);

/* One decision of the policy. @promote_max is ~0 for no limit. */
TRACE_EVENT(neotier_decide,
	TP_PROTO(unsigned int threshold, u64 promote_max, u64 reported, u64 promoted, u64 ping_pong, u64 free_pages),
	TP_ARGS(threshold, promote_max, reported, promoted, ping_pong, free_pages),
	TP_STRUCT__entry(
		__field(unsigned int, threshold)
		__field(u64, promote_max)
		__field(u64, reported)
		__field(u64, promoted)
		__field(u64, ping_pong)
		__field(u64, free_pages)
	),
	TP_fast_assign(
		__entry->threshold = threshold;
		__entry->promote_max = promote_max;
		__entry->reported = reported;
		__entry->promoted = promoted;
		__entry->ping_pong = ping_pong;
		__entry->free_pages = free_pages;
	),
	TP_printk("threshold=%u promote_max=%llu reported=%llu promoted=%llu ping_pong=%llu free_pages=%llu",
		  __entry->threshold, __entry->promote_max, __entry->reported, __entry->promoted,
		  __entry->ping_pong, __entry->free_pages)
);

/* One batch: pages handed to migration, pages that moved, time the batch took. */
TRACE_EVENT(neotier_promote,
	TP_PROTO(unsigned int tried, unsigned int moved, u64 ns),
	TP_ARGS(tried, moved, ns),
	TP_STRUCT__entry(
		__field(unsigned int, tried)
		__field(unsigned int, moved)
		__field(u64, ns)
	),
	TP_fast_assign(
		__entry->tried = tried;
		__entry->moved = moved;
		__entry->ns = ns;
	),
	TP_printk("tried=%u moved=%u ns=%llu", __entry->tried, __entry->moved, __entry->ns)
);

/* One page that moved; @latency_ns is the time since its report was taken from the hotlist. */
TRACE_EVENT(neotier_promote_page,
	TP_PROTO(unsigned long src_pfn, unsigned long dst_pfn, u64 latency_ns),
	TP_ARGS(src_pfn, dst_pfn, latency_ns),
	TP_STRUCT__entry(
		__field(unsigned long, src_pfn)
		__field(unsigned long, dst_pfn)
		__field(u64, latency_ns)
	),
	TP_fast_assign(
		__entry->src_pfn = src_pfn;
		__entry->dst_pfn = dst_pfn;
		__entry->latency_ns = latency_ns;
	),
	TP_printk("src_pfn=0x%lx dst_pfn=0x%lx latency_ns=%llu",
		  __entry->src_pfn, __entry->dst_pfn, __entry->latency_ns)
);

DECLARE_EVENT_CLASS(neotier_reason,
	TP_PROTO(unsigned long pfn, unsigned int reason),
	TP_ARGS(pfn, reason),
	TP_STRUCT__entry(
		__field(unsigned long, pfn)
		__field(unsigned int, reason)
	),
	TP_fast_assign(
		__entry->pfn = pfn;
		__entry->reason = reason;
	),
	TP_printk("pfn=0x%lx reason=%s", __entry->pfn,
		  __print_symbolic(__entry->reason, NEOTIER_SKIPS(NEOTIER_SKIP_SYMBOL) { -1, NULL }))
);

/* One report that moved nothing, or has to wait; @reason is an enum neotier_skip. */
DEFINE_EVENT(neotier_reason, neotier_skip,
	TP_PROTO(unsigned long pfn, unsigned int reason),
	TP_ARGS(pfn, reason)
);

/* One victim that moved to make room. */
TRACE_EVENT(neotier_demote_page,
	TP_PROTO(unsigned long src_pfn, unsigned long dst_pfn),
	TP_ARGS(src_pfn, dst_pfn),
	TP_STRUCT__entry(
		__field(unsigned long, src_pfn)
		__field(unsigned long, dst_pfn)
	),
	TP_fast_assign(
		__entry->src_pfn = src_pfn;
		__entry->dst_pfn = dst_pfn;
	),
	TP_printk("src_pfn=0x%lx dst_pfn=0x%lx", __entry->src_pfn, __entry->dst_pfn)
);

/* One victim that stayed; @reason is an enum neotier_skip. */
DEFINE_EVENT(neotier_reason, neotier_keep,
	TP_PROTO(unsigned long pfn, unsigned int reason),
	TP_ARGS(pfn, reason)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>

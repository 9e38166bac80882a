/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Promotion policies: decide(snapshot) -> plan. Freestanding C without allocation, floating point or I/O; the same
 * objects are linked into neotier.ko, the unit tests and the simulators. A policy only decides: whoever calls it
 * enforces quota, headroom and the validity of pages whatever the plan says.
 *
 * Thread safety: a state block belongs to one caller at a time; policies keep nothing outside it.
 */
#ifndef NEOTIER_POLICY_H
#define NEOTIER_POLICY_H

#ifdef __KERNEL__
#include <linux/stddef.h>
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t s64;
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define NEOTIER_HISTOGRAM_BINS 64
#define NEOTIER_HOT_CAP 4U
#define NEOTIER_POLICY_STATE_BYTES 256
#define NEOTIER_NO_LIMIT (~(u64)0)	/* the kernel's U64_MAX, which user space lacks */

/* What happened since the previous decision (deltas) and how things stand (levels). One device. */
struct neotier_snapshot {
	u64 interval_ns;	/* time since the previous decision, > 0 */
	/* device, deltas */
	u64 epochs;		/* complete epochs */
	u64 reads, writes;	/* 64-byte requests to the device */
	u64 peak_lines;		/* requests the device's memory could have served in the interval; 0: not known */
	u64 reported;		/* hotlist entries drained */
	u64 lost;		/* reports and updates lost in the device */
	/* device, levels */
	u32 histogram[NEOTIER_HISTOGRAM_BINS]; /* units of the last complete epoch by estimate; see neotier_bin_low() */
	u32 error_bound;	/* requests an estimate may exceed the truth by */
	u32 threshold;		/* in force */
	u32 counter_max;	/* largest threshold that can match */
	u32 downsampling;	/* the device counts one in so many requests, >= 1 */
	u64 epoch_ns;		/* length of an epoch by the clock of promote_ns, > 0 */
	u32 unit_pages_log2;	/* log2 of the 4 KiB pages in a unit: 0 for 4 KiB units, 9 for 2 MiB */
	/* kernel, deltas (4 KiB pages) */
	u64 promoted;
	u64 promote_failed;	/* hot, but not moved: busy, no room, ... */
	u64 promote_ns;		/* time that moving the promoted pages took, by the clock of saved_ns: promotion/clock.h */
	u64 quota_skipped;	/* hot, but over quota */
	u64 demoted;		/* pages demoted to make room, one for one; what the kernel demotes by itself is not in it */
	u64 demote_ns;		/* time that these took, by the same clock */
	u64 regrets;		/* pages reported hot that had been demoted to make room, less than payback_ms before */
	u64 short_stays;	/* pages demoted to make room that had been promoted less than payback_ms before */
	u64 ping_pong;		/* promoted pages that had been promoted before and demoted since */
	u64 lasted_ns;		/* for which what is hot has stayed so, as far as was seen; 0: not known */
	/* kernel, levels */
	u64 quota_pages;	/* pages the quota allows in the interval; NEOTIER_NO_LIMIT: none */
	u64 fast_free_pages;	/* promotable without reclaim, headroom taken off */
	u64 fast_total_pages;
	u64 slow_total_pages;
};

struct neotier_plan {
	u32 threshold;		/* requests in an epoch, 1 .. counter_max */
	u64 promote_max;	/* pages to promote at most until the next decision; NEOTIER_NO_LIMIT: none of its own */
};

struct neotier_policy_params {
	u32 threshold;		/* fixed: the threshold; others: where to start. 1 .. 65535 */
	/* neomem: share of the device's pages called hot, parts per million; 1 <= min <= start <= max <= 1000000 */
	u32 p_start_ppm, p_min_ppm, p_max_ppm;
	u32 saved_ns;		/* payback: ns that a request saves in the fast tier, 1 .. 100000 */
	u32 payback_ms;		/* payback: ms within which a move has to repay its cost, 1 .. 60000 */
};

/* What the parameter files beside the policies (payback.toml, fixed.toml, neomem.toml) say. */
extern const struct neotier_policy_params neotier_policy_default_params;

struct neotier_policy {
	const char *name;	/* as written to sysfs */
	const char *text;	/* one line for people */
	/*
	 * state: NEOTIER_POLICY_STATE_BYTES, 8-byte aligned, zeroed by the caller. Parameters out of range are moved to
	 * the nearest value in range. decide() fills the whole plan; its threshold is always in 1 .. counter_max.
	 */
	void (*init)(void *state, const struct neotier_policy_params *params);
	void (*decide)(void *state, const struct neotier_snapshot *snapshot, struct neotier_plan *plan);
	bool histogram;		/* decide() looks at the snapshot's histogram; else it may be a second old */
};

extern const struct neotier_policy neotier_policy_payback;
extern const struct neotier_policy neotier_policy_fixed;
extern const struct neotier_policy neotier_policy_neomem;

/* All policies, NULL-terminated; the first is the default. */
extern const struct neotier_policy *const neotier_policies[];
/* By name, or NULL. */
const struct neotier_policy *neotier_policy_find(const char *name);

/*
 * What a shared library exports for `neotier replay --law FILE` and `neotier score --law FILE`; the sizes tell with which
 * header it was built:
 *   const struct neotier_policy_entry neotier_policy_entry = NEOTIER_POLICY_ENTRY_OF(mine);
 */
#define NEOTIER_POLICY_ENTRY "neotier_policy_entry"
struct neotier_policy_entry {
	u32 params_bytes, snapshot_bytes, plan_bytes, state_bytes;
	const struct neotier_policy *policy;
};
#define NEOTIER_POLICY_ENTRY_OF(p)                                                                                  \
	{                                                                                                           \
		sizeof(struct neotier_policy_params), sizeof(struct neotier_snapshot), sizeof(struct neotier_plan), \
			NEOTIER_POLICY_STATE_BYTES, &(p)                                                            \
	}

/* Lowest estimate of histogram bin `bin` in [0, 63]: 8 bins each of width 1, 2, 4, ... 128. */
static inline u32 neotier_bin_low(u32 bin)
{
	u32 group = bin >> 3;

	return ((1u << group) - 1) * 8 + ((bin & 7) << group);
}

/*
 * Threshold at which the hottest `units` units are hot: the lower edge of the bin that holds the `units`-th hottest, at
 * least 1. All of that bin are hot with it, so more than `units` may be; taking the bin above instead would call none
 * hot whenever the hot units share a bin. Fewer seen than asked for: 1. None seen: 0, there is nothing to go by.
 */
static inline u32 neotier_histogram_top(const u32 *histogram, u64 units)
{
	u64 seen = 0;
	u32 bin = NEOTIER_HISTOGRAM_BINS;

	while (bin > 0) {
		seen += histogram[--bin];
		if (seen > 0 && seen >= units)
			break;
	}
	if (seen == 0)
		return 0;
	return bin > 0 && neotier_bin_low(bin) > 0 ? neotier_bin_low(bin) : 1;
}

/*
 * Requests to a unit that has `threshold` or more, on average, where those with more than NEOTIER_HOT_CAP medians count as that
 * many; by lower edges of bins, at least the threshold; 0: no unit has as many. Few are far hotter than most, and win the most.
 * But units that share all their counters are one unit here, with all their requests.
 */
static inline u32 neotier_histogram_hot(const u32 *histogram, u32 threshold)
{
	u64 units = 0, seen = 0, sum = 0, median = 0, low;
	u32 first = 0, bin;

	while (first < NEOTIER_HISTOGRAM_BINS - 1 && neotier_bin_low(first + 1) <= threshold)
		first++;
	for (bin = first; bin < NEOTIER_HISTOGRAM_BINS; bin++)
		units += histogram[bin];
	for (bin = first; bin < NEOTIER_HISTOGRAM_BINS; bin++) {
		low = neotier_bin_low(bin) > threshold ? neotier_bin_low(bin) : threshold;
		seen += histogram[bin];
		if (!median && seen * 2 >= units)
			median = low;
		sum += histogram[bin] * (median && low > NEOTIER_HOT_CAP * median ? NEOTIER_HOT_CAP * median : low);
	}
	return units ? (u32)(sum / units) : 0;
}

/* The nearest value to `value` in low .. high. */
static inline u64 neotier_clamp_u64(u64 value, u64 low, u64 high)
{
	if (value < low)
		return low;
	return value > high ? high : value;
}

/* The nearest threshold that a device with this counter_max can match. */
static inline u32 neotier_threshold_clamp(u32 threshold, u32 counter_max)
{
	if (threshold > counter_max)
		threshold = counter_max;
	return threshold > 0 ? threshold : 1;
}

#ifdef __cplusplus
}
#endif
#endif

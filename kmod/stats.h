/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Counters, each with its definition; this list is what stats/ in sysfs is made from. 64-bit, never reset by a read, gone
 * with the module. Pages are 4 KiB. Each device's thread is the only writer of that device's counters, so they need no
 * atomic operation; readers sum over devices and may see a step half counted.
 */
#ifndef NEOTIER_STATS_H
#define NEOTIER_STATS_H

#include <linux/types.h>
#include "promotion/skip.h"

#define NEOTIER_COUNTERS(X) \
	X(DRAINED,         drained,         "hotlist entries taken from the device") \
	X(DISCARDED,       discarded,       "hotlist entries thrown away unread: more in an epoch than can be used") \
	X(TRIED,           tried,           "pages handed to migration") \
	X(PROMOTED,        promoted,        "pages moved to the target node") \
	X(PROMOTE_FAILED,  promote_failed,  "pages tried and not moved: tried - promoted") \
	X(PROMOTED_HUGE,   promoted_huge,   "huge folios moved whole; their pages are in promoted") \
	X(PROMOTE_HUGE_NS, promote_huge_ns, "time that their moves took, nanoseconds, by the clock in use; part of promote_ns") \
	X(SPLIT_HUGE,      split_huge,      "huge folios that were split while they were moved, by the kernel for want of memory in one piece or by others") \
	X(SPLIT_UP,        split_up,        "huge folios of the devices' nodes that were split so that their hot pages can be promoted") \
	X(SPLIT_DOWN,      split_down,      "huge folios of the target node that were split so that pages of theirs can make room") \
	X(SPLIT_NS,        split_ns,        "time that these splits took, nanoseconds, by the clock in use; part of promote_ns and age_ns") \
	X(DRY_RUN,         dry_run_pages,   "pages that would have been tried but for dry_run") \
	X(BATCHES,         batches,         "batches handed to migration") \
	X(PROMOTE_NS,      promote_ns,      "time spent in those batches, nanoseconds, by the clock in use: with what other tasks took") \
	X(PING_PONG,       ping_pong,       "reports of pages that had been promoted and have been demoted since") \
	X(PING_PONG_HUGE,  ping_pong_huge,  "huge folios worth their move that had been promoted whole and have been demoted since") \
	X(DEMOTED,         demoted,         "pages moved from the target node to make room: with room=exchange; what kswapd demotes is not in it") \
	X(SPARED,          spared,          "pages of these that were demoted so that the kernel's own memory finds room") \
	X(DEMOTE_FAILED,   demote_failed,   "victims tried and not moved: the sum of kept_*") \
	X(DEMOTE_NS,       demote_ns,       "time spent on victims, nanoseconds, by the clock in use: with what other tasks took") \
	X(SHORT_STAYS,     short_stays,     "pages demoted to make room that had been promoted less than payback_ms before") \
	X(REGRETS,         regrets,         "reports of pages that had been demoted to make room, less than payback_ms before") \
	X(SPENT_NS,        spent_ns,        "time of this driver's threads, and of kswapd when it made room for them, nanoseconds, by the clock in use") \
	X(WON_NS,          won_ns,          "time that promoted pages have saved, nanoseconds, estimated by those left as controls") \
	X(REGRET_NS,       regret_ns,       "time that demoted pages have cost, nanoseconds, by their reports") \
	X(RESTS,           rests,           "times looking stopped because loss_ppm and loss_base_ms left nothing to spend") \
	X(AGE_PASSES,      age_passes,      "times all pages of the target node were looked at for their Accessed bit") \
	X(AGE_LOOKS,       age_looks,       "page table entries looked at for it") \
	X(AGE_FOUND,       age_found,       "pages found not in use") \
	X(AGE_NS,          age_ns,          "time spent looking, nanoseconds, by the clock in use") \
	X(WAKEUPS,         wakeups,         "times the thread looked at the device") \
	X(ROOM_WAITS,      room_waits,      "times promotion stopped for want of free memory and woke kswapd") \
	X(ROOM_HOLDS,      room_holds,      "times promotion stopped for want of free memory and kswapd was not worth waking") \
	X(RESERVED,        reserved,        "pages put into the reserve for promotion") \
	X(INTERRUPTS,      interrupts,      "interrupts of the device") \
	X(AMBIGUOUS,       ambiguous,       "reports of a unit that spreads over several pages, all of which were taken for hot") \
	X(DECISIONS,       decisions,       "decisions of the policy") \
	X(THRESHOLDS,      threshold_writes, "thresholds written to the device") \
	X(DEVICE_FAULTS,   device_faults,   "times a device was taken out of service for what its registers said") \
	X(CLOCK_NS,        clock_ns,        "time between decisions, nanoseconds, by the clock in use") \
	X(CLOCK_FAULTS,    clock_faults,    "times the clock of a device was found wrong and given up for the kernel's") \
	X(EPOCHS,          epochs,          "device: complete epochs") \
	X(READS,           reads,           "device: 64-byte read requests seen") \
	X(WRITES,          writes,          "device: 64-byte write requests seen") \
	X(REPORTED,        reported,        "device: hotlist entries written") \
	X(LOST_TAP,        lost_tap,        "device loss: requests dropped before the tracker") \
	X(LOST_RING,       lost_ring,       "device loss: reports dropped because the hotlist was full") \
	X(LOST_CANDIDATES, lost_candidates, "device loss: hot units that did not fit the hot filter") \
	X(SATURATED,       saturated,       "device loss of precision: updates of a counter at its maximum")

#define NEOTIER_COUNTER_ENUM(NAME, name, text) NEOTIER_STAT_##NAME,
#define NEOTIER_SKIP_STAT_ENUM(NAME, name, text) NEOTIER_STAT_SKIP_##NAME,
#define NEOTIER_KEPT_STAT_ENUM(NAME, name) NEOTIER_STAT_KEPT_##NAME,
enum neotier_stat {
	NEOTIER_COUNTERS(NEOTIER_COUNTER_ENUM)
	NEOTIER_SKIPS(NEOTIER_SKIP_STAT_ENUM)
	NEOTIER_KEPTS(NEOTIER_KEPT_STAT_ENUM)
	NR_NEOTIER_STAT
};

/* File names in stats/, by enum neotier_stat. */
extern const char *const neotier_stat_names[NR_NEOTIER_STAT];

struct neotier_device;

/**
 * neotier_stat_add() - count for a device; call from its thread only
 * @dev: device
 * @stat: which counter
 * @n: how many
 */
void neotier_stat_add(struct neotier_device *dev, enum neotier_stat stat, u64 n);

/**
 * neotier_skip() - count and trace a report that moved nothing or has to wait; call from the device's thread only
 * @dev: device
 * @pfn: page, ~0 when the report names none
 * @reason: why
 */
void neotier_skip(struct neotier_device *dev, unsigned long pfn, enum neotier_skip reason);

/* As neotier_skip(), of a victim. */
void neotier_keep(struct neotier_device *dev, unsigned long pfn, enum neotier_skip reason);

/**
 * neotier_stat_sum() - a counter over all devices, those already removed included
 * @stat: which counter
 *
 * Context: may sleep (takes neotier_devices_lock).
 */
u64 neotier_stat_sum(enum neotier_stat stat);

/**
 * neotier_stat_retire() - keep the totals of a device that goes away
 * @dev: device; its thread has ended. The caller holds neotier_devices_lock.
 */
void neotier_stat_retire(struct neotier_device *dev);

#endif

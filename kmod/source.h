/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the module asks of whatever reports hot pages. Each kind of device is one struct neotier_source_ops, in a file of its
 * own; probe.c knows by which PCI function each is found. All else sees only what is here.
 */
#ifndef NEOTIER_SOURCE_H
#define NEOTIER_SOURCE_H

#include <linux/types.h>
#include "neotier_policy.h"

struct neotier_device;
struct pci_dev;

/* What a device can do: read and checked once, in probe. */
struct neotier_caps {
	u32 hotlist_size;	/* entries, >= 2 */
	u32 counter_max;
	u64 epoch_min_us, epoch_max_us;
	u32 downsampling_mask;	/* bit n: factor 2^n */
	bool epoch_mode, always_on, random_downsampling;
	u32 peak_lines_per_tick;
	u64 hpa_base, hpa_size;	/* bytes, whole pages, checked; of the straps */
	u64 serial;		/* of the CXL memory device, whose region then says where its memory is; 0: the straps do */
	u32 watched;		/* units that it counts one by one, at most NEOTIER_LEDGER_SLOTS */
	bool clock;		/* the machine's, by the device */
	bool interrupts;	/* fill level and overflow */
	u32 message;		/* MSI-X vector of both */
	u32 tracker_kind, tracker_rows, tracker_log2_width, tracker_counter_bits;
};

/* Requests that count for a page: the codes of CFG0.TRACK. */
enum neotier_track { NEOTIER_TRACK_READS = 4, NEOTIER_TRACK_WRITES, NEOTIER_TRACK_ALL };

/* What a device counts. Totals: requests of each kind, whichever pages they are for. */
enum neotier_counting { NEOTIER_COUNT_NOTHING, NEOTIER_COUNT_TOTALS, NEOTIER_COUNT_PAGES };

/* What the host sets in a device. Written by sysfs with WRITE_ONCE, applied by the thread. */
struct neotier_conf {
	u32 threshold;		/* in force; 1 .. counter_max */
	u32 start_threshold;	/* what the policy starts from */
	u32 epoch_us;
	u32 always_on;
	u32 downsampling_log2;
	u32 random_downsampling;
	u32 decay_shift;
	u32 track;		/* enum neotier_track */
	u32 irq;		/* the device may interrupt; only where has_irq */
	u32 fill_level;		/* entries, 1 .. 65535; from hotlist_size on, never */
};

/* Totals the device counts, and levels, as of the last snapshot. */
struct neotier_device_state {
	u64 ticks, epochs, reads, writes, reported;
	u64 lost_tap, lost_ring, lost_candidates, saturated;
	u32 occupancy, error_bound, hot_units;
	u32 histogram[NEOTIER_HISTOGRAM_BINS];
};

/* A report as drain() leaves it: 16 bits of count, the unit above. */
#define NEOTIER_REPORT_UNIT_SHIFT 16
#define NEOTIER_REPORT_COUNT_MASK 0xffffU

/**
 * struct neotier_source_ops - one kind of device that reports hot pages
 *
 * start() and what follows it, but epoch_valid(), are called under dev->lock, and not while the device is parked; the others by
 * probe alone.
 *
 * @ours: whether a PCI function with the kind's ids is one; leaves a stranger's as it was found
 * @open: map the device, read and check what it can do: fills dev->caps. Return: 0 or an errno; the reason has been logged, but
 *	for -ENOMEM
 * @close: free what open() has made, also after it failed. Mappings are the PCI device's (devm)
 * @default_conf: settings to start with: fills dev->conf
 * @start: reset the device and set it up for dev->region; it does not count yet. Return: 0 or -ENODEV when it does not answer;
 *	the reason has been logged
 * @apply: bring the device's configuration to dev->conf, and count that or stand still. Totals: it reports as little as it can
 * @drain: move at most @max reports to dev->entries. Return: how many; -EIO when the device's TAIL is out of range, -ENODEV when
 *	the register reads all ones; then nothing was read
 * @discard: throw away what the device reported. Return: number of reports; 0 when TAIL is out of range, which the next drain
 *	will say
 * @acknowledge: clear the causes of the device's interrupt
 * @snapshot: latch and read the device's counters; @histogram: that as well, else it is left as it is. Return: 0, or -ENODEV
 *	when the registers read all ones, as those of a device that is gone; then @state is worth nothing
 * @watch: from now on, count the requests for @unit in @slot, below dev->caps.watched, from 0 on
 * @watched: read that count. Return: requests since then, modulo 2^32, any value
 * @clock: latch and read the machine's clock, where dev->caps.clock says that there is one. Return: nanoseconds, any value
 * @epoch_valid: whether the device can have epochs of so many microseconds; any time after open()
 */
struct neotier_source_ops {
	bool (*ours)(struct pci_dev *pdev);
	int (*open)(struct neotier_device *dev);
	void (*close)(struct neotier_device *dev);
	void (*default_conf)(struct neotier_device *dev);
	int (*start)(struct neotier_device *dev);
	void (*apply)(struct neotier_device *dev, enum neotier_counting what);
	int (*drain)(struct neotier_device *dev, unsigned int max);
	unsigned int (*discard)(struct neotier_device *dev);
	void (*acknowledge)(struct neotier_device *dev);
	int (*snapshot)(struct neotier_device *dev, struct neotier_device_state *state, bool histogram);
	void (*watch)(struct neotier_device *dev, u32 slot, u64 unit);
	u32 (*watched)(struct neotier_device *dev, u32 slot);
	u64 (*clock)(struct neotier_device *dev);
	bool (*epoch_valid)(const struct neotier_device *dev, u64 epoch_us);
};

/* source_chmu.c: in this BAR of the PCI function, of which only the first NEOPROF_SIZE bytes are the device's. */
#define NEOTIER_BAR 2
extern const struct neotier_source_ops neotier_source_chmu;

#endif

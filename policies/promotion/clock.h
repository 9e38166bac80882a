/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The clock by which cost and benefit are compared. The driver's own clock is the program's time on hardware. On an
 * emulated machine it is not: what a request saves shows only on the clock that the machine's device hands out. Then the
 * cost of moves and the length of epochs are told by that one.
 *
 * The device is not trusted. A clock that stands still, goes back or runs away is never used again, and no answer leaves
 * the bounds below, whatever the clock says.
 *
 * Freestanding C, the same object in neotier.ko, the replay and the unit test. Thread safety: one caller at a time.
 */
#ifndef NEOTIER_CLOCK_H
#define NEOTIER_CLOCK_H

#include "neotier_policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A device's clock is at most so many times as fast as the driver's, but for NEOTIER_CLOCK_SLACK_NS. */
#define NEOTIER_CLOCK_FASTEST 1024U
#define NEOTIER_CLOCK_SLACK_NS 1000000ULL
/* And moves on at least once in so long, by the driver's. */
#define NEOTIER_CLOCK_STILL_NS 1000000000ULL
/* An epoch is at least its nominal length divided by this. */
#define NEOTIER_CLOCK_SLOWEST 64U
/* neotier_clock.rate of a clock that runs as the driver's. */
#define NEOTIER_CLOCK_ONE 65536ULL

/* One moment, by both. */
struct neotier_time {
	u64 own_ns;
	u64 device_ns;	/* worth nothing unless neotier_clock.used */
};

struct neotier_clock {
	bool used;	/* the device's */
	bool marked;	/* `mark` and `mark_busy_ns` are the beginning of an interval */
	struct neotier_time last;	/* when it was seen to have moved on */
	struct neotier_time mark;
	u64 mark_busy_ns;
	u64 rate;	/* of the clock, by the device's time; times NEOTIER_CLOCK_ONE */
};

/* Begins anew at @now; @device: there is one to use. */
void neotier_clock_start(struct neotier_clock *clock, bool device, const struct neotier_time *now);

/**
 * neotier_clock_check() - look at a new reading of both clocks
 * @clock: clock, the device's in use
 * @now: the reading
 *
 * Return: false when the device's clock is found wrong; from then on the driver's own is used.
 */
bool neotier_clock_check(struct neotier_clock *clock, const struct neotier_time *now);

/* Nanoseconds from one moment to a later one, by the clock in use now. */
u64 neotier_clock_span(const struct neotier_clock *clock, const struct neotier_time *from, const struct neotier_time *to);

/**
 * neotier_clock_mark() - end an interval of counting and begin the next
 * @clock: clock
 * @now: a reading that was checked
 * @busy_ns: for how long the device has counted since it was started, by the device
 *
 * Measures how fast the clock runs against the device's epochs, whose timer stands still with the machine.
 */
void neotier_clock_mark(struct neotier_clock *clock, const struct neotier_time *now, u64 busy_ns);

/* The device stood still: the interval says nothing. */
void neotier_clock_unmark(struct neotier_clock *clock);

/* What @device_ns of the device's epochs (at most 2^47) come to by the clock. */
u64 neotier_clock_scale(const struct neotier_clock *clock, u64 device_ns);

/* And back: how much of the device's epochs @ns by the clock are, which are at most 2^47. */
u64 neotier_clock_unscale(const struct neotier_clock *clock, u64 ns);

#ifdef __cplusplus
}
#endif
#endif

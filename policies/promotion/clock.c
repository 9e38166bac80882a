// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
#include "promotion/clock.h"

/* A day: keeps products within 64 bits. No interval between two decisions comes near it. */
#define INTERVAL_MAX_NS (86400ULL * 1000000000ULL)

void neotier_clock_start(struct neotier_clock *clock, bool device, const struct neotier_time *now)
{
	clock->used = device;
	clock->last = *now;
	clock->rate = NEOTIER_CLOCK_ONE;
	neotier_clock_unmark(clock);
}

bool neotier_clock_check(struct neotier_clock *clock, const struct neotier_time *now)
{
	u64 passed = neotier_clamp_u64(now->own_ns - clock->last.own_ns, 0, INTERVAL_MAX_NS);
	u64 told = now->device_ns - clock->last.device_ns;

	if (!told && passed <= NEOTIER_CLOCK_STILL_NS)
		return true;
	/* Backwards is a large difference. */
	if (told && told <= passed * NEOTIER_CLOCK_FASTEST + NEOTIER_CLOCK_SLACK_NS) {
		clock->last = *now;
		return true;
	}
	clock->used = false;
	clock->rate = NEOTIER_CLOCK_ONE;
	neotier_clock_unmark(clock);
	return false;
}

u64 neotier_clock_span(const struct neotier_clock *clock, const struct neotier_time *from, const struct neotier_time *to)
{
	return clock->used ? to->device_ns - from->device_ns : to->own_ns - from->own_ns;
}

void neotier_clock_mark(struct neotier_clock *clock, const struct neotier_time *now, u64 busy_ns)
{
	u64 busy = busy_ns - clock->mark_busy_ns;

	/* A count that runs backwards (the device was reset, or lies) tells nothing. */
	if (clock->used && clock->marked && busy_ns > clock->mark_busy_ns && busy <= INTERVAL_MAX_NS) {
		u64 span = neotier_clamp_u64(neotier_clock_span(clock, &clock->mark, now), 0, INTERVAL_MAX_NS);

		clock->rate = neotier_clamp_u64(span * NEOTIER_CLOCK_ONE / busy,
						NEOTIER_CLOCK_ONE / NEOTIER_CLOCK_SLOWEST,
						NEOTIER_CLOCK_ONE * NEOTIER_CLOCK_FASTEST);
	}
	clock->marked = true;
	clock->mark = *now;
	clock->mark_busy_ns = busy_ns;
}

void neotier_clock_unmark(struct neotier_clock *clock)
{
	clock->marked = false;
}

u64 neotier_clock_scale(const struct neotier_clock *clock, u64 device_ns)
{
	/* In two parts: a product of the whole would not fit 64 bits. */
	return device_ns / NEOTIER_CLOCK_ONE * clock->rate + device_ns % NEOTIER_CLOCK_ONE * clock->rate / NEOTIER_CLOCK_ONE;
}

u64 neotier_clock_unscale(const struct neotier_clock *clock, u64 ns)
{
	return ns * NEOTIER_CLOCK_ONE / (clock->rate ? clock->rate : NEOTIER_CLOCK_ONE);
}

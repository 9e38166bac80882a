// SPDX-License-Identifier: GPL-2.0-only
/*
 * Readings of both clocks: the kernel's and, where the machine provides one, the device's. promotion/clock.h decides which
 * is used. Whatever is compared with saved_ns is told by them; timers, the quota and the confirmation of reports are not,
 * and stay with the kernel's.
 */
#include <linux/ktime.h>
#include "neotier.h"

static struct neotier_time neotier_clock_read(struct neotier_device *dev)
{
	return (struct neotier_time){
		.own_ns = ktime_get_ns(),
		.device_ns = dev->caps.clock ? dev->source->clock(dev) : 0,
	};
}

void neotier_clock_begin(struct neotier_device *dev)
{
	struct neotier_time now = neotier_clock_read(dev);

	lockdep_assert_held(&dev->lock);
	neotier_clock_start(&dev->clock, dev->caps.clock, &now);
}

struct neotier_time neotier_clock_now(struct neotier_device *dev)
{
	struct neotier_time now;

	lockdep_assert_held(&dev->lock);
	if (!dev->clock.used)
		return (struct neotier_time){ .own_ns = ktime_get_ns() };
	now = neotier_clock_read(dev);
	if (!neotier_clock_check(&dev->clock, &now)) {
		dev_warn(&dev->pdev->dev, "its clock stood still, went back or ran away (0x%llx): the kernel's is used from now on\n",
			 now.device_ns);
		neotier_stat_add(dev, NEOTIER_STAT_CLOCK_FAULTS, 1);
	}
	return now;
}

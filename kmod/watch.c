// SPDX-License-Identifier: GPL-2.0-only
/* Between promotion/watch.h, which has controls and witnesses counted, and a device that counts what it is told to. */
#include <linux/pfn.h>
#include "neotier.h"

static void neotier_ops_name(void *owner, u32 slot, u32 page)
{
	struct neotier_device *dev = owner;
	u64 dpa = dev->region.dpa_base + neotier_interleave_dpa(&dev->region.interleave, PFN_PHYS(page));

	dev->source->watch(dev, slot, PHYS_PFN(dpa));
}

static u32 neotier_ops_count(void *owner, u32 slot)
{
	struct neotier_device *dev = owner;

	return dev->source->watched(dev, slot);
}

static const struct neotier_watch_ops neotier_watch_ops = {
	.name = neotier_ops_name,
	.count = neotier_ops_count,
	.identity = neotier_hotlist_identity,
};

void neotier_watch_init(struct neotier_device *dev)
{
	const struct neotier_interleave *il = &dev->region.interleave;

	dev->watch.ops = &neotier_watch_ops;
	dev->watch.owner = dev;
	/* Of chunks smaller than a page the device has a share of several pages: what it counts is no page's. */
	dev->watch.nr = il->ways_log2 && il->gran_log2 < PAGE_SHIFT ? 0 : dev->caps.watched;
	neotier_watch_forget(&dev->watch);
}

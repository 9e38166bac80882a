// SPDX-License-Identifier: GPL-2.0-only
/*
 * The memory that a device watches: which node it is on, where hot pages go, and whether all of it is online.
 *
 * Hot-remove: the notifier pauses the device before its memory goes offline and waits until the thread holds none of its
 * pages; pfn_to_online_page() guards each look besides.
 */
#include <linux/memory.h>
#include <linux/memory_hotplug.h>
#include <linux/nodemask.h>
#include <linux/topology.h>
#include "neotier.h"

/* The first PFN of the range that is not online on the range's node, or the end of the range. */
static unsigned long neotier_range_online(struct neotier_device *dev, int *nid)
{
	unsigned long pfn = dev->base_pfn, end = dev->base_pfn + dev->nr_pages;

	while (pfn < end) {
		struct page *page = pfn_to_online_page(pfn);

		if (!page || (pfn != dev->base_pfn && page_to_nid(page) != *nid))
			break;
		*nid = page_to_nid(page);
		pfn = min(ALIGN(pfn + 1, PAGES_PER_SECTION), end);
	}
	return pfn;
}

static int neotier_find_target(int slow_nid)
{
	int nid, best = NUMA_NO_NODE;

	for_each_node_state(nid, N_CPU) {
		if (!node_state(nid, N_MEMORY))
			continue;
		if (best == NUMA_NO_NODE || node_distance(slow_nid, nid) < node_distance(slow_nid, best))
			best = nid;
	}
	return best;
}

/* Whether the range is all online on one node; says where it is not. */
static int neotier_memory_check(struct neotier_device *dev, int *nid)
{
	struct device *d = &dev->pdev->dev;
	unsigned long pfn = neotier_range_online(dev, nid);

	if (pfn == dev->base_pfn + dev->nr_pages)
		return 0;
	if (dev->caps.serial)
		return dev_err_probe(d, -EPROBE_DEFER, "waits for memory at 0x%llx to come online\n", (u64)PFN_PHYS(pfn));
	dev_err(d, "memory at 0x%llx, %llu bytes, is not all online on one node (first gap at 0x%llx): bring it online, then bind the device again\n",
		dev->region.hpa_base, dev->region.hpa_size, (u64)PFN_PHYS(pfn));
	return -ENODEV;
}

int neotier_memory_recheck(struct neotier_device *dev)
{
	int nid = NUMA_NO_NODE, err;

	mutex_lock(&dev->lock);
	err = neotier_memory_check(dev, &nid);
	mutex_unlock(&dev->lock);
	return err;
}

int neotier_memory_init(struct neotier_device *dev)
{
	struct device *d = &dev->pdev->dev;
	int nid = NUMA_NO_NODE, err;

	dev->base_pfn = PHYS_PFN(dev->region.hpa_base);
	dev->nr_pages = PHYS_PFN(dev->region.hpa_size);
	dev->nr_units = PHYS_PFN(dev->region.dpa_size);
	err = neotier_memory_check(dev, &nid);
	if (err)
		return err;
	if (node_state(nid, N_CPU)) {
		dev_err(d, "memory is on node %d, which has CPUs: no slower tier to promote from; check HPA_BASE\n", nid);
		return -EINVAL;
	}
	dev->nid = nid;
	dev->target_nid = neotier_find_target(nid);
	if (dev->target_nid == NUMA_NO_NODE) {
		dev_err(d, "no node with both CPUs and memory to promote to\n");
		return -ENODEV;
	}
	return 0;
}

static void neotier_memory_unpause(struct neotier_device *dev)
{
	int nid = NUMA_NO_NODE;

	lockdep_assert_held(&dev->lock);
	dev->paused = neotier_range_online(dev, &nid) != dev->base_pfn + dev->nr_pages || nid != dev->nid;
	if (!dev->paused)
		dev->offline = false;
}

void neotier_memory_online(struct neotier_device *dev)
{
	mutex_lock(&dev->lock);
	if (dev->paused)
		neotier_memory_unpause(dev);
	mutex_unlock(&dev->lock);
}

static int neotier_memory_event(struct notifier_block *nb, unsigned long action, void *data)
{
	const struct memory_notify *notify = data;
	unsigned long end = notify->start_pfn + notify->nr_pages;
	struct neotier_device *dev;

	mutex_lock(&neotier_devices_lock);
	list_for_each_entry(dev, &neotier_devices, node) {
		/* It may lie in the range, and memory in use does not go offline. */
		if (action == MEM_GOING_OFFLINE) {
			mutex_lock(&dev->lock);
			neotier_reserve_drop(dev);
			mutex_unlock(&dev->lock);
		}
		if (end <= dev->base_pfn || notify->start_pfn >= dev->base_pfn + dev->nr_pages)
			continue;
		mutex_lock(&dev->lock);
		switch (action) {
		case MEM_GOING_OFFLINE:
			dev->paused = true;
			break;
		case MEM_OFFLINE:
			/* Not only above: the device may have been bound in between. */
			dev->paused = true;
			if (dev->offline)
				break;
			dev->offline = true;
			dev_warn(&dev->pdev->dev, "paused: part of its memory went offline; resumes when all of it is online again\n");
			break;
		case MEM_CANCEL_OFFLINE:
			neotier_memory_unpause(dev);
			break;
		case MEM_ONLINE:
			/* A region may have come back with another interleave: neotier_probe_recheck() looks first. */
			if (!dev->caps.serial)
				neotier_memory_unpause(dev);
			break;
		}
		mutex_unlock(&dev->lock);
	}
	mutex_unlock(&neotier_devices_lock);
	if (action == MEM_ONLINE)
		neotier_probe_recheck();
	return NOTIFY_OK;
}

static struct notifier_block neotier_memory_nb = { .notifier_call = neotier_memory_event };

int neotier_memory_notifier_register(void)
{
	return register_memory_notifier(&neotier_memory_nb);
}

void neotier_memory_notifier_unregister(void)
{
	unregister_memory_notifier(&neotier_memory_nb);
}

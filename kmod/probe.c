// SPDX-License-Identifier: GPL-2.0-only
/*
 * Binds to profilers: BAR 2 of a PCI function, of which only the first NEOPROF_SIZE bytes are the device's. A device whose
 * memory is part of a CXL region is bound when the region is there and online, and bound anew when it has changed.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/device.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/workqueue.h>
#include "neoprof_regs.h"
#include "compat.h"
#include "neotier.h"

#define NEOTIER_BAR 2
#define NEOTIER_VENDOR_ID 0x1af4
#define NEOTIER_DEVICE_ID 0x1110

static int neotier_probes, neotier_probe_error;
static bool neotier_probe_waits;
static int neotier_next_id;

static int neotier_find_memory(struct neotier_device *dev)
{
	const struct neotier_caps *caps = &dev->caps;
	struct neotier_region *region = &dev->region;
	int err;

	if (!caps->serial) {
		*region = (struct neotier_region) {
			.hpa_base = caps->hpa_base, .hpa_size = caps->hpa_size, .dpa_size = caps->hpa_size,
		};
		return 0;
	}
	err = neotier_region_find(dev, region);
	if (err)
		return err;
	if (region->dpa_base > caps->hpa_size || region->dpa_size > caps->hpa_size - region->dpa_base) {
		NEOTIER_REFUSE(dev, "its region uses 0x%llx bytes at 0x%llx of 0x%llx", region->dpa_size, region->dpa_base,
			       caps->hpa_size);
		return -EINVAL;
	}
	return 0;
}

static void neotier_device_free(struct neotier_device *dev)
{
	neotier_room_drop(dev);
	neotier_hotlist_free(dev);
	kvfree(dev->entries);
	kfree(dev->window.copy);
	kfree(dev->batch);
	kfree(dev->src);
	kfree(dev->dst);
	kfree(dev->pool);
	kfree(dev);
}

static int neotier_device_alloc(struct neotier_device *dev)
{
	dev->entries = kvcalloc(dev->caps.hotlist_size, sizeof(*dev->entries), GFP_KERNEL);
	dev->batch = kcalloc(NEOTIER_BATCH_MAX, sizeof(*dev->batch), GFP_KERNEL);
	dev->src = kcalloc(NEOTIER_MIGRATE_WORDS, sizeof(*dev->src), GFP_KERNEL);
	dev->dst = kcalloc(NEOTIER_MIGRATE_WORDS, sizeof(*dev->dst), GFP_KERNEL);
	dev->pool = kcalloc(NEOTIER_BATCH_MAX, sizeof(*dev->pool), GFP_KERNEL);
	return dev->entries && dev->batch && dev->src && dev->dst && dev->pool ? 0 : -ENOMEM;
}

static int neotier_map(struct neotier_device *dev)
{
	struct pci_dev *pdev = dev->pdev;
	int err = pcim_enable_device(pdev);

	if (err) {
		dev_err(&pdev->dev, "cannot enable the PCI function (%d)\n", err);
		return err;
	}
	if (!(pci_resource_flags(pdev, NEOTIER_BAR) & IORESOURCE_MEM) ||
	    pci_resource_len(pdev, NEOTIER_BAR) < NEOPROF_SIZE) {
		NEOTIER_REFUSE(dev, "BAR %d is no memory of at least %u bytes", NEOTIER_BAR, NEOPROF_SIZE);
		return -ENODEV;
	}
	/* Not pci_request_region(): whether unbinding gives it back depends on the kernel. */
	if (!devm_request_mem_region(&pdev->dev, pci_resource_start(pdev, NEOTIER_BAR),
				     pci_resource_len(pdev, NEOTIER_BAR), KBUILD_MODNAME)) {
		dev_err(&pdev->dev, "BAR %d is in use: unbind whatever has it, then bind the device again\n", NEOTIER_BAR);
		return -EBUSY;
	}
	dev->regs = devm_ioremap(&pdev->dev, pci_resource_start(pdev, NEOTIER_BAR), NEOPROF_SIZE);
	return dev->regs ? 0 : -ENOMEM;
}

/* Mapped anew, because the kernel gives a page one memory type at a time. */
static int neotier_map_window(struct neotier_device *dev)
{
	struct neotier_window *window = &dev->window;
	struct device *d = &dev->pdev->dev;
	resource_size_t bar = pci_resource_start(dev->pdev, NEOTIER_BAR);
	u32 begin = PAGE_ALIGN(dev->caps.hotlist_offset);
	u32 end = (dev->caps.hotlist_offset + dev->caps.hotlist_size * NEOPROF_HOTLIST_STRIDE) & PAGE_MASK;

	if (!neotier_source_streams() || begin >= end)
		return 0;
	/* Aligned to its size, as kmalloc() does for powers of two. */
	window->copy = kmalloc(NEOTIER_STREAM_LINES * NEOTIER_LINE, GFP_KERNEL);
	if (!window->copy)
		return -ENOMEM;
	devm_iounmap(d, dev->regs);
	dev->regs = devm_ioremap(d, bar, begin);
	window->lines = devm_ioremap_wc(d, bar + begin, end - begin);
	window->behind = devm_ioremap(d, bar + end, NEOPROF_SIZE - end);
	if (!dev->regs || !window->lines || !window->behind)
		return -ENOMEM;
	window->begin = begin;
	window->end = end;
	return 0;
}

static int neotier_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct neotier_device *dev = kzalloc(sizeof(*dev), GFP_KERNEL);
	int err = -ENOMEM;

	neotier_probes++;
	if (!dev)
		goto out;
	dev->pdev = pdev;
	INIT_LIST_HEAD(&dev->reserve.pages);
	mutex_init(&dev->lock);
	init_completion(&dev->released);

	err = neotier_map(dev);
	if (!err)
		err = neotier_source_caps(dev);
	if (!err)
		err = neotier_map_window(dev);
	if (!err)
		err = neotier_find_memory(dev);
	if (!err)
		err = neotier_device_alloc(dev);
	if (!err)
		err = neotier_memory_init(dev);
	if (!err)
		err = neotier_hotlist_init(dev);
	if (err)
		goto free;
	neotier_source_default_conf(dev);
	err = neotier_source_start(dev);
	if (err)
		goto free;

	mutex_lock(&neotier_devices_lock);
	dev->id = list_empty(&neotier_devices) ? 0 : neotier_next_id;
	neotier_next_id = dev->id + 1;
	mutex_unlock(&neotier_devices_lock);
	err = neotier_sysfs_add_device(dev);
	if (err)
		goto free;
	err = neotier_promote_start(dev);
	if (err)
		goto del_sysfs;
	mutex_lock(&neotier_devices_lock);
	list_add_tail(&dev->node, &neotier_devices);
	mutex_unlock(&neotier_devices_lock);
	pci_set_drvdata(pdev, dev);
	neotier_irq_init(dev);
	dev_info(&pdev->dev, "device%d: %llu MiB on node %d, promoting to node %d\n", dev->id,
		 dev->region.dpa_size >> 20, dev->nid, dev->target_nid);
	return 0;

del_sysfs:
	neotier_sysfs_del_device(dev);
free:
	neotier_device_free(dev);
out:
	/*
	 * The reason has been logged and insmod returns the errno; to the driver core "not mine" is enough, for anything
	 * else it would add a line of its own.
	 */
	neotier_probe_error = err;
	if (err == -EPROBE_DEFER)
		neotier_probe_waits = true;
	return err == -ENOMEM || err == -EPROBE_DEFER ? err : -ENODEV;
}

static void neotier_remove(struct pci_dev *pdev)
{
	struct neotier_device *dev = pci_get_drvdata(pdev);

	neotier_sysfs_del_device(dev);
	neotier_irq_exit(dev);
	mutex_lock(&neotier_devices_lock);
	list_del(&dev->node);
	neotier_promote_stop(dev);
	neotier_stat_retire(dev);
	mutex_unlock(&neotier_devices_lock);
	if (dev->state != NEOTIER_FAILED)
		neotier_source_apply(dev, false);
	neotier_device_free(dev);
}

static const struct pci_device_id neotier_ids[] = {
	{ PCI_DEVICE(NEOTIER_VENDOR_ID, NEOTIER_DEVICE_ID) },
	{ }
};
MODULE_DEVICE_TABLE(pci, neotier_ids);

static struct pci_driver neotier_driver = {
	.name = KBUILD_MODNAME,
	.id_table = neotier_ids,
	.probe = neotier_probe,
	.remove = neotier_remove,
	/* insmod answers for what probe found. */
	.driver.probe_type = PROBE_FORCE_SYNCHRONOUS,
};

/* Recheck: in a work item, since who asks may hold locks that probe and the CXL core take. */
static bool neotier_registered;

/* Whether the device's region is what it was when it was bound. */
static bool neotier_region_same(struct neotier_device *dev)
{
	struct neotier_region now = { };

	return !neotier_region_find(dev, &now) && now.hpa_base == dev->region.hpa_base &&
	       now.hpa_size == dev->region.hpa_size && now.dpa_base == dev->region.dpa_base &&
	       now.dpa_size == dev->region.dpa_size && now.position == dev->region.position &&
	       now.interleave.ways_log2 == dev->region.interleave.ways_log2 &&
	       now.interleave.gran_log2 == dev->region.interleave.gran_log2;
}

#define NEOTIER_STALE_MAX 16
struct neotier_stale {
	struct device *devices[NEOTIER_STALE_MAX];	/* with a reference each */
	unsigned int nr;
};

static int neotier_recheck_one(struct device *d, void *data)
{
	struct neotier_stale *stale = data;
	struct neotier_device *dev;

	device_lock(d);
	dev = dev_get_drvdata(d);
	if (dev && dev->caps.serial) {
		if (neotier_region_same(dev))
			neotier_memory_online(dev);
		else if (stale->nr < NEOTIER_STALE_MAX)
			stale->devices[stale->nr++] = get_device(d);
	}
	device_unlock(d);
	return 0;
}

static void neotier_recheck_work(struct work_struct *work)
{
	struct neotier_stale stale = { };
	unsigned int i;

	if (driver_for_each_device(&neotier_driver.driver, NULL, &stale, neotier_recheck_one))
		return;
	/* Not above: unbinding waits for the walk over the driver's devices to let go. */
	for (i = 0; i < stale.nr; i++) {
		dev_info(stale.devices[i], "its CXL region has changed: bound anew\n");
		device_release_driver(stale.devices[i]);
		put_device(stale.devices[i]);
	}
	/* Else an administrator's unbind would last until some memory comes online. */
	if (!stale.nr && !READ_ONCE(neotier_probe_waits))
		return;
	if (driver_attach(&neotier_driver.driver))
		pr_warn("cannot look for devices again\n");
}

static DECLARE_WORK(neotier_recheck, neotier_recheck_work);

void neotier_probe_recheck(void)
{
	if (READ_ONCE(neotier_registered))
		schedule_work(&neotier_recheck);
}

int neotier_probe_register(void)
{
	int err = pci_register_driver(&neotier_driver);
	bool bound;

	if (err)
		return err;
	mutex_lock(&neotier_devices_lock);
	bound = !list_empty(&neotier_devices);
	mutex_unlock(&neotier_devices_lock);
	if (!bound && neotier_probe_waits)
		pr_info("no device has its CXL region yet: waiting (/sys/kernel/debug/devices_deferred says for what)\n");
	if (bound || neotier_probe_waits) {
		WRITE_ONCE(neotier_registered, true);
		return 0;
	}
	pci_unregister_driver(&neotier_driver);
	if (neotier_probes)
		return neotier_probe_error;
	pr_err("no NeoProf device found (PCI %04x:%04x)\n", NEOTIER_VENDOR_ID, NEOTIER_DEVICE_ID);
	return -ENODEV;
}

void neotier_probe_unregister(void)
{
	WRITE_ONCE(neotier_registered, false);
	cancel_work_sync(&neotier_recheck);
	pci_unregister_driver(&neotier_driver);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Binds to profilers: PCI functions, whose ids say which source serves them. A device whose memory is part of a CXL
 * region is bound when the region is there and online, and bound anew when it has changed.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/device.h>
#include <linux/idr.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/pm.h>
#include <linux/slab.h>
#include <linux/workqueue.h>
#include "compat.h"
#include "neotier.h"

#define NEOTIER_VENDOR_ID 0x1af4
#define NEOTIER_DEVICE_ID 0x1110

/* What probing came to, for who loads the module and for the recheck. Devices may be probed at the same time. */
static DEFINE_SPINLOCK(neotier_probe_lock);
static int neotier_probes, neotier_strangers, neotier_probe_error;
static bool neotier_probe_waits;
static DEFINE_IDA(neotier_ids);

/*
 * By driver_data of the id. The first one must do for any function: it is what an administrator's new_id and driver_override
 * come with, and the kernel takes no driver_data in new_id that is not in the table of ids.
 */
static const struct neotier_source_ops *const neotier_sources[] = { &neotier_source_chmu };

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
	mutex_lock(&dev->lock);
	neotier_reserve_drop(dev);
	mutex_unlock(&dev->lock);
	if (dev->id >= 0)
		ida_free(&neotier_ids, dev->id);
	neotier_hotlist_free(dev);
	neotier_huge_free(dev);
	neotier_exchange_put(dev);
	dev->source->close(dev);
	kvfree(dev->entries);
	kfree(dev->batch);
	kfree(dev->src);
	kfree(dev->dst);
	kfree(dev->pool);
	kfree(dev->victims);
	kfree(dev);
}

static int neotier_device_alloc(struct neotier_device *dev)
{
	dev->entries = kvcalloc(dev->caps.hotlist_size, sizeof(*dev->entries), GFP_KERNEL);
	dev->batch = kcalloc(NEOTIER_BATCH_MAX, sizeof(*dev->batch), GFP_KERNEL);
	dev->src = kcalloc(NEOTIER_MIGRATE_WORDS, sizeof(*dev->src), GFP_KERNEL);
	dev->dst = kcalloc(NEOTIER_MIGRATE_WORDS, sizeof(*dev->dst), GFP_KERNEL);
	dev->pool = kcalloc(NEOTIER_BATCH_MAX, sizeof(*dev->pool), GFP_KERNEL);
	dev->victims = kcalloc(NEOTIER_BATCH_MAX, sizeof(*dev->victims), GFP_KERNEL);
	return dev->entries && dev->batch && dev->src && dev->dst && dev->pool && dev->victims ? 0 : -ENOMEM;
}

/* From here on the memory notifier knows the device, so that what is checked after it stays true. */
static void neotier_device_publish(struct neotier_device *dev)
{
	mutex_lock(&neotier_devices_lock);
	list_add_tail(&dev->node, &neotier_devices);
	mutex_unlock(&neotier_devices_lock);
}

/* The reverse: no step is made any more, and nobody finds the device. */
static void neotier_device_retire(struct neotier_device *dev)
{
	mutex_lock(&neotier_devices_lock);
	list_del(&dev->node);
	neotier_promote_stop(dev);
	neotier_stat_retire(dev);
	mutex_unlock(&neotier_devices_lock);
}

static int neotier_setup(struct neotier_device *dev)
{
	int err;

	err = dev->source->open(dev) ? : neotier_find_memory(dev) ? : neotier_memory_init(dev) ? : neotier_device_alloc(dev) ? :
	      neotier_hotlist_alloc(dev);
	if (err)
		return err;
	dev->source->default_conf(dev);
	mutex_lock(&dev->lock);
	err = neotier_source_start(dev);
	mutex_unlock(&dev->lock);
	if (err)
		return err;
	dev->id = ida_alloc(&neotier_ids, GFP_KERNEL);
	return dev->id < 0 ? dev->id : neotier_sysfs_add_device(dev);
}

static void neotier_probed(int err)
{
	spin_lock(&neotier_probe_lock);
	neotier_probes++;
	if (err)
		neotier_probe_error = err;
	if (err == -EPROBE_DEFER)
		neotier_probe_waits = true;
	spin_unlock(&neotier_probe_lock);
}

static int neotier_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	const struct neotier_source_ops *source = neotier_sources[id->driver_data];
	struct neotier_device *dev;
	int err = -ENOMEM;

	if (!source->ours(pdev)) {
		spin_lock(&neotier_probe_lock);
		neotier_strangers++;
		spin_unlock(&neotier_probe_lock);
		return -ENODEV;
	}
	dev = kzalloc(sizeof(*dev), GFP_KERNEL);
	if (!dev)
		goto out;
	dev->pdev = pdev;
	dev->source = source;
	dev->id = -1;
	INIT_LIST_HEAD(&dev->reserve);
	mutex_init(&dev->lock);
	init_completion(&dev->released);

	err = neotier_setup(dev);
	if (err)
		goto free;
	err = neotier_promote_create(dev);
	if (err)
		goto del_sysfs;
	neotier_device_publish(dev);
	err = neotier_memory_recheck(dev);
	if (err)
		goto retire;
	pci_set_drvdata(pdev, dev);
	neotier_irq_init(dev);
	/* What neotier_slot_reset() restores. */
	pci_save_state(pdev);
	neotier_promote_wake(dev);
	dev_info(&pdev->dev, "device%d: %llu MiB on node %d, promoting to node %d\n", dev->id,
		 dev->region.dpa_size >> 20, dev->nid, dev->target_nid);
	neotier_probed(0);
	return 0;

retire:
	neotier_device_retire(dev);
del_sysfs:
	neotier_sysfs_del_device(dev);
free:
	neotier_device_free(dev);
out:
	/*
	 * The reason has been logged and insmod returns the errno; to the driver core "not mine" is enough, for anything
	 * else it would add a line of its own.
	 */
	neotier_probed(err);
	return err == -ENOMEM || err == -EPROBE_DEFER ? err : -ENODEV;
}

static void neotier_remove(struct pci_dev *pdev)
{
	struct neotier_device *dev = pci_get_drvdata(pdev);

	neotier_sysfs_del_device(dev);
	neotier_irq_exit(dev);
	neotier_device_retire(dev);
	mutex_lock(&dev->lock);
	neotier_source_stop(dev);
	mutex_unlock(&dev->lock);
	neotier_device_free(dev);
}

/*
 * A reset, a recovered error and a suspend leave a device that has forgotten all that was written to it. Before, the thread
 * lets go of the registers; after, the device is set up anew.
 */
static void neotier_reset_prepare(struct pci_dev *pdev)
{
	neotier_promote_park(pci_get_drvdata(pdev), true);
}

static void neotier_reset_done(struct pci_dev *pdev)
{
	neotier_promote_unpark(pci_get_drvdata(pdev));
}

static pci_ers_result_t neotier_error_detected(struct pci_dev *pdev, pci_channel_state_t state)
{
	if (state == pci_channel_io_normal)
		return PCI_ERS_RESULT_CAN_RECOVER;
	neotier_promote_park(pci_get_drvdata(pdev), false);
	return state == pci_channel_io_perm_failure ? PCI_ERS_RESULT_DISCONNECT : PCI_ERS_RESULT_NEED_RESET;
}

static pci_ers_result_t neotier_slot_reset(struct pci_dev *pdev)
{
	pci_restore_state(pdev);
	/* Restoring uses up what was saved. */
	pci_save_state(pdev);
	return PCI_ERS_RESULT_RECOVERED;
}

static void neotier_error_resume(struct pci_dev *pdev)
{
	neotier_promote_unpark(pci_get_drvdata(pdev));
}

static const struct pci_error_handlers neotier_errors = {
	.error_detected = neotier_error_detected,
	.slot_reset = neotier_slot_reset,
	.resume = neotier_error_resume,
	.reset_prepare = neotier_reset_prepare,
	.reset_done = neotier_reset_done,
};

static int neotier_suspend(struct device *d)
{
	neotier_promote_park(dev_get_drvdata(d), true);
	return 0;
}

/* A device that does not come back is out of service, which has been logged, and no reason to stop the machine's resume. */
static int neotier_resume(struct device *d)
{
	neotier_promote_unpark(dev_get_drvdata(d));
	return 0;
}

static DEFINE_SIMPLE_DEV_PM_OPS(neotier_pm, neotier_suspend, neotier_resume);

/* No MODULE_DEVICE_TABLE(): the ids are ivshmem's, and machines that have one for something else should not load this. */
static const struct pci_device_id neotier_pci_ids[] = {
	{ PCI_DEVICE(NEOTIER_VENDOR_ID, NEOTIER_DEVICE_ID) },
	{ }
};

static struct pci_driver neotier_driver = {
	.name = KBUILD_MODNAME,
	.id_table = neotier_pci_ids,
	.probe = neotier_probe,
	.remove = neotier_remove,
	.err_handler = &neotier_errors,
	.driver.pm = pm_sleep_ptr(&neotier_pm),
	/* insmod answers for what probe found. */
	.driver.probe_type = PROBE_FORCE_SYNCHRONOUS,
};

/*
 * Recheck: in a work item, since who asks may hold locks that probe and the CXL core take. Scheduled under the lock, so that
 * none is after neotier_probe_unregister() has said so and waited.
 */
static bool neotier_registered;	/* under neotier_probe_lock */

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

/* Our devices, with a reference each. Return: how many, or -ENOMEM. */
static int neotier_bound_devices(struct device ***devices)
{
	struct neotier_device *dev;
	unsigned int nr = 0;

	mutex_lock(&neotier_devices_lock);
	*devices = kcalloc(list_count_nodes(&neotier_devices), sizeof(**devices), GFP_KERNEL);
	if (*devices)
		list_for_each_entry(dev, &neotier_devices, node)
			(*devices)[nr++] = get_device(&dev->pdev->dev);
	mutex_unlock(&neotier_devices_lock);
	return *devices ? nr : -ENOMEM;
}

/* Whether a device is still ours and its region is no longer what it was. Another runs again, if its memory is online. */
static bool neotier_stale(struct device *d)
{
	struct neotier_device *dev;
	bool stale = false;

	device_lock(d);
	if (d->driver == &neotier_driver.driver) {
		dev = dev_get_drvdata(d);
		if (dev && dev->caps.serial) {
			stale = !neotier_region_same(dev);
			if (!stale)
				neotier_memory_online(dev);
		}
	}
	device_unlock(d);
	return stale;
}

/*
 * No lock is held while a device's is taken, and no walk over the driver's devices is under way: unbinding holds the one and
 * waits for the other.
 */
static void neotier_recheck_work(struct work_struct *work)
{
	struct device **devices;
	bool released = false;
	int nr = neotier_bound_devices(&devices), i;

	if (nr < 0)
		return;
	for (i = 0; i < nr; i++) {
		if (neotier_stale(devices[i])) {
			dev_info(devices[i], "its CXL region has changed: bound anew\n");
			device_release_driver(devices[i]);
			released = true;
		}
		put_device(devices[i]);
	}
	kfree(devices);
	/* Else an administrator's unbind would last until some memory comes online. */
	if (!released && !READ_ONCE(neotier_probe_waits))
		return;
	if (driver_attach(&neotier_driver.driver))
		pr_warn("cannot look for devices again\n");
}

static DECLARE_WORK(neotier_recheck, neotier_recheck_work);

void neotier_probe_recheck(void)
{
	spin_lock(&neotier_probe_lock);
	if (neotier_registered)
		schedule_work(&neotier_recheck);
	spin_unlock(&neotier_probe_lock);
}

static void neotier_recheck_allow(bool allowed)
{
	spin_lock(&neotier_probe_lock);
	neotier_registered = allowed;
	spin_unlock(&neotier_probe_lock);
}

int neotier_probe_register(void)
{
	int err;
	bool bound;

	err = pci_register_driver(&neotier_driver);
	if (err)
		return err;
	neotier_recheck_allow(true);
	/* Memory may have come online since the device that waits for it was probed. */
	if (READ_ONCE(neotier_probe_waits))
		neotier_probe_recheck();
	mutex_lock(&neotier_devices_lock);
	bound = !list_empty(&neotier_devices);
	mutex_unlock(&neotier_devices_lock);
	if (!bound && READ_ONCE(neotier_probe_waits))
		pr_info("no device has its CXL region yet: waiting (/sys/kernel/debug/devices_deferred says for what)\n");
	if (bound || READ_ONCE(neotier_probe_waits))
		return 0;
	if (neotier_probes)
		err = neotier_probe_error;
	else
		err = -ENODEV;
	if (!neotier_probes && neotier_strangers)
		pr_err("no NeoProf device found (PCI %04x:%04x): there are %d, none with NeoProf's magic in BAR %d\n",
		       NEOTIER_VENDOR_ID, NEOTIER_DEVICE_ID, neotier_strangers, NEOTIER_BAR);
	else if (!neotier_probes)
		pr_err("no NeoProf device found (PCI %04x:%04x)\n", NEOTIER_VENDOR_ID, NEOTIER_DEVICE_ID);
	neotier_probe_unregister();
	return err;
}

void neotier_probe_unregister(void)
{
	neotier_recheck_allow(false);
	cancel_work_sync(&neotier_recheck);
	pci_unregister_driver(&neotier_driver);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * neotier: promotes hot pages of CXL memory, as its device's profiler names them, to the nearest memory of a CPU.
 * Init and exit; no logic.
 */
#include <linux/module.h>
#include <linux/rcupdate.h>
#include "neotier.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

DEFINE_MUTEX(neotier_devices_lock);
LIST_HEAD(neotier_devices);

static int __init neotier_init(void)
{
	int err;

	neotier_quota_init();
	err = neotier_sysfs_init();
	if (err)
		return err;
	err = neotier_memory_notifier_register();
	if (err)
		goto exit_sysfs;
	err = neotier_probe_register();
	if (err)
		goto unregister_notifier;
	return 0;

unregister_notifier:
	neotier_memory_notifier_unregister();
exit_sysfs:
	neotier_sysfs_exit();
	return err;
}

static void __exit neotier_exit(void)
{
	neotier_probe_unregister();
	neotier_memory_notifier_unregister();
	neotier_sysfs_exit();
	tracepoint_synchronize_unregister();
	rcu_barrier();
}

module_init(neotier_init);
module_exit(neotier_exit);

MODULE_DESCRIPTION("Memory tiering by a CXL device's own hot page reports (NeoProf)");
MODULE_AUTHOR("The NeoTier authors");
MODULE_LICENSE("GPL");

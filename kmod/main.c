// SPDX-License-Identifier: GPL-2.0-only
/*
 * neotier: promotes hot pages of CXL memory, as its device's profiler names them, to the nearest memory of a CPU.
 * Init and exit; no logic.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/rcupdate.h>
#include "compat.h"
#include "neotier.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

DEFINE_MUTEX(neotier_devices_lock);
LIST_HEAD(neotier_devices);

static bool allow_untested_kernel;
module_param(allow_untested_kernel, bool, 0444);
MODULE_PARM_DESC(allow_untested_kernel, "1: load on a kernel newer than the module was tested with (default 0)");

/* Else what the administrator leaves out could move before the lists are written. */
static bool neotier_start = true;
module_param_named(enabled, neotier_start, bool, 0444);
MODULE_PARM_DESC(enabled, "0: promote nothing until 1 is written to /sys/kernel/neotier/enabled (default 1)");

static int __init neotier_init(void)
{
	int err;

	if (NEOTIER_KERNEL_UNTESTED && !allow_untested_kernel) {
		pr_err("Linux %d.%d is newer than %d.%d, the newest that this module was tested with; load it with allow_untested_kernel=1 to use it all the same\n",
		       LINUX_VERSION_MAJOR, LINUX_VERSION_PATCHLEVEL, NEOTIER_TESTED_MAJOR, NEOTIER_TESTED_MINOR);
		return -EOPNOTSUPP;
	}
	neotier_knobs.enabled = neotier_start;
	neotier_quota_init();
	err = neotier_sysfs_init();
	if (err)
		return err;
	neotier_demoted_init();
	err = neotier_memory_notifier_register();
	if (err)
		goto exit_demoted;
	err = neotier_probe_register();
	if (err)
		goto unregister_notifier;
	return 0;

unregister_notifier:
	neotier_memory_notifier_unregister();
exit_demoted:
	neotier_demoted_exit();
	neotier_sysfs_exit();
	return err;
}

/* In the order that keeps each part's helper: devices leave while the notifier still guards their memory. */
static void __exit neotier_exit(void)
{
	neotier_probe_unregister();
	neotier_memory_notifier_unregister();
	neotier_demoted_exit();
	neotier_sysfs_exit();
	tracepoint_synchronize_unregister();
	rcu_barrier();
}

module_init(neotier_init);
module_exit(neotier_exit);

MODULE_DESCRIPTION("Memory tiering by a CXL device's own hot page reports (NeoProf)");
MODULE_AUTHOR("The NeoTier authors");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");

// SPDX-License-Identifier: GPL-2.0-only
/*
 * /sys/kernel/neotier: knobs of the module, device<n>/ for each device, stats/ for the counters. Every file is a row of a
 * table here and an entry in docs/abi/sysfs-kernel-neotier. A write checks its range, changes one word and wakes the
 * threads; they put it into force within a period. Removing a file waits for its readers and writers (kernfs), so no
 * callback runs on a device that has gone.
 */
#include <linux/kobject.h>
#include <linux/kstrtox.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysfs.h>
#include "neotier.h"

#define NEOTIER_FILE_MODE_RO 0444
#define NEOTIER_FILE_MODE_RW 0644

struct neotier_knobs neotier_knobs = {
	.enabled = 1,
	.quota_mb_per_s = 1024,
	.room = NEOTIER_ROOM_EXCHANGE,
	.period_us = 5000,
	.decide_interval_ms = 100,
	.reserve_pages = 1024,
	.batch = 64,
	.split_huge = 1,
	.page_cache = 1,
	.log_interval_s = 24 * 3600,
	.confirm_epochs = 2,
};

static struct kobject *neotier_kobj;

/* Values: 0..max parsed in base 10, 0x or 0; kstrto's own error is passed on. */
static int neotier_parse(const char *buf, u64 min, u64 max, u64 *value)
{
	int err = kstrtou64(buf, 0, value);

	if (err)
		return err;
	return *value < min || *value > max ? -ERANGE : 0;
}

/* "a [b] c" */
static ssize_t neotier_show_choice(char *buf, const char *const *names, unsigned int nr, unsigned int current_index)
{
	ssize_t len = 0;
	unsigned int i;

	for (i = 0; i < nr; i++)
		len += sysfs_emit_at(buf, len, i == current_index ? "%s[%s]" : "%s%s", i ? " " : "", names[i]);
	return len + sysfs_emit_at(buf, len, "\n");
}

/* --- /sys/kernel/neotier ------------------------------------------------------------------------------------------- */

struct neotier_knob {
	struct kobj_attribute attr;
	u32 *value;
	u32 min, max;
	bool restart_policy;
};

static void neotier_restart_policies(void)
{
	struct neotier_device *dev;

	mutex_lock(&neotier_devices_lock);
	list_for_each_entry(dev, &neotier_devices, node)
		atomic_inc(&dev->policy_generation);
	mutex_unlock(&neotier_devices_lock);
}

static ssize_t neotier_knob_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(*container_of(attr, struct neotier_knob, attr)->value));
}

static ssize_t neotier_knob_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf, size_t len)
{
	struct neotier_knob *knob = container_of(attr, struct neotier_knob, attr);
	u64 value;
	int err = neotier_parse(buf, knob->min, knob->max, &value);

	if (err)
		return err;
	WRITE_ONCE(*knob->value, value);
	if (knob->restart_policy)
		neotier_restart_policies();
	neotier_promote_wake_all();
	return len;
}

#define NEOTIER_KNOB(name, low, high, restart) \
	{ __ATTR(name, NEOTIER_FILE_MODE_RW, neotier_knob_show, neotier_knob_store), &neotier_knobs.name, low, high, restart }

static struct neotier_knob neotier_knob_table[] = {
	NEOTIER_KNOB(enabled, 0, 1, false),
	NEOTIER_KNOB(dry_run, 0, 1, false),
	NEOTIER_KNOB(quota_mb_per_s, 0, 1 << 20, false),
	NEOTIER_KNOB(period_us, 100, 60000000, false),
	NEOTIER_KNOB(decide_interval_ms, 1, 60000, false),
	NEOTIER_KNOB(headroom_pages, 0, INT_MAX, false),
	NEOTIER_KNOB(reserve_pages, 0, 1 << 20, false),
	NEOTIER_KNOB(batch, 1, NEOTIER_BATCH_MAX, false),
	NEOTIER_KNOB(promote_huge, 0, 2, true),
	NEOTIER_KNOB(split_huge, 0, 1, true),
	NEOTIER_KNOB(page_cache, 0, 1, false),
	NEOTIER_KNOB(confirm_epochs, 1, 8, false),
	NEOTIER_KNOB(p_start_ppm, 1, 1000000, true),
	NEOTIER_KNOB(p_min_ppm, 1, 1000000, true),
	NEOTIER_KNOB(p_max_ppm, 1, 1000000, true),
	NEOTIER_KNOB(saved_ns, 1, 100000, true),
	NEOTIER_KNOB(payback_ms, 1, NEOTIER_PAYBACK_MAX_MS, true),
	NEOTIER_KNOB(loss_ppm, 0, NEOTIER_LEDGER_NO_BOUND, true),
	NEOTIER_KNOB(loss_base_ms, 0, 10000, true),
	NEOTIER_KNOB(log_interval_s, 0, 31 * 24 * 3600, false),
};

static ssize_t policy_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	const struct neotier_policy *const *p, *current_policy = READ_ONCE(neotier_knobs.policy);
	ssize_t len = 0;

	for (p = neotier_policies; *p; p++)
		len += sysfs_emit_at(buf, len, *p == current_policy ? "%s[%s]" : "%s%s", len ? " " : "", (*p)->name);
	return len + sysfs_emit_at(buf, len, "\n");
}

static ssize_t policy_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf, size_t len)
{
	const struct neotier_policy *const *p;

	for (p = neotier_policies; *p; p++) {
		if (!sysfs_streq(buf, (*p)->name))
			continue;
		WRITE_ONCE(neotier_knobs.policy, *p);
		neotier_promote_wake_all();
		return len;
	}
	return -EINVAL;
}

/* By enum neotier_room_mode. */
static const char *const neotier_room_modes[] = { "kswapd", "exchange" };

static ssize_t room_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return neotier_show_choice(buf, neotier_room_modes, ARRAY_SIZE(neotier_room_modes), READ_ONCE(neotier_knobs.room));
}

static ssize_t room_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf, size_t len)
{
	int mode = sysfs_match_string(neotier_room_modes, buf);

	if (mode < 0)
		return mode;
	WRITE_ONCE(neotier_knobs.room, mode);
	neotier_restart_policies();
	neotier_promote_wake_all();
	return len;
}

static struct kobj_attribute neotier_room_attr = __ATTR(room, NEOTIER_FILE_MODE_RW, room_show, room_store);
static struct kobj_attribute neotier_policy_attr = __ATTR(policy, NEOTIER_FILE_MODE_RW, policy_show, policy_store);

struct neotier_rule_attr {
	struct kobj_attribute attr;
	enum neotier_rule rule;
};

static ssize_t neotier_rule_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return neotier_rules_show(container_of(attr, struct neotier_rule_attr, attr)->rule, buf);
}

static ssize_t neotier_rule_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf, size_t len)
{
	return neotier_rules_store(container_of(attr, struct neotier_rule_attr, attr)->rule, buf, len) ? : len;
}

#define NEOTIER_RULE(name, rule) \
	{ __ATTR(name, NEOTIER_FILE_MODE_RW, neotier_rule_show, neotier_rule_store), rule }

static struct neotier_rule_attr neotier_rule_table[] = {
	NEOTIER_RULE(exclude_cgroups, NEOTIER_EXCLUDE_CGROUPS),
	NEOTIER_RULE(include_cgroups, NEOTIER_INCLUDE_CGROUPS),
	NEOTIER_RULE(exclude_pids, NEOTIER_EXCLUDE_PIDS),
	NEOTIER_RULE(include_pids, NEOTIER_INCLUDE_PIDS),
	NEOTIER_RULE(exclude_nodes, NEOTIER_EXCLUDE_NODES),
	NEOTIER_RULE(exclude_ranges, NEOTIER_EXCLUDE_RANGES),
	NEOTIER_RULE(include_ranges, NEOTIER_INCLUDE_RANGES),
};

/* --- stats/ -------------------------------------------------------------------------------------------------------- */

static struct kobj_attribute neotier_stat_attrs[NR_NEOTIER_STAT];

static ssize_t neotier_stat_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n", neotier_stat_sum(attr - neotier_stat_attrs));
}

/* --- device<n>/ ---------------------------------------------------------------------------------------------------- */

struct neotier_device_attr {
	struct attribute attr;
	ssize_t (*show)(struct neotier_device *dev, char *buf);
	int (*store)(struct neotier_device *dev, const char *buf);
};

#define NEOTIER_SHOW(name, format, value) \
	static ssize_t name##_show(struct neotier_device *dev, char *buf) \
	{ \
		return sysfs_emit(buf, format "\n", value); \
	}

NEOTIER_SHOW(threshold, "%u", READ_ONCE(dev->conf.threshold))
NEOTIER_SHOW(epoch_us, "%u", READ_ONCE(dev->conf.epoch_us))
NEOTIER_SHOW(downsampling, "%u", 1U << READ_ONCE(dev->conf.downsampling_log2))
NEOTIER_SHOW(random_downsampling, "%u", READ_ONCE(dev->conf.random_downsampling))
NEOTIER_SHOW(decay_shift, "%u", READ_ONCE(dev->conf.decay_shift))
NEOTIER_SHOW(unit_size, "%lu", PAGE_SIZE)
NEOTIER_SHOW(irq, "%u", READ_ONCE(dev->conf.irq))
NEOTIER_SHOW(fill_level, "%u", READ_ONCE(dev->conf.fill_level))
NEOTIER_SHOW(hpa_base, "0x%llx", dev->region.hpa_base)
NEOTIER_SHOW(hpa_size, "%llu", dev->region.hpa_size)
NEOTIER_SHOW(serial, "0x%llx", dev->caps.serial)
NEOTIER_SHOW(interleave_ways, "%u", 1U << dev->region.interleave.ways_log2)
NEOTIER_SHOW(interleave_granularity, "%u", dev->region.interleave.ways_log2 ? 1U << dev->region.interleave.gran_log2 : 0)
NEOTIER_SHOW(interleave_position, "%u", dev->region.position)
NEOTIER_SHOW(node, "%d", dev->nid)
NEOTIER_SHOW(target_node, "%d", dev->target_nid)
NEOTIER_SHOW(hotlist_size, "%u", dev->caps.hotlist_size)
NEOTIER_SHOW(counter_max, "%u", dev->caps.counter_max)
NEOTIER_SHOW(error_bound, "%u", READ_ONCE(dev->snapshot.error_bound))
NEOTIER_SHOW(occupancy, "%u", READ_ONCE(dev->snapshot.occupancy))
NEOTIER_SHOW(hot_units, "%u", READ_ONCE(dev->snapshot.hot_units))
NEOTIER_SHOW(pci, "%s", pci_name(dev->pdev))

static ssize_t tracker_show(struct neotier_device *dev, char *buf)
{
	const struct neotier_caps *caps = &dev->caps;

	return sysfs_emit(buf, "%s rows=%u width=%llu bits=%u\n", caps->tracker_kind == 1 ? "count-min" : "unknown",
			  caps->tracker_rows, 1ULL << min(caps->tracker_log2_width, 63U), caps->tracker_counter_bits);
}

static ssize_t state_show(struct neotier_device *dev, char *buf)
{
	static const char *const names[] = {
		[NEOTIER_RUNNING] = "running", [NEOTIER_OFF] = "off",
		[NEOTIER_PAUSED] = "paused", [NEOTIER_FAILED] = "failed",
		[NEOTIER_RESTING] = "resting",
	};

	return sysfs_emit(buf, "%s\n", names[READ_ONCE(dev->state)]);
}

static ssize_t histogram_show(struct neotier_device *dev, char *buf)
{
	ssize_t len = 0;
	int i;

	for (i = 0; i < NEOTIER_HISTOGRAM_BINS; i++)
		len += sysfs_emit_at(buf, len, "%u %u\n", neotier_bin_low(i), READ_ONCE(dev->snapshot.histogram[i]));
	return len;
}

static int threshold_store(struct neotier_device *dev, const char *buf)
{
	u64 value;
	int err = neotier_parse(buf, 1, dev->caps.counter_max, &value);

	if (err)
		return err;
	WRITE_ONCE(dev->conf.start_threshold, value);
	WRITE_ONCE(dev->conf.threshold, value);
	atomic_inc(&dev->policy_generation);
	return 0;
}

static int epoch_us_store(struct neotier_device *dev, const char *buf)
{
	u64 value;
	int err = neotier_parse(buf, dev->caps.epoch_min_us, dev->caps.epoch_max_us, &value);

	if (err)
		return err;
	if (!dev->source->epoch_valid(dev, value))
		return -EINVAL;
	WRITE_ONCE(dev->conf.epoch_us, value);
	return 0;
}

static int downsampling_store(struct neotier_device *dev, const char *buf)
{
	u64 value;
	int err = neotier_parse(buf, 1, 1 << 15, &value);

	if (err)
		return err;
	if (!is_power_of_2(value) || !(dev->caps.downsampling_mask & value))
		return -EINVAL;
	WRITE_ONCE(dev->conf.downsampling_log2, ilog2(value));
	return 0;
}

static int random_downsampling_store(struct neotier_device *dev, const char *buf)
{
	u64 value;
	int err = neotier_parse(buf, 0, 1, &value);

	if (err)
		return err;
	if (value && !dev->caps.random_downsampling)
		return -EOPNOTSUPP;
	WRITE_ONCE(dev->conf.random_downsampling, value);
	return 0;
}

static int decay_shift_store(struct neotier_device *dev, const char *buf)
{
	u64 value;
	int err = neotier_parse(buf, 0, 15, &value);

	if (!err)
		WRITE_ONCE(dev->conf.decay_shift, value);
	return err;
}

static int irq_store(struct neotier_device *dev, const char *buf)
{
	u64 value;
	int err = neotier_parse(buf, 0, 1, &value);

	if (err)
		return err;
	if (value && !dev->has_irq)
		return -EOPNOTSUPP;
	WRITE_ONCE(dev->conf.irq, value);
	return 0;
}

static int fill_level_store(struct neotier_device *dev, const char *buf)
{
	u64 value;
	int err = neotier_parse(buf, 1, U16_MAX, &value);

	if (!err)
		WRITE_ONCE(dev->conf.fill_level, value);
	return err;
}

/* By conf.always_on. */
static const char *const neotier_modes[] = { "epoch", "always_on" };

static ssize_t mode_show(struct neotier_device *dev, char *buf)
{
	return neotier_show_choice(buf, neotier_modes, ARRAY_SIZE(neotier_modes), READ_ONCE(dev->conf.always_on));
}

static int mode_store(struct neotier_device *dev, const char *buf)
{
	int mode = sysfs_match_string(neotier_modes, buf);

	if (mode < 0)
		return mode;
	if (!(mode ? dev->caps.always_on : dev->caps.epoch_mode))
		return -EOPNOTSUPP;
	WRITE_ONCE(dev->conf.always_on, mode);
	return 0;
}

/* By conf.track - NEOTIER_TRACK_READS. */
static const char *const neotier_tracks[] = { "reads", "writes", "all" };

static ssize_t track_show(struct neotier_device *dev, char *buf)
{
	return neotier_show_choice(buf, neotier_tracks, ARRAY_SIZE(neotier_tracks), READ_ONCE(dev->conf.track) - NEOTIER_TRACK_READS);
}

static int track_store(struct neotier_device *dev, const char *buf)
{
	int track = sysfs_match_string(neotier_tracks, buf);

	if (track < 0)
		return track;
	WRITE_ONCE(dev->conf.track, track + NEOTIER_TRACK_READS);
	return 0;
}

#define NEOTIER_DEVICE_RO(file) \
	{ { .name = #file, .mode = NEOTIER_FILE_MODE_RO }, file##_show, NULL }
#define NEOTIER_DEVICE_RW(file) \
	{ { .name = #file, .mode = NEOTIER_FILE_MODE_RW }, file##_show, file##_store }

static struct neotier_device_attr neotier_device_table[] = {
	NEOTIER_DEVICE_RW(threshold),
	NEOTIER_DEVICE_RW(epoch_us),
	NEOTIER_DEVICE_RW(mode),
	NEOTIER_DEVICE_RW(track),
	NEOTIER_DEVICE_RW(downsampling),
	NEOTIER_DEVICE_RW(random_downsampling),
	NEOTIER_DEVICE_RW(decay_shift),
	NEOTIER_DEVICE_RW(irq),
	NEOTIER_DEVICE_RW(fill_level),
	NEOTIER_DEVICE_RO(state),
	NEOTIER_DEVICE_RO(pci),
	NEOTIER_DEVICE_RO(unit_size),
	NEOTIER_DEVICE_RO(hpa_base),
	NEOTIER_DEVICE_RO(hpa_size),
	NEOTIER_DEVICE_RO(serial),
	NEOTIER_DEVICE_RO(interleave_ways),
	NEOTIER_DEVICE_RO(interleave_granularity),
	NEOTIER_DEVICE_RO(interleave_position),
	NEOTIER_DEVICE_RO(node),
	NEOTIER_DEVICE_RO(target_node),
	NEOTIER_DEVICE_RO(hotlist_size),
	NEOTIER_DEVICE_RO(tracker),
	NEOTIER_DEVICE_RO(counter_max),
	NEOTIER_DEVICE_RO(error_bound),
	NEOTIER_DEVICE_RO(occupancy),
	NEOTIER_DEVICE_RO(hot_units),
	NEOTIER_DEVICE_RO(histogram),
};

static ssize_t neotier_device_show(struct kobject *kobj, struct attribute *attr, char *buf)
{
	return container_of(attr, struct neotier_device_attr, attr)->show(container_of(kobj, struct neotier_device, kobj),
									   buf);
}

static ssize_t neotier_device_store(struct kobject *kobj, struct attribute *attr, const char *buf, size_t len)
{
	struct neotier_device_attr *row = container_of(attr, struct neotier_device_attr, attr);
	int err = row->store ? row->store(container_of(kobj, struct neotier_device, kobj), buf) : -EIO;

	if (err)
		return err;
	neotier_promote_wake_all();
	return len;
}

static const struct sysfs_ops neotier_device_sysfs_ops = {
	.show = neotier_device_show,
	.store = neotier_device_store,
};

static void neotier_device_release(struct kobject *kobj)
{
	complete(&container_of(kobj, struct neotier_device, kobj)->released);
}

/* The tables' rows, as groups of files take them; filled once, by neotier_sysfs_init(). */
static struct attribute *neotier_device_attrs[ARRAY_SIZE(neotier_device_table) + 1];
ATTRIBUTE_GROUPS(neotier_device);

/* With its files: who is told of the device by udev finds them. */
static const struct kobj_type neotier_device_ktype = {
	.sysfs_ops = &neotier_device_sysfs_ops,
	.release = neotier_device_release,
	.default_groups = neotier_device_groups,
};

static void neotier_sysfs_put_device(struct neotier_device *dev)
{
	kobject_put(&dev->kobj);
	wait_for_completion(&dev->released);
}

/* What could not be added has no directory: kobject_del() of it warns for each file of the group. */
int neotier_sysfs_add_device(struct neotier_device *dev)
{
	int err = kobject_init_and_add(&dev->kobj, &neotier_device_ktype, neotier_kobj, "device%d", dev->id);

	if (err) {
		dev_err(&dev->pdev->dev, "cannot make its sysfs files (%d)\n", err);
		neotier_sysfs_put_device(dev);
	}
	return err;
}

void neotier_sysfs_del_device(struct neotier_device *dev)
{
	kobject_del(&dev->kobj);
	neotier_sysfs_put_device(dev);
}

/* --- module -------------------------------------------------------------------------------------------------------- */

static struct attribute *neotier_stat_rows[NR_NEOTIER_STAT + 1];
static const struct attribute_group neotier_stat_group = { .name = "stats", .attrs = neotier_stat_rows };
static struct attribute *neotier_knob_rows[2 + ARRAY_SIZE(neotier_rule_table) + ARRAY_SIZE(neotier_knob_table) + 1];
static const struct attribute_group neotier_knob_group = { .attrs = neotier_knob_rows };
static const struct attribute_group *neotier_groups[] = { &neotier_knob_group, &neotier_stat_group, NULL };

static void neotier_sysfs_fill(void)
{
	struct attribute **row = neotier_knob_rows;
	unsigned int i;

	*row++ = &neotier_policy_attr.attr;
	*row++ = &neotier_room_attr.attr;
	for (i = 0; i < ARRAY_SIZE(neotier_rule_table); i++)
		*row++ = &neotier_rule_table[i].attr.attr;
	for (i = 0; i < ARRAY_SIZE(neotier_knob_table); i++)
		*row++ = &neotier_knob_table[i].attr.attr;
	for (i = 0; i < NR_NEOTIER_STAT; i++) {
		struct kobj_attribute *attr = &neotier_stat_attrs[i];

		sysfs_attr_init(&attr->attr);
		attr->attr.name = neotier_stat_names[i];
		attr->attr.mode = NEOTIER_FILE_MODE_RO;
		attr->show = neotier_stat_show;
		neotier_stat_rows[i] = &attr->attr;
	}
	for (i = 0; i < ARRAY_SIZE(neotier_device_table); i++)
		neotier_device_attrs[i] = &neotier_device_table[i].attr;
}

int neotier_sysfs_init(void)
{
	int err;

	neotier_knobs.policy = neotier_policies[0];
	neotier_knobs.p_start_ppm = neotier_policy_default_params.p_start_ppm;
	neotier_knobs.p_min_ppm = neotier_policy_default_params.p_min_ppm;
	neotier_knobs.p_max_ppm = neotier_policy_default_params.p_max_ppm;
	neotier_knobs.saved_ns = neotier_policy_default_params.saved_ns;
	neotier_knobs.payback_ms = neotier_policy_default_params.payback_ms;
	neotier_knobs.loss_ppm = NEOTIER_LEDGER_LOSS_PPM;
	neotier_knobs.loss_base_ms = NEOTIER_LEDGER_BASE_MS;

	neotier_sysfs_fill();
	neotier_kobj = kobject_create_and_add("neotier", kernel_kobj);
	if (!neotier_kobj)
		return -ENOMEM;
	/* All of them or none. */
	err = sysfs_create_groups(neotier_kobj, neotier_groups);
	if (err)
		neotier_sysfs_exit();
	return err;
}

void neotier_sysfs_exit(void)
{
	kobject_del(neotier_kobj);
	kobject_put(neotier_kobj);
	neotier_rules_free();
}

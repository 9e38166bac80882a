// SPDX-License-Identifier: GPL-2.0-only
/*
 * Counters: what happened, page by page. See stats.h for the definition of each.
 */
#include "neotier.h"
#include "trace.h"

#define NEOTIER_COUNTER_NAME(NAME, name, text) #name,
#define NEOTIER_SKIP_NAME(NAME, name, text) "skipped_" #name,
#define NEOTIER_KEPT_NAME(NAME, name) "kept_" #name,
const char *const neotier_stat_names[NR_NEOTIER_STAT] = {
	NEOTIER_COUNTERS(NEOTIER_COUNTER_NAME)
	NEOTIER_SKIPS(NEOTIER_SKIP_NAME)
	NEOTIER_KEPTS(NEOTIER_KEPT_NAME)
};

static u64 neotier_retired[NR_NEOTIER_STAT];

void neotier_stat_add(struct neotier_device *dev, enum neotier_stat stat, u64 n)
{
	WRITE_ONCE(dev->stats[stat], dev->stats[stat] + n);
}

void neotier_skip(struct neotier_device *dev, unsigned long pfn, enum neotier_skip reason)
{
	neotier_stat_add(dev, NEOTIER_STAT_SKIP_RANGE + reason, 1);
	trace_neotier_skip(pfn, reason);
}

#define NEOTIER_KEPT_STAT(NAME, name) [NEOTIER_SKIP_##NAME] = NEOTIER_STAT_KEPT_##NAME,

void neotier_keep(struct neotier_device *dev, unsigned long pfn, enum neotier_skip reason)
{
	static const enum neotier_stat stats[NR_NEOTIER_SKIP] = { NEOTIER_KEPTS(NEOTIER_KEPT_STAT) };

	neotier_stat_add(dev, stats[reason], 1);
	trace_neotier_keep(pfn, reason);
}

u64 neotier_stat_sum(enum neotier_stat stat)
{
	struct neotier_device *dev;
	u64 sum;

	mutex_lock(&neotier_devices_lock);
	sum = neotier_retired[stat];
	list_for_each_entry(dev, &neotier_devices, node)
		sum += READ_ONCE(dev->stats[stat]);
	mutex_unlock(&neotier_devices_lock);
	return sum;
}

void neotier_stat_retire(struct neotier_device *dev)
{
	unsigned int i;

	lockdep_assert_held(&neotier_devices_lock);
	for (i = 0; i < NR_NEOTIER_STAT; i++)
		neotier_retired[i] += dev->stats[i];
}

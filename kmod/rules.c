// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the administrator leaves out, or in: lists of cgroups, processes, nodes and physical ranges, one file each. A list is
 * replaced as a whole and read under RCU. Invariant: once a write has returned, no page moves against it; the writer waits
 * for each device's batch to end.
 */
#include <linux/cgroup.h>
#include <linux/kstrtox.h>
#include <linux/memcontrol.h>
#include <linux/mutex.h>
#include <linux/nodemask.h>
#include <linux/pid.h>
#include <linux/rcupdate.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysfs.h>
#include "compat.h"
#include "neotier.h"

/* One entry: a number (first), a range of bytes (both inclusive), or a process. */
struct neotier_rule_item {
	u64 first, last;
	struct pid *pid;	/* counted; not its number, which another process may get */
};

struct neotier_rule_list {
	unsigned int nr;
	struct neotier_rule_item items[NEOTIER_RULE_MAX];
};

static struct neotier_rule_list __rcu *neotier_rules[NR_NEOTIER_RULE];
static DEFINE_MUTEX(neotier_rules_lock);

static bool neotier_is_pids(enum neotier_rule rule)
{
	return rule == NEOTIER_EXCLUDE_PIDS || rule == NEOTIER_INCLUDE_PIDS;
}

static bool neotier_is_ranges(enum neotier_rule rule)
{
	return rule == NEOTIER_EXCLUDE_RANGES || rule == NEOTIER_INCLUDE_RANGES;
}

static bool neotier_list_has(const struct neotier_rule_list *list, u64 first, u64 last)
{
	unsigned int i;

	for (i = 0; i < list->nr; i++)
		if (first <= list->items[i].last && last >= list->items[i].first)
			return true;
	return false;
}

bool neotier_rules_range(unsigned long pfn)
{
	const struct neotier_rule_list *exclude, *include;
	u64 first = PFN_PHYS(pfn), last = first + PAGE_SIZE - 1;
	bool allowed;

	rcu_read_lock();
	exclude = rcu_dereference(neotier_rules[NEOTIER_EXCLUDE_RANGES]);
	include = rcu_dereference(neotier_rules[NEOTIER_INCLUDE_RANGES]);
	allowed = (!exclude || !neotier_list_has(exclude, first, last)) && (!include || neotier_list_has(include, first, last));
	rcu_read_unlock();
	return allowed;
}

bool neotier_rules_victim(unsigned long pfn)
{
	const struct neotier_rule_list *exclude;
	u64 first = PFN_PHYS(pfn);
	bool allowed;

	rcu_read_lock();
	exclude = rcu_dereference(neotier_rules[NEOTIER_EXCLUDE_RANGES]);
	allowed = !exclude || !neotier_list_has(exclude, first, first + PAGE_SIZE - 1);
	rcu_read_unlock();
	return allowed;
}

bool neotier_rules_nodes(struct neotier_way way)
{
	const struct neotier_rule_list *exclude;
	bool allowed;

	rcu_read_lock();
	exclude = rcu_dereference(neotier_rules[NEOTIER_EXCLUDE_NODES]);
	allowed = !exclude || (!neotier_list_has(exclude, way.from, way.from) && !neotier_list_has(exclude, way.to, way.to));
	rcu_read_unlock();
	return allowed;
}

bool neotier_rules_cgroup(struct folio *folio)
{
	const struct neotier_rule_list *exclude, *include;
	bool excluded = false, included;
	struct mem_cgroup *memcg;
	struct cgroup *cgroup;

	rcu_read_lock();
	exclude = rcu_dereference(neotier_rules[NEOTIER_EXCLUDE_CGROUPS]);
	include = rcu_dereference(neotier_rules[NEOTIER_INCLUDE_CGROUPS]);
	included = !include;
	if (exclude || include) {
		memcg = neotier_folio_memcg(folio);
		for (cgroup = memcg ? memcg->css.cgroup : NULL; cgroup; cgroup = cgroup_parent(cgroup)) {
			u64 id = cgroup_ino(cgroup);

			excluded |= exclude && neotier_list_has(exclude, id, id);
			included |= include && neotier_list_has(include, id, id);
		}
	}
	rcu_read_unlock();
	return included && !excluded;
}

static bool neotier_list_has_process(const struct neotier_rule_list *list, struct task_struct *process)
{
	struct pid *pid = task_tgid(process);
	unsigned int i;

	for (i = 0; i < list->nr; i++)
		if (list->items[i].pid == pid)
			return true;
	return false;
}

bool neotier_rules_process(struct task_struct *process)
{
	const struct neotier_rule_list *exclude, *include;

	RCU_LOCKDEP_WARN(!rcu_read_lock_held(), "a process is looked at under RCU");
	exclude = rcu_dereference(neotier_rules[NEOTIER_EXCLUDE_PIDS]);
	include = rcu_dereference(neotier_rules[NEOTIER_INCLUDE_PIDS]);
	return (!exclude || !neotier_list_has_process(exclude, process)) &&
	       (!include || neotier_list_has_process(include, process));
}

bool neotier_rules_nobody(void)
{
	return !rcu_access_pointer(neotier_rules[NEOTIER_INCLUDE_PIDS]);
}

static void neotier_list_free(struct neotier_rule_list *list)
{
	unsigned int i;

	for (i = 0; list && i < list->nr; i++)
		put_pid(list->items[i].pid);
	kfree(list);
}

static int neotier_parse_process(struct neotier_rule_item *item, const char *word)
{
	unsigned int number;
	bool process;
	int err = kstrtouint(word, 0, &number);

	if (err)
		return err;
	if (number > INT_MAX)
		return -ERANGE;
	item->pid = find_get_pid(number);
	rcu_read_lock();
	process = item->pid && pid_task(item->pid, PIDTYPE_TGID);
	rcu_read_unlock();
	return process ? 0 : -ESRCH;
}

static int neotier_parse_item(enum neotier_rule rule, struct neotier_rule_item *item, char *word)
{
	char *last = word;
	int err;

	if (neotier_is_pids(rule))
		return neotier_parse_process(item, word);
	if (neotier_is_ranges(rule)) {
		strsep(&last, "-");
		if (!last)
			return -EINVAL;
	}
	err = kstrtou64(word, 0, &item->first);
	if (!err)
		err = kstrtou64(last, 0, &item->last);
	if (err)
		return err;
	if (item->first > item->last)
		return -EINVAL;
	if (rule == NEOTIER_EXCLUDE_NODES && (item->first >= MAX_NUMNODES || !node_possible(item->first)))
		return -ERANGE;
	return 0;
}

static int neotier_parse_list(enum neotier_rule rule, struct neotier_rule_list *list, char *text)
{
	char *word;

	while ((word = strsep(&text, " \t\n"))) {
		int err;

		if (!*word)
			continue;
		if (list->nr == NEOTIER_RULE_MAX)
			return -E2BIG;
		err = neotier_parse_item(rule, &list->items[list->nr++], word);
		if (err)
			return err;
	}
	return 0;
}

/* Whatever was looked at by the old list is over, and moved or not. */
static void neotier_rules_settle(void)
{
	struct neotier_device *dev;

	mutex_lock(&neotier_devices_lock);
	list_for_each_entry(dev, &neotier_devices, node) {
		mutex_lock(&dev->lock);
		mutex_unlock(&dev->lock);
	}
	mutex_unlock(&neotier_devices_lock);
}

int neotier_rules_store(enum neotier_rule rule, const char *buf, size_t len)
{
	struct neotier_rule_list *list = kzalloc(sizeof(*list), GFP_KERNEL);
	char *text = kstrndup(buf, len, GFP_KERNEL);
	int err = list && text ? neotier_parse_list(rule, list, text) : -ENOMEM;

	kfree(text);
	if (err || !list->nr) {
		neotier_list_free(list);
		list = NULL;
	}
	if (err)
		return err;
	mutex_lock(&neotier_rules_lock);
	list = rcu_replace_pointer(neotier_rules[rule], list, lockdep_is_held(&neotier_rules_lock));
	mutex_unlock(&neotier_rules_lock);
	neotier_rules_settle();
	synchronize_rcu();
	neotier_list_free(list);
	return 0;
}

ssize_t neotier_rules_show(enum neotier_rule rule, char *buf)
{
	const struct neotier_rule_list *list;
	const char *gap = "";
	ssize_t len = 0;
	unsigned int i;

	rcu_read_lock();
	list = rcu_dereference(neotier_rules[rule]);
	for (i = 0; list && i < list->nr; i++) {
		const struct neotier_rule_item *item = &list->items[i];

		if (neotier_is_pids(rule) && !pid_task(item->pid, PIDTYPE_TGID))
			continue;
		if (neotier_is_ranges(rule))
			len += sysfs_emit_at(buf, len, "%s0x%llx-0x%llx", gap, item->first, item->last);
		else
			len += sysfs_emit_at(buf, len, "%s%llu", gap, neotier_is_pids(rule) ? pid_vnr(item->pid) : item->first);
		gap = " ";
	}
	rcu_read_unlock();
	return len + sysfs_emit_at(buf, len, "\n");
}

void neotier_rules_free(void)
{
	unsigned int i;

	for (i = 0; i < NR_NEOTIER_RULE; i++)
		neotier_list_free(rcu_dereference_protected(neotier_rules[i], true));
}

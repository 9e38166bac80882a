// SPDX-License-Identifier: GPL-2.0-only
/*
 * The thread of a device: drain, decide, promote, sleep. It is the only one that touches the device's registers, its list
 * of hot pages and its counters, so none of them needs a lock of its own.
 */
#include <linux/freezer.h>
#include <linux/hrtimer.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/sched.h>
#include <uapi/linux/sched/types.h>
#include "compat.h"
#include "neotier.h"
#include "trace.h"

int neotier_source_start(struct neotier_device *dev)
{
	int err;

	lockdep_assert_held(&dev->lock);
	err = dev->source->start(dev);
	if (err)
		return err;
	memset(&dev->snapshot, 0, sizeof(dev->snapshot));
	memset(&dev->drain, 0, sizeof(dev->drain));
	neotier_watch_init(dev);
	neotier_clock_begin(dev);
	return 0;
}

void neotier_source_stop(struct neotier_device *dev)
{
	lockdep_assert_held(&dev->lock);
	if (!dev->parked && dev->state != NEOTIER_FAILED)
		dev->source->apply(dev, NEOTIER_COUNT_NOTHING);
}

static void neotier_forget_waiting(struct neotier_device *dev)
{
	neotier_hotlist_clear(&dev->hotlist);
	neotier_huge_clear(&dev->huge);
	neotier_watch_forget(&dev->watch);
}

void neotier_promote_fail(struct neotier_device *dev, const char *why)
{
	lockdep_assert_held(&dev->lock);
	dev_err(&dev->pdev->dev, "%s: device taken out of service; unbind and bind it to try again\n", why);
	neotier_stat_add(dev, NEOTIER_STAT_DEVICE_FAULTS, 1);
	WRITE_ONCE(dev->state, NEOTIER_FAILED);
	dev->source->apply(dev, NEOTIER_COUNT_NOTHING);
	neotier_forget_waiting(dev);
}

static void neotier_drain(struct neotier_device *dev, u64 now)
{
	u64 epoch_ns = READ_ONCE(dev->conf.epoch_us) * NSEC_PER_USEC;
	u32 most;
	int nr, i;

	if (neotier_drain_begin(&dev->drain, now, epoch_ns, dev->caps.hotlist_size, dev->hotlist.confirmed,
				neotier_policy_pages(dev)))
		neotier_stat_add(dev, NEOTIER_STAT_DISCARDED, dev->source->discard(dev));
	most = neotier_drain_most(&dev->drain, neotier_hotlist_waiting(dev));
	if (!most)
		return;
	nr = dev->source->drain(dev, most);

	if (nr < 0) {
		neotier_promote_fail(dev, nr == -ENODEV ? NEOTIER_GONE : "hotlist TAIL out of range");
		return;
	}
	neotier_drain_done(&dev->drain, nr);
	neotier_stat_add(dev, NEOTIER_STAT_DRAINED, nr);
	/* Decoded here to keep the source's copy loop short. */
	for (i = 0; i < nr; i++)
		neotier_hotlist_add(dev, dev->entries[i] >> NEOTIER_REPORT_UNIT_SHIFT,
				    dev->entries[i] & NEOTIER_REPORT_COUNT_MASK, now);
}

static u32 neotier_ops_quota_take(void *owner, u32 pages)
{
	return neotier_quota_take(pages);
}

static void neotier_ops_quota_return(void *owner, u32 pages)
{
	neotier_quota_return(pages);
}

static u64 neotier_ops_room(void *owner)
{
	return neotier_room(owner);
}

static bool neotier_ops_room_make(void *owner)
{
	return neotier_room_make(owner);
}

static int neotier_ops_migrate(void *owner, struct neotier_hot *batch, u32 nr)
{
	return neotier_migrate_batch(owner, nr);
}

static void neotier_ops_event(void *owner, enum neotier_promote_event event, u32 n)
{
	static const enum neotier_stat stats[] = {
		[NEOTIER_EVENT_DRY_RUN] = NEOTIER_STAT_DRY_RUN,
		[NEOTIER_EVENT_DRY_RUN_HUGE] = NEOTIER_STAT_DRY_RUN,
		[NEOTIER_EVENT_ROOM_HOLD] = NEOTIER_STAT_ROOM_HOLDS,
		[NEOTIER_EVENT_ROOM_WAIT] = NEOTIER_STAT_ROOM_WAITS,
	};
	struct neotier_device *dev = owner;

	neotier_stat_add(dev, stats[event], event == NEOTIER_EVENT_DRY_RUN_HUGE ? n * NEOTIER_HUGE_PAGES : n);
	if (event == NEOTIER_EVENT_DRY_RUN)
		neotier_returns_count(dev, dev->batch, n);
}

static const struct neotier_promote_ops neotier_promote_ops = {
	.quota_take = neotier_ops_quota_take,
	.quota_return = neotier_ops_quota_return,
	.room = neotier_ops_room,
	.room_make = neotier_ops_room_make,
	.migrate = neotier_ops_migrate,
	.event = neotier_ops_event,
};

static enum neotier_next neotier_promote(struct neotier_device *dev, u64 now)
{
	enum neotier_next huge = NEOTIER_SLEEP, what = NEOTIER_SLEEP;
	bool dry_run = READ_ONCE(neotier_knobs.dry_run);

	if (dev->huge.nr)
		huge = neotier_promote_huge(&dev->promotion, &dev->huge, dry_run, now);
	if (!neotier_hotlist_empty(dev))
		what = neotier_promote_some(&dev->promotion, min(READ_ONCE(neotier_knobs.batch), NEOTIER_BATCH_MAX), dry_run, now);
	return huge == NEOTIER_AGAIN ? huge : what;
}

/* Before the drain: an entry that comes after it makes the device interrupt again. */
static void neotier_interrupted(struct neotier_device *dev)
{
	int interrupts = atomic_xchg(&dev->interrupts, 0);

	if (!interrupts)
		return;
	neotier_stat_add(dev, NEOTIER_STAT_INTERRUPTS, interrupts);
	dev->source->acknowledge(dev);
}

/*
 * Until the ledger has something to spend again. The device's totals go on: only they tell that there is something to win by now.
 * What it has gathered by then is old.
 */
static bool neotier_rests(struct neotier_device *dev)
{
	if (neotier_ledger_stopped(&dev->hotlist.ledger)) {
		if (dev->state != NEOTIER_RESTING)
			neotier_stat_add(dev, NEOTIER_STAT_RESTS, 1);
		dev->source->apply(dev, NEOTIER_COUNT_TOTALS);
		WRITE_ONCE(dev->state, NEOTIER_RESTING);
		neotier_forget_waiting(dev);
		neotier_reserve_drop(dev);
		return true;
	}
	if (dev->state == NEOTIER_RESTING)
		neotier_stat_add(dev, NEOTIER_STAT_DISCARDED, dev->source->discard(dev));
	return false;
}

static enum neotier_next neotier_step(struct neotier_device *dev)
{
	u64 now = ktime_get_ns();
	bool enabled = READ_ONCE(neotier_knobs.enabled);
	enum neotier_next what;
	u64 spare;

	lockdep_assert_held(&dev->lock);
	if (dev->parked || dev->state == NEOTIER_FAILED) {
		neotier_reserve_drop(dev);
		dev->decided_ns = now;
		neotier_policy_pause(dev);
		return NEOTIER_SLEEP;
	}
	if (!enabled || dev->paused) {
		dev->source->apply(dev, NEOTIER_COUNT_NOTHING);
		WRITE_ONCE(dev->state, enabled ? NEOTIER_PAUSED : NEOTIER_OFF);
		neotier_forget_waiting(dev);
		neotier_reserve_drop(dev);
		dev->decided_ns = now;
		neotier_policy_pause(dev);
		return NEOTIER_SLEEP;
	}
	neotier_policy_step(dev, now);
	if (dev->state == NEOTIER_FAILED || neotier_rests(dev))
		return NEOTIER_SLEEP;
	WRITE_ONCE(dev->state, NEOTIER_RUNNING);
	dev->source->apply(dev, NEOTIER_COUNT_PAGES);
	neotier_interrupted(dev);
	neotier_drain(dev, now);
	if (dev->state == NEOTIER_FAILED)
		return NEOTIER_SLEEP;
	spare = neotier_room_spare(dev, now);
	neotier_exchange_step(dev, spare, now);
	if (spare)
		neotier_migrate_spare(dev, spare);
	if (READ_ONCE(neotier_knobs.dry_run))
		neotier_reserve_drop(dev);
	else
		neotier_reserve_keep(dev, now);
	what = neotier_promote(dev, now);
	neotier_watch_name(&dev->watch, &dev->hotlist.ledger, ktime_get_ns());
	/* What kswapd makes free is there for the first who asks. */
	return what == NEOTIER_SLEEP && dev->room.fill ? NEOTIER_WAIT_ROOM : what;
}

static enum neotier_next neotier_timed_step(struct neotier_device *dev)
{
	struct neotier_time start, end;
	enum neotier_next what;
	u64 waited;

	/* A device that is parked, or that failed, tells no time. */
	if (dev->parked || dev->state == NEOTIER_FAILED)
		return neotier_step(dev);
	start = neotier_clock_now(dev);
	waited = neotier_waited_ns();
	what = neotier_step(dev);
	if (dev->state == NEOTIER_FAILED)
		return what;
	end = neotier_clock_now(dev);
	dev->steps.span_ns += neotier_clock_span(&dev->clock, &start, &end);
	dev->steps.wall_ns += end.own_ns - start.own_ns;
	dev->steps.away_ns += neotier_waited_ns() - waited;
	return what;
}

/*
 * With interrupts the period can be long: they come when the device's list fills. But what waits here, or was left there,
 * makes no interrupt; the end of an epoch is the time to look at it again.
 */
static u32 neotier_sleep_us(const struct neotier_device *dev)
{
	u32 period_us = READ_ONCE(neotier_knobs.period_us);

	if (READ_ONCE(dev->state) == NEOTIER_RESTING)
		return max(period_us, READ_ONCE(neotier_knobs.decide_interval_ms) * (u32)USEC_PER_MSEC);
	if (READ_ONCE(dev->conf.irq) && (dev->drain.left || !neotier_nothing_waits(dev)))
		return min(period_us, READ_ONCE(dev->conf.epoch_us));
	return period_us;
}

/* When an epoch of the device begins, to be looked at; 0: that can wait until it is asked anyway. */
static ktime_t neotier_epoch_begins(const struct neotier_device *dev)
{
	if (READ_ONCE(dev->state) != NEOTIER_RUNNING || READ_ONCE(dev->conf.irq) ||
	    READ_ONCE(neotier_knobs.period_us) > READ_ONCE(dev->conf.epoch_us))
		return 0;
	return ns_to_ktime(dev->drain.next_ns);
}

/*
 * Whom the thread interrupts when it wakes. Invariant: nobody, while nothing is won by it; then it waits for its turn among those
 * that run. Another class or priority than its own was given by the machine's owner, and stays.
 */
static void neotier_thread_pace(const struct neotier_device *dev)
{
	struct sched_attr attr = {
		.size = sizeof(attr),
		.sched_policy = READ_ONCE(dev->hurries) ? SCHED_NORMAL : SCHED_BATCH,
		.sched_nice = task_nice(current),
	};

	if (current->policy == attr.sched_policy || (current->policy != SCHED_NORMAL && current->policy != SCHED_BATCH))
		return;
	sched_setattr_nocheck(current, &attr);
}

static int neotier_thread(void *data)
{
	struct neotier_device *dev = data;
	ktime_t next = ktime_get();
	u32 room_wait_us = NEOTIER_ROOM_WAIT_US;

	set_freezable();
	while (!kthread_should_stop()) {
		enum neotier_next what;
		ktime_t now, wake, begins;
		u32 period_us;

		atomic_set(&dev->wanted, 0);
		neotier_stat_add(dev, NEOTIER_STAT_WAKEUPS, 1);
		do {
			mutex_lock(&dev->lock);
			what = neotier_timed_step(dev);
			mutex_unlock(&dev->lock);
			if (what != NEOTIER_WAIT_ROOM)
				room_wait_us = NEOTIER_ROOM_WAIT_US;
			cond_resched();
		} while (what == NEOTIER_AGAIN && !kthread_should_stop() && !freezing(current));

		neotier_thread_pace(dev);
		now = ktime_get();
		period_us = neotier_sleep_us(dev);
		if (what == NEOTIER_WAIT_ROOM) {
			wake = ktime_add_us(now, min(room_wait_us, period_us));
			room_wait_us = min(room_wait_us * 2, period_us);
		} else {
			next = ktime_add_us(next, period_us);
			if (ktime_before(next, now) || ktime_after(next, ktime_add_us(now, period_us)))
				next = ktime_add_us(now, period_us);
			wake = next;
		}
		/* One in the past, of which no step took notice, waits: or this would not sleep while the device is parked. */
		begins = neotier_epoch_begins(dev);
		if (ktime_after(begins, now) && ktime_before(begins, wake))
			wake = next = begins;
		set_current_state(TASK_IDLE | TASK_FREEZABLE);
		if (!kthread_should_stop() && !atomic_read(&dev->wanted))
			schedule_hrtimeout_range(&wake, 0, HRTIMER_MODE_ABS);
		__set_current_state(TASK_RUNNING);
		try_to_freeze();
	}
	return 0;
}

int neotier_promote_create(struct neotier_device *dev)
{
	struct task_struct *thread;

	dev->promotion.list = &dev->hotlist;
	dev->promotion.batch = dev->batch;
	dev->promotion.ops = &neotier_promote_ops;
	dev->promotion.owner = dev;
	thread = kthread_create_on_node(neotier_thread, dev, dev->target_nid, "neotier/%d", dev->id);
	if (IS_ERR(thread))
		return PTR_ERR(thread);
	dev->thread = thread;
	return 0;
}

void neotier_promote_stop(struct neotier_device *dev)
{
	kthread_stop(dev->thread);
	dev->thread = NULL;
}

void neotier_promote_park(struct neotier_device *dev, bool answers)
{
	mutex_lock(&dev->lock);
	if (answers)
		neotier_source_stop(dev);
	dev->parked = true;
	if (dev->state != NEOTIER_FAILED)
		WRITE_ONCE(dev->state, NEOTIER_PAUSED);
	neotier_forget_waiting(dev);
	neotier_reserve_drop(dev);
	mutex_unlock(&dev->lock);
}

void neotier_promote_unpark(struct neotier_device *dev)
{
	mutex_lock(&dev->lock);
	if (dev->parked) {
		int err = neotier_source_start(dev);

		dev->parked = false;
		if (err)
			neotier_stat_add(dev, NEOTIER_STAT_DEVICE_FAULTS, 1);
		/* A device that was out of service has a new start as well. */
		WRITE_ONCE(dev->state, err ? NEOTIER_FAILED : NEOTIER_PAUSED);
	}
	mutex_unlock(&dev->lock);
	neotier_promote_wake(dev);
}

void neotier_promote_wake(struct neotier_device *dev)
{
	atomic_set(&dev->wanted, 1);
	wake_up_process(dev->thread);
}

void neotier_promote_wake_all(void)
{
	struct neotier_device *dev;

	mutex_lock(&neotier_devices_lock);
	list_for_each_entry(dev, &neotier_devices, node)
		neotier_promote_wake(dev);
	mutex_unlock(&neotier_devices_lock);
}

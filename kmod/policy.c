// SPDX-License-Identifier: GPL-2.0-only
/*
 * Between the module and policies/: makes the snapshot, asks, and puts the plan into force within the limits that are the
 * module's own. Also where another mover of the same pages is noticed, because this runs at a steady, slow pace.
 */
#include <linux/cpumask.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include "neotier.h"
#include "trace.h"

/* The interval may be long (suspend, enabled=0), and the policy's arithmetic should not have to care. */
#define NEOTIER_INTERVAL_MAX_NS (60 * NSEC_PER_SEC)
/* Of the device's time. */
#define NEOTIER_TICK_NS (100 * NSEC_PER_USEC)

#if defined(CONFIG_NUMA_BALANCING) && defined(CONFIG_VM_EVENT_COUNTERS)
/*
 * Neither the sysctl nor its static key is exported, but the scanner counts the page table entries it takes away. Those
 * faults cost time, and in tiering mode (2) the kernel promotes the same pages by its own idea of what is hot.
 */
static void neotier_policy_detect_numa_balancing(struct neotier_device *dev)
{
	static unsigned long before;
	static bool known, warned;
	unsigned long scanned = 0;
	int cpu;

	if (READ_ONCE(warned))
		return;
	for_each_online_cpu(cpu)
		scanned += per_cpu(vm_event_states, cpu).event[NUMA_PTE_UPDATES];
	if (known && scanned > before) {
		warned = true;
		dev_warn(&dev->pdev->dev, "NUMA balancing is at work on the same pages: results are a mixture; set kernel.numa_balancing=0\n");
	}
	before = scanned;
	known = true;
}
#else
static void neotier_policy_detect_numa_balancing(struct neotier_device *dev)
{
}
#endif

/* A total that runs backwards (the device was reset, or lies) counts from 0. */
static u64 neotier_delta(struct neotier_device *dev, enum neotier_stat stat, u64 now, u64 before)
{
	u64 delta = now >= before ? now - before : now;

	neotier_stat_add(dev, stat, delta);
	return delta;
}

void neotier_policy_pause(struct neotier_device *dev)
{
	dev->decided.own_ns = 0;
	neotier_clock_unmark(&dev->clock);
}

static void neotier_policy_init(struct neotier_device *dev, u64 now_ns)
{
	struct neotier_policy_params params = {
		.threshold = clamp(READ_ONCE(dev->conf.start_threshold), 1U, 65535U),
		.p_start_ppm = READ_ONCE(neotier_knobs.p_start_ppm),
		.p_min_ppm = READ_ONCE(neotier_knobs.p_min_ppm),
		.p_max_ppm = READ_ONCE(neotier_knobs.p_max_ppm),
		.saved_ns = READ_ONCE(neotier_knobs.saved_ns),
		.payback_ms = READ_ONCE(neotier_knobs.payback_ms),
	};

	const struct neotier_ledger_terms terms = {
		.base_ns = READ_ONCE(neotier_knobs.loss_base_ms) * (u64)NSEC_PER_MSEC,
		.loss_ppm = READ_ONCE(neotier_knobs.loss_ppm),
		.saved_ns = params.saved_ns,
	};

	neotier_ledger_start(&dev->hotlist.ledger, &terms);
	neotier_watch_forget(&dev->watch);
	memset(dev->policy_state, 0, sizeof(dev->policy_state));
	dev->policy->init(dev->policy_state, &params);
	WRITE_ONCE(dev->conf.threshold, READ_ONCE(dev->conf.start_threshold));
	neotier_huge_restart(dev);
	neotier_exchange_restart(dev);
	/* Until the first decision as well. */
	dev->promotion.left = neotier_policy_pages(dev);
	WRITE_ONCE(dev->hurries, neotier_ledger_hurries(&dev->hotlist.ledger));
	dev->decided_ns = now_ns;
	neotier_policy_pause(dev);
	dev->decided = neotier_clock_now(dev);
	memcpy(dev->decided_stats, dev->stats, sizeof(dev->stats));
}

/* CPU time of the target node's kswapd since the last settlement. */
static u64 neotier_kswapd_ns(struct neotier_device *dev)
{
	struct task_struct *kswapd = READ_ONCE(NODE_DATA(dev->target_nid)->kswapd);
	u64 now = kswapd ? READ_ONCE(kswapd->se.sum_exec_runtime) : 0, before = dev->kswapd_ns;

	dev->kswapd_ns = now;
	return now > before ? now - before : 0;
}

u64 neotier_policy_pages(const struct neotier_device *dev)
{
	return neotier_ledger_pages(&dev->hotlist.ledger,
				    dev->exchange ? NEOTIER_LEDGER_LEAST_EXCHANGE : NEOTIER_LEDGER_LEAST_KSWAPD);
}

/* What has happened since the last decision. @span_ns: by the clock in use; @own_ns: by the kernel's. */
static void neotier_policy_settle(struct neotier_device *dev, const struct neotier_snapshot *snapshot, u64 span_ns, u64 own_ns)
{
	struct neotier_ledger *ledger = &dev->hotlist.ledger;
	u64 won = ledger->won_ns, regret = ledger->regret_ns, spent = ledger->spent_ns;
	u32 track = READ_ONCE(dev->conf.track);
	/* The first ones may have begun before the interval did. */
	u64 away_ns = min(dev->steps.away_ns, dev->steps.wall_ns), steps_ns = min(dev->steps.span_ns, span_ns), thread_ns;
	u64 kswapd_ns = neotier_kswapd_ns(dev);
	struct neotier_ledger_period period = {
		.interval_ns = span_ns,
		.promoted = snapshot->promoted,
		.waiting = neotier_hotlist_waiting(dev),
		.returned = snapshot->ping_pong,
		.moves_ns = snapshot->promote_ns + snapshot->demote_ns,
		.wakes = dev->stats[NEOTIER_STAT_WAKEUPS] - dev->decided_stats[NEOTIER_STAT_WAKEUPS],
		.cpus = num_online_cpus(),
		.reads = track != NEOTIER_TRACK_WRITES ? snapshot->reads : 0,
		.writes = track != NEOTIER_TRACK_READS ? snapshot->writes : 0,
		.reports = snapshot->reported,
		.missed = snapshot->lost + dev->stats[NEOTIER_STAT_DISCARDED] - dev->decided_stats[NEOTIER_STAT_DISCARDED],
		.epoch_ns = snapshot->epoch_ns,
		.downsampling = snapshot->downsampling,
		.hot = READ_ONCE(dev->conf.always_on) ? neotier_histogram_hot(snapshot->histogram, snapshot->threshold) : 0,
	};
	bool asked = snapshot->promoted || dev->stats[NEOTIER_STAT_ROOM_WAITS] != dev->decided_stats[NEOTIER_STAT_ROOM_WAITS];

	dev->steps = (struct neotier_steps){ };
	if (!own_ns)
		return;
	/*
	 * Of what a batch took, others may have had a part, as of the rest of a step. The clock in use runs for them as it does on
	 * average, and for the kernel's own work at another pace: of that there are readings.
	 */
	thread_ns = steps_ns - min(steps_ns, mul_u64_u64_div_u64(away_ns, span_ns, own_ns));
	if (steps_ns)
		period.moves_ns = mul_u64_u64_div_u64(period.moves_ns, thread_ns, steps_ns);
	period.looking_ns = thread_ns - min(thread_ns, period.moves_ns);
	if (asked && !dev->exchange)
		period.moves_ns += mul_u64_u64_div_u64(kswapd_ns, span_ns, own_ns);
	period.counted = neotier_watch_count(&dev->watch, ledger, &dev->clock, dev->decided.own_ns);
	if (neotier_ledger_settle(ledger, &period))
		neotier_demoted_pass(dev);
	neotier_watch_name(&dev->watch, ledger, dev->decided.own_ns);
	neotier_stat_add(dev, NEOTIER_STAT_SPENT_NS, ledger->spent_ns - spent);
	neotier_stat_add(dev, NEOTIER_STAT_WON_NS, ledger->won_ns - won);
	neotier_stat_add(dev, NEOTIER_STAT_REGRET_NS, ledger->regret_ns - regret);
}

/* What the last line did not tell, for those who look at nothing but the log. */
static void neotier_policy_tell(struct neotier_device *dev, u64 now_ns)
{
	u64 interval_ns = READ_ONCE(neotier_knobs.log_interval_s) * NSEC_PER_SEC;
	const u64 *now = dev->stats, *told = dev->told_stats;
	const char *what;

	if (dev->told_ns && (!interval_ns || now_ns - dev->told_ns < interval_ns))
		return;
#define NEOTIER_TOLD(stat) (now[NEOTIER_STAT_##stat] - told[NEOTIER_STAT_##stat])
	if (dev->told_ns) {
		if (NEOTIER_TOLD(PROMOTED))
			what = NEOTIER_TOLD(RESTS) ? "rested in between, as loss_ppm and loss_base_ms say" : "at work";
		else if (NEOTIER_TOLD(DRAINED))
			what = "nothing was worth its move";
		else
			what = "nothing was hot";
		dev_info(&dev->pdev->dev,
			 "in %llu s: %llu pages promoted, %llu demoted; %llu ms won, %llu ms spent, %llu ms regretted; %s\n",
			 div64_u64(now_ns - dev->told_ns, NSEC_PER_SEC), NEOTIER_TOLD(PROMOTED), NEOTIER_TOLD(DEMOTED),
			 div64_u64(NEOTIER_TOLD(WON_NS), NSEC_PER_MSEC), div64_u64(NEOTIER_TOLD(SPENT_NS), NSEC_PER_MSEC),
			 div64_u64(NEOTIER_TOLD(REGRET_NS), NSEC_PER_MSEC), what);
	}
#undef NEOTIER_TOLD
	dev->told_ns = now_ns;
	memcpy(dev->told_stats, now, sizeof(dev->told_stats));
}

void neotier_policy_step(struct neotier_device *dev, u64 now_ns)
{
	static const enum neotier_skip failures[] = {
		NEOTIER_SKIP_NOT_LRU, NEOTIER_SKIP_FILE, NEOTIER_SKIP_LARGE, NEOTIER_SKIP_SWAPCACHE, NEOTIER_SKIP_WRITEBACK,
		NEOTIER_SKIP_UNEVICTABLE, NEOTIER_SKIP_SHARED, NEOTIER_SKIP_EXCLUDED, NEOTIER_SKIP_BUSY,
		NEOTIER_SKIP_NO_MEMORY, NEOTIER_SKIP_NO_ROOM, NEOTIER_SKIP_OVERFLOW,
		NEOTIER_SKIP_MEMPOLICY, NEOTIER_SKIP_CPUSET, NEOTIER_SKIP_PINNED, NEOTIER_SKIP_OWNER, NEOTIER_SKIP_PROCESS,
		NEOTIER_SKIP_NODE, NEOTIER_SKIP_EXCLUDED_RANGE, NEOTIER_SKIP_ZONE, NEOTIER_SKIP_CONTENDED,
	};
	const struct neotier_policy *policy = READ_ONCE(neotier_knobs.policy);
	int generation = atomic_read(&dev->policy_generation);
	struct neotier_snapshot snapshot = { };
	struct neotier_plan plan = { };
	struct neotier_device_state state = dev->snapshot;
	struct neotier_device_state *old = &dev->snapshot;
	u64 interval, span_ns = 0, own_ns = 0;
	struct neotier_time now;
	bool histogram;
	unsigned int i;

	if (dev->policy != policy || dev->policy_applied != generation) {
		dev->policy = policy;
		dev->policy_applied = generation;
		neotier_policy_init(dev, now_ns);
		return;
	}
	interval = now_ns - dev->decided_ns;
	if (interval < READ_ONCE(neotier_knobs.decide_interval_ms) * (u64)NSEC_PER_MSEC)
		return;
	interval = min(interval, (u64)NEOTIER_INTERVAL_MAX_NS);

	/* Half of the registers, and each read of one is slow. Of a device that rests it tells nothing. */
	histogram = dev->state != NEOTIER_RESTING && (policy->histogram || neotier_ledger_bounds(&dev->hotlist.ledger));
	histogram = histogram || now_ns - dev->histogram_ns >= NSEC_PER_SEC;
	if (histogram)
		dev->histogram_ns = now_ns;
	if (dev->source->snapshot(dev, &state, histogram)) {
		neotier_promote_fail(dev, NEOTIER_GONE);
		return;
	}
	now = neotier_clock_now(dev);
	if (dev->decided.own_ns) {
		own_ns = now.own_ns - dev->decided.own_ns;
		span_ns = neotier_clock_span(&dev->clock, &dev->decided, &now);
		neotier_stat_add(dev, NEOTIER_STAT_CLOCK_NS, span_ns);
	}
	dev->decided = now;
	if (dev->state == NEOTIER_RESTING)
		neotier_clock_unmark(&dev->clock);
	neotier_clock_mark(&dev->clock, &now, state.ticks * NEOTIER_TICK_NS);
	snapshot.interval_ns = interval;
	snapshot.epochs = neotier_delta(dev, NEOTIER_STAT_EPOCHS, state.epochs, old->epochs);
	snapshot.reads = neotier_delta(dev, NEOTIER_STAT_READS, state.reads, old->reads);
	snapshot.writes = neotier_delta(dev, NEOTIER_STAT_WRITES, state.writes, old->writes);
	snapshot.peak_lines = mul_u64_u64_div_u64(dev->caps.peak_lines_per_tick, interval, NEOTIER_TICK_NS);
	neotier_delta(dev, NEOTIER_STAT_REPORTED, state.reported, old->reported);
	neotier_delta(dev, NEOTIER_STAT_SATURATED, state.saturated, old->saturated);
	snapshot.lost = neotier_delta(dev, NEOTIER_STAT_LOST_TAP, state.lost_tap, old->lost_tap) +
			neotier_delta(dev, NEOTIER_STAT_LOST_RING, state.lost_ring, old->lost_ring);
	/* In always-on mode these were reported all the same. */
	if (READ_ONCE(dev->conf.always_on))
		neotier_delta(dev, NEOTIER_STAT_LOST_CANDIDATES, state.lost_candidates, old->lost_candidates);
	else
		snapshot.lost += neotier_delta(dev, NEOTIER_STAT_LOST_CANDIDATES, state.lost_candidates,
					       old->lost_candidates);
	*old = state;
	neotier_drain_phase(&dev->drain, now_ns, state.ticks, state.epochs,
			    max_t(u32, READ_ONCE(dev->conf.epoch_us) / (NEOTIER_TICK_NS / NSEC_PER_USEC), 1), NEOTIER_TICK_NS);
	memcpy(snapshot.histogram, state.histogram, sizeof(snapshot.histogram));
	snapshot.error_bound = state.error_bound;
	snapshot.threshold = READ_ONCE(dev->conf.threshold);
	snapshot.counter_max = dev->caps.counter_max;
	snapshot.unit_pages_log2 = 0;
	snapshot.downsampling = 1U << READ_ONCE(dev->conf.downsampling_log2);
	snapshot.epoch_ns = neotier_clock_scale(&dev->clock, READ_ONCE(dev->conf.epoch_us) * (u64)NSEC_PER_USEC);

#define NEOTIER_SINCE(stat) (dev->stats[stat] - dev->decided_stats[stat])
	snapshot.reported = NEOTIER_SINCE(NEOTIER_STAT_DRAINED);
	snapshot.promoted = neotier_huge_as_moves(NEOTIER_SINCE(NEOTIER_STAT_PROMOTED), NEOTIER_SINCE(NEOTIER_STAT_PROMOTED_HUGE));
	snapshot.promote_ns = NEOTIER_SINCE(NEOTIER_STAT_PROMOTE_NS);
	for (i = 0; i < ARRAY_SIZE(failures); i++)
		snapshot.promote_failed += NEOTIER_SINCE(NEOTIER_STAT_SKIP_RANGE + failures[i]);
	snapshot.quota_skipped = NEOTIER_SINCE(NEOTIER_STAT_SKIP_RANGE + NEOTIER_SKIP_QUOTA);
	snapshot.demoted = NEOTIER_SINCE(NEOTIER_STAT_DEMOTED);
	/* Who had to be found cost that too. */
	snapshot.demote_ns = NEOTIER_SINCE(NEOTIER_STAT_DEMOTE_NS) + NEOTIER_SINCE(NEOTIER_STAT_AGE_NS);
	snapshot.regrets = NEOTIER_SINCE(NEOTIER_STAT_REGRETS);
	snapshot.short_stays = NEOTIER_SINCE(NEOTIER_STAT_SHORT_STAYS);
	snapshot.ping_pong = NEOTIER_SINCE(NEOTIER_STAT_PING_PONG) +
			     NEOTIER_HUGE_COST * NEOTIER_SINCE(NEOTIER_STAT_PING_PONG_HUGE);
#undef NEOTIER_SINCE
	snapshot.lasted_ns = dev->hotlist.ledger.lasted_ns;
	snapshot.quota_pages = neotier_quota_pages(interval);
	snapshot.fast_free_pages = neotier_room(dev);
	snapshot.fast_total_pages = node_present_pages(dev->target_nid);
	snapshot.slow_total_pages = dev->nr_units;

	policy->decide(dev->policy_state, &snapshot, &plan);
	plan.threshold = clamp(plan.threshold, 1U, dev->caps.counter_max);
	WRITE_ONCE(dev->conf.threshold, plan.threshold);
	neotier_policy_settle(dev, &snapshot, span_ns, own_ns);
	dev->promotion.left = min(plan.promote_max, neotier_policy_pages(dev));
	WRITE_ONCE(dev->hurries, neotier_ledger_hurries(&dev->hotlist.ledger));
	dev->decided_ns = now_ns;
	neotier_stat_add(dev, NEOTIER_STAT_DECISIONS, 1);
	memcpy(dev->decided_stats, dev->stats, sizeof(dev->stats));
	trace_neotier_decide(plan.threshold, plan.promote_max, snapshot.reported, snapshot.promoted, snapshot.ping_pong,
			     snapshot.fast_free_pages);
	neotier_policy_detect_numa_balancing(dev);
	neotier_policy_tell(dev, now_ns);
}

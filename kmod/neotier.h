/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Internal interfaces of neotier.ko. Data flow, one file for each role:
 *
 *	source (source_chmu) -> hotlist, huge -> policy, quota, room -> migrate      promote: the thread that carries it
 *	clock: what its steps took
 *	age: which pages of the target node make room      demoted: which pages reclaim moved to a device
 *	rules, owner: who has a say in what moves
 *	probe: finds devices      region, memory: which memory each watches      irq: its interrupts, which wake the thread
 *	stats, trace: what happened      sysfs: knobs      main: init and exit
 *
 * What is decided without the kernel's types is in policies/, promotion/ among it: the same objects run outside it.
 *
 * Threads and locks. One thread for each device does all that touches its registers, its list of hot pages and its
 * counters. Sysfs only changes knobs (single words, WRITE_ONCE) and wakes the thread.
 *   neotier_devices_lock   the list of devices, retired counters; outermost; taken by the memory notifier, so nothing under it
 *                          may wait for memory hotplug
 *   neotier_exchange.lock  innermost: the ages of a target node's pages
 *   neotier_device.lock    held by the thread for one step (at most one batch); taken by the memory notifier to wait until
 *                          no page of a range that goes offline is in the module's hands, and by resets and suspends to
 *                          wait until nobody touches the registers
 */
#ifndef NEOTIER_H
#define NEOTIER_H

#include <linux/completion.h>
#include <linux/kobject.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/types.h>
#include "interleave.h"
#include "knobs.h"
#include "neotier_policy.h"
#include "promotion/age.h"
#include "promotion/clock.h"
#include "promotion/drain.h"
#include "promotion/hotlist.h"
#include "promotion/huge.h"
#include "promotion/ping_pong.h"
#include "promotion/promote.h"
#include "promotion/quota.h"
#include "promotion/room.h"
#include "promotion/spare.h"
#include "promotion/watch.h"
#include "source.h"
#include "stats.h"

/* Entries of one of the administrator's lists. */
#define NEOTIER_RULE_MAX 16U

/* The memory of a device: checked, changes only by unbinding the device. */
struct neotier_region {
	u64 hpa_base, hpa_size;	/* bytes; all devices of the interleave together */
	u64 dpa_base, dpa_size;	/* bytes; what the region uses of this device */
	u32 position;		/* of this device in the interleave */
	struct neotier_interleave interleave;
};

enum neotier_run_state {
	NEOTIER_RUNNING,
	NEOTIER_OFF,		/* knob enabled is 0 */
	NEOTIER_PAUSED,		/* memory of the device is offline or going, or the device is being reset or suspended */
	NEOTIER_FAILED,		/* taken out of service */
	NEOTIER_RESTING,	/* the ledger has nothing left for looking */
};

/* The pages of a device that were demoted in this horizon of the ledger and in the last one. */
struct neotier_demoted {
	struct list_head node;
	unsigned long base_pfn, nr_pages;
	u8 *marks;		/* of each page: a tag of what was put there, times 2, and the horizon's parity; 0: nothing */
	bool any[2];
	unsigned int now;	/* parity of this horizon */
};

/* Of the thread's steps since the last settlement, by the kernel's clock. */
struct neotier_steps {
	u64 span_ns;		/* by the clock in use */
	u64 wall_ns, away_ns;	/* by the kernel's; away: others had the CPU */
};

struct neotier_device {
	struct list_head node;	/* in neotier_devices */
	int id;
	struct pci_dev *pdev;
	const struct neotier_source_ops *source;
	void *source_state;	/* the source's own; made by open() */
	struct kobject kobj;
	struct completion released; /* the kobject's last reference is gone */
	struct task_struct *thread;
	struct mutex lock;

	struct neotier_caps caps;
	struct neotier_region region;
	int nid, target_nid;
	unsigned long base_pfn, nr_pages; /* of the region */
	unsigned long nr_units;	/* pages' worth of the device's own memory in it */

	struct neotier_conf conf;
	atomic_t policy_generation; /* moves when the policy has to start afresh */
	enum neotier_run_state state;
	bool paused;		/* by the memory notifier, under lock */
	bool offline;		/* part of its memory is, and the log says so; as paused */
	bool hurries;		/* its thread, from the last decision on, neotier_ledger_hurries() */
	bool parked;		/* its registers are not to be touched: a reset or a suspend is on; as paused */
	bool has_irq;
	atomic_t interrupts;	/* not counted yet */
	atomic_t wanted;	/* somebody woke the thread */

	/* private: the thread's */
	struct neotier_drain drain;
	u64 *entries;		/* copy of a drain, hotlist_size words */
	struct neotier_device_state snapshot;
	struct neotier_clock clock;
	struct neotier_hotlist hotlist;
	struct neotier_waiting_place *places; /* of the hotlist */
	struct neotier_huge huge;	/* gathered NULL: huge folios stay */
	bool claim_stopped;		/* claiming does not bring folios to the target node */
	struct neotier_ping_pong ping_pong;
	struct neotier_demoted demoted;
	struct neotier_watch watch;
	struct neotier_steps steps;
	u64 kswapd_ns;			/* its CPU time at the last settlement */
	struct neotier_exchange *exchange;	/* NULL: kswapd makes room */
	struct neotier_ping_pong regrets;	/* pages demoted to make room; with exchange */
	struct neotier_room room;
	struct neotier_spare spare;	/* with exchange */
	struct list_head reserve;	/* room.reserved free pages of the target node, kept for promotion */
	struct neotier_promotion promotion;
	struct neotier_hot *batch;	/* NEOTIER_BATCH_MAX */
	unsigned long *src, *dst;	/* NEOTIER_MIGRATE_WORDS, as migrate_device_*() take them */
	struct page **pool, **victims;	/* NEOTIER_BATCH_MAX each */

	const struct neotier_policy *policy;
	int policy_applied;
	u64 policy_state[NEOTIER_POLICY_STATE_BYTES / sizeof(u64)];
	u64 decided_ns, histogram_ns;
	struct neotier_time decided;	/* checked readings; own_ns 0: the device stood still since */
	u64 decided_stats[NR_NEOTIER_STAT];
	u64 told_ns, told_stats[NR_NEOTIER_STAT]; /* when a line was written to the log; 0: not yet */

	u64 stats[NR_NEOTIER_STAT];
};

extern struct mutex neotier_devices_lock;
extern struct list_head neotier_devices;

/* probe.c */

/**
 * neotier_probe_register() - bind to every device present
 *
 * Return: 0, also when a device waits for its CXL region; -ENODEV when there is none; the error of the last probe when no
 * device could be used. One line in the log says why.
 */
int neotier_probe_register(void);
void neotier_probe_unregister(void);

/**
 * neotier_probe_recheck() - look again, soon, at which memory the devices have
 *
 * For devices with a CXL region: those whose region has changed or gone are unbound, those that waited for theirs are
 * bound. Context: any.
 */
void neotier_probe_recheck(void);

#define NEOTIER_REFUSE(dev, what, ...) \
	dev_err(&(dev)->pdev->dev, what ": not a device this driver can use\n", ##__VA_ARGS__)

/* promote.c: what all sources have in common. Under dev->lock. */

/**
 * neotier_source_start() - reset the device and set it up; it does not count yet
 * @dev: device with caps and conf filled
 *
 * Return: 0 or -ENODEV when the device does not answer; the reason has been logged.
 */
int neotier_source_start(struct neotier_device *dev);

/**
 * neotier_source_stop() - let the device stand still, if its registers may be touched
 * @dev: device
 */
void neotier_source_stop(struct neotier_device *dev);

/* watch.c */

/* Nothing is watched; under dev->lock, with the device's region known. */
void neotier_watch_init(struct neotier_device *dev);

/* region.c */

/**
 * neotier_region_find() - the region that a CXL memory device is part of
 * @dev: device with caps filled, serial not 0
 * @region: filled
 *
 * Return: 0; -EPROBE_DEFER when there is none yet (or no longer); another errno when it is none that the driver can use,
 * the reason has been logged. Context: may sleep.
 */
int neotier_region_find(struct neotier_device *dev, struct neotier_region *region);

/* irq.c. init after neotier_promote_create(), exit before neotier_promote_stop(). */
void neotier_irq_init(struct neotier_device *dev);
void neotier_irq_exit(struct neotier_device *dev);

/* memory.c: the memory that a device watches. */

/**
 * neotier_memory_init() - check the device's memory
 * @dev: device with caps and region filled; gets nid, target_nid, base_pfn, nr_pages, nr_units
 *
 * Return: 0; -EPROBE_DEFER when the memory of a CXL region is not all online; another errno. The reason has been logged.
 */
int neotier_memory_init(struct neotier_device *dev);

/**
 * neotier_memory_online() - let a device run again if all its memory is online
 * @dev: device, its region as it was when it was bound
 *
 * Context: may sleep (takes dev->lock).
 */
void neotier_memory_online(struct neotier_device *dev);

/**
 * neotier_memory_recheck() - whether the memory is still all online, once the notifier knows the device
 * @dev: device, in neotier_devices
 *
 * Return: as neotier_memory_init(). Context: may sleep (takes dev->lock).
 */
int neotier_memory_recheck(struct neotier_device *dev);

int neotier_memory_notifier_register(void);
void neotier_memory_notifier_unregister(void);

/* hotlist.c: reports to pages; promotion/hotlist.h has the list itself. */

/**
 * neotier_hotlist_alloc() - make the list, and what is remembered of pages
 * @dev: device with its memory found
 *
 * Return: 0 or -ENOMEM.
 */
int neotier_hotlist_alloc(struct neotier_device *dev);
void neotier_hotlist_free(struct neotier_device *dev);

/* What lies in a page of the region now, as a number; one that is in between is another than it was. */
u64 neotier_hotlist_identity(void *owner, u32 page);

/**
 * neotier_hotlist_add() - queue one report
 * @dev: device
 * @unit: unit index as reported, any value
 * @count: estimate as reported
 * @now_ns: when it was drained
 */
void neotier_hotlist_add(struct neotier_device *dev, u64 unit, u32 count, u64 now_ns);

static inline u32 neotier_hotlist_waiting(const struct neotier_device *dev)
{
	return dev->hotlist.waiting.nr;
}

static inline bool neotier_hotlist_empty(const struct neotier_device *dev)
{
	return !neotier_hotlist_waiting(dev);
}

static inline unsigned long neotier_hot_pfn(const struct neotier_device *dev, const struct neotier_hot *hot)
{
	return dev->base_pfn + hot->page;
}

/* From which node to which a page goes. */
struct neotier_way {
	int from, to;
	bool down;	/* a victim makes room: it leaves the target node */
};

static inline struct neotier_way neotier_way_up(const struct neotier_device *dev)
{
	return (struct neotier_way){ .from = dev->nid, .to = dev->target_nid };
}

static inline struct neotier_way neotier_way_down(const struct neotier_device *dev)
{
	return (struct neotier_way){ .from = dev->target_nid, .to = dev->nid, .down = true };
}

/* What the caller of neotier_page_check() has of the page. */
enum neotier_hold {
	NEOTIER_REFERENCED,	/* one reference: it stays what it is, the answer is a good guess */
	NEOTIER_LOCKED,		/* it is locked, isolated and unmapped: the answer stays true */
};

/**
 * neotier_folio_get() - take a reference on the folio of a page
 * @pfn: any PFN
 *
 * Return: the folio, for folio_put(); NULL: offline, free, or changing at this moment.
 */
struct folio *neotier_folio_get(unsigned long pfn);

/**
 * neotier_page_check() - whether a page may move, but for its owner's rules
 * @way: from where to where
 * @folio: its folio
 * @hold: what the caller has of it
 *
 * Return: NR_NEOTIER_SKIP when it may, else why not.
 */
enum neotier_skip neotier_page_check(struct neotier_way way, struct folio *folio, enum neotier_hold hold);

/* The part of that check which holds for folios of any size. */
enum neotier_skip neotier_folio_check(struct neotier_way way, struct folio *folio, enum neotier_hold hold);

/**
 * neotier_returns_note() - remember a page that is promoted, or the first one of a huge folio
 * @dev: device
 * @page: the page, locked or in its owner's hands
 */
void neotier_returns_note(struct neotier_device *dev, struct page *page);

/* Counts a huge folio worth its move if it has been promoted before. */
void neotier_huge_returns_count(struct neotier_device *dev, struct page *page);

/* What a page is, wherever it lies. Without a reference it may be another one than it was. */
u64 neotier_identity_of(struct page *page);

/* Remembers a page that was demoted to make room. */
void neotier_regrets_note(struct neotier_device *dev, struct page *page);

/* Counts those of a batch that have been promoted before: they have been demoted since. */
void neotier_returns_count(struct neotier_device *dev, const struct neotier_hot *hot, unsigned int nr);

/* demoted.c: which pages reclaim has demoted lately. */
void neotier_demoted_init(void);
void neotier_demoted_exit(void);
/* Before the first report; @dev: with its memory found. Return: 0 or -ENOMEM. */
int neotier_demoted_alloc(struct neotier_device *dev);
void neotier_demoted_free(struct neotier_device *dev);
/* That this module has demoted a page, which no probe sees, to @pfn. Under dev->lock. */
void neotier_demoted_note(struct neotier_device *dev, unsigned long pfn);
/* @page: index in the region. */
bool neotier_demoted_lately(const struct neotier_device *dev, u32 page);
/* A horizon of the ledger has passed. */
void neotier_demoted_pass(struct neotier_device *dev);

/* huge.c: huge folios whose hot pages together are worth its move; promotion/huge.h gathers them. */

/* The knob may have changed: its memory is there while it is on alone. */
void neotier_huge_restart(struct neotier_device *dev);
void neotier_huge_free(struct neotier_device *dev);

/**
 * neotier_huge_check() - whether a huge folio may be promoted whole, but for its owner's rules
 * @dev: device
 * @folio: of the device; the caller holds a reference
 *
 * Return: NR_NEOTIER_SKIP when it may, else why not.
 */
enum neotier_skip neotier_huge_check(const struct neotier_device *dev, struct folio *folio);

static inline bool neotier_nothing_waits(const struct neotier_device *dev)
{
	return neotier_hotlist_empty(dev) && !dev->huge.nr;
}

/* owner.c: whose memory a page is. */

/* Processes that may map a page: after fork() a page of one is looked for in all its children. More: the page stays. */
#define NEOTIER_OWNERS_MAX 8U
/* Mappings of a file's page that are looked at; with more of them it stays. */
#define NEOTIER_SHARERS_MAX 64U
struct neotier_owner {
	struct mm_struct *mms[NEOTIER_OWNERS_MAX];	/* each with its mmap_lock held, read */
	/* Where each may map the folio: the page with this number in it, at this address. */
	unsigned long pages[NEOTIER_OWNERS_MAX], addresses[NEOTIER_OWNERS_MAX];
	unsigned int nr;
};

/**
 * neotier_owner_hold() - look whether all that may map a page allow that it moves, and keep them from changing that
 * @way: from where to where
 * @folio: the caller holds a reference
 * @owner: filled; to be released when NR_NEOTIER_SKIP is returned
 *
 * Of a file's page nobody is held: see neotier_sharers_check(). Waits for no lock. Return: NR_NEOTIER_SKIP when they do, else
 * why not.
 */
enum neotier_skip neotier_owner_hold(struct neotier_way way, struct folio *folio, struct neotier_owner *owner);
void neotier_owner_release(struct neotier_owner *owner);

/**
 * neotier_sharers_check() - look whether all that may map a file's page allow that it moves
 * @way: from where to where
 * @folio: not anonymous
 * @hold: what the caller has of it
 *
 * Any number of processes may map it, and more may begin to, so they are not held. The answer is one for good where the page is
 * locked, isolated and unmapped: who changes its rules now meets a page that is on its way. Waits for no lock. Return:
 * NR_NEOTIER_SKIP when they do, else why not.
 */
enum neotier_skip neotier_sharers_check(struct neotier_way way, struct folio *folio, enum neotier_hold hold);

/**
 * neotier_owner_each() - visit the VMAs that may map a page
 * @folio: the caller holds a reference
 * @visit: VMA, the page's address in it, @arg; false: no more
 * @arg: for @visit
 *
 * With a lock of theirs held, read: page tables of these VMAs stay. None where it is not to be had at once; and none of a file's
 * page that could be no victim for what maps it.
 */
void neotier_owner_each(struct folio *folio, bool (*visit)(struct vm_area_struct *vma, unsigned long address, void *arg), void *arg);

/* cached.c: page cache and shared memory. */

/**
 * neotier_cached_check() - whether a page of it may move, but for what holds for other memory as well
 * @folio: not anonymous
 * @hold: what the caller has of it; locked, its file is asked as well
 *
 * Return: NR_NEOTIER_SKIP when it may, else why not.
 */
enum neotier_skip neotier_cached_check(struct folio *folio, enum neotier_hold hold);

/*
 * Whether system calls have read or written it since it was last cleared, as far as its flags tell; @clear: from now on. Reclaim
 * then takes it for used once less.
 */
bool neotier_cached_accessed(struct folio *folio, bool clear);

/* age.c: which pages of the target node make room. Under dev->lock. */

/* The knob may have changed: what it needs is there while it is on alone. */
void neotier_exchange_restart(struct neotier_device *dev);
void neotier_exchange_put(struct neotier_device *dev);

/* Once a step: looks at some pages if room is wanted, for what waits or for @spare pages more. */
void neotier_exchange_step(struct neotier_device *dev, u64 spare, u64 now_ns);

/* Pages that may make room. With dev->exchange. */
u32 neotier_exchange_victims(const struct neotier_device *dev);
/* One of them, which is none from then on; to be looked at like any page. Return: whether there was one. */
bool neotier_exchange_victim(struct neotier_device *dev, unsigned long *pfn);

/* One whose owner was busy: it may make room later, after all others. */
void neotier_exchange_again(struct neotier_device *dev, unsigned long pfn);

/* A page has come up to this PFN: for payback_ms it is a victim only when it is old. */
void neotier_exchange_came(struct neotier_device *dev, unsigned long pfn);

/* So many made room; @stale: of many not one was a victim any more, so that they are to be looked for anew. */
void neotier_exchange_done(struct neotier_device *dev, unsigned int demoted, bool stale);

/* rules.c: what the administrator leaves out. Each returns whether a page may move as far as that goes. */
enum neotier_rule {
	NEOTIER_EXCLUDE_CGROUPS, NEOTIER_INCLUDE_CGROUPS,
	NEOTIER_EXCLUDE_PIDS, NEOTIER_INCLUDE_PIDS,
	NEOTIER_EXCLUDE_NODES,
	NEOTIER_EXCLUDE_RANGES, NEOTIER_INCLUDE_RANGES,
	NR_NEOTIER_RULE
};

bool neotier_rules_range(unsigned long pfn);
/* Of a victim: what is included are pages to promote, which says nothing of those that make room. */
bool neotier_rules_victim(unsigned long pfn);
bool neotier_rules_nodes(struct neotier_way way);
bool neotier_rules_cgroup(struct folio *folio);
/* @process: any thread of it. Under RCU. */
bool neotier_rules_process(struct task_struct *process);
/* Memory of no process: not where processes are named whose memory alone is promoted. */
bool neotier_rules_nobody(void);

/**
 * neotier_rules_store() - replace a list
 * @rule: which
 * @buf: entries between blanks; none: the list is empty
 * @len: bytes in @buf
 *
 * Return: 0, and from then on no page moves against it; -EINVAL: no number or range; -ERANGE: no such node, or too large;
 * -ESRCH: no such process; -E2BIG: more than NEOTIER_RULE_MAX entries; -ENOMEM. Then the old list stays. May sleep.
 */
int neotier_rules_store(enum neotier_rule rule, const char *buf, size_t len);
ssize_t neotier_rules_show(enum neotier_rule rule, char *buf);
void neotier_rules_free(void);

/* policy.c */

/* Pages that may be promoted until the policy decides again. */
u64 neotier_policy_pages(const struct neotier_device *dev);

/**
 * neotier_policy_step() - let the policy decide if it is time
 * @dev: device, counting
 * @now_ns: now
 */
void neotier_policy_step(struct neotier_device *dev, u64 now_ns);

/* The device stands still: what passes until the next decision is not measured. */
void neotier_policy_pause(struct neotier_device *dev);

/* quota.c: bytes a second over all devices. */
void neotier_quota_init(void);

/**
 * neotier_quota_take() - take pages from the quota
 * @pages: wanted
 *
 * Return: pages granted, 0 .. @pages.
 */
unsigned int neotier_quota_take(unsigned int pages);
void neotier_quota_return(unsigned int pages);

/**
 * neotier_quota_pages() - what the quota allows in a time
 * @interval_ns: time, up to some minutes
 */
u64 neotier_quota_pages(u64 interval_ns);

/* room.c: free memory of the target node; promotion/room.h decides. The device's thread, or under dev->lock. */

/**
 * neotier_room() - pages that may be promoted now
 * @dev: device
 */
u64 neotier_room(const struct neotier_device *dev);

/* Of these, how many no other page has to leave for: free above the high watermark, and above what is kept for the kernel. */
u64 neotier_room_unpaid(const struct neotier_device *dev);

/* In exchange: pages to demote now so that the kernel's own memory finds room. */
u64 neotier_room_spare(struct neotier_device *dev, u64 now_ns);

/**
 * neotier_room_make() - wake the target node's kswapd, which demotes (or swaps) when free memory is short
 * @dev: device; what becomes free goes to its reserve as well
 *
 * Return: false when programs grow so fast that room made now would be theirs; nothing was done.
 */
bool neotier_room_make(struct neotier_device *dev);

/**
 * neotier_room_take() - a page of the target node, of the reserve first
 * @dev: device
 *
 * Return: a page, not zeroed; the caller frees it or maps it. NULL: none to be had without reclaim.
 */
struct page *neotier_room_take(struct neotier_device *dev);

/* A page of the device's node, for one that goes down; NULL: none to be had without reclaim. */
struct page *neotier_room_take_slow(const struct neotier_device *dev);

/**
 * neotier_room_huge() - whether the target node has 2 MiB free in one piece, and leaves others theirs
 * @dev: device
 *
 * A look, no reservation. What the piece held until then is on this CPU's own list, the first that it allocates from.
 */
bool neotier_room_huge(const struct neotier_device *dev);

/* Wake the target node's kswapd, which makes room in one piece; in exchange nobody is woken. */
void neotier_room_make_huge(const struct neotier_device *dev);

/**
 * neotier_reserve_keep() - once a step: watch programs grow; fill the reserve with what kswapd made free, or give it back
 * @dev: device
 * @now_ns: now
 */
void neotier_reserve_keep(struct neotier_device *dev, u64 now_ns);
void neotier_reserve_drop(struct neotier_device *dev);
/* In exchange: put what victims left into the reserve. */
void neotier_reserve_owed(struct neotier_device *dev);

/* clock.c: what moves cost, by the clock that their benefit is told by. Under dev->lock. */

/* When the device has been started. */
void neotier_clock_begin(struct neotier_device *dev);
/* For neotier_clock_span(). A clock found wrong is logged, counted and given up. */
struct neotier_time neotier_clock_now(struct neotier_device *dev);

/* migrate.c: the only file that calls the kernel's migration. */

/**
 * neotier_migrate_batch() - promote dev->batch
 * @dev: device
 * @nr: pages in dev->batch; those for which there is no memory go back to the list
 *
 * Return: pages moved, or -ENOMEM when not one destination page was to be had.
 */
int neotier_migrate_batch(struct neotier_device *dev, unsigned int nr);

/* Demotes so many pages that are not in use, if there are, and leaves what they leave to whoever asks first. */
void neotier_migrate_spare(struct neotier_device *dev, unsigned int nr);

/**
 * neotier_migrate_huge() - promote a huge folio as it is: it stays huge
 * @dev: device
 * @hot: its first page
 *
 * Return: pages moved, all or none; -ENOMEM when the target node has no room for it in one piece, and nothing was done.
 */
int neotier_migrate_huge(struct neotier_device *dev, const struct neotier_hot *hot);

/**
 * neotier_split() - split a huge folio, so that its pages can move alone; none moves
 * @dev: device
 * @way: the way that they are to go
 * @pfn: its first page
 *
 * Return: NR_NEOTIER_SKIP when it is split, else why not.
 */
enum neotier_skip neotier_split(struct neotier_device *dev, struct neotier_way way, unsigned long pfn);

/* promote.c: the thread. */

/* Makes the thread; neotier_promote_wake() lets it begin. Return: 0 or an errno. */
int neotier_promote_create(struct neotier_device *dev);
void neotier_promote_stop(struct neotier_device *dev);

/**
 * neotier_promote_park() - no access to the device's registers from here on
 * @dev: device
 * @answers: the device can still be told to stand still
 *
 * Context: may sleep (waits for the thread's step).
 */
void neotier_promote_park(struct neotier_device *dev, bool answers);

/**
 * neotier_promote_unpark() - set a parked device up anew and go on; nothing when it is not parked
 * @dev: device; out of service when it does not answer, the reason has been logged
 *
 * Context: may sleep.
 */
void neotier_promote_unpark(struct neotier_device *dev);

#define NEOTIER_GONE "its registers read all ones, as if it were gone"

/* Takes the device out of service, with one line in the log. Under dev->lock. */
void neotier_promote_fail(struct neotier_device *dev, const char *why);
/* Any context. */
void neotier_promote_wake(struct neotier_device *dev);
void neotier_promote_wake_all(void);

/* sysfs.c */
int neotier_sysfs_init(void);
void neotier_sysfs_exit(void);
int neotier_sysfs_add_device(struct neotier_device *dev);
void neotier_sysfs_del_device(struct neotier_device *dev);

#endif

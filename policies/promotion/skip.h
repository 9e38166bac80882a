/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Why a page was not moved: the one list that the enum, the trace names, the counters and their sysfs files come from.
 * X(NAME, name, definition); a counter is called stats/skipped_<name> of hot pages, stats/kept_<name> of victims that should
 * have made room. Append only: traces are compared by number.
 */
#ifndef NEOTIER_SKIP_H
#define NEOTIER_SKIP_H

#define NEOTIER_SKIPS(X) \
	X(RANGE,       range,       "outside the device's memory or not on its node") \
	X(OFFLINE,     offline,     "memory section offline or without struct page") \
	X(NOT_LRU,     not_lru,     "free, kernel memory, or waiting in a per-CPU list: not on an LRU list") \
	X(FILE,        file,        "page cache or shared memory that is dirty, with buffers, of a file system with its own way to move or, as a victim, a program's code; or page_cache is 0") \
	X(LARGE,       large,       "part of a large folio (THP, hugetlb): not moved as a single page") \
	X(SWAPCACHE,   swapcache,   "in the swap cache") \
	X(WRITEBACK,   writeback,   "under writeback") \
	X(UNEVICTABLE, unevictable, "unevictable or mlocked: its owner chose where it stays") \
	X(SHARED,      shared,      "KSM page, or mapped more than once: no one owner whose placement is known") \
	X(EXCLUDED,    excluded,    "its cgroup is listed in exclude_cgroups, or is not in include_cgroups") \
	X(BUSY,        busy,        "locked, poisoned or referenced elsewhere, or gone before it could be moved") \
	X(NO_MEMORY,   no_memory,   "no destination page although the target node had room when checked (once a report; moved later if it can be)") \
	X(DUPLICATE,   duplicate,   "reported again while still waiting: not queued twice") \
	X(NO_ROOM,     no_room,     "had to wait for free memory on the target node (once a report; moved later if it can be)") \
	X(QUOTA,       quota,       "had to wait for quota (once a report; moved later if it can be)") \
	X(PLAN,        plan,        "had to wait: the policy or loss_ppm let no more move (once a report; moved later if it can be)") \
	X(OVERFLOW,    overflow,    "dropped: the list of waiting pages was full") \
	X(EXPIRED,     expired,     "dropped: waited longer than a report says anything about") \
	X(UNCONFIRMED, unconfirmed, "hot in fewer epochs than confirm_epochs so far: remembered, not queued") \
	X(MEMPOLICY,   mempolicy,   "its owner's memory policy chose the slow node or leaves out the target node") \
	X(CPUSET,      cpuset,      "its owner's cpuset leaves out the target node") \
	X(PINNED,      pinned,      "pinned for access by a device") \
	X(OWNER,       owner,       "who owns it, or what its owner wants, could not be seen at once") \
	X(PROCESS,     process,     "its process is listed in exclude_pids, or is not in include_pids") \
	X(NODE,        node,        "its node or the target node is listed in exclude_nodes") \
	X(EXCLUDED_RANGE, excluded_range, "its address is in exclude_ranges, or is not in include_ranges") \
	X(ZONE,        zone,        "a huge folio outside ZONE_MOVABLE: moved whole with promote_huge 2 alone") \
	X(PROTECTED,   protected,   "a victim that memory.low or memory.min of its cgroup keeps") \
	X(GUEST,       guest,       "a victim that belongs to a virtual machine, whose accesses cannot be seen") \
	X(CONTROL,     control,     "hot, and left where it is, so that what such pages save is known") \
	X(CONTENDED,   contended,   "its owner was changing what it maps at that moment")

/* Those that a victim can have. X(NAME, name). */
#define NEOTIER_KEPTS(X) \
	X(RANGE, range) X(NOT_LRU, not_lru) X(FILE, file) X(LARGE, large) X(SWAPCACHE, swapcache) X(WRITEBACK, writeback) \
	X(UNEVICTABLE, unevictable) X(SHARED, shared) X(EXCLUDED, excluded) X(BUSY, busy) X(MEMPOLICY, mempolicy) \
	X(CPUSET, cpuset) X(PINNED, pinned) X(OWNER, owner) X(PROCESS, process) X(NODE, node) \
	X(EXCLUDED_RANGE, excluded_range) X(PROTECTED, protected) X(GUEST, guest) \
	X(CONTENDED, contended)

#define NEOTIER_SKIP_ENUM(NAME, name, text) NEOTIER_SKIP_##NAME,
enum neotier_skip {
	NEOTIER_SKIPS(NEOTIER_SKIP_ENUM)
	NR_NEOTIER_SKIP
};

#endif

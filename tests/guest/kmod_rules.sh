#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# Rules of others: what the owner of memory asked for stays so (mempolicy, cpuset, mlock, pins), what the administrator
# leaves out stays out (cgroups, processes, nodes, ranges), dry_run touches nothing; each counted by its reason.
. "$(dirname "$0")/kmod_lib.sh"

if [ "$NEOTIER_FAKE" != 1 ]; then
	skip "rules of others" "needs kmod_device, which decides page by page what is hot"
	finish
fi
mark_log
device_start
# By hand: load() writes to other knobs alone.
insmod "$NEOTIER_KO" enabled=0
[ "$(cat $sys/enabled)" = 0 ] && eventually state_is 0 off && [ "$(stat drained)" = 0 ] &&
	ok "loaded with enabled=0 the module stands still, so that lists can be written first" ||
	not_ok "loaded with enabled=0 the module stands still" "enabled $(cat $sys/enabled), $(cat $sys/device0/state), drained $(stat drained)"
knob enabled 1
eventually state_is 0 running && ok "and starts when it is told to" || not_ok "and starts when it is told to" "$(cat $sys/device0/state)"
unload
if ! load; then
	not_ok "module loads"
	finish
fi
node=$(slow_node)
content="$NEOTIER_BIN/kmod_content node=$node"
echo 0 > /proc/sys/kernel/numa_balancing
echo 1 > $sys/device0/threshold
value() { cat "$sys/stats/$1" 2>/dev/null || echo 0; }

# stays <name> <counter> <arguments...>: no page moves, and the counter says why. PREPARE runs as the program's own shell first.
PREPARE=:
stays() {
	local name=$1 counter=$2 before line status
	shift 2
	before=$(value "$counter")
	knob enabled 0
	line=$(sh -c "$PREPARE; exec $content mb=8 seconds=2 want=0 enable $*" 2>&1)
	status=$?
	[ $status -eq 0 ] && [ "$(value "$counter")" -gt "$before" ] && ok "$name: $counter" ||
		not_ok "$name: $counter" "$line $counter $before -> $(value "$counter")"
}

# moves <name> <arguments...>: most pages move
moves() {
	local name=$1 line status
	shift
	knob enabled 0
	line=$(sh -c "$PREPARE; exec $content mb=8 seconds=100000 stop=1900 want=1900 sleep enable $*" 2>&1)
	status=$?
	[ $status -eq 0 ] && ok "$name" || not_ok "$name" "$line"
}

# The control: without a rule the same pages move.
moves "memory without a rule moves"
stays "memory bound to the slow node stays" skipped_mempolicy policy=bind
moves "memory bound to both nodes moves" policy=both
stays "memory that prefers the slow node stays" skipped_mempolicy policy=prefer
stays "memory interleaved over the slow node stays" skipped_mempolicy policy=interleave
stays "memory of a process bound to the slow node stays" skipped_mempolicy policy=task
stays "memory of a process with a thread bound to the slow node stays" skipped_mempolicy policy=thread
stays "mlocked memory stays" skipped_unevictable mlock
stays "pinned memory stays" skipped_pinned pin

mkdir -p /tmp/cgroup
if mount -t cgroup2 none /tmp/cgroup 2> /dev/null && echo +memory +cpuset > /tmp/cgroup/cgroup.subtree_control 2> /dev/null &&
	mkdir /tmp/cgroup/one /tmp/cgroup/two; then
	id=$(busybox stat -c %i /tmp/cgroup/one)
	echo "$node" > /tmp/cgroup/two/cpuset.mems
	PREPARE='echo 0 > /tmp/cgroup/two/cgroup.procs'
	stays "memory of a cpuset without the target node stays" skipped_cpuset
	echo "0-$node" > /tmp/cgroup/two/cpuset.mems
	moves "memory of a cpuset with both nodes moves"

	PREPARE='echo 0 > /tmp/cgroup/one/cgroup.procs'
	knob exclude_cgroups "$id"
	stays "an excluded cgroup keeps its pages" skipped_excluded
	knob exclude_cgroups ""
	knob include_cgroups "$id"
	moves "an included cgroup's pages move"
	PREPARE='echo 0 > /tmp/cgroup/two/cgroup.procs'
	stays "where others are included, a cgroup keeps its pages" skipped_excluded
	knob include_cgroups ""
	PREPARE=:
	rmdir /tmp/cgroup/one /tmp/cgroup/two
	umount /tmp/cgroup
else
	skip "cpusets and cgroups" "no memory and cpuset controllers in cgroup 2 here"
fi

PREPARE="echo \$\$ > $sys/exclude_pids"
stays "an excluded process keeps its pages" skipped_process
knob exclude_pids ""
PREPARE="echo \$\$ > $sys/include_pids"
moves "an included process's pages move"
PREPARE=:
knob include_pids 1
stays "where others are included, a process keeps its pages" skipped_process
knob include_pids ""
# The process of this number has gone: whoever gets it next is another one.
sh -c "echo \$\$ > $sys/exclude_pids"
[ -z "$(cat $sys/exclude_pids)" ] && ok "a process that ended is not in the list" ||
	not_ok "a process that ended is not in the list" "$(cat $sys/exclude_pids)"
knob exclude_pids ""

knob exclude_nodes "$node"
stays "an excluded source node keeps its pages" skipped_node
knob exclude_nodes "$(cat $sys/device0/target_node)"
stays "nothing moves to an excluded target node" skipped_node
knob exclude_nodes ""

base=$(cat $sys/device0/hpa_base)
range=$(printf '0x%x-0x%x' $((base)) $((base + $(cat $sys/device0/hpa_size) - 1)))
knob exclude_ranges "0x1000-0x1fff $range"
stays "an excluded range keeps its pages" skipped_excluded_range
knob exclude_ranges ""
knob include_ranges "$range"
moves "an included range's pages move"
knob include_ranges 0x1000-0x1fff
stays "where others are included, a range keeps its pages" skipped_excluded_range
knob include_ranges ""

# Observe only, on a target node without room: kswapd sleeps on, and nothing is taken for a reserve.
knob room kswapd
knob dry_run 1
knob enabled 0
knob headroom_pages 1000000
waits=$(value room_waits)
reserved=$(value reserved)
promoted=$(value promoted)
tried=$(value tried)
dry=$(value dry_run_pages)
line=$($content mb=8 seconds=3 want=0 sleep enable)
status=$?
[ $status -eq 0 ] && [ "$(value dry_run_pages)" -gt "$dry" ] && [ "$(value tried)" = "$tried" ] &&
	[ "$(value promoted)" = "$promoted" ] && ok "dry_run tries nothing where the target node has no room, and says what it would" ||
	not_ok "dry_run tries nothing where the target node has no room, and says what it would" "$line tried $tried -> $(value tried) dry_run_pages $dry -> $(value dry_run_pages)"
[ "$(value room_waits)" = "$waits" ] && [ "$(value reserved)" = "$reserved" ] && ok "dry_run wakes no kswapd and takes no reserve" ||
	not_ok "dry_run wakes no kswapd and takes no reserve" "room_waits $waits -> $(value room_waits) reserved $reserved -> $(value reserved)"
knob headroom_pages 0
knob dry_run 0
knob room exchange

for name in "$sys"/stats/*; do
	name=${name##*/}
	[ "$(stat "$name")" = 0 ] || echo "# $name $(stat "$name")"
done
device_stop
check "module unloads" unload
check "kernel log clean" log_clean
finish

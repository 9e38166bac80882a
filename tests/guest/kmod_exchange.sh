#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# room=exchange: on a full target node each hot page comes up for one that goes down, chosen by the module among those that
# are not in use; without kswapd, which cannot demote here. What its owner or the administrator keeps there stays, counted by
# reason; nobody looks at anything while there is room; what goes down and turns out hot is a regret, and comes back.
. "$(dirname "$0")/kmod_lib.sh"

if [ "$NEOTIER_FAKE" != 1 ]; then
	skip "exchange" "needs kmod_device, which decides page by page what is hot"
	finish
fi
begin
node=$(slow_node)
content="$NEOTIER_BIN/kmod_content node=$node"
echo 0 > /proc/sys/kernel/numa_balancing
[ ! -w /sys/kernel/mm/numa/demotion_enabled ] || echo 0 > /sys/kernel/mm/numa/demotion_enabled
echo 1 > $sys/device0/threshold
# What the kernel keeps free is not the cold memory's, so that this much more is sure to fill the node. What a process had
# pinned is freed some time after its end.
full() {
	local before=-1 now
	now=$(node_free_mb)
	while [ "$now" -gt "$before" ]; do
		before=$now
		sleep 1
		now=$(node_free_mb)
	done
	echo $((now + 16))
}
kills=$(vmstat oom_kill)

[ "$(cat $sys/room)" = "kswapd [exchange]" ] && ok "the module makes room unless it is told otherwise" || not_ok "the module makes room unless it is told otherwise" "$(cat $sys/room)"
check "a word that is none is refused" eval "! echo swap > $sys/room"
knob room kswapd
[ "$(cat $sys/room)" = "[kswapd] exchange" ] && ok "room=kswapd" || not_ok "room=kswapd" "$(cat $sys/room)"
knob room exchange

# Of anonymous memory alone: what is cached, the test's own programs too, makes room before it (kmod_cached.sh).
knob page_cache 0
line=$($content mb=16 seconds=100000 stop=3900 want=3900)
status=$?
[ $status -eq 0 ] && [ "$(stat age_looks)" = 0 ] && [ "$(stat demoted)" = 0 ] && ok "with room nobody looks, and nobody makes room" ||
	not_ok "with room nobody looks, and nobody makes room" "$line age_looks=$(stat age_looks) demoted=$(stat demoted)"

# It is full before anybody looks: what is missed while it fills is made room for as well.
knob enabled 0
$content pages=16 cold="$(full)" enable seconds=100000 sleep quiet > /tmp/cold.line 2>&1 &
cold=$!
# What comes and goes all the time is not a program that grows.
while :; do busybox true; done &
churn=$!
check "new memory finds no room on a full node: room is made for it" eventually above spared 0
kill $churn
wait $churn
eventually takes_term $cold
kill $cold
wait $cold
[ "$(field "$(cat /tmp/cold.line)" gone)" -gt 0 ] && [ "$(stat spared)" = "$(stat demoted)" ] && ok "by cold memory" ||
	not_ok "by cold memory" "$(cat /tmp/cold.line) spared=$(stat spared) demoted=$(stat demoted)"

before=$(stat promoted)
kernel="$(vmstat pgmigrate_success) $(vmstat pgpromote_success) $(vmstat pgdemote_kswapd)"
demoted=$(stat demoted)
line=$($content mb=16 cold="$(full)" seconds=100000 stop=3900 want=3900 sleep)
status=$?
up=$(($(stat promoted) - before))
down=$(($(stat demoted) - demoted))
echo "# $line promoted=$up demoted=$down kept=$(stat demote_failed) ns: promote $(($(stat promote_ns) / $(stat promoted))) demote $(($(stat demote_ns) / (down ? down : 1))) look $(($(stat age_ns) * 100 / ($(stat age_looks) + 1)))/100 passes=$(stat age_passes)"
[ $status -eq 0 ] && ok "16 MiB into a full node, all contents as written" || not_ok "16 MiB into a full node, all contents as written" "$line"
[ $down -gt 3000 ] && [ $down -le $((up * 11 / 10)) ] && ok "one goes down for each that comes up" ||
	not_ok "one goes down for each that comes up" "promoted $up, demoted $down"
# The hot pages rest as well, as kmod_device needs no accesses: some of them go down in their turn.
[ "$(field "$line" gone)" -gt 3000 ] && ok "the cold memory made room" || not_ok "the cold memory made room" "$line demoted=$down"
set -- $kernel
[ "$(($(vmstat pgpromote_success) - $2)) $(($(vmstat pgdemote_kswapd) - $3)) $(($(vmstat pgmigrate_success) - $1))" = "$up $down $((up + down))" ] &&
	ok "the kernel's counters move with ours" ||
	not_ok "the kernel's counters move with ours" "promoted $up, demoted $down, were $kernel, are $(vmstat pgmigrate_success) $(vmstat pgpromote_success) $(vmstat pgdemote_kswapd)"

# keeps <name> <counter> <arguments...>: the cold memory stays, and the counter says why
keeps() {
	local name=$1 counter=$2 before status
	shift 2
	before=$(stat "$counter")
	knob enabled 0
	content_until "above $counter $before" node="$node" mb=16 cold="$(full)" enable sleep "$@"
	status=$?
	[ $status -eq 0 ] && [ "$(field "$line" gone)" = 0 ] && ok "$name: $counter" ||
		not_ok "$name: $counter" "$line $counter $before -> $(stat "$counter")"
}
keeps "cold memory that is bound to the node stays" kept_mempolicy filler=bind
keeps "cold memory that prefers the node stays" kept_mempolicy filler=prefer
keeps "pinned cold memory stays" kept_pinned filler=pin
# parent <pid>: a process has this one as its parent
parent() { grep -qs "^PPid:[[:space:]]*$1\$" /proc/[0-9]*/status; }
# holds <name> <counter> <MiB> [group] [arguments of the cold process]: the cold memory of another process stays, in a cgroup
# where one is named, and the counter says why
holds() {
	local name=$1 counter=$2 mb=$3 group=$4 before cold status
	shift 4
	before=$(stat "$counter")
	rm -f /tmp/cold.line
	# What is not yet as it is to be may go before that.
	knob enabled 0
	sh -c "[ -z '$group' ] || echo 0 > $group/cgroup.procs; exec $NEOTIER_BIN/kmod_content node=0 pages=16 quiet sleep seconds=100000 cold=$mb $*" > /tmp/cold.line 2>&1 &
	cold=$!
	eventually takes_term $cold
	# It takes no more: how much the kernel keeps free is its own affair.
	filled() { local left; left=$(node_free_mb) && sleep 2 && [ "$(node_free_mb)" -ge "$left" ]; }
	eventually filled
	# Its child is there when the last page is shared.
	case $* in *filler=shared*) eventually parent $cold ;; esac
	content_until "above $counter $before" node="$node" mb=16 enable sleep
	status=$?
	kill $cold
	wait $cold || status=1
	[ $status -eq 0 ] && [ "$(field "$(cat /tmp/cold.line)" gone)" = 0 ] && ok "$name: $counter" ||
		not_ok "$name: $counter" "$line $(cat /tmp/cold.line) $counter $before -> $(stat "$counter")"
}
# The hot memory is a process's of its own: what is shared with a child is not promoted, and asks for no room.
holds "cold memory shared with a forked child stays" kept_shared "$(full)" "" filler=shared
knob exclude_nodes 0
before=$(stat promoted)
line=$($content mb=16 cold="$(full)" seconds=3 sleep)
[ "$(field "$line" gone)" = 0 ] && [ "$(stat promoted)" = "$before" ] && ok "an excluded node's memory stays" || not_ok "an excluded node's memory stays" "$line"
knob exclude_nodes ""
knob exclude_ranges "0-0xffffffff"
keeps "cold memory in an excluded range stays" kept_excluded_range
knob exclude_ranges ""
knob include_ranges "$NEOTIER_BASE-$((NEOTIER_BASE + NEOTIER_SIZE - 1))"
line=$($content mb=16 cold="$(full)" seconds=100000 stop=3900 want=3900 sleep)
status=$?
[ $status -eq 0 ] && ok "what is included to be promoted needs no leave for others to make room" ||
	not_ok "what is included to be promoted needs no leave for others to make room" "$line"
knob include_ranges ""

# Neither chosen nor counted: what is locked or read over and over is no victim.
before=$(stat room_holds)
knob enabled 0
content_until "above room_holds $((before + 200))" node="$node" mb=16 cold="$(full)" enable sleep filler=mlock
status=$?
[ $status -eq 0 ] && [ "$(field "$line" gone)" = 0 ] && ok "mlocked memory stays" || not_ok "mlocked memory stays" "$line"
before=$(stat room_holds)
knob enabled 0
content_until "above room_holds $((before + 200))" node="$node" mb=16 cold="$(full)" enable sleep filler=use
status=$?
# A reader whose CPU the host did not let run for a tenth of a second seems to rest.
[ $status -eq 0 ] && [ "$(field "$line" gone)" -lt 1000 ] && ok "memory in use stays" || not_ok "memory in use stays" "$line"

before=$(stat kept_contended)
line=$($content mb=16 cold="$(full)" seconds=100000 stop=3900 want=3900 sleep filler=map)
status=$?
[ $status -eq 0 ] && above kept_contended "$before" && ok "memory of a process that maps and unmaps makes room, at another moment" ||
	not_ok "memory of a process that maps and unmaps makes room, at another moment" "$line kept_contended $before -> $(stat kept_contended)"

# However long they have been down by then.
knob payback_ms 60000
before=$(stat regrets)
content_until "above regrets $((before + 1000))" node="$node" mb=16 cold="$(full)" stop=3900 sleep turn
status=$?
[ $status -eq 0 ] && [ "$(stat regrets)" -gt $((before + 1000)) ] && ok "what went down and turns out hot is a regret, and comes back" ||
	not_ok "what went down and turns out hot is a regret, and comes back" "$line regrets $before -> $(stat regrets)"
knob payback_ms 300

mkdir -p /tmp/cgroup
if mount -t cgroup2 none /tmp/cgroup 2> /dev/null && echo +memory +cpuset > /tmp/cgroup/cgroup.subtree_control 2> /dev/null &&
	mkdir /tmp/cgroup/cold; then
	echo 1G > /tmp/cgroup/cold/memory.low
	holds "cold memory that memory.low keeps stays" kept_protected "$(full)" /tmp/cgroup/cold
	echo 0 > /tmp/cgroup/cold/memory.low
	knob exclude_cgroups "$(busybox stat -c %i /tmp/cgroup/cold)"
	holds "cold memory of an excluded cgroup stays" kept_excluded "$(full)" /tmp/cgroup/cold
	knob exclude_cgroups ""
	echo 0 > /tmp/cgroup/cold/cpuset.mems
	holds "cold memory of a cpuset without the slow node stays" kept_cpuset $(($(full) - 44)) /tmp/cgroup/cold
else
	skip "cold memory of cgroups" "no memory and cpuset controllers in cgroup 2 here"
fi

# Huge folios have one Accessed bit: those that rest, or that bring enough, are split, and their pages make room one by one.
# keeps_huge <name> <counter> <arguments...>: as keeps, and none of them is split
keeps_huge() {
	local splits
	splits=$(stat split_down)
	keeps "$@" coldhuge
	[ "$(stat split_down)" = "$splits" ] && ok "$1, and none is split" || not_ok "$1, and none is split" "split_down $splits -> $(stat split_down)"
}
keeps_huge "huge cold memory that is bound to the node stays" kept_mempolicy filler=bind
keeps_huge "pinned huge cold memory stays" kept_pinned filler=pin
knob split_huge 0
splits=$(vmstat thp_split_page)
before=$(stat room_holds)
knob enabled 0
content_until "above room_holds $((before + 60))" node="$node" mb=16 cold="$(full)" coldhuge enable sleep
[ "$(vmstat thp_split_page)" = "$splits" ] && [ "$(field "$line" gone)" -lt 1000 ] && ok "with split_huge 0 they stay" ||
	not_ok "with split_huge 0 they stay" "$line thp_split_page $splits -> $(vmstat thp_split_page)"
knob split_huge 1
knob dry_run 1
before=$(stat dry_run_pages)
content_until "above dry_run_pages $((before + 4096))" node="$node" mb=16 cold="$(full)" coldhuge sleep
[ "$(vmstat thp_split_page)" = "$splits" ] && ok "with dry_run none is split" ||
	not_ok "with dry_run none is split" "thp_split_page $splits -> $(vmstat thp_split_page)"
knob dry_run 0
# Pieces that are not used within a quarter of a second are too old to be victims, and others are split: on a slow kernel, and by
# chance on a host with much to do. What is split for nothing by a fault of ours is split in each try.
for _ in 1 2 3; do
	splits=$(vmstat thp_split_page)
	before=$(stat split_down)
	demoted=$(stat demoted)
	line=$($content mb=16 cold="$(full)" coldhuge seconds=100000 stop=3900 want=3900 sleep)
	status=$?
	splits=$(($(vmstat thp_split_page) - splits))
	split=$(($(stat split_down) - before))
	demoted=$(($(stat demoted) - demoted))
	echo "# $line split_down=$split demoted=$demoted split_ns=$(($(stat split_ns) / (split ? split : 1))) each"
	[ $status -eq 0 ] || break
	[ $((split * 512)) -gt $((2 * NEOTIER_SLOW * demoted + 2048)) ] || break
done
[ $status -eq 0 ] && [ $split -gt 0 ] && [ "$(field "$line" gone)" -gt 0 ] && ok "huge cold memory makes room, all contents as written" ||
	not_ok "huge cold memory makes room, all contents as written" "$line split_down=$split"
[ $splits = $split ] && [ $((split * 512)) -le $((2 * NEOTIER_SLOW * demoted + 2048)) ] && ok "no more is split than is used" ||
	not_ok "no more is split than is used" "thp_split_page $splits split_down $split demoted $demoted"
before=$(stat room_holds)
splits=$(stat split_down)
knob enabled 0
content_until "above room_holds $((before + 100))" node="$node" mb=16 cold="$(full)" coldhuge enable sleep filler=use
status=$?
[ $status -eq 0 ] && [ "$(field "$line" gone)" -lt 1500 ] && [ $(($(stat split_down) - splits)) -lt 24 ] &&
	ok "of huge memory in use some is split, and no more where that brings nothing" ||
	not_ok "of huge memory in use some is split, and no more where that brings nothing" "$line split_down $splits -> $(stat split_down)"

[ "$(vmstat oom_kill)" = "$kills" ] && ok "nobody was killed" || not_ok "nobody was killed" "$(log_since | grep -A30 'invoked oom-killer' | head -40)"
knob room kswapd
rises wakeups
[ "$(stat demote_failed)" = "$(cat $sys/stats/kept_* | awk '{ n += $1 } END { print n }')" ] && ok "each victim that stayed has its reason" ||
	not_ok "each victim that stayed has its reason" "demote_failed=$(stat demote_failed)"
knob room exchange
unload
check "kernel log clean" log_clean
finish

#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# Whole exchange: on a node that idle huge folios fill a hot one comes up whole for one that goes down whole, which needs
# promote_huge 2 and a cpuset. What its owner or the administrator keeps there stays, counted by reason; none is split, nobody
# is killed, and no more go down than came up and four.
. "$(dirname "$0")/kmod_lib.sh"

if [ "$NEOTIER_FAKE" != 1 ]; then
	skip "whole exchange" "needs kmod_device, which decides page by page what is hot"
	finish
fi
begin
node=$(slow_node)
content="$NEOTIER_BIN/kmod_content node=$node huge"
echo 0 > /proc/sys/kernel/numa_balancing
[ ! -w /sys/kernel/mm/numa/demotion_enabled ] || echo 0 > /sys/kernel/mm/numa/demotion_enabled
# What khugepaged makes of split ones is no result of ours.
echo 3600000 > /sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs
# kmod_device reports 20 requests: 205 pages are worth the move of a folio.
echo 20 > $sys/device0/threshold
knob page_cache 0
# Where the kernel's own memory has this node alone it gets none below min, and the gap of a small machine (.5 MiB) is too little
# for it. So there it is wide, and the cold memory leaves it what is between low and min: huge pages would take that too. One
# folio that goes down is enough for one that comes up then; elsewhere it takes two more at first.
more=16
if ! grep -q Normal /sys/devices/system/node/node"$node"/memory*/valid_zones; then
	echo 500 > /proc/sys/vm/watermark_scale_factor
	more=-26
fi
# What a process had pinned is freed some time after its end.
full() {
	local before=-1 now
	now=$(node_free_mb)
	while [ "$now" -gt "$before" ]; do
		before=$now
		sleep 1
		now=$(node_free_mb)
	done
	echo $((now + more))
}
kills=$(vmstat oom_kill)
splits=$(vmstat thp_split_page)
none_split() {
	[ "$(vmstat thp_split_page)" = "$splits" ] && [ "$(stat split_huge) $(stat split_down)" = "0 0" ] && ok "$1" ||
		not_ok "$1" "thp_split_page $splits -> $(vmstat thp_split_page), split_huge $(stat split_huge), split_down $(stat split_down)"
	splits=$(vmstat thp_split_page)
}

# Who splits has another way.
knob split_huge 0
knob promote_huge 1
waited() { [ $(($(stat skipped_no_room) + $(stat skipped_zone))) -gt "$1" ]; }
before=$(($(stat skipped_no_room) + $(stat skipped_zone)))
content_until "waited $((before + 20))" node="$node" huge mb=16 cold="$(full)" coldhuge sleep
status=$?
# Single pages may go for the kernel's own memory.
[ $status -eq 0 ] && [ "$(field "$line" gone)" -lt 512 ] && [ "$(stat demoted_huge) $(stat demote_huge_ns)" = "0 0" ] &&
	ok "with promote_huge 1 they wait" || not_ok "with promote_huge 1 they wait" "$line demoted_huge=$(stat demoted_huge)"

knob promote_huge 2
said() { dmesg | grep -c 'promote_huge=2 moves no folio off node 0'; }
lines=$(said)
before=$(stat kept_zone)
# Where pieces are left hot ones come up.
moved=$(($(vmstat pgmigrate_success) - $(stat demoted) - $(stat promoted)))
content_until "above kept_zone $before" node="$node" huge mb=16 cold="$(full)" coldhuge sleep
status=$?
[ $status -eq 0 ] && [ "$(field "$line" gone)" -lt 512 ] && [ "$(said) $(stat kept_zone) $(stat demoted_huge)" = "$((lines + 1)) $((before + 1)) 0" ] &&
	ok "without a cpuset none goes down, one is counted and one line says so" ||
	not_ok "without a cpuset none goes down, one is counted and one line says so" "$line kept_zone $before -> $(stat kept_zone) lines $lines -> $(said) demoted_huge=$(stat demoted_huge)"
moved=$(($(vmstat pgmigrate_success) - $(stat demoted) - $(stat promoted) - moved))
[ $moved -lt 256 ] && ok "and none is moved to see that" || not_ok "and none is moved to see that" "$moved pages moved"
line=$($content mb=16 cold="$(full)" coldhuge sleep seconds=5)
[ "$(said) $(stat kept_zone) $(stat demoted_huge)" = "$((lines + 1)) $((before + 1)) 0" ] && ok "nor is it tried again" ||
	not_ok "nor is it tried again" "$line kept_zone $before -> $(stat kept_zone) lines $lines -> $(said) demoted_huge=$(stat demoted_huge)"

mkdir -p /tmp/cgroup
if ! mount -t cgroup2 none /tmp/cgroup || ! echo "+memory +cpuset" > /tmp/cgroup/cgroup.subtree_control || ! mkdir /tmp/cgroup/cold; then
	not_ok "a cpuset can be made" "$(dmesg | tail -3)"
	finish
fi
none_split "and none is split"
knob split_huge 1
knob promote_huge 2

# exchanges <name> <pages> <arguments...>: all of them come up whole, for as many that go down whole, and four
exchanges() {
	local name=$1 pages=$2 status up down lost demoted
	shift 2
	up=$(stat promoted_huge)
	down=$(stat demoted_huge)
	lost=$(stat demote_huge_lost)
	demoted=$(stat demoted)
	knob enabled 0
	line=$($content mb=$((pages / 256)) cold="$(full)" coldhuge seconds=$((60 * NEOTIER_SLOW)) stop="$pages" want="$pages" enable "$@")
	status=$?
	up=$(($(stat promoted_huge) - up))
	down=$(($(stat demoted_huge) - down))
	lost=$(($(stat demote_huge_lost) - lost))
	demoted=$(($(stat demoted) - demoted))
	echo "# $line promoted_huge=$up demoted_huge=$down lost=$lost demoted=$demoted kept=$(stat demote_failed) age_ns=$(stat age_ns)"
	[ $status -eq 0 ] && [ "$(field "$line" huge)" = "$pages" ] && [ $up -ge $((pages / 512)) ] && ok "$name" ||
		not_ok "$name" "$line promoted_huge=$up $(cd $sys/stats && grep -v '^0$' skipped_* kept_* split_* promote_failed room_waits demote_huge_lost age_looks age_found | tr '\n' ' ')"
	# Some pieces are free at first. Hot ones that seem to rest go down in their turn, and come up again.
	[ $down -ge $((up / 2)) ] && [ $down -le $((up + 4 + lost)) ] && [ $up -le $((pages / 512 * 3 / 2)) ] &&
		[ "$(field "$line" gone)" -ge $((pages / 4)) ] && ok "$name: one goes down for each" ||
		not_ok "$name: one goes down for each" "$line up $up, down $down, lost $lost, demoted $demoted"
}
kernel="$(vmstat pgmigrate_success) $(vmstat pgdemote_kswapd)"
demoted=$(stat demoted)
promoted=$(stat promoted)
exchanges "hot huge folios come up whole while they are written" 8192
# shellcheck disable=SC2086
set -- $kernel
demoted=$(($(stat demoted) - demoted))
# The kernel moves a few of its own accord, to compact.
others=$(($(vmstat pgmigrate_success) - $1 - demoted - $(stat promoted) + promoted))
[ $(($(vmstat pgdemote_kswapd) - $2)) = $demoted ] && [ $others -ge 0 ] && [ $others -lt 256 ] &&
	ok "the kernel's counters move with ours" ||
	not_ok "the kernel's counters move with ours" "pgdemote $(($(vmstat pgdemote_kswapd) - $2)) pgmigrate $(($(vmstat pgmigrate_success) - $1)), demoted $demoted, promoted $(($(stat promoted) - promoted))"
none_split "none was split"
exchanges "shared with a forked child they go as well" 8192 shared sleep
none_split "and none of these was split"
knob split_huge 0
exchanges "with split_huge 0 too" 8192 sleep
exchanges "written by four threads while others are mapped they go, at another moment" 8192 threads=4 filler=map
knob split_huge 1
none_split "nor of these"

# stays <name> <until> <arguments...>: the idle folios stay, and are not split
stays() {
	local name=$1 until=$2 down status
	shift 2
	down=$(stat demoted_huge)
	knob enabled 0
	content_until "$until" node="$node" huge mb=16 cold="${cold_mb:-$(full)}" coldhuge enable sleep "$@"
	status=$?
	# Hot ones that found room may go down again in their turn.
	[ $status -eq 0 ] && [ "$(field "$line" gone)" = 0 ] && ok "$name" ||
		not_ok "$name" "$line demoted_huge $down -> $(stat demoted_huge), $until"
}
stays "bound to the node they stay: kept_mempolicy" "above kept_mempolicy $(stat kept_mempolicy)" filler=bind
# What lay in ZONE_MOVABLE would be moved to be pinned.
cold_mb=$(($(full) - more - 60))
stays "pinned they stay: kept_pinned" "above kept_pinned $(stat kept_pinned)" filler=pin
cold_mb=
stays "mlocked they are not even tried" "above skipped_no_room $(($(stat skipped_no_room) + 40))" filler=mlock
knob exclude_ranges "0-0xffffffff"
stays "in an excluded range they stay: kept_excluded_range" "above kept_excluded_range $(stat kept_excluded_range)"
knob exclude_ranges ""
knob exclude_nodes 0
before=$(stat demoted_huge)
line=$($content mb=16 cold="$(full)" coldhuge sleep seconds=3)
[ "$(field "$line" gone)" = 0 ] && [ "$(stat demoted_huge)" = "$before" ] && ok "on an excluded node they stay" ||
	not_ok "on an excluded node they stay" "$line demoted_huge $before -> $(stat demoted_huge)"
knob exclude_nodes ""
knob dry_run 1
before=$(stat dry_run_pages)
stays "dry_run moves none" "above dry_run_pages $((before + 4096))"
knob dry_run 0

# holds <name> <counter> <MiB> [arguments]: as stays, of another process, in the cgroup
holds() {
	local name=$1 counter=$2 mb=$3 before down cold status
	shift 3
	before=$(stat "$counter")
	down=$(stat demoted_huge)
	rm -f /tmp/cold.line
	knob enabled 0
	sh -c "echo 0 > /tmp/cgroup/cold/cgroup.procs; exec $NEOTIER_BIN/kmod_content node=0 pages=16 quiet sleep seconds=100000 cold=$mb coldhuge $*" > /tmp/cold.line 2>&1 &
	cold=$!
	eventually takes_term $cold
	filled() { local left; left=$(node_free_mb) && sleep 2 && [ "$(node_free_mb)" -ge "$left" ]; }
	eventually filled
	content_until "above $counter $before" node="$node" huge mb=16 enable sleep
	status=$?
	kill $cold
	wait $cold || status=1
	[ $status -eq 0 ] && [ "$(field "$(cat /tmp/cold.line)" gone)" = 0 ] && ok "$name: $counter" ||
		not_ok "$name: $counter" "$line $(cat /tmp/cold.line) $counter $before -> $(stat "$counter") demoted_huge $down -> $(stat demoted_huge)"
}
echo 1G > /tmp/cgroup/cold/memory.low
holds "those that memory.low keeps stay" kept_protected "$(full)"
echo 0 > /tmp/cgroup/cold/memory.low
knob exclude_cgroups "$(busybox stat -c %i /tmp/cgroup/cold)"
holds "those of an excluded cgroup stay" kept_excluded "$(full)"
knob exclude_cgroups ""

[ "$(vmstat oom_kill)" = "$kills" ] && ok "nobody was killed" || not_ok "nobody was killed" "$(log_since | grep -A30 'invoked oom-killer' | head -40)"
[ "$(stat demote_failed)" = "$(cat $sys/stats/kept_* | awk '{ n += $1 } END { print n }')" ] && ok "each victim that stayed has its reason" ||
	not_ok "each victim that stayed has its reason" "demote_failed=$(stat demote_failed)"
ns=$(stat demote_huge_ns)
huge=$(stat demoted_huge)
echo "# demoted_huge=$huge, $((ns / (huge ? huge : 1))) ns each; promoted_huge=$(stat promoted_huge), $(($(stat promote_huge_ns) / ($(stat promoted_huge) + 1))) ns each; split_huge=$(stat split_huge) lost=$(stat demote_huge_lost)"
unload
check "kernel log clean" log_clean
finish

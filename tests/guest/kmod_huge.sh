#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# Huge folios: promoted whole and still huge, contents as written; by a long-term pin out of ZONE_MOVABLE, by a claim out of
# other zones where the administrator lets it; what is not worth it, and what its owner bound, stays; a full node kills nobody
# and splits nothing. Memory of the slow node is made ZONE_MOVABLE here, after the tests that need another zone.
. "$(dirname "$0")/kmod_lib.sh"

if [ "$NEOTIER_FAKE" != 1 ]; then
	skip "huge folios" "needs kmod_device, which decides page by page what is hot"
	finish
fi
if [ "$(cat /sys/devices/system/node/has_memory)" = 0 ]; then
	skip "huge folios" "this kernel takes no memory that is plugged in"
	finish
fi
begin
node=$(slow_node)
content="$NEOTIER_BIN/kmod_content node=$node huge"
echo 0 > /proc/sys/kernel/numa_balancing
# What khugepaged makes of split ones is no result of ours.
echo 3600000 > /sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs
# kmod_device reports 20 requests: 205 pages are worth the move of a folio.
echo 20 > $sys/device0/threshold

# goes <name> <pages> <arguments...>: all of them move, whole
goes() {
	local name=$1 pages=$2 before line status huge
	shift 2
	before=$(stat promoted_huge)
	knob enabled 0
	line=$($content mb=$((pages / 256)) seconds=100000 stop="$pages" want="$pages" enable "$@")
	status=$?
	huge=$(($(stat promoted_huge) - before))
	[ $status -eq 0 ] && [ "$(field "$line" huge)" = "$pages" ] && [ $huge = $((pages / 512)) ] && ok "$name" ||
		not_ok "$name" "$line promoted_huge=$huge"
}

# stays <name> <counter> <arguments...>: none moves, and the counter says why
stays() {
	local name=$1 counter=$2 before huge line status
	shift 2
	before=$(stat "$counter")
	huge=$(stat promoted_huge)
	knob enabled 0
	content_until "above $counter $before" node="$node" huge mb=8 want=0 enable "$@"
	status=$?
	[ $status -eq 0 ] && [ "$(stat "$counter")" -gt "$before" ] && [ "$(stat promoted_huge)" = "$huge" ] &&
		ok "$name: $counter" || not_ok "$name: $counter" "$line $counter $before -> $(stat "$counter")"
}

[ "$(cat $sys/promote_huge)" = 0 ] && ok "off unless it is asked for" || not_ok "off unless it is asked for" "$(cat $sys/promote_huge)"
# Of that more below.
knob split_huge 0
knob promote_huge 1
splits=$(vmstat thp_split_page)
if grep -q Normal /sys/devices/system/node/node"$node"/memory*/valid_zones; then
	stays "a huge folio outside ZONE_MOVABLE stays" skipped_zone
	knob promote_huge 2
	lines=$(dmesg | grep -c 'promote_huge=2 moves no folio')
	content_until "eval [ \$(dmesg | grep -c 'promote_huge=2 moves no folio') -gt $lines ]" node="$node" huge mb=8 want=0
	status=$?
	[ $status -eq 0 ] && [ "$(stat promoted_huge)" = 0 ] && ok "without a cpuset a claim moves nothing, and one line says so" ||
		not_ok "without a cpuset a claim moves nothing, and one line says so" "$line promoted_huge=$(stat promoted_huge)"
	stays "and it is not tried again" skipped_zone
	[ "$(dmesg | grep -c 'promote_huge=2 moves no folio')" = $((lines + 1)) ] && ok "nor said again" ||
		not_ok "nor said again" "$(dmesg | grep 'promote_huge=2 moves no folio')"
	mkdir -p /tmp/cgroup
	if mount -t cgroup2 none /tmp/cgroup && echo +cpuset > /tmp/cgroup/cgroup.subtree_control && mkdir /tmp/cgroup/one; then
		knob promote_huge 2
		goes "with a cpuset a claim moves huge folios whole" 4096
		goes "and those that a forked child shares" 4096 shared
		stays "pinned they stay" skipped_pinned pin
	else
		not_ok "a cpuset can be made" "$(dmesg | tail -3)"
	fi
else
	goes "huge folios are promoted whole while they are written" 8192
	kernel_before="$(vmstat pgmigrate_success) $(vmstat pgpromote_success) $(vmstat thp_migration_success)"
	before=$(stat promoted)
	goes "idle ones too" 4096 sleep
	moved=$(($(stat promoted) - before))
	kernel="$(($(vmstat pgmigrate_success) - ${kernel_before%% *})) $(($(vmstat pgpromote_success) - $(echo "$kernel_before" | cut -d' ' -f2))) $(($(vmstat thp_migration_success) - ${kernel_before##* }))"
	[ "$kernel" = "$moved $moved $((moved / 512))" ] && ok "the kernel's counters move with ours" ||
		not_ok "the kernel's counters move with ours" "pgmigrate pgpromote thp_migration by $kernel, promoted by $moved"
	goes "and those with 205 hot pages in 512" 4096 hot=205
	# What was hot before is forgotten.
	sleep 2
	stays "with 204 hot pages in 512 it is not worth it" skipped_large hot=204
	knob promote_huge 0
	stays "with promote_huge 0 they stay" skipped_large
	knob promote_huge 1
	stays "shared with a forked child they stay" skipped_shared shared
	stays "bound to the slow node they stay" skipped_mempolicy policy=bind
	stays "mlocked they stay" skipped_unevictable mlock
	base=$((NEOTIER_BASE))
	knob exclude_ranges "$((base + 4096))-$((base + NEOTIER_SIZE - 1))"
	stays "with one of their pages excluded they stay" skipped_excluded_range
	knob exclude_ranges ""
	knob dry_run 1
	before=$(stat dry_run_pages)
	content_until "above dry_run_pages $before" node="$node" huge mb=8 want=0
	[ $? -eq 0 ] && [ $((($(stat dry_run_pages) - before) % 512)) = 0 ] && ok "dry_run counts them and moves nothing" ||
		not_ok "dry_run counts them and moves nothing" "$line dry_run_pages $before -> $(stat dry_run_pages)"
	knob dry_run 0
	knob quota_mb_per_s 4
	stays "a quota that never has 2 MiB at once holds them back" skipped_quota
	knob quota_mb_per_s 1024
fi
[ "$(vmstat thp_split_page)" = "$splits" ] && [ "$(stat split_huge)" = 0 ] && ok "none was split" ||
	not_ok "none was split" "thp_split_page $splits -> $(vmstat thp_split_page), split_huge $(stat split_huge)"

# Those with few hot pages are split, and these move alone: 64 at 20 times the threshold repay a split.
knob split_huge 1
whole=$(cat $sys/promote_huge)
knob promote_huge 0
echo 1 > $sys/device0/threshold
stays "bound to the slow node they are not split" skipped_mempolicy policy=bind hot=64
knob split_huge 0
stays "with split_huge 0 they are not split" skipped_large hot=64
[ "$(vmstat thp_split_page)" = "$splits" ] && [ "$(stat split_up)" = 0 ] && ok "and were not" ||
	not_ok "and were not" "thp_split_page $splits -> $(vmstat thp_split_page), split_up $(stat split_up)"
knob split_huge 1
knob enabled 0
line=$($content mb=8 huge hot=64 seconds=100000 stop=256 want=256 enable)
status=$?
[ $status -eq 0 ] && [ "$(field "$line" moved)" = 256 ] && [ "$(field "$line" huge)" = 0 ] && [ "$(stat split_up)" = 4 ] &&
	[ $(($(vmstat thp_split_page) - splits)) = 4 ] && ok "64 hot pages of a huge folio come without the others" ||
	not_ok "64 hot pages of a huge folio come without the others" "$line split_up=$(stat split_up) thp_split_page $splits -> $(vmstat thp_split_page)"
[ "$(stat split_huge)" = 0 ] && [ "$(stat split_ns)" -gt 0 ] && ok "which is counted" || not_ok "which is counted" "split_huge=$(stat split_huge) split_ns=$(stat split_ns)"
knob promote_huge "$whole"
echo 20 > $sys/device0/threshold

# A full target node: they wait, or come whole as kswapd makes room. Nobody is killed, none is split.
demotion=/sys/kernel/mm/numa/demotion_enabled
kills=$(vmstat oom_kill)
splits=$(vmstat thp_split_page)
if [ -w $demotion ] && [ "$(find /sys/devices/virtual/memory_tiering -name 'memory_tier[0-9]*' | wc -l)" -ge 2 ]; then
	echo 1 > $demotion
	knob room kswapd
	before=$(stat promoted_huge)
	keep_kswapd &
	keeper=$!
	line=$($content mb=64 cold=$(($(node_free_mb) + 8)) seconds=100000 stop=4096 want=4096)
	status=$?
	kill $keeper
	echo "# $line promoted_huge=$(($(stat promoted_huge) - before)) room_waits=$(stat room_waits) demoted=$(vmstat pgdemote_kswapd)"
	[ $status -eq 0 ] && [ "$(stat promoted_huge)" -gt "$before" ] && ok "a full node: they come as kswapd makes room" ||
		not_ok "a full node: they come as kswapd makes room" "$line"
else
	skip "a full node: they come as kswapd makes room" "this kernel demotes nothing"
fi
# Last: on a node where it could free nothing kswapd gives up for good.
[ ! -w $demotion ] || echo 0 > $demotion
before=$(stat skipped_no_room)
# 3 MiB above the level where promotion stops, half-way between min and low. The kernel's own memory may be on this node alone,
# and it gets none below min: a low far above min leaves it 8 MiB and more. With the gap that a small machine has by itself
# (.5 MiB) the shell that runs this was killed.
scale=$(cat /proc/sys/vm/watermark_scale_factor)
echo 500 > /proc/sys/vm/watermark_scale_factor
floor_mb=$(awk '$1 == "Node" { own = $2 == "0," } own && ($1 == "min" || $1 == "low") { n += $2 } END { print int(n / 512) }' /proc/zoneinfo)
content_until "above skipped_no_room $before" node="$node" huge mb=64 cold=$(($(node_free_mb) - floor_mb - 3)) sleep
status=$?
echo "$scale" > /proc/sys/vm/watermark_scale_factor
echo "# $line, promotion stops at $floor_mb MiB"
[ $status -eq 0 ] && ok "where none is made they wait" || not_ok "where none is made they wait" "$line"
[ "$(vmstat oom_kill)" = "$kills" ] && [ "$(vmstat thp_split_page)" = "$splits" ] && [ "$(stat split_huge)" = 0 ] &&
	ok "nobody was killed, none was split" ||
	not_ok "nobody was killed, none was split" "oom_kill $kills -> $(vmstat oom_kill), thp_split_page $splits -> $(vmstat thp_split_page), split_huge $(stat split_huge)"
# Who asked for the memory, and what was left.
[ "$(vmstat oom_kill)" = "$kills" ] || log_since | grep -A70 'invoked oom-killer' | grep -E 'invoked|^[^a-z]*[a-z_]+\+0x|Node 0 .*(free:|kB)' | head -60 | sed 's/^/# /'

ns=$(stat promote_huge_ns)
huge=$(stat promoted_huge)
pages=$(($(stat promoted) - huge * 512))
echo "# promoted_huge=$huge, $((ns / (huge ? huge : 1))) ns each; $pages single pages, $((($(stat promote_ns) - ns) / (pages ? pages : 1))) ns each"
unload
check "kernel log clean" log_clean
finish

#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# The module among the rest of the kernel: tracepoints, ping-pong, memory going offline, NUMA balancing.
. "$(dirname "$0")/kmod_lib.sh"

tracing=/sys/kernel/tracing
begin
echo 0 > /proc/sys/kernel/numa_balancing
echo 1 > $sys/device0/threshold
node=$(slow_node)
content="$NEOTIER_BIN/kmod_content node=$node"

if [ -d $tracing/events/neotier ]; then
	echo > $tracing/trace
	echo 1 > $tracing/events/neotier/enable
	all_traced() {
		for event in neotier_report neotier_decide neotier_promote neotier_promote_page neotier_skip; do
			grep -q "$event:" $tracing/trace || return 1
		done
	}
	content_until all_traced node="$node" mb=2 sleep
	echo 0 > $tracing/events/neotier/enable
	for event in neotier_report neotier_decide neotier_promote neotier_promote_page; do
		line=$(grep "$event:" $tracing/trace | head -1)
		[ -n "$line" ] && ok "$event is traced" || not_ok "$event is traced"
		echo "#$(echo "$line" | sed "s/.*$event:/ $event:/")"
	done
	grep -q 'neotier_skip:.*reason=[a-z]' $tracing/trace && ok "neotier_skip names its reason" || not_ok "neotier_skip names its reason"
	echo > $tracing/trace
else
	skip "tracepoints" "no tracefs at $tracing"
fi

# A page that is hot on the slow node a second time has been demoted since; move_pages(2) stands in for the demotion.
before=$(stat ping_pong)
moved=$(stat promoted)
$content mb=8 seconds=300 stop=2000 back sleep > /dev/null
pages=$(($(stat ping_pong) - before))
echo "# promoted $(($(stat promoted) - moved)), came back $pages"
[ $pages -gt 1500 ] && [ $pages -le 2048 ] && ok "ping-pong is noticed, once a page" || not_ok "ping-pong is noticed, once a page" "$pages of 2048"

# A block of the device's memory goes offline and comes back.
offline() {
	for path in /sys/devices/system/node/node"$node"/memory[0-9]*; do
		block=/sys/devices/system/memory/${path##*/}
		echo offline 2> /dev/null > "$block/state" && return 0
	done
	return 1
}
$content mb=32 seconds=100000 > /tmp/offline.out &
worker=$!
rises tried
if offline; then
	eventually state_is 0 paused && ok "memory offline: paused" || not_ok "memory offline: paused" "$(cat $sys/device0/state)"
	before=$(stat drained)
	usleep 200000
	[ "$(stat drained)" = "$before" ] && ok "paused: nothing is drained" || not_ok "paused: nothing is drained"
	echo online > "$block/state"
	eventually state_is 0 running && ok "memory online: runs again" || not_ok "memory online: runs again" "$(cat $sys/device0/state)"
else
	eventually state_is 0 running && ok "offline refused: runs on" || not_ok "offline refused: runs on"
	skip "memory offline" "the kernel takes no block of node $node offline"
fi
kill $worker
wait $worker
status=$?
[ $status -eq 0 ] && ok "contents as written" || not_ok "contents as written" "$(cat /tmp/offline.out)"

# dry_run: pages that have been promoted are no longer scanned.
knob dry_run 1
echo 1 > /proc/sys/kernel/numa_balancing
noticed() { log_since | grep -q 'NUMA balancing is at work'; }
content_until noticed node="$node" mb=16
echo 0 > /proc/sys/kernel/numa_balancing
log_since | grep -q 'NUMA balancing is at work' && ok "NUMA balancing is noticed" || not_ok "NUMA balancing is noticed"
[ "$(log_since | grep -c 'NUMA balancing is at work')" -le 1 ] && ok "and said once" || not_ok "and said once"

device_stop
check "module unloads" unload
check "kernel log clean" log_clean
finish

#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# The reserve of free pages keeps off memory that is promised to be movable, and lets memory go offline.
. "$(dirname "$0")/kmod_lib.sh"

mark_log
device_start
if ! load; then
	not_ok "module loads"
	finish
fi
echo 0 > /proc/sys/kernel/numa_balancing
echo 1 > $sys/device0/threshold
echo 1 > /sys/kernel/mm/numa/demotion_enabled
node=$(slow_node)
target=$(cat $sys/device0/target_node)

# zone_movable <field>: of ZONE_MOVABLE on the target node, in pages
zone_movable() {
	awk -v node="Node $target," -v field="$1" '/^Node/ { here = ($0 ~ "^" node && $4 == "Movable") }
		here && ($1 == field || $1 == field ":") { print $2; exit }' /proc/zoneinfo
}
# reserved <first page> <pages>: how many of them are pages that their driver keeps (KPF_OFFLINE, bit 23)
reserved() {
	dd if=/proc/kpageflags bs=4096 skip=$(($1 / 512)) count=$((($2 + 511) / 512)) 2> /dev/null | od -An -v -tx8 -w8 |
		grep -c '[89a-f].....$'
}
# A block of the target node that is free of the kernel's own becomes ZONE_MOVABLE.
for path in /sys/devices/system/node/node"$target"/memory[0-9]*; do
	block=/sys/devices/system/memory/${path##*/}
	echo offline > "$block/state" && echo online_movable > "$block/state" && break
done 2> /dev/null
first=$(zone_movable start_pfn)
pages=$(zone_movable spanned)
if [ "${pages:-0}" = 0 ]; then
	skip "the reserve keeps off movable memory" "node $target has no block that can be made ZONE_MOVABLE: $(cat /sys/devices/system/node/node"$target"/memory[0-9]*/valid_zones | tr '\n' ' ')"
	unload
	finish
fi
echo "# ZONE_MOVABLE of node $target: $pages pages from $first"

free=$(($(awk '/MemFree/ { print $4 }' "/sys/devices/system/node/node$target/meminfo") / 1024))
# More than the node takes, so that promotion goes on for as long as this looks.
"$NEOTIER_BIN/kmod_content" node="$node" mb=160 cold=$free seconds=100000 sleep > /tmp/content.out 2>&1 &
worker=$!
eventually above reserved 0
# Node 0 begins at page 0. Until reserve and look meet: the reserve comes and goes.
all=0
movable=0
looks=0
while [ $looks -lt 30 ] && [ $all -lt 64 ] && kill -0 $worker; do
	all=$(reserved 0 $((first + pages)))
	movable=$((movable + $(reserved "$first" "$pages")))
	looks=$((looks + 1))
done
echo "# after $looks looks: reserved=$(stat reserved) in all, $all now, $movable of those seen in ZONE_MOVABLE"
[ "$(stat reserved)" -gt 0 ] && ok "there is a reserve" || not_ok "there is a reserve" "room_waits=$(stat room_waits) promoted=$(stat promoted)"
[ $all -gt 0 ] && ok "its pages are marked as their driver's" || not_ok "its pages are marked as their driver's"
[ $all -gt 0 ] && [ $movable = 0 ] && ok "none of them is in ZONE_MOVABLE" || not_ok "none of them is in ZONE_MOVABLE" "$movable"

offlined=
for path in /sys/devices/system/node/node"$target"/memory[0-9]*; do
	block=/sys/devices/system/memory/${path##*/}
	grep -q Movable "$block/valid_zones" || continue
	if echo offline > "$block/state"; then
		offlined=$block
		break
	fi
done 2> /dev/null
if [ -n "$offlined" ]; then
	ok "memory of the target node goes offline meanwhile"
	echo online_movable > "$offlined/state" && ok "and comes back" || not_ok "and comes back"
else
	not_ok "memory of the target node goes offline meanwhile" "$(cat /sys/devices/system/node/node"$target"/memory[0-9]*/valid_zones | tr '\n' ' ')"
fi
kill $worker
wait $worker 2> /dev/null
none() { [ "$(reserved 0 $((first + pages)))" = 0 ]; }
eventually none && ok "the reserve is given back when promotion rests" || not_ok "the reserve is given back when promotion rests"
device_stop
check "module unloads" unload
check "kernel log clean" log_clean
finish

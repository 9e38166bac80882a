#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# Unload, unbind and reload while pages are being promoted; where kmod_device plays, by two devices that report the same
# pages, so that their threads meet at them. CYCLES: loads and unloads.
. "$(dirname "$0")/kmod_lib.sh"

CYCLES=${CYCLES:-50}
mark_log
device_start
[ "$NEOTIER_FAKE" != 1 ] || device_play 1 "$NEOTIER_BASE" "$NEOTIER_SIZE"
check "module loads" load
if ! loaded; then
	finish
fi
echo 0 > /proc/sys/kernel/numa_balancing
if [ "$NEOTIER_FAKE" = 1 ]; then
	[ -e $sys/device1 ] && ok "with two devices" || not_ok "with two devices"
fi
node=$(slow_node)
pci=$(cat $sys/device0/pci)

"$NEOTIER_BIN/kmod_content" node="$node" mb=48 seconds=3600 > /tmp/content.out 2>&1 &
content=$!
cycle=0
bad=0
promoted=0
while [ $cycle -lt "$CYCLES" ]; do
	unload || bad=$((bad + 1))
	load || bad=$((bad + 1))
	for device in "$sys"/device[0-9]*; do echo 1 > "$device/threshold"; done
	# Between 0 and 60 ms of work, so that unloading meets every phase.
	usleep $((cycle * 7 % 13 * 5000))
	promoted=$((promoted + $(stat promoted)))
	cycle=$((cycle + 1))
done
[ $bad -eq 0 ] && ok "$CYCLES unloads and loads under load" || not_ok "$CYCLES unloads and loads under load" "$bad failed"
echo "# $promoted pages promoted in between"
[ $promoted -gt 0 ] && ok "pages were promoted in between" || not_ok "pages were promoted in between"

kill -0 $content 2>/dev/null && ok "the program that owns the pages still runs" || not_ok "the program that owns the pages still runs" "$(cat /tmp/content.out)"

# sysfs readers and writers while it goes away
(while :; do cat $sys/stats/* $sys/device0/* > /dev/null 2>&1; echo 64 2> /dev/null > $sys/batch; done) 2> /dev/null &
reader=$!
cycle=0
bad=0
while [ $cycle -lt 5 ]; do
	unload || bad=$((bad + 1))
	load || bad=$((bad + 1))
	cycle=$((cycle + 1))
done
kill $reader
[ $bad -eq 0 ] && ok "unloads while sysfs is read and written" || not_ok "unloads while sysfs is read and written" "$bad failed"

driver=/sys/bus/pci/drivers/neotier
echo "$pci" > $driver/unbind
[ ! -e $driver/$pci ] && ok "unbind takes the device away" || not_ok "unbind takes the device away"
before=$(stat promoted)
echo "$pci" > $driver/bind
[ -e $driver/$pci ] && ok "bind brings it back" || not_ok "bind brings it back"
[ "$(stat promoted)" -ge "$before" ] && ok "counters survive an unbind" || not_ok "counters survive an unbind"
echo 1 > $sys/device0/threshold
usleep 300000
for path in "$driver"/0000:*; do echo "${path##*/}" > $driver/unbind; done
check "module unloads with no device bound" unload

kill $content
wait $content 2>/dev/null
device_stop
check "kernel log clean" log_clean
finish

#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# What a move costs and how long an epoch lasts, by the clock of the device where it has one.
. "$(dirname "$0")/kmod_lib.sh"

if [ "$NEOTIER_FAKE" != 1 ]; then
	skip "the clock of a device" "needs kmod_device, whose clock runs as fast as a test wants"
	finish
fi
rate=16

# measure [arguments of kmod_device]: in $threshold what payback asks for before a move has been measured, at a cost of 10 us, for
# a quarter of a second; in $share how much of the time since the load of the module was spent on moves, in thousandths, both by
# the clock of the driver
measure() {
	device_start "$@"
	load || return 1
	echo 0 > /proc/sys/kernel/numa_balancing
	knob payback_ms 250
	knob policy payback
	decided=$(stat decisions)
	eventually above decisions $((decided + 3)) || return 1
	threshold=$(cat $sys/device0/threshold)
	knob policy fixed
	echo 1 > $sys/device0/threshold
	content_until "above promoted 3900" node="$(slow_node)" mb=16 want=3900
	share=$(($(stat promote_ns) * 1000 / $(stat clock_ns)))
	echo "# $*: threshold $threshold, promote_ns $(stat promote_ns) of clock_ns $(stat clock_ns), clock_faults $(stat clock_faults)"
	faults=$(stat clock_faults)
	unload
	device_stop
}

# A move takes as long as the host lets it; the share of the time is no matter of that. Told by the guest's clock it would be a
# 16th. The program that plays the device may wait for its host so long that the driver takes its clock for a dead one: up to three
# pairs of measurements.
told() { [ "$faults" = 0 ] && [ "$share" -gt $((plain_share / 3)) ] && [ "$share" -lt $((plain_share * 3)) ]; }
mark_log
for _ in 1 2 3; do
	measure || not_ok "a device without a clock"
	plain=$threshold
	plain_share=$share
	measure clock=$rate || not_ok "a device with a clock"
	told && break
done
# 2 x 10 us x 50 ms / (40 ns x 250 ms)
[ "$plain" = 100 ] && ok "without a clock an epoch lasts as long as it says" || not_ok "without a clock an epoch lasts as long as it says" "threshold $plain"
# The device counts its ticks, and the driver reads them, a little apart from the clock.
wanted=$((plain * rate))
[ "$threshold" -gt $((wanted * 9 / 10)) ] && [ "$threshold" -lt $((wanted * 11 / 10)) ] &&
	ok "with one, as long as that says" || not_ok "with one, as long as that says" "threshold $threshold, $wanted wanted"
told && ok "and the cost of a move is told by it" ||
	not_ok "and the cost of a move is told by it" "$share thousandths of the time, $plain_share without, $faults faults"
check "kernel log clean" log_clean
finish

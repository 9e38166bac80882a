#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# What happens to a device behind its driver's back: function reset, suspend, power lost, removal.
. "$(dirname "$0")/kmod_lib.sh"

begin
echo 0 > /proc/sys/kernel/numa_balancing
node=$(slow_node)
pci=$(cat $sys/device0/pci)
path=/sys/bus/pci/devices/$pci
content="$NEOTIER_BIN/kmod_content node=$node"
# What is promoted stays: so that the device has something to report for as long as it is asked.
knob dry_run 1
echo 1 > $sys/device0/threshold
$content mb=8 seconds=100000 want=0 > /tmp/content.out 2>&1 &
worker=$!
forget() { [ "$NEOTIER_FAKE" != 1 ] || device_forget; }

# counts <name>: the device counts again: epochs go by, reports come, and all of it is plausible
counts() {
	local wrong=
	eventually state_is 0 running || wrong="state $(cat $sys/device0/state)"
	rises epochs || wrong="$wrong no epochs"
	rises drained || wrong="$wrong no reports"
	rises dry_run_pages || wrong="$wrong nothing to promote"
	[ "$(stat device_faults)" = 0 ] || wrong="$wrong device_faults"
	[ "$(stat epochs)" -ge 0 ] && [ "$(stat epochs)" -lt 1000000000 ] || wrong="$wrong epochs=$(stat epochs)"
	[ -z "$wrong" ] && ok "$1" || not_ok "$1" "$wrong"
}
counts "the device counts"

if [ -w "$path/reset" ]; then
	forget
	echo 1 > "$path/reset" && ok "function reset" || not_ok "function reset"
	counts "it counts again after a reset"
	bad=0
	for _ in 1 2 3 4 5; do
		forget
		echo 1 > "$path/reset" || bad=$((bad + 1))
	done
	[ $bad = 0 ] && ok "five resets one after the other" || not_ok "five resets one after the other"
	counts "it counts again after them"
else
	skip "function reset" "no way to reset this function: on a root bus"
fi

# suspend <what> <pm_test>
suspend() {
	echo "$2" > /sys/power/pm_test && forget && echo "$1" > /sys/power/state
}
if [ -w /sys/power/pm_test ]; then
	check "suspend to idle, as far as devices" suspend freeze devices
	counts "it counts again after suspend to idle"
	check "suspend with processes frozen only" suspend freeze freezer
	[ "$NEOTIER_FAKE" = 1 ] || counts "it counts on"
	# All but the sleep itself, from which TCG does not bring the timers of every CPU back.
	if grep -q deep /sys/power/mem_sleep 2> /dev/null; then
		echo deep > /sys/power/mem_sleep
		check "suspend to memory, as far as the platform" suspend mem platform
		counts "it counts again after suspend to memory"
	else
		skip "suspend to memory" "this machine has none"
	fi
	echo none > /sys/power/pm_test
else
	skip "suspend" "no /sys/power/pm_test here"
fi
if [ "$NEOTIER_FAKE" = 1 ]; then
	# aer <name> <error of QEMU's monitor>: what the root port reports; what it means is up to the kernel
	aer() {
		local before
		before=$(dmesg | grep -c 'device recovery successful')
		[ "$2" = DLP ] && forget
		echo "== qemu: pcie_aer_inject_error port0 $2"
		recovered() { [ "$(dmesg | grep -c 'device recovery successful')" -gt "$before" ]; }
		eventually recovered && ok "$1" || not_ok "$1" "$(log_since)"
	}
	if grep -q ' aer$' /proc/interrupts || grep -q 'aerdrv\|AER' /proc/interrupts; then
		aer "an error that is fatal: the link is reset" DLP
		counts "it counts again after it"
		aer "an error that is not" POISON_TLP
		counts "it counts on"
	else
		skip "errors of the link" "the firmware keeps them from this kernel"
	fi

	check "kernel log clean so far" log_clean
	mark_log
	# A decision, which reads the counters, before each look at the hotlist.
	knob decide_interval_ms 1
	device_vanish
	eventually state_is 0 failed && ok "registers that read all ones take the device out of service" ||
		not_ok "registers that read all ones take the device out of service" "$(cat $sys/device0/state)"
	wrong=
	for name in "$sys"/stats/*; do
		# 2^48: no counter of the device gets there in a test.
		[ "$(cat "$name")" -lt 281474976710656 ] && [ "$(cat "$name")" -ge 0 ] 2> /dev/null || wrong="$wrong ${name##*/}=$(cat "$name")"
	done
	[ -z "$wrong" ] && ok "and are in no counter" || not_ok "and are in no counter" "$wrong"
	[ "$(log_since | grep -c neotier)" = 1 ] && log_since | grep -q 'all ones' && ok "and are said in one line" ||
		not_ok "and are said in one line" "$(log_since)"
	knob decide_interval_ms 100
	forget
	echo 1 > "$path/reset"
	[ "$(stat device_faults)" = 1 ] && eventually state_is 0 running && rises drained && ok "a reset brings it back" ||
		not_ok "a reset brings it back" "$(cat $sys/device0/state)"

	# Orderly: what a hot-plug driver does when it has noticed.
	echo 1 > "$path/remove"
	[ ! -e $sys/device0 ] && ok "removed: device0 goes" || not_ok "removed: device0 goes"
	check "counters survive it" above drained 0
	forget
	echo 1 > /sys/bus/pci/rescan
	eventually state_is 0 running && echo 1 > $sys/device0/threshold && rises drained && ok "found again: it counts" ||
		not_ok "found again: it counts" "$(log_since)"

	# The machine's side takes it.
	echo "== qemu: device_del device0"
	gone() { [ ! -e "$path" ]; }
	eventually gone && [ ! -e $sys/device0 ] && ok "unplugged while it counts" || not_ok "unplugged while it counts"
fi

kill $worker
wait $worker 2> /dev/null
check "module unloads" unload
device_stop
check "kernel log clean" log_clean
finish

#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# A device that lies: refused with one line, or taken out of service, or its lies counted. Nothing crashes.
. "$(dirname "$0")/kmod_lib.sh"

if [ "$NEOTIER_FAKE" != 1 ]; then
	skip "a device that lies" "needs NEOTIER_FAKE=1: ivshmem without the emulator"
	finish
fi

# refused <name> <text in the log> <kmod_device arguments>
refused() {
	local name=$1 text=$2 lines
	shift 2
	[ "$1" = none ] || device_start "$@"
	mark_log
	if insmod "$NEOTIER_KO" 2> /dev/null; then
		not_ok "$name" "module loaded"
		rmmod neotier
		return
	fi
	# Not counted: the line about an out-of-tree module; a repeat, because busybox insmod tries a second system call.
	lines=$(log_since | sed 's/^\[[^]]*\] //' | grep -E '^neotier[: ]' | grep -v taint | sort -u | wc -l)
	if [ "$lines" = 1 ] && log_since | grep -q "$text" && log_clean; then
		ok "$name"
		log_since | grep '] neotier' | tail -1 | sed 's/^/# /'
	else
		not_ok "$name" "$lines lines: $(log_since)"
	fi
}

zero=0x0
refused "no magic" "no NeoProf device found" "set=0x9000:$zero"
refused "another major version" "register layout 2.0" "set=0x9000:0x02004652504e"
refused "unknown CHMU version" "COMMON_CAP0" "set=0x0000:0x0107"
refused "hotlist of 0 entries" "hotlist" "set=0x0010:0x0000001106453830"
refused "hotlist of 65535 entries" "hotlist" "set=0x0010:0xffff001106453830"
refused "hotlist outside the instance" "hotlist" "set=0x0028:0xfffffffffffffff8"
refused "bitmap over the configuration" "bitmap" "set=0x0020:0x40"
refused "no 4 KiB units" "4 KiB" "set=0x0018:0x701ff00002000"
refused "no reporting mode" "mode" "set=0x0018:0x001ff00002010"
refused "counters of 0 bits" "bits" "set=0x9008:0x0000100000130201"
refused "hotlist counts of another width" "bits" "set=0x0070:0x0000002000000000"
refused "no memory" "memory of 0x0" "size=0"
refused "memory not in whole pages" "memory of" "size=0x10000800"
refused "memory beyond physical addresses" "memory of" "base=0xfffffffff0000000"
refused "memory larger than the bitmap" "memory of" "size=0x8000000000"
refused "memory that is not there" "not all online" "base=0x8000000000"
refused "memory partly there" "not all online" "size=0x800000000"
refused "memory on a node with CPUs" "has CPUs" "base=0x4000000" "size=0x1000000"
refused "a device that never answers" "no answer" "lie=silent"

# lies <name> <lie or argument> <counter that must rise> <state at the end>
lies() {
	local name=$1 lie=$2 counter=$3 state=$4 line status
	case $lie in *=*) device_start "$lie" ;; *) device_start "lie=$lie" ;; esac
	mark_log
	if ! load; then
		not_ok "$name" "module did not load"
		return
	fi
	lied() { [ "$(stat "$counter")" -gt 0 ] && state_is 0 "$state"; }
	content_until lied node="$(slow_node)" mb=8
	status=$?
	if [ $status -eq 0 ] && [ "$(stat "$counter")" -gt 0 ] && [ "$(cat $sys/device0/state)" = "$state" ]; then
		ok "$name"
	else
		not_ok "$name" "$line $counter=$(stat "$counter") state=$(cat $sys/device0/state)"
	fi
	echo "# drained=$(stat drained) skipped_range=$(stat skipped_range) promoted=$(stat promoted)"
	unload
	device_stop
	check "$name: kernel log clean" log_clean
}

lies "TAIL out of range takes the device out of service" tail device_faults failed
lies "units outside the memory are counted" units skipped_range running
lies "noise in the ring" shuffle skipped_range running

# Given up once, said once; promotion goes on by the kernel's clock.
for clock in stand back far; do
	lies "a clock that does: $clock" clock=$clock clock_faults running
	said=$(dmesg | grep -c 'its clock stood still, went back or ran away')
	[ "$said" = $((${said_before:-0} + 1)) ] && ok "a clock that does: $clock: one line" ||
		not_ok "a clock that does: $clock: one line" "$said lines, ${said_before:-0} before"
	said_before=$said
done

device_stop
for path in /sys/bus/pci/devices/*; do
	[ "$(cat "$path/vendor" "$path/device" | tr '\n' ' ')" = "0x1af4 0x1110 " ] && echo 1 > "$path/remove"
done
refused "no device" "neotier: no NeoProf device found (PCI 1af4:1110)" none
echo 1 > /sys/bus/pci/rescan

device_start
mark_log
check "an honest device works afterwards" load
[ "$(cat $sys/device0/state)" = running ] && ok "state running" || not_ok "state running" "$(cat $sys/device0/state)"
unload
finish

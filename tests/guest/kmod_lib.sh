# SPDX-License-Identifier: Apache-2.0
# Sourced by the kmod_*.sh tests. They run as root in the guest (busybox sh) and print TAP.
#   NEOTIER_KO    neotier.ko                                  (default: neotier.ko beside the script)
#   NEOTIER_BIN   folder of kmod_device and kmod_content      (default: the script's)
#   NEOTIER_ABI   docs/abi/sysfs-kernel-neotier               (default: beside the script)
#   NEOTIER_FAKE  1: no emulator behind ivshmem; kmod_device plays the device. Tests that need a device that lies run only then.
#   NEOTIER_BASE, NEOTIER_SIZE  the device's memory, for kmod_device (default 4 GiB, 256 MiB)
here=$(cd "$(dirname "$0")" && pwd)
NEOTIER_BIN=${NEOTIER_BIN:-$here}
NEOTIER_KO=${NEOTIER_KO:-$here/neotier.ko}
NEOTIER_ABI=${NEOTIER_ABI:-$here/sysfs-kernel-neotier}
NEOTIER_FAKE=${NEOTIER_FAKE:-0}
NEOTIER_BASE=${NEOTIER_BASE:-0x100000000}
NEOTIER_SIZE=${NEOTIER_SIZE:-0x10000000}
sys=/sys/kernel/neotier
tests=0
failures=0
device_pid=

ok() { tests=$((tests + 1)); echo "ok $tests - $1"; }
not_ok() { tests=$((tests + 1)); failures=$((failures + 1)); echo "not ok $tests - $1"; [ -n "$2" ] && echo "# $2"; }
skip() { tests=$((tests + 1)); echo "ok $tests - $1 # SKIP $2"; }

# check <name> <command...>: passes when the command does
check() {
	local name=$1 out
	shift
	if out=$("$@" 2>&1); then ok "$name"; else not_ok "$name" "$* -> $out"; fi
}

finish() {
	device_stop
	echo "1..$tests"
	[ "$failures" -eq 0 ]
	exit $?
}

loaded() { [ -d /sys/module/neotier ]; }
# One report is enough and the threshold is what the test writes, so that a test decides by one report what moves;
# confirmation and the policies have tests of their own.
load() { loaded || { insmod "$NEOTIER_KO" "$@" && echo 1 > "$sys/confirm_epochs" && echo fixed > "$sys/policy"; }; }
unload() { ! loaded || rmmod neotier; }
stat() { cat "$sys/stats/$1"; }
knob() { echo "$2" > "$sys/$1"; }

# device_start [arguments of kmod_device]: nothing to do where a real (emulated) device is there
device_start() {
	[ "$NEOTIER_FAKE" = 1 ] || return 0
	device_stop
	rm -f /tmp/neotier-feed /tmp/kmod_device.out
	"$NEOTIER_BIN/kmod_device" base="$NEOTIER_BASE" size="$NEOTIER_SIZE" "$@" > /tmp/kmod_device.out &
	device_pid=$!
	for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
		grep -q ready /tmp/kmod_device.out 2>/dev/null && return 0
		kill -0 "$device_pid" 2>/dev/null || break
		usleep 50000
	done
	echo "# kmod_device did not start"
	return 1
}

device_stop() {
	[ -n "$device_pid" ] || return 0
	kill "$device_pid" 2>/dev/null
	wait "$device_pid" 2>/dev/null
	device_pid=
	rm -f /tmp/neotier-feed
}

# Lines of the kernel log since mark_log that should not be there.
log_lines=0
mark_log() { log_lines=$(dmesg | wc -l); }
log_since() { dmesg | tail -n +$((log_lines + 1)); }
log_clean() {
	local bad
	bad=$(log_since | grep -E 'WARNING|BUG|Oops|Call Trace|general protection|refcount_t|Bad page|hung task|soft lockup' | head -3)
	[ -z "$bad" ] || { echo "$bad"; return 1; }
}

slow_node() { cat "$sys/device0/node"; }
field() { echo "$1" | tr ' ' '\n' | sed -n "s/^$2=//p"; }

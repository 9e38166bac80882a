# shellcheck shell=dash
# SPDX-License-Identifier: Apache-2.0
# Sourced by the kmod_*.sh tests. They run as root in the guest (busybox sh) and print TAP.
#   NEOTIER_KO    neotier.ko                                  (default: neotier.ko beside the script)
#   NEOTIER_BIN   folder of kmod_device and kmod_content      (default: the script's)
#   NEOTIER_ABI   docs/abi/sysfs-kernel-neotier               (default: beside the script)
#   NEOTIER_FAKE  1: no emulator behind ivshmem; kmod_device plays the device. Tests that need a device that lies run only then.
#   NEOTIER_SLOW  how many times slower than others the kernel is, for limits on what never comes (default 1)
#   NEOTIER_BASE, NEOTIER_SIZE  the device's memory, for kmod_device (default 4 GiB, 256 MiB)
here=$(cd "$(dirname "$0")" && pwd)
NEOTIER_BIN=${NEOTIER_BIN:-$here}
NEOTIER_KO=${NEOTIER_KO:-$here/neotier.ko}
NEOTIER_ABI=${NEOTIER_ABI:-$here/sysfs-kernel-neotier}
NEOTIER_FAKE=${NEOTIER_FAKE:-0}
NEOTIER_SLOW=${NEOTIER_SLOW:-1}
NEOTIER_BASE=${NEOTIER_BASE:-0x100000000}
NEOTIER_SIZE=${NEOTIER_SIZE:-0x10000000}
sys=/sys/kernel/neotier
tests=0
failures=0
device_pids=

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
# One report is enough, the threshold is what the test writes, and nothing bounds what may move, so that a test decides by one
# report what moves; confirmation, the policies and the ledger have tests of their own.
# shellcheck disable=SC2120 # other files give it arguments
load() { loaded || { insmod "$NEOTIER_KO" "$@" && echo 1 > "$sys/confirm_epochs" && echo fixed > "$sys/policy" && echo 1000000 > "$sys/loss_ppm"; }; }
unload() { ! loaded || rmmod neotier; }
stat() { cat "$sys/stats/$1"; }
knob() { echo "$2" > "$sys/$1"; }

# eventually <command...>: waits for a state, not for a time. The limit is for what never comes.
eventually() {
	local tries=$((1200 * NEOTIER_SLOW))
	until "$@" > /dev/null 2>&1; do
		tries=$((tries - 1))
		[ $tries -gt 0 ] || return 1
		usleep 50000
	done
}
# above <counter> <value>, counters: sum over devices
above() { [ "$(stat "$1")" -gt "$2" ]; }
rises() { eventually above "$1" "$(stat "$1")"; }
state_is() { [ "$(cat "$sys/device$1/state")" = "$2" ]; }

# PCI functions that can be our device, in the order of kmod_device's index
functions() {
	local path
	for path in /sys/bus/pci/devices/*; do
		[ "$(cat "$path/vendor" "$path/device" | tr '\n' ' ')" = "0x1af4 0x1110 " ] && echo "${path##*/}"
	done
}

# device_play <index> <base> <size> [arguments of kmod_device]
device_play() {
	local index=$1 base=$2 size=$3 out=/tmp/kmod_device.$1 pid
	shift 3
	rm -f "$out"
	"$NEOTIER_BIN/kmod_device" index="$index" base="$base" size="$size" "$@" > "$out" &
	pid=$!
	device_pids="$device_pids $pid"
	played() { grep -q ready "$out" || ! kill -0 $pid; }
	eventually played && kill -0 $pid && return 0
	echo "# kmod_device did not start"
	return 1
}

# device_start [arguments of kmod_device]: one device with all the memory; nothing to do where a real (emulated) one is there
# shellcheck disable=SC2120 # other files give it arguments
device_start() {
	[ "$NEOTIER_FAKE" = 1 ] || return 0
	device_stop
	rm -f /tmp/neotier-feed
	device_play 0 "$NEOTIER_BASE" "$NEOTIER_SIZE" "$@"
}

# devices_start [arguments of kmod_device]: two, with half of the memory each
devices_start() {
	local half=$((NEOTIER_SIZE / 2))
	device_stop
	rm -f /tmp/neotier-feed
	device_play 0 "$NEOTIER_BASE" $half "$@" && device_play 1 $((NEOTIER_BASE + half)) $half "$@"
}

# device_tell <signal> <answer>: to every device played, and waits until it has obeyed
device_tell() {
	local signal=$1 answer=$2 pid index=0 before
	for pid in $device_pids; do
		before=$(grep -c "$answer" /tmp/kmod_device.$index)
		kill "-$signal" "$pid"
		told() { [ "$(grep -c "$answer" /tmp/kmod_device.$index)" -gt "$before" ]; }
		eventually told || return 1
		index=$((index + 1))
	done
}
device_forget() { device_tell USR1 forgot; }
device_vanish() { device_tell USR2 gone; }

device_stop() {
	local pid
	for pid in $device_pids; do
		kill "$pid" 2>/dev/null
		wait "$pid" 2>/dev/null
	done
	device_pids=
	rm -f /tmp/neotier-feed
}

# takes_term <pid>: the process has a handler for SIGTERM (bit 14), or has ended
takes_term() {
	local caught
	caught=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status" 2> /dev/null)
	! readlink "/proc/$1/exe" > /dev/null || [ $((0x${caught:-0} & 0x4000)) -ne 0 ]
}

# content_until <command> [arguments of kmod_content]: until that command, a word or several, succeeds. In $line what the
# program printed, and its status.
content_until() {
	local until=$1 pid status
	shift
	rm -f /tmp/content.line
	"$NEOTIER_BIN/kmod_content" seconds=100000 "$@" > /tmp/content.line 2>&1 &
	pid=$!
	# shellcheck disable=SC2086
	eventually $until
	# What is awaited may be true before the program has begun, and SIGTERM would kill it then.
	eventually takes_term $pid
	kill $pid
	wait $pid
	status=$?
	# shellcheck disable=SC2034
	line=$(cat /tmp/content.line)
	return $status
}

# Lines of the kernel log since mark_log that should not be there.
log_lines=0
mark_log() { log_lines=$(dmesg | wc -l); }
log_since() { dmesg | tail -n +$((log_lines + 1)); }
log_bad='WARNING|BUG|Oops|Call Trace|general protection|refcount_t|Bad page|hung task|soft lockup|KASAN|INFO: task|ODEBUG|detected stall|possible .* detected|inconsistent lock|held when returning|lock held'
log_clean() {
	local bad
	bad=$(log_since | grep -E "$log_bad" | head -3)
	[ -z "$bad" ] || { echo "$bad"; return 1; }
}

# begin: the device plays and the module is loaded, or the script ends here
begin() {
	mark_log
	device_start
	load && return
	not_ok "module loads"
	finish
}

slow_node() { cat "$sys/device0/node"; }
field() { echo "$1" | tr ' ' '\n' | sed -n "s/^$2=//p"; }
# vmstat <name>: exact, after what each CPU has counted for itself has been added up
vmstat() { echo 1 > /proc/sys/vm/stat_refresh 2> /dev/null; awk -v name="$1" '$1 == name { print $2 }' /proc/vmstat; }
node_free_mb() { awk '/MemFree/ { print int($4 / 1024) }' /sys/devices/system/node/node0/meminfo; }
# kswapd gives up for good once it has freed nothing sixteen times in a row, as on a full node that demotes nothing, and on a
# host with too much to do now and then. It goes on as soon as somebody else reclaims. For the background: whoever asks for
# memory of node 0 alone reclaims himself.
keep_kswapd() {
	while sleep 2; do
		awk '/^Node/ { node = $2 } node == "0," && /node_unreclaimable: *1/ { gone = 1 } END { exit !gone }' /proc/zoneinfo || continue
		echo "# kswapd had given up"
		"$NEOTIER_BIN"/kmod_content node=0 mb=16 quiet sleep seconds=0 > /dev/null
	done
}

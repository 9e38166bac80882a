#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# A storm: processes do all that programs do with their memory while two devices report every page of it as hot; then the
# module and its devices come and go meanwhile; then allocations fail, where the kernel can make them. kmod_storm.c judges.
#   STORM_MOVES       promotions of the first part (default 3000); the second has a tenth of them at least
#   STORM_OPERATIONS  of the programs, in the first part at least (default 400)
#   STORM_CYCLES      loads and unloads, bindings and resets of the second part (default 2 of each)
#   STORM_SEED        (default 1)
#   STORM_HUGE        promote_huge (default: as the module has it)
#   STORM_ROOM        room (default: as the module has it)
#   STORM_SECONDS     after which the first part ends without its moves (default 600)
. "$(dirname "$0")/kmod_lib.sh"

moves=${STORM_MOVES:-3000}
operations=${STORM_OPERATIONS:-400}
cycles=${STORM_CYCLES:-2}
seed=${STORM_SEED:-1}
settle=$((100 * NEOTIER_SLOW))	# ms that a page may still be on its way after its owner's rules have changed
cgroup=/tmp/cgroup
driver=/sys/bus/pci/drivers/neotier

if [ "$NEOTIER_FAKE" != 1 ]; then
	skip "a storm" "needs NEOTIER_FAKE=1: ivshmem without the emulator"
	finish
fi
echo "# kernel $(uname -r), $(grep -c ^processor /proc/cpuinfo) CPUs, seed $seed"
echo 0 > /proc/sys/kernel/numa_balancing
[ -e /dev/ram0 ] || insmod /test/brd.ko rd_nr=1 rd_size=65536 2> /dev/null
# What is read ahead from swap goes where the reader's policy says, whoever it belongs to.
echo 0 > /proc/sys/vm/page-cluster
if [ -e /dev/ram0 ] && mkswap /dev/ram0 > /dev/null 2>&1 && swapon /dev/ram0 2> /dev/null; then
	echo "# swap: $(awk 'NR == 2 { print $3 }' /proc/swaps) KiB"
else
	echo "# no swap: MADV_PAGEOUT and MADV_FREE do little"
fi
# It moves pages to where most of their neighbours are, whatever their owner asks for; MADV_COLLAPSE is the same, when asked.
echo 3600000 > /sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs
mkdir -p $cgroup
groups=
if mount -t cgroup2 none $cgroup 2> /dev/null && echo "+memory +cpuset" > $cgroup/cgroup.subtree_control 2> /dev/null; then
	mkdir $cgroup/stay $cgroup/slow $cgroup/change
	echo 1 > $cgroup/slow/cpuset.mems
	echo 0-1 > $cgroup/change/cpuset.mems
	groups=$cgroup
fi

# Hardware answers however busy the CPUs are.
prompt() {
	local pid
	for pid in $device_pids; do chrt -f -p 10 "$pid" > /dev/null 2>&1; done
	return 0
}
# As a test wants it: everything that is reported is tried at once.
storm_load() {
	local device
	eventually load || return 1
	[ -z "$groups" ] || knob exclude_cgroups "$(busybox stat -c %i $cgroup/stay)"
	for device in "$sys"/device*; do echo 1 > "$device/threshold"; done
	[ -z "${STORM_HUGE:-}" ] || knob promote_huge "$STORM_HUGE"
	[ -z "${STORM_ROOM:-}" ] || knob room "$STORM_ROOM"
}

# storm <name> <arguments of kmod_storm>: runs it; its report goes to /tmp/<name>, and to the console as it comes
storm() {
	local name=$1
	shift
	echo "# $name begins"
	"$NEOTIER_BIN/kmod_storm" node=1 base_pfn=$((NEOTIER_BASE / 4096)) pages=$((NEOTIER_SIZE / 4096)) seed="$seed" \
		settle_ms="$settle" ${groups:+cgroup=$groups} "$@" 2>&1 | tee "/tmp/$name"
}
# judge <name>: one test for each thing that must not happen
judge() {
	local name=$1 line kind asked moved
	line=$(grep '^storm: ' "/tmp/$name")
	if [ -z "$line" ]; then
		not_ok "$name: the storm ends" "$(tail -n 3 "/tmp/$name")"
		return
	fi
	[ "$(field "$line" wrong_words)" = 0 ] && ok "$name: every word as written, $(field "$line" pages_checked) pages checked" ||
		not_ok "$name: every word as written" "$(field "$line" wrong_words) wrong"
	[ "$(field "$line" deaths)" = 0 ] && ok "$name: no process died, no call failed" || not_ok "$name: no process died, no call failed"
	for kind in bind prefer task_bind cpuset mlock pin excluded change; do
		asked=$(field "$line" asked_$kind)
		moved=$(field "$line" moved_$kind)
		if [ "$moved" != 0 ]; then
			not_ok "$name: $kind: no page moved" "$moved moved, asked $asked times after a page"
		elif [ "$asked" != 0 ]; then
			ok "$name: $kind: no page moved, asked $asked times after a page"
		else
			skip "$name: $kind: no page moved" "no such page here"
		fi
	done
}
log_check() { check "$1: kernel log clean" log_clean; }
# The kernel itself prints a stack for an allocation that fails, and that is what is wanted.
log_check_failing() {
	log_bad=$(echo "$log_bad" | sed 's/Call Trace|//')
	log_check "$1"
	mark_log
}

mark_log
if ! devices_start || ! prompt || ! storm_load; then
	not_ok "two devices, module loads"
	finish
fi

storm calm moves="$moves" operations="$operations" seconds="${STORM_SECONDS:-600}"
judge calm
done=$(field "$(grep '^storm: ' /tmp/calm)" moves)
[ "${done:-0}" -ge "$moves" ] && ok "$done pages moved, $moves wanted" || not_ok "$moves pages moved" "only ${done:-0}"
for name in "$sys"/stats/*; do
	value=$(cat "$name")
	[ "$value" = 0 ] || echo "# ${name##*/} $value"
done
log_check calm

# The module and its devices come and go. Who is excluded is so by a knob that goes with the module.
rm -f /tmp/stop
storm restless moves=100000000 seconds=36000 stop=/tmp/stop unexcluded &
stormer=$!
promoted=0
bad=0
# Work in between: some pages each time, so that whatever comes next meets it.
work_between() {
	local before
	before=$(stat promoted)
	eventually above promoted $((before + moves / 40 / cycles)) || bad=$((bad + 1))
	promoted=$((promoted + $(stat promoted) - before))
}
bound() { [ -d "$driver/$pci" ] || echo "$pci" > $driver/bind; }
bind_again() { eventually bound; }
cycle=0
while [ $cycle -lt "$cycles" ]; do
	work_between
	unload && storm_load || bad=$((bad + 1))
	work_between
	for pci in $(functions); do
		echo "$pci" > $driver/unbind || bad=$((bad + 1))
		usleep $((cycle * 7 % 13 * 3000))
		bind_again || bad=$((bad + 1))
	done
	for device in "$sys"/device*; do echo 1 > "$device/threshold"; done
	work_between
	for pci in $(functions); do
		[ ! -w "/sys/bus/pci/devices/$pci/reset" ] || echo 1 > "/sys/bus/pci/devices/$pci/reset" || bad=$((bad + 1))
	done
	work_between
	# Surprise: the function goes while the driver works. What it is played by goes with its registers, and is there again
	# before the driver is.
	pci=$(functions | tail -n 1)
	echo 1 > "/sys/bus/pci/devices/$pci/remove"
	work_between
	echo 0 > /sys/bus/pci/drivers_autoprobe
	echo 1 > /sys/bus/pci/rescan
	device_play 1 $((NEOTIER_BASE + NEOTIER_SIZE / 2)) $((NEOTIER_SIZE / 2)) || bad=$((bad + 1))
	echo 1 > /sys/bus/pci/drivers_autoprobe
	prompt
	bind_again || bad=$((bad + 1))
	for device in "$sys"/device*; do echo 1 > "$device/threshold"; done
	cycle=$((cycle + 1))
done
touch /tmp/stop
wait $stormer
judge restless
[ $bad = 0 ] && [ $promoted -gt 0 ] && ok "$cycles times unloaded, unbound, reset and removed, $promoted pages moved in between" ||
	not_ok "$cycles times unloaded, unbound, reset and removed" "$bad failed, $promoted pages moved in between"
log_check restless

debug=/sys/kernel/debug
mount -t debugfs debugfs $debug 2> /dev/null
if [ -d $debug/failslab ] && [ -e /proc/self/fail-nth ]; then
	# Silent: a report of each failure would hide what must not be in the log.
	for kind in failslab fail_page_alloc; do
		echo 0 > $debug/$kind/verbose
		echo N > $debug/$kind/ignore-gfp-wait
	done
	echo 0 > $debug/fail_page_alloc/min-order
	# Each allocation of a bind in its turn, until a bind has none left that could fail.
	pci=$(functions | head -n 1)
	echo "$pci" > $driver/unbind
	nth=0
	bad=0
	bound=0
	while [ $nth -lt 2000 ]; do
		nth=$((nth + 1))
		# Opened before: what happens between must be the binding alone.
		exec 9<> /proc/self/fail-nth
		echo $nth >&9
		echo "$pci" 2> /dev/null > $driver/bind
		read -r left <&9
		echo 0 >&9
		exec 9>&-
		if [ -d "$driver/$pci" ]; then
			bound=$((bound + 1))
			[ "$left" = 0 ] || break
			echo "$pci" > $driver/unbind || bad=$((bad + 1))
		fi
	done
	[ $bad = 0 ] && [ -d "$driver/$pci" ] && [ $nth -lt 2000 ] &&
		ok "bind with each of its $nth allocations failing; it succeeded in spite of $bound" ||
		not_ok "bind with each of its allocations failing" "$nth tried, $bad unbinds failed"
	for device in "$sys"/device*; do echo 1 > "$device/threshold"; done

	# Then one in ten of all that the module's threads and the storm's programs allocate.
	for kind in failslab fail_page_alloc; do
		echo Y > $debug/$kind/task-filter
		echo -1 > $debug/$kind/times
		echo 10 > $debug/$kind/probability
	done
	for task in /proc/[0-9]*; do
		case $(cat "$task/comm" 2> /dev/null) in neotier/*) echo 1 > "$task/make-it-fail" ;; esac
	done
	storm starved moves=$((moves / 10)) seconds="${STORM_SECONDS:-600}" unexcluded faults
	judge starved
	for kind in failslab fail_page_alloc; do echo 0 > $debug/$kind/probability; done
	log_check_failing starved
else
	skip "allocations fail" "this kernel has no fault injection"
fi

check "module unloads" unload
device_stop
log_check "at the end"
finish

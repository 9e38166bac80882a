#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# Binding: two devices at once, a stranger's ivshmem, memory that comes and goes meanwhile, a kernel newer than tested.
. "$(dirname "$0")/kmod_lib.sh"

if [ "$NEOTIER_FAKE" != 1 ]; then
	skip "binding" "needs NEOTIER_FAKE=1: two devices that kmod_device plays"
	finish
fi
driver=/sys/bus/pci/drivers/neotier
first=$(functions | sed -n 1p)
second=$(functions | sed -n 2p)
# What a driver that does not want a device leaves as it was: the command register and whether somebody has it enabled.
found() { echo "$(od -An -tx2 -j4 -N2 "/sys/bus/pci/devices/$1/config") $(cat "/sys/bus/pci/devices/$1/enable")"; }
own_lines() { log_since | grep -E 'neotier[: ]' | grep -vc -e taint -e verification; }

mark_log
before="$(found "$first") $(found "$second")"
insmod "$NEOTIER_KO" 2> /dev/null && not_ok "strangers only: the module does not load" || ok "strangers only: the module does not load"
unload
if [ "$before" = "$(found "$first") $(found "$second")" ]; then
	ok "and leaves them as they were"
else
	not_ok "and leaves them as they were" "$before -> $(found "$first") $(found "$second")"
fi
log_since | grep -q 'no NeoProf device found (PCI 1af4:1110)' && ! log_since | grep -q "$first" &&
	ok "and says in one line that none of them is a NeoProf" || not_ok "and says in one line that none of them is a NeoProf" "$(log_since)"
grep -q 'alias=pci:' "$NEOTIER_KO" && not_ok "ivshmem's ids do not make the module load by itself" ||
	ok "ivshmem's ids do not make the module load by itself"

device_start
mark_log
# Memory decoding off, as a machine without firmware leaves it.
printf '\000\000' | dd of="/sys/bus/pci/devices/$second/config" bs=1 seek=4 conv=notrunc 2> /dev/null
before=$(found "$second")
check "module loads" load
[ ! -e "/sys/bus/pci/devices/$second/driver" ] && [ "$before" = "$(found "$second")" ] && [ "$(own_lines)" = 1 ] &&
	ok "a stranger beside our device is left as it was, without a word" ||
	not_ok "a stranger beside our device is left as it was, without a word" "$before -> $(found "$second"): $(log_since)"
unload

if [ -e "$NEOTIER_BIN/neotier-untested.ko" ]; then
	mark_log
	insmod "$NEOTIER_BIN/neotier-untested.ko" 2> /dev/null && not_ok "a kernel newer than tested is refused" || ok "a kernel newer than tested is refused"
	line=$(log_since | sed -n 's/.*\(neotier: Linux .*\)/\1/p' | sort -u)
	case $line in
	"neotier: Linux 6."*" is newer than "*"; load it with allow_untested_kernel=1 "*) ok "in one line that names the parameter" ;;
	*) not_ok "in one line that names the parameter" "$(log_since)" ;;
	esac
	check "and taken by who insists" insmod "$NEOTIER_BIN/neotier-untested.ko" allow_untested_kernel=1
	unload
else
	skip "a kernel newer than tested is refused" "no neotier-untested.ko"
fi

devices_start
mark_log
check "module loads with two devices" load
[ -e $sys/device0 ] && [ -e $sys/device1 ] && ok "both are bound" || not_ok "both are bound" "$(ls $sys)"
cycle=0
bad=0
while [ $cycle -lt 30 ]; do
	echo "$first" > $driver/unbind
	echo "$second" > $driver/unbind
	echo "$first" > $driver/bind &
	one=$!
	echo "$second" > $driver/bind || bad=$((bad + 1))
	wait $one || bad=$((bad + 1))
	[ -e $sys/device0 ] && [ -e $sys/device1 ] && [ "$(cat $sys/device0/pci)" != "$(cat $sys/device1/pci)" ] || bad=$((bad + 1))
	cycle=$((cycle + 1))
done 2> /dev/null
[ $bad -eq 0 ] && ok "30 times both bound at once" || not_ok "30 times both bound at once" "$bad failed"
# The ids are the smallest that are free, in any order.
echo "$first" > $driver/unbind
[ "$(echo $sys/device[0-9]*)" = $sys/device0 ] || [ "$(echo $sys/device[0-9]*)" = $sys/device1 ] &&
	echo "$first" > $driver/bind && [ -e $sys/device0 ] && [ -e $sys/device1 ] &&
	ok "a device that comes back takes the id that is free" || not_ok "a device that comes back takes the id that is free" "$(ls $sys)"

# Offline during bind: whoever is bound in the end knows it. In the second device's half, a block that can go offline.
blocks=$(for path in /sys/devices/system/node/node"$(slow_node)"/memory[0-9]*; do echo "/sys/devices/system/memory/${path##*/}"; done)
block=
for path in $blocks; do
	[ $((0x$(cat "${path%/*}/block_size_bytes") * ${path##*memory})) -ge $((NEOTIER_BASE + NEOTIER_SIZE / 2)) ] || continue
	echo offline > "$path/state" && block=$path && echo online > "$path/state" && break
done 2> /dev/null
offlined=0
wrong=
cycle=0
while [ $cycle -lt 40 ]; do
	echo "$second" > $driver/unbind
	(usleep $((cycle % 10 * 300)); echo offline > "$block/state") &
	one=$!
	echo "$second" > $driver/bind
	wait $one
	if [ "$(cat "$block/state")" = offline ]; then
		offlined=$((offlined + 1))
		for last in "$sys"/device[0-9]*; do
			[ "$(cat "$last/pci")" = "$second" ] || continue
			# A thread's first step comes a moment after the bind.
			paused() { [ "$(cat "$last/state")" = paused ]; }
			tries=40
			until paused || [ $tries = 0 ]; do tries=$((tries - 1)); usleep 20000; done
			paused || wrong="$wrong $(cat "$last/state")"
		done
	fi
	echo online > "$block/state"
	[ -e "$driver/$second" ] || echo "$second" > $driver/bind
	cycle=$((cycle + 1))
done 2> /dev/null
[ $offlined -gt 0 ] && [ -z "$wrong" ] && ok "memory goes offline during bind: no device works on it" ||
	not_ok "memory goes offline during bind: no device works on it" "offline $offlined times of 40; state:$wrong"
echo "# offline $offlined times of 40"

# Blocks of memory come and go while the module does.
(while :; do for path in $blocks; do echo offline > "$path/state"; echo online > "$path/state"; done; done) 2> /dev/null &
storm=$!
cycle=0
loads=0
while [ $cycle -lt 20 ]; do
	unload
	load 2> /dev/null && loads=$((loads + 1))
	usleep $((cycle * 7 % 13 * 5000))
	cycle=$((cycle + 1))
done
kill $storm
wait $storm 2> /dev/null
for path in $blocks; do [ "$(cat "$path/state")" = online ] || echo online > "$path/state"; done
unload
check "loads after memory came and went during 20 loads" load
echo "# $loads of 20 loads found all memory online"
eventually state_is 0 running && eventually state_is 1 running && ok "both devices run" || not_ok "both devices run"
# An administrator may point the driver at any function, which then comes with no word of the driver's own table.
stranger=0000:00:00.0
echo neotier > /sys/bus/pci/devices/$stranger/driver_override
(echo $stranger > /sys/bus/pci/drivers_probe) 2> /dev/null
[ ! -e /sys/bus/pci/devices/$stranger/driver ] && state_is 0 running && log_clean &&
	ok "driver_override: a stranger is refused" || not_ok "driver_override: a stranger is refused" "$(log_since | tail -n 3)"
echo > /sys/bus/pci/devices/$stranger/driver_override
ids=$(cat /sys/bus/pci/devices/$stranger/vendor /sys/bus/pci/devices/$stranger/device | tr '\n' ' ')
echo "$ids" > $driver/new_id && [ ! -e /sys/bus/pci/devices/$stranger/driver ] && state_is 0 running && log_clean &&
	ok "new_id: a stranger is refused" || not_ok "new_id: a stranger is refused" "$(log_since | tail -n 3)"
echo "$ids" > $driver/remove_id
check "module unloads" unload
device_stop
check "kernel log clean" log_clean
finish

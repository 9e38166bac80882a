#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# sysfs against docs/abi: the same files, the modes, a good and a bad write of each that can be written.
. "$(dirname "$0")/kmod_lib.sh"

begin

(cd $sys && find . -type f | sed 's,^\./,,;s,^device[0-9]*/,device<n>/,' | sort -u) > /tmp/abi.present
sed -n 's,^What:[[:space:]]*/sys/kernel/neotier/,,p' "$NEOTIER_ABI" | sort > /tmp/abi.described
if [ -s /tmp/abi.present ] && cmp -s /tmp/abi.present /tmp/abi.described; then
	ok "the ABI text names exactly the files present"
else
	not_ok "the ABI text names exactly the files present" "$(diff /tmp/abi.present /tmp/abi.described | grep '^[+-<>][^+-]' | tr '\n' ' ')"
fi

# What the text says of a file: (RO) or (RW)
access() {
	awk -v what="/sys/kernel/neotier/$1" '/^What:/ { here = ($2 == what) } here && /\(R[OW]\)/ { print substr($1, 2, 2); exit }' "$NEOTIER_ABI"
}

while read -r name; do
	path=$sys/$(echo "$name" | sed 's,^device<n>,device0,')
	case $(access "$name") in
	RO) want=444 ;;
	RW) want=644 ;;
	*) want=none ;;
	esac
	mode=$(busybox stat -c %a "$path" 2>/dev/null)
	if [ "$mode" = "$want" ] && [ -n "$(cat "$path")$(case $name in exclude_* | include_*) echo empty ;; esac)" ]; then
		ok "$name: mode $mode, readable"
	else
		not_ok "$name: mode $mode, readable" "described as $want"
	fi
	[ "$want" = 444 ] || continue
	if echo 1 2>/dev/null > "$path"; then not_ok "$name: a write fails"; else ok "$name: a write fails"; fi
done < /tmp/abi.described

# rw <file> <good value> <what it reads as then> <bad value> ...: then the old value is put back
rw() {
	local name=$1 good=$2 reads=$3 path=$sys/$1 old now bad
	shift 3
	old=$(cat "$path" | sed 's/.*\[\(.*\)\].*/\1/')
	if echo "$good" 2>/dev/null > "$path"; then
		now=$(cat "$path")
		[ "$now" = "$reads" ] && ok "$name: takes $good" || not_ok "$name: takes $good" "reads $now"
	else
		not_ok "$name: takes $good"
	fi
	for bad in "$@"; do
		if echo "$bad" 2>/dev/null > "$path"; then
			not_ok "$name: refuses '$bad'"
		elif [ "$(cat "$path")" = "$reads" ]; then
			ok "$name: refuses '$bad'"
		else
			not_ok "$name: refuses '$bad'" "but changed to $(cat "$path")"
		fi
	done
	echo "$old" > "$path"
}

knob enabled 1
rw enabled 0 0 2 -1 yes
rw dry_run 1 1 2 x
rw quota_mb_per_s 77 77 1048577 -1 ""
rw period_us 250 250 99 60000001 5ms
rw decide_interval_ms 50 50 0 60001 x
rw headroom_pages 4096 4096 2147483648 x
rw reserve_pages 0 0 1048577 x
rw batch 512 512 0 513
rw confirm_epochs 8 8 0 9
rw p_start_ppm 2000 2000 0 1000001
rw p_min_ppm 10 10 0 1000001
rw p_max_ppm 1000000 1000000 0 1000001
rw saved_ns 160 160 0 100001
rw payback_ms 5000 5000 0 60001
rw loss_ppm 0 0 1000001 -1 x
rw loss_base_ms 10000 10000 10001 x
rw log_interval_s 2678400 2678400 2678401 x
rw split_huge 0 0 2 x
rw page_cache 0 0 2 x
rw exclude_cgroups "1 0x10" "1 16" "1 x" "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17"
rw include_cgroups "7" "7" "-1" "0x" "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17"
for name in exclude_pids include_pids; do
	rw $name "1 $$" "1 $$" 0 x -1 4294967296 2147483648 1-2
done
rw exclude_nodes "0 1" "0 1" 65536 x -1 0-1
for name in exclude_ranges include_ranges; do
	rw $name "4096-0x1fff 0x3000-0x3fff" "0x1000-0x1fff 0x3000-0x3fff" 5 2-1 1- -1 x-y 0x1000-0x1fff-0x2fff 0-18446744073709551616
done
for name in exclude_cgroups include_cgroups exclude_pids include_pids exclude_nodes exclude_ranges include_ranges; do
	[ "$(cat $sys/$name)" = "" ] && ok "$name: an empty line clears it" || not_ok "$name: an empty line clears it"
done
first=$(sed 's/.*\[\(.*\)\].*/\1/' $sys/policy)
for policy in $(tr -d '[]' < $sys/policy); do
	echo "$policy" > $sys/policy
	grep -q "\[$policy\]" $sys/policy && ok "policy: takes $policy" || not_ok "policy: takes $policy"
done
echo "$first" > $sys/policy
if echo nonsense 2>/dev/null > $sys/policy; then not_ok "policy: refuses 'nonsense'"; else ok "policy: refuses 'nonsense'"; fi

for room in kswapd exchange; do
	echo $room > $sys/room
	grep -q "\[$room\]" $sys/room && ok "room: takes $room" || not_ok "room: takes $room"
done
if echo nonsense 2>/dev/null > $sys/room; then not_ok "room: refuses 'nonsense'"; else ok "room: refuses 'nonsense'"; fi

max=$(cat $sys/device0/counter_max)
rw device0/threshold 33 33 0 $((max + 1)) x
rw device0/epoch_us 10000 10000 50 4095100 100000001 10ms
rw device0/mode epoch "[epoch] always_on" never
rw device0/track reads "[reads] writes all" none
rw device0/downsampling 16 16 0 3 32769
rw device0/random_downsampling 1 1 2
rw device0/decay_shift 1 1 16 x
rw device0/fill_level 100 100 0 65536 x
if grep -q neotier /proc/interrupts; then
	rw device0/irq 1 1 2 -1
else
	rw device0/irq 0 0 1 2 -1
fi

usleep 300000
[ "$(stat decisions)" -gt 0 ] && ok "the policy decides" || not_ok "the policy decides"
for event in neotier_report neotier_decide neotier_promote neotier_promote_page neotier_skip; do
	[ -e /sys/kernel/tracing/events/neotier/$event/format ] && ok "tracepoint $event" || not_ok "tracepoint $event"
done
if [ -e /sys/kernel/btf/vmlinux ]; then
	check "module BTF loaded" [ -s /sys/kernel/btf/neotier ]
else
	skip "module BTF loaded" "this kernel has none itself"
fi
check "module unloads" unload
[ ! -e $sys ] && ok "nothing stays in sysfs" || not_ok "nothing stays in sysfs"
device_stop
check "kernel log clean" log_clean
finish

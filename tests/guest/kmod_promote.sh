#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# Promotion: contents survive, dry_run and the knobs hold, the quota is kept, a full node makes room by demotion.
. "$(dirname "$0")/kmod_lib.sh"

begin
ok "module loads"
# What the machine model charges for reading reports is true of write-combining memory only.
memory_types=/sys/kernel/debug/x86/pat_memtype_list
[ -e $memory_types ] || mount -t debugfs debugfs /sys/kernel/debug 2> /dev/null
bar=$(awk 'NR == 3 { print $1 }' /sys/bus/pci/drivers/neotier/0000:*/resource)
window=$(printf '0x%016x-0x%016x' $((bar + 0x1000)) $((bar + 0x9000)))
if [ "$NEOTIER_FAKE" = 1 ]; then
	skip "the hotlist's whole pages are mapped write-combining" "the program that plays the device has them uncached"
elif grep -q sse4_1 /proc/cpuinfo && [ -e $memory_types ]; then
	grep -q "$window. write-combining" $memory_types && ok "the hotlist's whole pages are mapped write-combining" ||
		not_ok "the hotlist's whole pages are mapped write-combining" "$window: $(grep "${window%%-*}" $memory_types)"
else
	skip "the hotlist's whole pages are mapped write-combining" "no SSE4.1, or no $memory_types"
fi
node=$(slow_node)
content="$NEOTIER_BIN/kmod_content node=$node"
echo 0 > /proc/sys/kernel/numa_balancing
knob dry_run 1

# The device's threshold as low as it goes: this is about moving pages, not about choosing them.
echo 1 > $sys/device0/threshold

before=$(stat promoted)
content_until "above dry_run_pages 0" node="$node" mb=8 want=0
status=$?
if [ $status -eq 0 ] && [ "$(stat promoted)" = "$before" ] && [ "$(stat tried)" = "$before" ] && [ "$(stat dry_run_pages)" -gt 0 ]; then
	ok "dry_run tries nothing and moves nothing"
else
	not_ok "dry_run tries nothing and moves nothing" "$line promoted=$(stat promoted) dry_run_pages=$(stat dry_run_pages)"
fi
knob dry_run 0

knob confirm_epochs 8
echo 1000000 > $sys/device0/epoch_us
before=$(stat promoted)
content_until "above skipped_unconfirmed $(stat skipped_unconfirmed)" node="$node" mb=8 want=0
if [ "$(stat promoted)" = "$before" ] && [ "$(stat skipped_unconfirmed)" -gt 0 ]; then
	ok "pages hot in fewer epochs than confirm_epochs stay"
else
	not_ok "pages hot in fewer epochs than confirm_epochs stay" "promoted $before -> $(stat promoted) unconfirmed=$(stat skipped_unconfirmed)"
fi
echo 50000 > $sys/device0/epoch_us
knob confirm_epochs 1

knob quota_mb_per_s 0
before=$(stat promoted)
content_until "above skipped_quota 0" node="$node" mb=8 want=0
[ "$(stat promoted)" = "$before" ] && ok "quota 0 promotes nothing" || not_ok "quota 0 promotes nothing"
[ "$(stat skipped_quota)" -gt 0 ] && ok "pages held back by the quota are counted" || not_ok "pages held back by the quota are counted"
knob quota_mb_per_s 1024

knob enabled 0
usleep 20000
before=$(stat drained)
$content mb=8 seconds=1 want=0 > /dev/null
[ "$(stat drained)" = "$before" ] && [ "$(cat $sys/device0/state)" = off ] && ok "enabled 0 drains nothing" ||
	not_ok "enabled 0 drains nothing" "drained $before -> $(stat drained), state $(cat $sys/device0/state)"
knob enabled 1

before=$(stat promoted)
kernel_before="$(vmstat pgmigrate_success) $(vmstat pgpromote_success)"
ns=$(stat promote_ns)
line=$($content mb=16 seconds=100000 stop=3900 want=3900)
status=$?
echo "# $line"
moved=$(($(stat promoted) - before))
[ "$moved" -gt 0 ] && echo "# promoted=$moved tried=$(stat tried) ns_per_page=$((($(stat promote_ns) - ns) / moved))"
[ $status -eq 0 ] && ok "16 MiB promoted while written: contents as written" || not_ok "16 MiB promoted while written: contents as written" "$line"
# Nobody else moves pages here. Again and again, since the last batch may still be on its way.
kernel_counts() {
	moved=$(($(stat promoted) - before))
	kernel="$(($(vmstat pgmigrate_success) - ${kernel_before% *})) $(($(vmstat pgpromote_success) - ${kernel_before#* }))"
	[ "$kernel" = "$moved $moved" ]
}
eventually kernel_counts && ok "pgmigrate_success and pgpromote_success count what was promoted" ||
	not_ok "pgmigrate_success and pgpromote_success count what was promoted" "by $kernel, stats/promoted by $moved"

# 4 MiB/s is 1024 pages/s; the bucket holds 100 ms of that. By the clock around it all: promotion goes on until the end.
uptime_ms() { awk '{ printf "%d", $1 * 1000 }' /proc/uptime; }
knob quota_mb_per_s 4
start=$(uptime_ms)
before=$(stat promoted)
$content mb=32 seconds=3 > /dev/null
moved=$(($(stat promoted) - before))
ms=$(($(uptime_ms) - start))
limit=$((ms * 1024 / 1000 + 103 + 64))
echo "# $moved pages in $ms ms, limit $limit"
[ $moved -gt 0 ] && [ $moved -le $limit ] && ok "quota of 4 MB/s kept" || not_ok "quota of 4 MB/s kept" "$moved pages in $ms ms, limit $limit"
knob quota_mb_per_s 1024

# A cgroup whose pages stay where they are.
mkdir -p /tmp/cgroup
if mount -t cgroup2 none /tmp/cgroup 2> /dev/null && echo +memory > /tmp/cgroup/cgroup.subtree_control 2> /dev/null && mkdir /tmp/cgroup/stay; then
	knob exclude_cgroups "$(busybox stat -c %i /tmp/cgroup/stay)"
	own=$(sed -n 's/^0:://p' /proc/self/cgroup)
	echo 0 > /tmp/cgroup/stay/cgroup.procs
	content_until "above skipped_excluded 0" node="$node" mb=8 want=0
	status=$?
	echo 0 > "/tmp/cgroup$own/cgroup.procs"
	[ $status -eq 0 ] && [ "$(stat skipped_excluded)" -gt 0 ] && ok "an excluded cgroup keeps its pages" ||
		not_ok "an excluded cgroup keeps its pages" "$line skipped_excluded=$(stat skipped_excluded)"
	knob exclude_cgroups ""
else
	skip "an excluded cgroup keeps its pages" "no memory controller in cgroup 2 here"
fi

# mlock, a fork that shares, huge pages (which kmod_huge.sh splits): left alone and counted.
knob split_huge 0
for kind in mlock shared huge; do
	case $kind in mlock) counter=skipped_unevictable ;; shared) counter=skipped_shared ;; huge) counter=skipped_large ;; esac
	before=$(stat $counter)
	# A device that sees accesses would have the pages promoted while they are filled.
	knob enabled 0
	content_until "above $counter $before" node="$node" mb=8 want=0 $kind enable
	status=$?
	[ $status -eq 0 ] && [ "$(stat $counter)" -gt "$before" ] && ok "$kind pages stay: $counter" ||
		not_ok "$kind pages stay: $counter" "$line $counter $before -> $(stat $counter)"
done

# 64 MiB into a node full of cold anonymous pages.
demotion=/sys/kernel/mm/numa/demotion_enabled
tiers=$(find /sys/devices/virtual/memory_tiering -name 'memory_tier[0-9]*' 2> /dev/null | wc -l)
if [ ! -w $demotion ] || [ "$tiers" -lt 2 ]; then
	skip "64 MiB promoted into a full node" "this kernel demotes nothing: $tiers memory tiers"
elif [ "$NEOTIER_FAKE" != 1 ]; then
	skip "64 MiB promoted into a full node" "needs kmod_device: emulated, a program is too slow to keep 64 MiB hot"
else
	echo 1 > $demotion
	knob room kswapd
	keep_kswapd &
	keeper=$!
	demotions() { awk '/pgdemote_kswapd/ { print $2 }' /proc/vmstat; }
	node_free_kb() { awk '/MemFree/ { print $4 }' /sys/devices/system/node/node0/meminfo; }
	# Before free memory is looked at: the trace's is of that.
	tracing=/sys/kernel/tracing
	echo 1024 > $tracing/buffer_size_kb
	free_kb=$(node_free_kb)
	free=$((free_kb / 1024))
	before=$(stat promoted)
	ns=$(stat promote_ns)
	demoted=$(demotions)
	# What the module's thread asks for as memory of programs (__GFP_HIGHMEM) that nobody could move (no __GFP_MOVABLE).
	thread=$(grep -lx neotier/0 /proc/[0-9]*/comm | cut -d / -f 3)
	echo "common_pid == $thread && gfp_flags & 0x2 && !(gfp_flags & 0x8)" > $tracing/events/kmem/mm_page_alloc/filter
	echo 1 > $tracing/events/kmem/mm_page_alloc/enable
	# Whoever allocates wakes kswapd, this shell too. Only the module's wake-ups are the module's.
	echo "common_pid == $thread" > $tracing/events/vmscan/mm_vmscan_wakeup_kswapd/filter
	echo 1 > $tracing/events/vmscan/mm_vmscan_wakeup_kswapd/enable
	woken() { grep -c mm_vmscan_wakeup_kswapd: $tracing/trace; }
	reserved=$(stat reserved)
	# kmod_device needs no accesses to know what is hot, so that all the time is the module's and kswapd's.
	line=$($content mb=64 cold=$free seconds=100000 stop=15800 sleep want=15800)
	status=$?
	moved=$(($(stat promoted) - before))
	ms=$(field "$line" ms)
	demoted=$(($(demotions) - demoted))
	echo "# $line"
	echo "# node 0 had $free MiB free, $demoted pages demoted, promoted=$moved $((moved * 1000 / 256 / (ms + 1))) MB/s, ns_per_page=$((($(stat promote_ns) - ns) / (moved + 1))) room_waits=$(stat room_waits)"
	[ $status -eq 0 ] && ok "64 MiB promoted into a full node" || not_ok "64 MiB promoted into a full node" "$line"

	echo 0 > $tracing/events/kmem/mm_page_alloc/enable
	reserved=$(($(stat reserved) - reserved))
	asked=$(grep -c mm_page_alloc: $tracing/trace)
	[ "$(woken)" -gt 0 ] && ok "for many pages kswapd is woken" || not_ok "for many pages kswapd is woken" "room_waits $(stat room_waits)"
	[ $reserved -gt 0 ] && [ "$asked" -ge $reserved ] && ok "the reserve keeps off memory that is promised to be movable" ||
		not_ok "the reserve keeps off memory that is promised to be movable" "$reserved pages reserved, $asked asked for as unmovable"
	[ "$(stat reserved)" -gt 0 ] && ok "what kswapd freed for promotion is kept for it" || not_ok "what kswapd freed for promotion is kept for it"
	# The reserve held 4 MiB; page tables and slabs take some as well.
	reserve_returned() { [ $((free_kb - $(node_free_kb))) -lt 3072 ]; }
	eventually reserve_returned && ok "and given back when promotion rests" ||
		not_ok "and given back when promotion rests" "$free_kb KiB free before, $(node_free_kb) now"
	before=$(stat reserved)
	knob reserve_pages 0
	$content mb=16 cold=$free seconds=20 stop=3000 sleep > /dev/null
	[ "$(stat reserved)" = "$before" ] && ok "reserve_pages 0 keeps nothing" || not_ok "reserve_pages 0 keeps nothing" "reserved $before -> $(stat reserved)"
	knob reserve_pages 1024
	kill $keeper

	eventually reserve_returned
	# A boost, which comes when kinds of pages mix in a block, has kswapd free much more than that, and these find room.
	echo 0 > /proc/sys/vm/watermark_boost_factor
	# Any program that ends leaves more than 16 pages above low for a moment, and then there is nothing to hold back.
	knob headroom_pages 1024
	holds=$(stat room_holds)
	# Until the first holds, pages of a program that has ended may wait as well, and be worth it.
	held_alone() {
		eventually above room_holds $((holds + 50))
		echo > $tracing/trace
		waits=$(stat room_waits)
		holds=$(stat room_holds)
		eventually above room_holds $((holds + 50)) || :
	}
	# More is free than at the beginning where file pages were demoted as well.
	content_until held_alone node="$node" pages=16 cold=$(($(node_free_kb) / 1024 + 16)) sleep
	[ "$(woken)" = 0 ] && [ "$(stat room_waits)" = "$waits" ] && above room_holds $((holds + 50)) && ok "16 hot pages are not worth waking kswapd" ||
		not_ok "16 hot pages are not worth waking kswapd" "woken $(woken) times, room_waits $waits -> $(stat room_waits), room_holds $holds -> $(stat room_holds), $line"
	echo 0 > $tracing/events/vmscan/mm_vmscan_wakeup_kswapd/enable
	knob headroom_pages 0
	knob room exchange
fi

for name in "$sys"/stats/*; do
	name=${name##*/}
	value=$(stat "$name")
	[ "$value" = 0 ] || echo "# $name $value"
done
device_stop
check "module unloads" unload
check "kernel log clean" log_clean
finish

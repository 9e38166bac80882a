#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# Many CPUs: four threads use the pages that move; how many pages are unmapped at a time, what sleeps meanwhile, and how many
# TLB shootdown interrupts a promoted page costs.
. "$(dirname "$0")/kmod_lib.sh"

cpus=$(grep -c '^processor' /proc/cpuinfo)
if [ "$NEOTIER_FAKE" != 1 ] || [ "$cpus" -lt 2 ]; then
	skip "many CPUs" "needs kmod_device and more than one CPU"
	finish
fi
begin
node=$(slow_node)
content="$NEOTIER_BIN/kmod_content node=$node"
tracing=/sys/kernel/tracing
echo 0 > /proc/sys/kernel/numa_balancing
echo 1 > $sys/device0/threshold

# What the four threads themselves cost, with all but the moves.
knob enabled 0
knob dry_run 1
line=$($content mb=4 seconds=5 threads=4 want=0 enable)
idle_ms=$(field "$line" ms)
idle=$(field "$line" tlb)
knob dry_run 0

knob enabled 0
before=$(stat promoted)
echo 1 > $tracing/events/migrate/set_migration_pte/enable
echo 1 > $tracing/events/migrate/remove_migration_pte/enable
echo 1 > $tracing/events/workqueue/workqueue_queue_work/enable
echo 4096 > $tracing/buffer_size_kb
echo > $tracing/trace
line=$($content mb=4 seconds=100000 threads=4 stop=950 want=950 enable)
status=$?
moved=$(($(stat promoted) - before))
for event in migrate/set_migration_pte migrate/remove_migration_pte workqueue/workqueue_queue_work; do echo 0 > $tracing/events/$event/enable; done
grep 'neotier/0-' $tracing/trace > /tmp/trace.out
echo > $tracing/trace
echo "# $line"
[ $status -eq 0 ] && ok "4 MiB promoted while four threads write: contents as written" ||
	not_ok "4 MiB promoted while four threads write: contents as written" "$line"

# Of the device's thread alone: what it unmaps and maps again, and the work that lru_add_drain_all() waits for.
most=$(awk '/set_migration_pte/ { if (++n > most) most = n } /remove_migration_pte/ && n > 0 { n-- } END { print most + 0 }' /tmp/trace.out)
drains=$(awk '/set_migration_pte/ { n++ } /remove_migration_pte/ && n > 0 { n-- } /lru_add_drain/ && n > 0 { bad++ } END { print bad + 0 }' /tmp/trace.out)
[ "$most" = 1 ] && ok "one page is unmapped at a time" || not_ok "one page is unmapped at a time" "$most"
[ "$drains" = 0 ] && ok "no CPU's lists are drained while a page is unmapped" ||
	not_ok "no CPU's lists are drained while a page is unmapped" "$drains times"

tlb=$(field "$line" tlb)
own=$((idle * $(field "$line" ms) / (idle_ms + 1)))
hundredths=$(((tlb - own) * 100 / (moved + 1)))
[ "$hundredths" -ge 0 ] || hundredths=0
printf '# %d CPUs: %d shootdown interrupts, %d of them the threads'"'"' own, for %d promoted pages: %d.%02d a page\n' \
	"$cpus" "$tlb" "$own" "$moved" $((hundredths / 100)) $((hundredths % 100))
# One broadcast a page reaches all other CPUs at most; half a one more for what else the machine does.
[ "$hundredths" -le $(((cpus - 1) * 150)) ] && ok "no more than one TLB broadcast a promoted page" ||
	not_ok "no more than one TLB broadcast a promoted page" "$hundredths hundredths of an interrupt a page"

device_stop
check "module unloads" unload
check "kernel log clean" log_clean
finish

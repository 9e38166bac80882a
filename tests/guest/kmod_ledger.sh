#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# loss_ppm and loss_base_ms: what promotion may cost. Nothing moves until heat has lasted; with nothing to spend even looking
# stops; some hot pages stay as controls; what kswapd demotes and turns out hot is a regret that costs.
. "$(dirname "$0")/kmod_lib.sh"

if [ "$NEOTIER_FAKE" != 1 ]; then
	skip "the ledger" "needs kmod_device, which decides page by page what is hot"
	finish
fi
begin
node=$(slow_node)
content="$NEOTIER_BIN/kmod_content node=$node"
echo 0 > /proc/sys/kernel/numa_balancing
echo 1 > $sys/device0/threshold

# The device's thread, and its class: 0 is SCHED_OTHER, 3 is SCHED_BATCH.
thread=$(grep -lx neotier/0 /proc/[0-9]*/comm)
class_is() { [ "$(cut -d ' ' -f 41 "${thread%comm}stat")" = "$1" ]; }
check "without a bound its thread interrupts whom it likes" eventually class_is 0
knob loss_ppm 0
knob loss_base_ms 0
check "with one, and nothing won, it waits for its turn" eventually class_is 3
check "with nothing to spend the device rests" eventually state_is 0 resting
reported=$(stat drained)
line=$($content mb=8 seconds=3 sleep)
status=$?
[ $status -eq 0 ] && [ "$(stat promoted)" = 0 ] && [ "$(stat drained)" = "$reported" ] && [ "$(stat rests)" -gt 0 ] &&
	ok "and nothing is read or moved" || not_ok "and nothing is read or moved" "$line promoted $(stat promoted) drained $reported -> $(stat drained)"

# Time to spend, so that all may move that has been hot for long enough: the device reports one request in an epoch, so each has to
# be worth much.
knob saved_ns 100000
knob loss_base_ms 10000
# On a slow kernel moves cost more than that in all.
[ "$NEOTIER_SLOW" = 1 ] || knob loss_ppm 500000
check "with something to spend it runs" eventually state_is 0 running
before=$(stat skipped_control)
# What they win shows in the decision after their move, while the controls are still hot.
hurried=0
earned() {
	class_is 0 && hurried=1
	above won_ns 0 && above promoted 1800 && [ $hurried = 1 ]
}
content_until earned node="$node" mb=8 want=1800 sleep
status=$?
controls=$(($(stat skipped_control) - before))
[ $status -eq 0 ] && [ $controls -gt 0 ] && ok "pages move once their heat has lasted, and some stay as controls" ||
	not_ok "pages move once their heat has lasted, and some stay as controls" "$line controls=$controls"
[ "$(stat won_ns)" -gt 0 ] && ok "what was promoted has won time, by the controls" || not_ok "what was promoted has won time, by the controls" "won_ns=$(stat won_ns)"
check "while much is won its thread does not wait for its turn" [ $hurried = 1 ]
echo "# spent $(stat spent_ns) won $(stat won_ns) regret $(stat regret_ns) ns, $(stat promoted) promoted, $controls reports of controls"

# A second of that heat saves 20 ns, and a move takes 1 us or more, whatever it costs here.
knob saved_ns 1
promoted=$(stat promoted)
controls=$(stat skipped_control)
$content mb=16 seconds=$((3 * NEOTIER_SLOW)) sleep > /dev/null
moved=$(($(stat promoted) - promoted))
[ $moved = 0 ] && above skipped_control "$controls" && ok "what would not repay its move within a second stays" ||
	not_ok "what would not repay its move within a second stays" "$moved moved, $(($(stat skipped_control) - controls)) reports of controls"
knob loss_ppm 1000000
line=$($content mb=16 seconds=100000 stop=3900 want=3900 sleep)
status=$?
[ $status -eq 0 ] && ok "without a bound all of them move" || not_ok "without a bound all of them move" "$line"

told() { dmesg | grep -c 'pages promoted, .* ms won, .* ms spent, .* ms regretted'; }
[ "$(told)" = 0 ] && ok "a line a day in the log, not before" || not_ok "a line a day in the log, not before" "$(told) lines"
knob log_interval_s 1
twice() { [ "$(told)" -ge 2 ]; }
check "a line in each interval" eventually twice
knob log_interval_s 0
dmesg | grep -q "in [0-9]* s: [1-9][0-9]* pages promoted, 0 demoted; [1-9][0-9]* ms won" && ok "says what was moved and won" ||
	not_ok "says what was moved and won" "$(dmesg | grep 'pages promoted')"

# Another program's pages in the frames that are free again. One in 127 is taken for what lay there.
fresh_is_no_regret() {
	each=$((($(stat regret_ns) - before) / ($(stat drained) - drained + 1)))
	before=$(stat regret_ns)
	drained=$(stat drained)
	line=$($content mb=48 seconds=$((2 * NEOTIER_SLOW)) sleep)
	fresh=$((($(stat regret_ns) - before) / ($(stat drained) - drained + 1)))
	echo "# regret for each report: $each ns, of pages that came later $fresh ns, $(($(stat drained) - drained)) reports"
	[ $fresh -lt $((each / 8)) ] && ok "what comes to lie in the frame of a demoted page is no regret" ||
		not_ok "what comes to lie in the frame of a demoted page is no regret" "$each ns for each report, then $fresh; $line"
}

# The cold memory that kswapd demotes to make room is what turns hot.
if [ -w /sys/kernel/mm/numa/demotion_enabled ] && grep -q remove_migration_pte /sys/kernel/tracing/available_events; then
	echo 1 > /sys/kernel/mm/numa/demotion_enabled
	knob room kswapd
	knob saved_ns 100
	before=$(stat regret_ns)
	drained=$(stat drained)
	demoted=$(vmstat pgdemote_kswapd)
	line=$($content mb=16 cold=$(($(node_free_mb) + 16)) seconds=$((60 * NEOTIER_SLOW)) stop=3900 sleep turn)
	if [ "$(vmstat pgdemote_kswapd)" = "$demoted" ]; then
		skip "what kswapd has demoted and turns out hot costs" "this kernel's kswapd demotes nothing here"
		skip "what comes to lie in the frame of a demoted page is no regret" "this kernel's kswapd demotes nothing here"
	elif [ "$(stat regret_ns)" -gt "$before" ]; then
		ok "what kswapd has demoted and turns out hot costs"
		fresh_is_no_regret
	else
		not_ok "what kswapd has demoted and turns out hot costs" "$line regret_ns $before -> $(stat regret_ns)"
	fi
else
	skip "what kswapd has demoted and turns out hot costs" "this kernel does not demote, or does not tell"
	skip "what comes to lie in the frame of a demoted page is no regret" "this kernel does not demote, or does not tell"
fi
unload

# A device that counts what it is told to says how hot a control is, whatever it reports. watched [arguments of kmod_device]
watched() {
	device_stop
	device_start "$@"
	load || return 1
	echo 1 > $sys/device0/threshold
	knob saved_ns 100000
	knob loss_base_ms 10000
	knob loss_ppm 500000
}
watched watch=0 || not_ok "a device that counts what it is told to"
$content mb=8 seconds=$((3 * NEOTIER_SLOW)) sleep > /dev/null
[ "$(stat promoted)" = 0 ] && above skipped_control 0 && ok "what is reported over and over, and counted 0 times, stays" ||
	not_ok "what is reported over and over, and counted 0 times, stays" "$(stat promoted) promoted, $(stat skipped_control) reports of controls"
unload
watched watch=20 || not_ok "a device that counts what it is told to"
won() { above won_ns 0 && above promoted 1800; }
content_until won node="$node" mb=8 want=1800 sleep
status=$?
[ $status -eq 0 ] && ok "what is counted as hot moves, and wins" ||
	not_ok "what is counted as hot moves, and wins" "$line $(stat promoted) promoted, won_ns $(stat won_ns)"
unload
watched lie=watch || not_ok "a device that counts nonsense"
$content mb=8 seconds=$((2 * NEOTIER_SLOW)) sleep > /dev/null
state_is 0 running && above skipped_control 0 && ok "one that counts nonsense is borne with" ||
	not_ok "one that counts nonsense is borne with" "state $(cat $sys/device0/state)"
unload
check "kernel log clean" log_clean
finish

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# In the guest, as root, with neotier.ko loaded and enabled: neotier-bpf agrees with the module's own counters while
# pages are promoted. TAP on standard output; exit 0 all passed, 1 not, 4 skipped.
#
#   BPF_LOAD    command that makes pages hot, run in the background (default: what runs already is enough)
#   BPF_SECONDS how long to wait for promotions (default 60)

tool=/bin/neotier-bpf
stats=/sys/kernel/neotier/stats
seconds=${BPF_SECONDS:-60}
n=0
failed=0

ok() {
  n=$((n + 1))
  echo "ok $n - $1"
}
not_ok() {
  n=$((n + 1))
  failed=1
  echo "not ok $n - $1"
  shift
  for line in "$@"; do echo "# $line"; done
}
# result WHAT CONDITION... : the condition is test's
result() {
  what=$1
  shift
  if [ "$@" ]; then ok "$what"; else not_ok "$what" "$*"; fi
}
skip_all() {
  echo "1..0 # SKIP $1"
  exit 4
}
# field FILE NAME: a number out of the last line of JSON
field() { tail -n 1 "$1" | sed -n "s/.*\"$2\":\([0-9][0-9]*\).*/\1/p"; }
# histogram_sum FILE: what the bins of the last line hold together
histogram_sum() {
  tail -n 1 "$1" | sed 's/.*"histogram":\[\([^]]*\)\].*/\1/' | tr '{' '\n' |
    sed -n 's/.*"count":\([0-9]*\).*/\1/p' | { sum=0; while read -r c; do sum=$((sum + c)); done; echo $sum; }
}
promoted() { cat $stats/promoted; }
skipped() {
  sum=0
  for file in "$stats"/skipped_*; do sum=$((sum + $(cat "$file"))); done
  echo $sum
}

[ -x $tool ] || skip_all "no $tool: bpf/ was not built"
[ -d /sys/module/neotier ] || skip_all "the module is not loaded"
[ -d $stats ] || skip_all "no $stats: another version of the module"

echo "1..10"
out=$(mktemp)
errors=$(mktemp)
users=$(cat /sys/module/neotier/refcnt)

$tool --interval 0 > "$out" 2> "$errors"
result "wrong usage ends with 2" $? -eq 2
result "and one line" "$(wc -l < "$errors")" -eq 1

before_promoted=$(promoted)
before_skipped=$(skipped)
$tool --json --interval 3600 > "$out" 2> "$errors" &
watcher=$!
# Attached when the module has users more than before.
waited=0
while [ "$(cat /sys/module/neotier/refcnt)" -le "$users" ] && kill -0 $watcher 2> /dev/null && [ $waited -lt 30 ]; do
  sleep 1
  waited=$((waited + 1))
done
result "attached within 30 s" "$(cat /sys/module/neotier/refcnt)" -gt "$users"
attached_promoted=$(promoted)
attached_skipped=$(skipped)

load=
if [ -n "${BPF_LOAD:-}" ]; then
  sh -c "$BPF_LOAD" > /dev/null 2>&1 &
  load=$!
fi
waited=0
while [ "$(promoted)" -eq "$attached_promoted" ] && [ "$waited" -lt "$seconds" ]; do
  sleep 1
  waited=$((waited + 1))
done
# A few more, so that there is a distribution.
sleep 2
detach_promoted=$(promoted)
detach_skipped=$(skipped)
kill -INT $watcher
wait $watcher
status=$?
after_promoted=$(promoted)
after_skipped=$(skipped)
if [ -n "$load" ]; then
  kill $load 2> /dev/null
  wait $load 2> /dev/null
fi

if [ "$status" -eq 0 ]; then ok "a signal ends it with 0"; else not_ok "a signal ends it with 0 (was $status)" "$(cat "$errors")"; fi
count=$(field "$out" promoted)
count=${count:-0}
result "promotions were seen" "$count" -gt 0
result "the histogram holds each of them" "$(histogram_sum "$out")" -eq "$count"
# The tool began and ended somewhere between two readings of the module's counter.
most=$((after_promoted - before_promoted))
least=$((detach_promoted - attached_promoted))
if [ "$count" -ge "$least" ] && [ "$count" -le "$most" ]; then
  ok "promotions agree with the module's counter"
else
  not_ok "promotions agree with the module's counter" "seen $count, counted by the module $least to $most"
fi
count=$(field "$out" skipped)
count=${count:-0}
most=$((after_skipped - before_skipped))
least=$((detach_skipped - attached_skipped))
if [ "$count" -ge "$least" ] && [ "$count" -le "$most" ]; then
  ok "skips agree with the module's counters"
else
  not_ok "skips agree with the module's counters" "seen $count, counted by the module $least to $most"
fi
result "nothing was lost" "$(field "$out" missed)$(field "$out" unknown)" = 00
# The kernel lets go of a tracepoint after a grace period.
waited=0
while [ "$(cat /sys/module/neotier/refcnt)" -ne "$users" ] && [ $waited -lt 10 ]; do
  sleep 1
  waited=$((waited + 1))
done
result "the module has its users of before" "$(cat /sys/module/neotier/refcnt)" -eq "$users"

rm -f "$out" "$errors"
exit $failed

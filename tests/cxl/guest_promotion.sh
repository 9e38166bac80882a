# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# In the guest of machine `cxl`; the module comes with the text "ready". Promotion, with the PFN of every hot and every
# promoted page printed, and what the devices say of themselves. Lines of TAP without numbers.
/bin/busybox --install -s /bin
tracing=/sys/kernel/tracing
sys=/sys/kernel/neotier

result() {
  what=$1
  shift
  if [ "$@" ]; then echo "ok $what"; else echo "not ok $what: $*"; fi
}
# all FILE: of every device, on one line
all() { cat $sys/device*/"$1" 2> /dev/null | tr '\n' ' ' | sed 's/ $//'; }
echo 8192 > $tracing/buffer_size_kb
/test/hot_pages pages=2048 hot=512 seconds=10 trace=1
result "contents are as written" $? = 0
echo 0 > $tracing/events/neotier/neotier_promote_page/enable
grep -o 'src_pfn=0x[0-9a-f]*' $tracing/trace

result "the devices know their memory devices" "$(all serial)" = "0x4e540001 0x4e540002"
result "and their places in the interleave" "$(all interleave_ways) $(all interleave_granularity) $(all interleave_position)" = "2 2 4096 4096 0 1"
result "both watch the whole region on node 1" "$(all hpa_size) $(all node)" = "536870912 536870912 1 1"

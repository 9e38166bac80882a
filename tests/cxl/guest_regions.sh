# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# In the guest of machine `cxl`, module loaded: the region is taken away and made anew, with and without the module. Lines
# of TAP without numbers.
/bin/busybox --install -s /bin
sys=/sys/kernel/neotier
cxl=/sys/bus/cxl/devices

result() {
  what=$1
  shift
  if [ "$@" ]; then echo "ok $what"; else echo "not ok $what: $*"; fi
}
# all FILE: of every device, on one line
all() { cat $sys/device*/"$1" 2> /dev/null | tr '\n' ' ' | sed 's/ $//'; }
# until_all FILE VALUE: within 5 s
until_all() {
  for _ in $(seq 50); do
    [ "$(all "$1")" = "$2" ] && break
    usleep 100000
  done
  [ "$(all "$1")" = "$2" ]
}
destroy_region() {
  for block in /sys/devices/system/node/node1/memory[0-9]*; do
    echo offline > "/sys/devices/system/memory/${block##*/}/state" || return 1
  done
  echo dax0.0 > /sys/bus/dax/drivers/kmem/unbind && echo 0 > $cxl/region0/commit &&
    echo region0 > $cxl/decoder0.0/delete_region || return 1
  for decoder in "$cxl"/decoder[2-9]*.0; do echo 0 > "$decoder/dpa_size" || return 1; done
}

if destroy_region; then echo "ok the region is taken apart under the module"; else echo "not ok the region is taken apart under the module"; fi
result "the devices pause" "$(all state)" = "paused paused"
result "and say so once each" "$(dmesg | grep -c 'paused: part of its memory went offline')" = 2
/init region 256
result "a region of another granularity is made" $? = 0
until_all state "running running"
result "the devices are bound to it" "$(all state) $(all interleave_granularity)" = "running running 256 256"
echo 1 > $sys/confirm_epochs
for device in "$sys"/device*; do echo 8 > "$device/threshold"; done
/test/hot_pages pages=768 hot=192 seconds=10 > /tmp/out
result "contents are as written, with a page on two devices" $? = 0
before=$(cat $sys/stats/ambiguous)
result "reports are of several pages each, and counted" "$before" -gt 0

destroy_region
rmmod neotier
insmod /neotier/neotier.ko
result "the module loads without a region" $? = 0
[ ! -e $sys/device0 ] && grep -q 'waits for a committed region' /sys/kernel/debug/devices_deferred
result "and waits for it" $? = 0

# A memory device that goes while it is looked for: its driver is unbound and bound while ours looks for its region.
memory=$(readlink -f $cxl/mem0) memory=${memory%/*} memory=${memory##*/}
profilers=$(for path in /sys/bus/pci/devices/*; do
  [ "$(cat "$path/vendor" "$path/device" | tr '\n' ' ')" = "0x1af4 0x1110 " ] && echo "${path##*/}"
done)
(while :; do echo "$memory" > /sys/bus/pci/drivers/cxl_pci/unbind; echo "$memory" > /sys/bus/pci/drivers/cxl_pci/bind; done) &
unbinder=$!
looks=0
while [ $looks -lt 100 ]; do
  for path in $profilers; do echo "$path" > /sys/bus/pci/drivers/neotier/bind; done
  looks=$((looks + 1))
done 2> /dev/null
kill $unbinder
wait $unbinder 2> /dev/null
[ -e "/sys/bus/pci/drivers/cxl_pci/$memory" ] || echo "$memory" > /sys/bus/pci/drivers/cxl_pci/bind
endpoints() { find $cxl/ -name 'endpoint*' | wc -l; }
for _ in $(seq 100); do
  [ "$(endpoints)" = 2 ] && break
  usleep 100000
done
result "both memory devices are there after 200 look-ups while one came and went" "$(endpoints)" = 2
for decoder in "$cxl"/decoder[2-9]*.0; do echo 0 > "$decoder/dpa_size"; done 2> /dev/null
/init region 8192
until_all state "running running"
result "the region comes, and the devices are bound" "$(all state) $(all interleave_granularity)" = "running running 8192 8192"
/test/hot_pages pages=768 hot=192 seconds=10 > /tmp/out
result "contents are as written, by chunks of two pages" $? = 0
rmmod neotier
result "the module unloads" $? = 0
bad=$(dmesg | grep -E 'WARNING|BUG:|Oops|Call Trace|general protection' | head -n 3)
result "the kernel log has no WARN, BUG or Oops" -z "$bad"

#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# page_cache: files' pages and shared memory, mapped or not, make room for hot pages, and come up when they are hot; contents
# are as written, nothing is leaked, and what is in use or whose owners want it where it is stays.
. "$(dirname "$0")/kmod_lib.sh"

if [ "$NEOTIER_FAKE" != 1 ]; then
	skip "page cache" "needs kmod_device, which decides page by page what is hot"
	finish
fi
begin
node=$(slow_node)
content="$NEOTIER_BIN/kmod_content node=$node"
file=$NEOTIER_BIN/kmod_file
echo 0 > /proc/sys/kernel/numa_balancing
[ ! -w /sys/kernel/mm/numa/demotion_enabled ] || echo 0 > /sys/kernel/mm/numa/demotion_enabled
echo 1 > $sys/device0/threshold
# With what each CPU keeps for itself.
node_free() {
	awk '/MemFree/ { sum += $4 } $1 == "count:" { sum += 4 * $2 } END { print int(sum / 1024) }' /sys/devices/system/node/node*/meminfo /proc/zoneinfo
}
slow_pages() { field "$($file path="$1")" slow; }
mkdir -p /tmp/files
mount -t tmpfs -o size=2G files /tmp/files
# cold <path> [arguments]: a file fills node 0 but for what the kernel keeps free
cold() {
	local path=$1 mb
	shift
	mb=$(node_free_mb)
	$file path="$path" mb=$((mb + 8)) "$@" > /dev/null
}

knob enabled 0
kernel_free=$(node_free)
cold /tmp/files/cold
before=$(slow_pages /tmp/files/cold)
knob enabled 1
promoted=$(stat promoted)
demoted=$(stat demoted)
# In use, so that it does not go down in its turn.
line=$($content mb=16 seconds=100000 stop=3900 want=3900 touch)
status=$?
up=$(($(stat promoted) - promoted))
down=$(($(stat demoted) - demoted))
gone=$(($(slow_pages /tmp/files/cold) - before))
echo "# $line promoted=$up demoted=$down of the file=$gone"
[ $status -eq 0 ] && ok "16 MiB into a node full of a file's pages" || not_ok "16 MiB into a node full of a file's pages" "$line"
# What else is cached, the test's own programs among it, makes room as well.
[ $gone -gt 500 ] && [ $down -le $((up * 11 / 10)) ] && ok "the file's pages made room, one for each" ||
	not_ok "the file's pages made room, one for each" "promoted $up, demoted $down, of the file $gone"
line=$($file path=/tmp/files/cold check)
status=$?
[ $status -eq 0 ] && ok "each word of the file as written" || not_ok "each word of the file as written" "$line"

# Up: those that have gone down are hot now, and are read and written all the time.
promoted=$(stat promoted)
line=$($file path=/tmp/files/cold feed read write seconds=1000 more=2000)
status=$?
[ $status -eq 0 ] && [ "$(field "$line" calls)" -gt 1000 ] && ok "hot pages of a file come up while it is read and written, each word right" ||
	not_ok "hot pages of a file come up while it is read and written, each word right" "$line promoted=$(($(stat promoted) - promoted))"
$file path=/tmp/files/shared mb=8 on="$node" > /dev/null
promoted=$(stat promoted)
line=$($file path=/tmp/files/shared feed map read write sharers=3 seconds=1000 more=1500)
status=$?
[ $status -eq 0 ] && [ "$(field "$line" calls)" -gt 1000 ] && ok "hot pages that four processes map come up while they are read and written, each word right" ||
	not_ok "hot pages that four processes map come up while they are read and written, each word right" "$line promoted=$(($(stat promoted) - promoted))"
for name in cold shared; do
	line=$($file path=/tmp/files/$name check)
	[ "$(field "$line" errors)" = 0 ] && ok "and stay right: $name" || not_ok "and stay right: $name" "$line"
done
rm /tmp/files/shared

# feeds <name> <counter>: the file's pages on the slow node are hot, and stay; the counter says why
feeds() {
	local before slow pid
	before=$(stat "$2")
	slow=$(slow_pages /tmp/files/cold)
	$file path=/tmp/files/cold feed seconds=100000 $3 > /tmp/file.line &
	pid=$!
	eventually above "$2" $((before + 50))
	eventually takes_term $pid
	kill $pid
	wait $pid
	line=$(cat /tmp/file.line)
	# Some may go down meanwhile, and none comes up.
	[ "$(field "$line" errors)" = 0 ] && [ "$(field "$line" slow)" -ge "$slow" ] && ok "$1: $2" ||
		not_ok "$1: $2" "$line slow before: $slow $2 $before -> $(stat "$2")"
}
[ "$(slow_pages /tmp/files/cold)" -gt 500 ] && ok "some are left on the slow node" || not_ok "some are left on the slow node" "$(slow_pages /tmp/files/cold)"
feeds "pages that more map than are looked at stay" skipped_owner "map sharers=64"
feeds "locked in one mapping they stay" skipped_unevictable "map lock"
$file path=/tmp/files/cold seconds=100000 map > /tmp/mapper.line &
mapper=$!
eventually takes_term $mapper
knob exclude_pids $mapper
feeds "where one that maps them is excluded they stay" skipped_process map
knob exclude_pids ""
kill $mapper
wait $mapper
knob include_pids 1
feeds "where processes are included nobody's pages stay" skipped_process
knob include_pids ""
feeds "bound to the slow node in one mapping they stay" skipped_mempolicy "map bind=$node"
feeds "as that is the file's policy from then on" skipped_mempolicy
knob page_cache 0
feeds "with page_cache 0 hot ones stay" skipped_file

# locked: locked memory takes what node 0 has left
locked_pid=
filled() { local left; left=$(node_free_mb) && sleep 2 && [ "$(node_free_mb)" -ge "$left" ]; }
locked() {
	$NEOTIER_BIN/kmod_content node=0 pages=16 cold=$(($(node_free_mb) + 16)) quiet filler=mlock sleep seconds=100000 > /tmp/locked.line &
	locked_pid=$!
	eventually takes_term $locked_pid
	eventually filled
}
unlocked() { kill $locked_pid; wait $locked_pid; }

# stays <name> [arguments of kmod_file]: the file's pages make no room, while some is wanted
stays() {
	local name=$1 most=0
	shift
	# A reader whose CPU the host did not let run for a tenth of a second seems to rest.
	case "$*" in *read*) most=500 ;; esac
	rests "above room_holds $(($(stat room_holds) + 40))" "$@"
	[ $status -eq 0 ] && [ $gone -le $most ] && ok "$name" || not_ok "$name" "$line of the file: $gone $(cat /tmp/file.line 2> /dev/null)"
}
left() { [ "$(slow_pages /tmp/files/cold)" -gt $((slow + $1)) ]; }
# rests <until> [arguments of kmod_file]: 8 MiB of a file on node 0, while room is wanted; $gone: its pages that left
rests() {
	local until=$1 pid=
	shift
	rm -f /tmp/files/cold /tmp/file.line
	knob enabled 0
	$file path=/tmp/files/cold mb=8 on=0 > /dev/null
	locked
	if [ $# -gt 0 ]; then
		$file path=/tmp/files/cold seconds=100000 "$@" > /tmp/file.line &
		pid=$!
		eventually takes_term $pid
	fi
	slow=$(slow_pages /tmp/files/cold)
	content_until "$until" node="$node" mb=16 enable sleep
	status=$?
	[ -z "$pid" ] || kill $pid
	[ -z "$pid" ] || wait $pid || status=1
	unlocked
	gone=$(($(slow_pages /tmp/files/cold) - slow))
}
stays "with page_cache 0 cold ones make no room"
knob page_cache 1
rests "left 500" map sharers=3
[ $status -eq 0 ] && [ $gone -gt 500 ] && ok "a file that four processes map and do not use makes room" ||
	not_ok "a file that four processes map and do not use makes room" "$line of the file: $gone"
stays "a mapped file that is read makes no room" map read sharers=3
stays "a program's code makes no room" map exec
stays "a file that is read makes no room" read

rm -f /tmp/files/cold
mkdir -p /tmp/bound
mount -t tmpfs -o size=2G,mpol=prefer:0 bound /tmp/bound
knob enabled 0
cold /tmp/bound/cold
slow=$(slow_pages /tmp/bound/cold)
before=$(stat kept_mempolicy)
content_until "above kept_mempolicy $before" node="$node" mb=16 enable sleep
[ "$(slow_pages /tmp/bound/cold)" = "$slow" ] && ok "a file system with a memory policy stays: kept_mempolicy" ||
	not_ok "a file system with a memory policy stays: kept_mempolicy" "$slow -> $(slow_pages /tmp/bound/cold)"
umount /tmp/bound

# A file system on a disk.
for name in crc32c_generic crc16 mbcache jbd2 ext4; do insmod /test/$name.ko 2> /dev/null; done
insmod /test/brd.ko rd_nr=1 rd_size=65536 2> /dev/null
# A RAM disk that is built in would keep what is written to it.
if grep -qw ext4 /proc/filesystems && gzip -dc /test/ext4.gz > /dev/ram0 2> /dev/null && mkdir -p /tmp/disk &&
	mount -t ext4 /dev/ram0 /tmp/disk 2> /dev/null; then
	knob enabled 0
	$file path=/tmp/disk/file mb=32 > /dev/null
	sync
	echo 1 > /proc/sys/vm/drop_caches
	$file path=/tmp/disk/file on=0 > /dev/null
	slow=$(slow_pages /tmp/disk/file)
	locked
	line=$($content mb=32 enable sleep seconds=$((10 * NEOTIER_SLOW)))
	status=$?
	gone=$(($(slow_pages /tmp/disk/file) - slow))
	[ $status -eq 0 ] && [ $gone -gt 500 ] && ok "clean pages of a file on a disk make room" ||
		not_ok "clean pages of a file on a disk make room" "$line of the file: $gone"
	line=$($file path=/tmp/disk/file check)
	[ "$(field "$line" errors)" = 0 ] && ok "each word of it as written" || not_ok "each word of it as written" "$line"
	echo 1 > /proc/sys/vm/drop_caches
	line=$($file path=/tmp/disk/file check)
	[ "$(field "$line" errors)" = 0 ] && ok "and so on the disk" || not_ok "and so on the disk" "$line"
	echo 1 > /proc/sys/vm/drop_caches
	$file path=/tmp/disk/file on="$node" > /dev/null
	slow=$(slow_pages /tmp/disk/file)
	promoted=$(stat promoted)
	line=$($file path=/tmp/disk/file seconds=1000 read map feed more=500)
	status=$?
	[ $status -eq 0 ] && ok "clean pages of it that are mapped come up while they are read, each word right" ||
		not_ok "clean pages of it that are mapped come up while they are read, each word right" "$line slow before: $slow promoted=$(($(stat promoted) - promoted))"
	for how in "" map; do
		line=$($file path=/tmp/disk/file seconds=3 read write feed $how)
		[ "$(field "$line" errors)" = 0 ] && ok "each word right while it is read and written${how:+ through a mapping}" ||
			not_ok "each word right while it is read and written${how:+ through a mapping}" "$line"
	done
	sync
	echo 1 > /proc/sys/vm/drop_caches
	line=$($file path=/tmp/disk/file check)
	[ "$(field "$line" errors)" = 0 ] && ok "written while its pages are hot, and written back: as it was written" ||
		not_ok "written while its pages are hot, and written back: as it was written" "$line"
	unlocked
	umount /tmp/disk && rmmod brd && ok "the file system can be unmounted" || not_ok "the file system can be unmounted" "$(mount)"
else
	skip "a file system on a disk" "no ext4 for this kernel"
fi

umount /tmp/files
unload
echo 3 > /proc/sys/vm/drop_caches
freed() { [ "$(node_free)" -ge $((kernel_free - 8)) ]; }
eventually freed
echo "# free: $kernel_free MiB before, $(node_free) after"
freed && ok "no page was lost" || not_ok "no page was lost" "free: $kernel_free MiB before, $(node_free) after"
check "kernel log clean" log_clean
finish

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Host side: boots a stock kernel in QEMU (TCG) with two NUMA nodes and two plain ivshmem devices, each behind a root port
# of its own, runs the kmod_*.sh tests in it with kmod_device as the device, prints their TAP. No emulator of the profiler
# is involved; a device that nobody plays is a stranger's. Four CPUs: what the module does at the same time elsewhere counts.
#   kmod_run.sh <kernel> <neotier.ko> [script ...]
# MOVABLE=1: node 1 is memory that was plugged in, all of it ZONE_MOVABLE, as daxctl brings CXL memory online.
# SMP: CPUs. ICOUNT=<shift> makes guest time count instructions, on one CPU. NODE0, NODE1: MiB of memory. EXTRA: more QEMU
# arguments; APPEND: more kernel parameters. GUEST_ENV: settings for the scripts, NAME=value. UNTESTED: a neotier.ko that
# takes this kernel for a newer one than it was tested with.
# A line "== qemu: <command>" of the guest goes to QEMU's monitor.
# Exit: 0 all passed, 1 something failed, 4 cannot run here.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '3,12s/^# //p' "$0" >&2; exit 2; }
kernel=$1 module=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
for tool in qemu-system-x86_64 busybox cpio gcc; do
	command -v "$tool" > /dev/null || { echo "kmod_run: $tool is missing: skipped" >&2; exit 4; }
done
node0=${NODE0:-384} node1=${NODE1:-512}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{bin,proc,sys,dev,tmp,test}
cp "$(command -v busybox)" "$root/bin/busybox"
for program in kmod_device kmod_content kmod_file kmod_storm; do
	gcc -O2 -Wall -static -I"$top/include" -o "$root/test/$program" "$here/$program.c" -lpthread
done
cp "$here"/kmod_*.sh "$top/docs/abi/sysfs-kernel-neotier" "$root/test/"
# Debug information is most of the file, and the guest's memory is small.
strip --strip-debug -o "$root/test/neotier.ko" "$module"
[ -z "${UNTESTED:-}" ] || strip --strip-debug -o "$root/test/neotier-untested.ko" "$UNTESTED"
# A RAM disk, to swap to and for a file system, from the kernel's own modules where they are not built in.
modules=$(dirname "$(dirname "$kernel")")/lib/modules
for name in drivers/block/brd crypto/crc32c_generic lib/crc16 lib/crc/crc16 fs/mbcache fs/jbd2/jbd2 fs/ext4/ext4; do
	found=("$modules"/*/kernel/"$name".ko*)
	case ${found[0]} in
	*.xz) xz -dc "${found[0]}" > "$root/test/${name##*/}.ko" ;;
	*.ko) cp "${found[0]}" "$root/test/${name##*/}.ko" ;;
	esac
done
# Without it the tests of a file system on a disk are skipped.
truncate -s 64M "$work/ext4"
if PATH=$PATH:/usr/sbin:/sbin mkfs.ext4 -q -E lazy_itable_init=0 "$work/ext4"; then gzip -1 < "$work/ext4" > "$root/test/ext4.gz"; fi
rm "$work/ext4"
[ $# -gt 0 ] || set -- kmod_abi.sh kmod_promote.sh kmod_system.sh kmod_unload.sh kmod_hostile.sh kmod_bind.sh kmod_clock.sh kmod_ledger.sh kmod_rules.sh kmod_reset.sh
cat > "$root/init" << INIT
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tracefs tracefs /sys/kernel/tracing
# madvise: figures are for small pages, and one test asks for huge ones
echo madvise > /sys/kernel/mm/transparent_hugepage/enabled
# Plugged in memory comes online now, when the kernel knows how fast it is, and so which tier it is in.
grep -l offline /sys/devices/system/memory/memory*/state 2> /dev/null | while read -r state; do echo online_movable > "\$state"; done
export NEOTIER_FAKE=1 NEOTIER_SIZE=$((node1 << 20)) ${GUEST_ENV:-}
cd /test
for script in $*; do
	echo "== \$script"
	sh ./\$script
	echo "== exit \$?"
done
dmesg | grep -E 'WARNING|BUG|Oops|Call Trace' | head
poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) > "$work/initrd"
smp=${SMP:-4}
time=()
[ -z "${ICOUNT:-}" ] || { smp=1 time=(-icount "shift=$ICOUNT,sleep=off"); }
slow=(-numa "node,nodeid=1,memdev=m1,initiator=0") size=$((node0 + node1))M
if [ -n "${MOVABLE:-}" ]; then
	slow=(-numa "node,nodeid=1,initiator=0" -device "pc-dimm,memdev=m1,node=1,addr=0x100000000")
	size=${node0}M,slots=1,maxmem=$((node0 + node1))M
	APPEND="memhp_default_state=offline ${APPEND:-}"
fi
devices=()
for n in 0 1; do
	truncate -s 1M "$work/bar$n"
	devices+=(-device "pcie-root-port,id=port$n,chassis=$((n + 1))"
		-object "memory-backend-file,id=bar$n,size=1M,share=on,mem-path=$work/bar$n"
		-device "ivshmem-plain,id=device$n,memdev=bar$n,bus=port$n")
done
# An interrupt remapper, for x2APIC: its end of interrupt is no write to memory. QEMU 10.0 loses, rarely, such a write of one CPU
# while another one has it change its map of memory, as a reset or a removal of a device does. The first CPU's timer is silent then.
devices=(-device "intel-iommu,intremap=on,eim=on" "${devices[@]}")
mkfifo "$work/monitor.in" "$work/monitor.out"
# log_buf_len: the tests count lines of the log, which must not run over. watchdog_thresh: what the kernel takes for a
# stuck CPU may be one that the host did not let run.
# iomem=relaxed: else the kernel takes kmod_device's mapping of the BAR away once the driver claims it.
# max-ram-below-4g equal to node 0 puts node 1 at 4 GiB.
boot() {
	nice qemu-system-x86_64 -accel tcg -machine q35,hmat=on,max-ram-below-4g=${node0}M -cpu max,erms=off,fsrm=off -smp "$smp" \
		-m "$size" -display none -nodefaults -no-reboot -serial file:"$work/console" "${time[@]}" \
		-chardev pipe,id=monitor,path="$work/monitor" -mon chardev=monitor \
		-object memory-backend-ram,id=m0,size=${node0}M -object memory-backend-ram,id=m1,size=${node1}M \
		-numa node,nodeid=0,memdev=m0,cpus=0-$((smp - 1)) "${slow[@]}" \
		-numa hmat-lb,initiator=0,target=0,hierarchy=memory,data-type=access-latency,latency=90 \
		-numa hmat-lb,initiator=0,target=0,hierarchy=memory,data-type=access-bandwidth,bandwidth=100G \
		-numa hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-latency,latency=250 \
		-numa hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-bandwidth,bandwidth=20G \
		"${devices[@]}" -kernel "$kernel" -initrd "$work/initrd" -append "console=ttyS0 quiet no_timer_check panic=-1 nokaslr \
swiotlb=noforce iomem=relaxed watchdog_thresh=60 log_buf_len=4M ${APPEND:-}" ${EXTRA:-} &
	qemu=$!
	cat "$work/monitor.out" > "$work/monitor.log" &
	log=$!
	(
		tail -n +1 --pid=$qemu -F "$work/console" 2> /dev/null | while read -r line; do
			line=${line%$'\r'}
			case $line in
			"== qemu: "*) echo "${line#== qemu: }" > "$work/monitor.in" ;;
			*"Possible timer handling issue"*)
				: > "$work/timer-lost"
				kill $qemu
				;;
			esac
		done
	) &
	follower=$!
	trap 'kill $qemu $log $follower 2>/dev/null || true; rm -rf "$work"' EXIT
	wait $qemu || true
}

# On a host with too much to do QEMU loses, rarely, an idle CPU's timer, and whatever waits there never goes on: the kernel's RCU
# says so after 21 s. A loss by a fault of ours would come again.
for attempt in 1 2 3; do
	rm -f "$work/console" "$work/timer-lost"
	boot
	[ -e "$work/timer-lost" ] || break
	echo "# boot $attempt of 3: the emulator lost the timer of a CPU, after $(grep -c '^ok' "$work/console") tests"
	sed -n 's/^not ok/# &/p' "$work/console"
done
sed 's/\r$//' "$work/console"
[ ! -e "$work/timer-lost" ] || echo "not ok - the timer of a CPU was lost in each of 3 boots"
# A machine that ends by itself, a kernel that resets it: what was not run has not passed.
ended=$(grep -c '^== exit' "$work/console" || true)
[ "$ended" -eq $# ] || echo "not ok - the machine has ended, and $ended of $# scripts"
[ ! -e "$work/timer-lost" ] && ! grep -qE '^not ok|^== exit [1-9]|Kernel panic' "$work/console" && [ "$ended" -eq $# ]

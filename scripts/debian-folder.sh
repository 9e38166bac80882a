# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by what needs another Debian than this machine's: a folder of a suite, and commands in it. Both as root.
. "$(dirname "${BASH_SOURCE[0]}")/mirror.sh"

# debian_folder SUITE FOLDER [PACKAGE,...]: a minimal system, made with debootstrap if it is not there whole. FOLDER.log tells what
# it did; one line on standard error where it failed.
debian_folder() {
  local suite=$1 folder=$2 include=${3:-} uri
  [ ! -e "$folder/.complete" ] || return 0
  [ "$(id -u)" = 0 ] || { echo "not root: a folder of $suite is made with debootstrap and chroot" >&2; return 1; }
  command -v debootstrap > /dev/null || { echo "debootstrap is missing: run scripts/bootstrap" >&2; return 1; }
  uri=$(mirror)
  [ -n "$uri" ] || { echo "no Debian mirror in /etc/apt" >&2; return 1; }
  # What a run that was cut off has mounted there is seen nowhere else, so nothing beyond the folder is deleted.
  rm -rf --one-file-system "$folder"
  mkdir -p "$(dirname "$folder")"
  unshare --mount --propagation private debootstrap --variant=minbase --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
    ${include:+--include="$include"} "$suite" "$folder" "$uri" > "$folder.log" 2>&1 ||
    { echo "debootstrap of $suite failed: $(tail -n 1 "$folder.log"); see $folder.log" >&2; return 1; }
  rm -rf "$folder"/var/cache/apt/archives/*.deb
  touch "$folder/.complete"
}

# inside FOLDER COMMAND...: with a /proc and a /sys that nobody else sees, and without this machine's variables
inside() {
  local folder=$1
  shift
  # shellcheck disable=SC2016 # the inner shell's
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive \
    unshare --mount --propagation private \
    sh -c 'mount -t proc proc "$0/proc" && mount -t sysfs -o ro sys "$0/sys" && exec chroot "$0" "$@"' "$folder" "$@"
}

# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash

# temporary_folder PREFIX: sets `work` to a new folder that goes when the script ends. What a killed one left goes with the
# next start: as userspace/util/temporary_folder.h, its owner held a lock on a file in it.
temporary_folder() {
  local old lock
  for old in "${TMPDIR:-/tmp}/$1".??????; do
    [ -O "$old" ] && [ -f "$old/.neotier-lock" ] && flock -n "$old/.neotier-lock" rm -rf "$old"
  done
  work=$(mktemp -d "${TMPDIR:-/tmp}/$1.XXXXXX")
  # shellcheck disable=SC2064 # the folder of now
  trap "rm -rf '$work'" EXIT
  exec {lock}> "$work/.neotier-lock.new"
  flock -n "$lock"
  mv "$work/.neotier-lock.new" "$work/.neotier-lock"
}

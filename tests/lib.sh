# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by the host's test suites: TAP on standard output.
# What is piped into a suite is no input of what it runs.
exec < /dev/null
tests=0
failures=0

ok() {
  tests=$((tests + 1))
  echo "ok $tests - $1"
}

not_ok() {
  tests=$((tests + 1))
  failures=$((failures + 1))
  echo "not ok $tests - $1"
  shift
  for line in "$@"; do printf '%s\n' "$line" | sed 's/^/# /'; done
}

# check NAME COMMAND...: passes when the command does; run it as: check "two is two" [ 2 = 2 ]
check() {
  local name=$1
  shift
  if "$@"; then ok "$name"; else not_ok "$name" "$*"; fi
}

# one_line_error NAME TEXT COMMAND...: fails with one line on standard error that contains TEXT
one_line_error() {
  local name=$1 text=$2 error status=0
  shift 2
  error=$("$@" 2>&1 > /dev/null) || status=$?
  if [ "$status" -ne 0 ] && [ "$(printf '%s\n' "$error" | wc -l)" = 1 ] && [[ $error == *"$text"* ]]; then
    ok "$name"
  else
    not_ok "$name" "status $status, wanted one line with '$text':" "$error"
  fi
}

# Shared memory of machines whose process is gone; other suites run beside, theirs are alive.
orphans() {
  local file pid
  for file in /dev/shm/neotier-bar.*; do
    [ -e "$file" ] || continue
    pid=${file#*neotier-bar.}
    kill -0 "${pid%%.*}" 2> /dev/null || echo "$file"
  done
}

finish() {
  echo "1..$tests"
  [ "$failures" -eq 0 ]
  exit
}

# SPDX-License-Identifier: Apache-2.0
# For tests of the machine as a whole: GUPS on a small machine, and what is asked of its figures. Sourced by tests/hil/run*, from the
# repository's root.
. tests/lib.sh
neotier=build/bin/neotier
work=$(mktemp -d)
# The guest's memory holds the program's path. Not in the clone or $TMPDIR, whose names are of any length.
here=$(mktemp -d /tmp/neotier-run.XXXXXX)
trap 'rm -rf "$work" "$here"' EXIT
cp build/bin/gups "$here" || exit 1

small=(--rehearsal no --dram 64M --cxl 128M)
gups=("$here/gups" --table 120 --hot 16 --updates 4000000 --jump-at 1 --windows 20)
# In 5,000,000 updates a law decides six times, and by the program's path it may change its threshold once or three times.
longer=("$here/gups" --table 120 --hot 16 --updates 8000000 --jump-at 1 --windows 20)

# figure FILE EXPRESSION: of the JSON, as Python sees it in r
figure() { python3 -c 'import json, sys; r = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$1" "$2"; }
# holds NAME FILE EXPRESSION [SHOWN]: when it fails, the values of the expression SHOWN are printed
holds() {
  local value
  value=$(figure "$2" "$3" 2>&1)
  if [ "$value" = True ]; then ok "$1"; else not_ok "$1" "$3 is $value" "$(figure "$2" "${4:-'no values'}" 2>&1)"; fi
}
# same NAME FILE FILE: equal but for what the host did
same() {
  local difference
  difference=$(python3 - "$2" "$3" <<'PYTHON'
import json, sys
a, b = (json.load(open(name)) for name in sys.argv[1:])
for r in (a, b):
    r.pop("host", None)
print("; ".join(f"{key}: {a.get(key)} and {b.get(key)}"[:200] for key in {*a, *b} if a.get(key) != b.get(key)) or "none")
PYTHON
  )
  if [ "$difference" = none ]; then ok "$1"; else not_ok "$1" "$difference"; fi
}

# A fixed threshold and no bound: what is promoted then does not depend on what moves cost. kswapd, with its settings, makes room within a tenth
# of a second; exchange has to learn first which pages are not in use. The program runs for a third of a second: a dozen epochs.
law=(--knob policy=fixed --knob room=kswapd --knob loss_ppm=1000000 --knob device0/epoch_us=25000 --knob decide_interval_ms=50)
run_gups() { # NAME --policy POLICY OPTIONS...
  local name=$1 knobs=()
  shift
  # A policy without the module has no knobs, and is refused with them.
  case $2 in neotier | placebo | pebs | ptescan) knobs=("${law[@]}") ;; esac
  $neotier hil run "${small[@]}" "${knobs[@]}" --json "$work/$name.json" "$@" -- "${gups[@]}" > "$work/$name.out" 2> "$work/$name.err" ||
    not_ok "$name runs" "$(tail -n 3 "$work/$name.err")"
}
run_longer() { local gups=("${longer[@]}"); run_gups "$@"; }

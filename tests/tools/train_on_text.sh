#!/usr/bin/env bash
# The walk of a newcomer, as the quickstart takes it, with shorter sequences: it learns, ends in time with a checkpoint,
# goes on under another layout as if nothing had been, and leaves weights that can be started from.
# Usage: train_on_text.sh SEXTANT
set -uo pipefail
sextant=$(readlink -f "$1")
here=$(dirname "$(readlink -f "$0")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0
check() { # check WHAT COMMAND...
  local what=$1
  shift
  "$@" || { printf 'FAILED: %s\n' "$what"; failures=$((failures + 1)); }
}

# More steps than any machine does in six seconds.
check "the walk ends well" "$here/../../tools/dev/train_on_text.sh" "$sextant" "$folder/walk" 3 32 8 20000 >"$folder/out" 2>&1 || cat "$folder/out"
cd "$folder/walk" || exit 1
losses=$(sed -n 's/.*"step":\([0-9]*\),"loss":\([0-9.]*\).*/\1 \2/p' run/steps.jsonl)
resumed=$(sed -n 's/.*resuming from run.checkpoints.step-0*\([0-9]*\)$/\1/p' "$folder/out")
check "it ended by the time limit, twice" [ "$(grep -c 'stopped: the time limit of 3 s' "$folder/out")" -eq 2 ]
check "each step once, in order" awk '$1 != NR - 1 { exit 1 }' <<<"$losses"
# The ten steps behind the change of layout are like the ten before it, and far from the first ones.
check "it learns, and goes on" awk -v at="$resumed" '
  NR == 1 { first = $2 }
  $1 >= at - 10 && $1 < at { before += $2; b++ }
  $1 >= at && $1 < at + 10 { behind += $2; a++ }
  END { exit !(at > 0 && a > 0 && before / b < 0.9 * first && behind / a < 1.15 * before / b) }' <<<"$losses"
check "the plan of the run is the other one" grep -q '"tp": 2' run/plan.json
check "the weights are a Hugging Face folder" "$sextant" weights show weights >/dev/null
check "from which a run starts where the last one was" awk -v was="$(tail -5 <<<"$losses" | awk '{ s += $2 } END { print s / NR }')" \
  '{ exit !($1 < 1.3 * was) }' <<<"$("$sextant" run plan.json --init weights --data tokens --packing apart --steps 1 --json |
    sed -n 's/.*"loss": \([0-9.]*\).*/\1/p' | head -1)"
check "nothing runs in a folder that is there" sh -c "! '$here/../../tools/dev/train_on_text.sh' '$sextant' '$folder/walk' 2>/dev/null >&2"
[ $failures -eq 0 ] || { cat "$folder/out"; exit 1; }

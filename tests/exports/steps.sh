#!/usr/bin/env bash
# Sourced by the scripts that train what was exported: a small model on four CPU ranks (gloo) for three steps in several layouts.
set -euo pipefail
if [[ -z ${SEXTANT_EXPORT_PYTHON:-} ]]; then
  echo "SKIPPED: SEXTANT_EXPORT_PYTHON names no python with the packages of tests/exports/requirements.txt"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
starter=(-m torch.distributed.run --standalone --nproc-per-node 4)  # of the ranks of one node
printing=1  # ranks that print each step
export OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore

# train_exported SEXTANT NAME TARGET OPTIONS...: the plan that simulate makes with these options, exported and trained; losses are finite.
train_exported() {
  local sextant=$1 name=$2 target=$3
  shift 3
  rm -rf "$folder/plan.json" "$folder/job"
  "$sextant" simulate --seq-len 2048 "$@" -o "$folder/plan.json" >"$folder/simulated" ||
    [[ -f $folder/plan.json ]]  # one that does not fit may still be tried
  "$sextant" export "$folder/plan.json" --to "$target" -o "$folder/job" >"$folder/exported" || { cat "$folder/exported"; exit 1; }
  (cd "$folder/job" && "$SEXTANT_EXPORT_PYTHON" "${starter[@]}" train.py --tiny --steps 3) \
    >"$folder/out" 2>"$folder/err" || { tail -30 "$folder/err"; exit 1; }
  sed 's/step [0-9]/\n&/g' "$folder/out" |  # lines of ranks that print at once may run together
    awk -v name="$name" -v printed=$((3 * printing)) '/^step/ { if ($4 + 0 < 1 || $4 + 0 > 20 || $4 ~ /nan|inf/ || $6 ~ /nan|inf/) bad = 1; n++; losses = losses " " $4 }
    END { print name ":" losses; exit bad || n != printed }'
}

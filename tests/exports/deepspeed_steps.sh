#!/usr/bin/env bash
# usage: deepspeed_steps.sh SEXTANT: the script of --to deepspeed trains a small model under DeepSpeed's engine on four CPU ranks (gloo)
# for three steps in several layouts; losses are finite. Adam on the host is compiled on first use.
set -euo pipefail
if [[ -z ${SEXTANT_EXPORT_PYTHON:-} ]]; then
  echo "SKIPPED: SEXTANT_EXPORT_PYTHON names no python with the packages of tests/exports/requirements.txt"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore DS_ACCELERATOR=cpu
PATH=$(dirname "$SEXTANT_EXPORT_PYTHON"):$PATH  # ninja, for its extensions
for case in ${SEXTANT_STEPS_CASES:-dp4.z1.mbs1 dp4.z2.mbs1.full dp4.z3.mbs1 dp4.z0.mbs1.nogr pp2.dp2.z1.mbs1.nogr.full pp4.z0.mbs1.L7-8-9-8 tp2.dp2.z1.mbs1.nosp}; do
  rm -rf "$folder/plan.json" "$folder/job"
  "$1" simulate --model llama-2-7b --cluster 1x4xh100 --stack deepspeed-zero --seq-len 2048 --global-batch 16 --plan "$case" \
    -o "$folder/plan.json" >"$folder/simulated" || [[ -f $folder/plan.json ]]  # one that does not fit may still be tried
  "$1" export "$folder/plan.json" --to deepspeed -o "$folder/job" >"$folder/exported" || { cat "$folder/exported"; exit 1; }
  (cd "$folder/job" && "$SEXTANT_EXPORT_PYTHON" -m torch.distributed.run --standalone --nproc-per-node 4 train.py --tiny --steps 3) \
    >"$folder/out" 2>"$folder/err" || { tail -30 "$folder/err"; exit 1; }
  awk -v case="$case" '/^step/ { if ($4 + 0 < 1 || $4 + 0 > 20 || $4 ~ /nan|inf/ || $6 ~ /nan|inf/) bad = 1; n++; losses = losses " " $4 }
    END { print case ":" losses; exit bad || n != 3 }' "$folder/out"
done

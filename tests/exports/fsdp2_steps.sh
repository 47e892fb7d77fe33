#!/usr/bin/env bash
# usage: fsdp2_steps.sh SEXTANT: the script of --to fsdp2 trains a small model on four CPU ranks (gloo) for three steps in several
# layouts; losses are finite.
set -euo pipefail
if [[ -z ${SEXTANT_EXPORT_PYTHON:-} ]]; then
  echo "SKIPPED: SEXTANT_EXPORT_PYTHON names no python with the packages of tests/exports/requirements.txt"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore
for case in "llama-2-7b dp4.z3.mbs1" "llama-2-7b dp4.z2.mbs1.full" "llama-2-7b dp4.z3.sd2.mbs1.sel" "llama-2-7b dp4.z0.mbs1.full2" \
  "llama-2-7b dp4.z3.mbs1.oo100.po" "llama-2-7b tp2.dp2.z3.mbs1" "llama-2-7b tp4.dp1.z0.mbs2.nosp.sel" "llama-3.2-1b tp2.dp2.z2.mbs1"; do
  read -r model key <<<"$case"
  rm -rf "$folder/plan.json" "$folder/job"
  "$1" simulate --model "$model" --cluster 1x4xa100-80gb --stack torchtitan --seq-len 2048 --global-batch 8 --plan "$key" \
    -o "$folder/plan.json" >"$folder/simulated" || [[ -f $folder/plan.json ]]  # one that does not fit may still be tried
  "$1" export "$folder/plan.json" --to fsdp2 -o "$folder/job" >"$folder/exported" || { cat "$folder/exported"; exit 1; }
  (cd "$folder/job" && "$SEXTANT_EXPORT_PYTHON" -m torch.distributed.run --standalone --nproc-per-node 4 train.py --tiny --steps 3) \
    >"$folder/out" 2>"$folder/err" || { tail -30 "$folder/err"; exit 1; }
  awk -v case="$case" '/^step/ { if ($4 + 0 < 1 || $4 + 0 > 20 || $4 ~ /nan|inf/ || $6 ~ /nan|inf/) bad = 1; n++; losses = losses " " $4 }
    END { print case ":" losses; exit bad || n != 3 }' "$folder/out"
done

#!/usr/bin/env bash
# usage: fsdp2_steps.sh SEXTANT: the script of --to fsdp2 trains a small model on four CPU ranks (gloo) for three steps in several
# layouts; losses are finite.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/steps.sh"
for case in "llama-2-7b dp4.z3.mbs1" "llama-2-7b dp4.z2.mbs1.full" "llama-2-7b dp4.z3.sd2.mbs1.sel" "llama-2-7b dp4.z0.mbs1.full2" \
  "llama-2-7b dp4.z3.mbs1.oo100.po" "llama-2-7b tp2.dp2.z3.mbs1" "llama-2-7b tp4.dp1.z0.mbs2.nosp.sel" "llama-3.2-1b tp2.dp2.z2.mbs1"; do
  read -r model key <<<"$case"
  train_exported "$1" "$case" fsdp2 --model "$model" --cluster 1x4xa100-80gb --stack torchtitan --global-batch 8 --plan "$key"
done

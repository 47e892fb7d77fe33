#!/usr/bin/env bash
# usage: deepspeed_steps.sh SEXTANT: the script of --to deepspeed trains a small model under DeepSpeed's engine on four CPU ranks (gloo)
# for three steps in several layouts; losses are finite. Adam on the host is compiled on first use.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/steps.sh"
export DS_ACCELERATOR=cpu
PATH=$(dirname "$SEXTANT_EXPORT_PYTHON"):$PATH  # ninja, for its extensions
for key in ${SEXTANT_STEPS_CASES:-dp4.z1.mbs1 dp4.z2.mbs1.full dp4.z3.mbs1 dp4.z0.mbs1.nogr pp2.dp2.z1.mbs1.nogr.full pp4.z0.mbs1.L7-8-9-8 tp2.dp2.z1.mbs1.nosp}; do
  train_exported "$1" "$key" deepspeed --model llama-2-7b --cluster 1x4xh100 --stack deepspeed-zero --global-batch 16 --plan "$key"
done

#!/usr/bin/env bash
# usage: accelerate_steps.sh SEXTANT: the script of --to accelerate-deepspeed trains a small model on four CPU ranks (gloo) for three steps
# in several layouts, started by accelerate launch; losses are finite. Without GPUs accelerate 1.15 leaves the ranks to DeepSpeed and takes
# each of them for the main process, which prints; FSDP (--to accelerate) it refuses there.
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/steps.sh"
export DS_ACCELERATOR=cpu
PATH=$(dirname "$SEXTANT_EXPORT_PYTHON"):$PATH  # ninja, for DeepSpeed's extensions
# shellcheck disable=SC2034 # read by train_exported
starter=(-m accelerate.commands.accelerate_cli launch --config_file accelerate.yaml --machine_rank 0 --main_process_ip 127.0.0.1
  --main_process_port 29531)
# shellcheck disable=SC2034 # read by train_exported
printing=4
for key in dp4.z1.mbs1.nogr dp4.z2.mbs1.full dp4.z3.mbs1; do
  train_exported "$1" "$key" accelerate-deepspeed --model llama-2-7b --cluster 1x4xa100-80gb --stack deepspeed-zero \
    --global-batch 16 --plan "$key"
done

#!/bin/bash
# Written for this test: the options and values of DeepSpeedExamples 45b4b71, applications/DeepSpeed-Chat/training/step1_supervised_finetuning.
OUTPUT=$1
ZERO_STAGE=$2
if [ "$ZERO_STAGE" == "" ]; then
    ZERO_STAGE=3
fi
deepspeed main.py \
   --model_name_or_path meta-llama/Llama-2-7b-hf \
   --per_device_train_batch_size 4 \
   --max_seq_len 512 \
   --gradient_accumulation_steps 1 --gradient_checkpointing \
   --zero_stage $ZERO_STAGE --deepspeed \
   --dtype bf16 --output_dir $OUTPUT &> $OUTPUT/training.log

#!/bin/bash
# Written for this test: the options and values of Megatron-LM d98e8a6, examples/gpt3/train_gpt3_175b_distributed.sh.
GPUS_PER_NODE=8
NUM_NODES=1
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
DATA_PATH=$1
LAUNCH=(--nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES)
MODEL=(
    --num-layers 96
    --hidden-size 12288 --num-attention-heads 96
    --seq-length 2048 --max-position-embeddings 2048
    --attention-backend auto # or flash
)
TRAINING=(
    --micro-batch-size 1
    --global-batch-size 1536
    --step-batch-size-schedule "0:16 2.4B:320 4.8B:624 7.2B:928 9.6B:1232 12B:1536"
    --fp16 --lr 6.0e-5 --clip-grad 1.0 --lr-warmup-fraction .001
)
LAYOUT=(
	--tensor-model-parallel-size 8
	--pipeline-model-parallel-size 16
)
DATA=(--data-path $DATA_PATH --vocab-file $2 --merge-file $3 --split 949,50,1)
torchrun ${LAUNCH[@]} pretrain_gpt.py \
    ${MODEL[@]} \
    ${TRAINING[@]} \
    ${LAYOUT[@]} ${DATA[@]}

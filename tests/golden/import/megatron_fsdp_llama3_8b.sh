#!/bin/bash
# Written for this test: the options and values of Megatron-LM d98e8a6, examples/megatron_fsdp/train_llama3_8b_fsdp_h100_fp8.sh.
FSDP=${FSDP:-1}
STRATEGY=${STRATEGY:-"optim_grads_params"}
USE_UV=${USE_UV:-1}
if [ "${USE_UV}" = 1 ]; then PREFIX="uv run"; else PREFIX=""; fi
OPTIONS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope --rotary-base 1000000 --swiglu
    --normalization RMSNorm --untie-embeddings-and-output-weights --disable-bias-linear --vocab-size 128256
    --micro-batch-size 1 --global-batch-size 128 --bf16
)
if [ "${FSDP}" = 1 ]; then
    unset CUDA_DEVICE_MAX_CONNECTIONS
    OPTIONS=(
        "${OPTIONS[@]}"
        --use-megatron-fsdp
        --data-parallel-sharding-strategy ${STRATEGY}
        --no-gradient-accumulation-fusion
        --init-model-with-meta-device --ckpt-format fsdp_dtensor
    )
fi
PROFILE=()
OPTIONS+=(--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather)
$PREFIX "${PROFILE[@]}" python -m torch.distributed.run --nproc_per_node 8 pretrain_gpt.py ${OPTIONS[@]}

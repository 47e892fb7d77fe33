#!/bin/bash
# Written for this test: the options and values of Megatron-LM d98e8a6, examples/llama/train_llama3_8b_h100_fp8.sh, and its way
# of writing options as quoted words.
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
TOKENIZER=${3:-"MOCK"}
mkdir -p "$(dirname "${1:-out}")"
TP=1
DTYPE="fp8"
MODEL=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --kv-channels 128
    --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope --rotary-base 1000000
    --swiglu --normalization RMSNorm --untie-embeddings-and-output-weights --disable-bias-linear
)
TRAINING=(--micro-batch-size 1 --global-batch-size 128 --bf16 --grad-reduce-in-bf16 --manual-gc)
FORMAT=()
if [[ "$DTYPE" == "fp8" ]]; then
    FORMAT+=(
        "--fp8-format hybrid"
        "--fp8-amax-history-len 1024"
    )
fi
TRAINING+=(--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather)
DATA=()
if [[ "$TOKENIZER" == "MOCK" ]] || [[ -z "$TOKENIZER" ]]; then
    DATA+=("--mock-data" "--tokenizer-type NullTokenizer" "--vocab-size 128256" "--split '99,1,0'")
else
    DATA+=("--tokenizer-model $TOKENIZER")
fi
if [ ! -f pretrain_gpt.py ]; then
    echo "pretrain_gpt.py is not here"
    exit 1
fi
torchrun --nproc_per_node 8 --nnodes 1 "pretrain_gpt.py" ${MODEL[@]} ${TRAINING[@]} ${FORMAT[@]} \
    --tensor-model-parallel-size $TP --context-parallel-size 1 --sequence-parallel ${DATA[@]}

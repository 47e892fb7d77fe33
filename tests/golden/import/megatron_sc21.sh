#!/bin/bash
# Written for this test, in the way of Megatron-LM's examples/academic_paper_scripts/sc21: options in one exported string, the job in
# another word of srun.
#SBATCH --nodes=4 --ntasks-per-node=8
TP=8
PP=4
NLS=$((3*PP))
export MEGATRON_PARAMS=" ${MEGATRON_EXTRA_PARAMS} \
	--tensor-model-parallel-size ${TP} \
	--pipeline-model-parallel-size ${PP} \
        --micro-batch-size 1 --global-batch-size 8 \
        --num-layers ${NLS} --hidden-size 20480 --num-attention-heads 128 \
        --seq-length 2048 --max-position-embeddings 2048 --vocab-size 51200 \
        --DDP-impl local --activations-checkpoint-method uniform --fp16 --loss-scale 8192 "
CMD="python -u pretrain_gpt.py ${MEGATRON_PARAMS}"
srun -l --container-image "nvcr.io#nvidia/pytorch:20.12-py3" sh -c "${CMD}"

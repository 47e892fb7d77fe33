#!/usr/bin/env python3
"""What sextant refuses to export, the framework refuses too: an export that it accepts, with the one thing changed that sextant
says it cannot do, must be refused by its own parser.

usage: refusals.py SEXTANT PYTHON TARGET[@VERSION]

Exit codes: 0, 1 a parser took what sextant refuses, 77 the framework is not installed.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

# Where plans of the runtime's stack cannot be exported as they are: gradients in the format of parameters.
STACKS = {"colossalai": "colossal-ai", "colossalai-gemini": "colossal-gemini"}
BATCH = ["--seq-len", "4096", "--global-batch", "64"]
# target: (model, cluster, key that is exported, [(file, old, new)], words of the framework's refusal, field of sextant's, key or
# setting that sextant refuses)
CASES = {
    "megatron-lm": [
        ("llama-3.1-8b", "4x8xh100", "pp4.dp8.z1.mbs1.nogr.nopg", [("arguments.sh", "--use-distributed-optimizer", "--use-distributed-optimizer --overlap-param-gather")],
         "overlap", "overlap_param_gather", "pp4.dp8.z1.mbs1.nogr"),
        ("llama-3.1-8b", "4x8xh100", "tp2.dp16.z1.mbs1.nosp", [("arguments.sh", "--tensor-model-parallel-size 2", "--tensor-model-parallel-size 2 --tp-comm-overlap")],
         "overlap can happen only when sequence parallelism", "overlap_tp", None),
        ("llama-3.1-8b", "1x8xh100", "dp8.z1.mbs1.ao4", [("arguments.sh", "--cpu-offloading-num-layers 4", "--cpu-offloading-num-layers 32")],
         "offload", "activation_offload", "dp8.z1.mbs1.ao32"),
        ("llama-3.1-8b", "4x8xh100", "pp4.dp8.z1.mbs1", [("arguments.sh", "--pipeline-model-parallel-size 4", "--pipeline-model-parallel-size 4 --use-torch-fsdp2")],
         "", "zero_stage", "pp4.dp8.z3.mbs1"),
    ],
    "nanotron": [
        ("llama-2-7b", "2x8xh100", "tp8.dp2.z0.mbs1.nopg", [("nanotron.yaml", "num_key_value_heads: 32", "num_key_value_heads: 4")],
         "must be >= tp", "tp", None),
        ("llama-2-7b", "2x8xh100", "dp16.z1.mbs1.nopg", [("nanotron.yaml", "  recompute_layer: false", "  recompute_granularity: selective")],
         "can not match", "recompute", None),
        ("llama-2-7b", "2x8xh100", "pp2.dp8.z1.mbs1.nopg.L17-15", [("nanotron.yaml", "pp_engine: 1f1b", "pp_engine: interleaved")],
         "", "vp", None),
    ],
    "fsdp2": [
        ("llama-2-7b", "2x8xh100", "tp2.dp8.z3.mbs1", [("settings.py", "REPLICATE, SHARD, TP = 1, 8, 2", "REPLICATE, SHARD, TP = 1, 8, 4")],
         "", "dp", None),
    ],
    "deepspeed": [
        ("llama-2-7b", "1x8xh100", "dp8.z2.mbs1.oo100", [("ds_config.json", '"pin_memory": true', '"pin_memory": true, "ratio": 0.5')],
         "Partial offloading only supported for ZeRO Stage 3", "optimizer_offload", "dp8.z2.mbs1.oo50"),
        ("llama-2-7b", "1x8xh100", "dp8.z2.mbs1", [("ds_config.json", '"enabled": true', '"enabled": true, "bf16_optimizer_states": true')],
         "bf16_optimizer_states requires", "training", None),
        ("llama-2-7b", "2x8xh100", "dp16.z3.mbs1", [("ds_config.json", '"stage": 3,', '"stage": 3, "mics_shard_size": 8,')],
         "MiCS ZeRO-3 sharding has been removed", "shard_degree", "dp16.z3.sd8.mbs1"),
    ],
    "megatron-bridge": [
        ("llama-3.1-8b", "1x8xh100", "dp8.z1.mbs1.ao4", [("sextant_recipe.py", "cpu_offloading_num_layers=4", "cpu_offloading_num_layers=32")],
         "offload", "activation_offload", "dp8.z1.mbs1.ao32"),
        ("llama-3.1-8b", "2x8xh100", "cp2.dp8.z1.mbs1", [("sextant_recipe.py", "seq_length=4096", "seq_length=4098"),
                                                         ("sextant_recipe.py", "seq_length=4096", "seq_length=4098")],
         "2 * context parallel size", "cp", None),
    ],
    "accelerate": [
        ("llama-2-7b", "1x8xh100", "dp8.z3.mbs1", [("accelerate.yaml", "replicate_size: 1", "replicate_size: 8"), ("accelerate.yaml", "shard_size: 8", "shard_size: 1")],
         "no dimension for FSDP to shard across", "zero_stage", None),
        ("llama-2-7b", "1x8xh100", "dp8.z3.mbs1", [("accelerate.yaml", "tp_size: 1", "tp_size: 2")],
         "does not match num_processes", "tp", None),
        ("llama-2-7b", "1x8xh100", "dp8.z3.mbs1", [("accelerate.yaml", "  fsdp_offload_params", "  fsdp_activation_checkpointing_offload: true\n  fsdp_offload_params")],
         "requires `activation_checkpointing=True`", "activation_offload", None),
    ],
    "colossalai": [
        ("llama-2-7b", "1x8xh100", "pp2.dp4.z1.mbs1.nogr", [("settings.py", "zero_stage=1", "zero_stage=2")],
         "zero stage must be 0 or 1 when using pipeline parallelism", "zero_stage", "pp2.dp4.z2.mbs1.nogr"),
        ("llama-2-7b", "1x8xh100", "pp2.dp4.z1.mbs1.nogr.L15-17", [("settings.py", '"1f1b"', '"interleaved"'),
                                                                  ("settings.py", "num_model_chunks=1", "num_model_chunks=2"),
                                                                  ("settings.py", "[15, 17]", "[7, 8, 8, 9]")],
         "assert len(num_layers_per_stage) == self.num_stages", "chunks", "pp2.vp2.dp4.z1.mbs1.nogr.L7-8-8-9"),
        ("llama-2-7b", "1x8xh100", "tp2.dp4.z1.mbs1", [("settings.py", "tp_size=2", "tp_size=1")],
         "must be enabled when using tensor parallelism", "sequence_parallel", None),
        ("llama-2-7b", "2x8xh100", "tp8.dp2.z1.mbs1", [("settings.py", "KV_HEADS, HEAD_DIM = 32, 32", "KV_HEADS, HEAD_DIM = 32, 4")],
         "key_value heads must be divisible by", "tp", None),
    ],
    "colossalai-gemini": [
        ("llama-2-7b", "1x8xh100", "dp8.z3.mbs1", [("settings.py", 'precision="bf16"', 'precision="fp32"')],
         "precision fp32 is not supported", "training", None),
        ("llama-2-7b", "1x8xh100", "tp2.dp4.z3.mbs1.nosp", [("settings.py", "extra_dp_size=1", "extra_dp_size=3")],
         "can't be evenly divided", "shard_degree", None),
    ],
    "accelerate-deepspeed": [
        ("llama-2-7b", "1x8xh100", "dp8.z2.mbs1.oo100", [("ds_config.json", '"pin_memory": true', '"pin_memory": true, "ratio": 0.5')],
         "Partial offloading only supported for ZeRO Stage 3", "optimizer_offload", "dp8.z2.mbs1.oo50"),
    ],
    "smp": [
        ("llama-2-7b", "1x8xh100", "dp8.z3.mbs1.full", [("smp_config.json", '"random_seed"', '"pipeline_parallel_degree": 2, "random_seed"')],
         "", "pp", None),
    ],
    "torchtitan": [
        ("llama-3.1-8b", "2x8xh100", "tp8.dp2.z0.mbs1", [("sextant_plan.py", "tensor_parallel_degree=8", "tensor_parallel_degree=16"), ("sextant_plan.py", "replicate_degree=2", "replicate_degree=1")],
         "must divide", "tp", "tp16.dp1.z0.mbs1"),
        ("llama-3.2-1b", "2x8xh100", "pp1.dp16.z0.mbs1", [("sextant_plan.py", "pipeline_parallel_degree=1", "pipeline_parallel_degree=2"), ("sextant_plan.py", "replicate_degree=16", "replicate_degree=8")],
         "", "pp", "pp2.dp8.z0.mbs1"),
    ],
}


def run(words, **options):
    return subprocess.run(words, capture_output=True, text=True, **options)


def main():
    sextant, python, target = sys.argv[1:4]
    bad = 0
    for model, cluster, key, edits, words, field, refused in CASES.get(target.split("@")[0], []):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            question = [sextant, "simulate", "--model", model, "--cluster", cluster, *BATCH, "--stack", STACKS.get(target.split("@")[0], "sextant")]
            # What sextant refuses, of a stack that can do it; where none can, no such plan exists.
            for stack in ("sextant", "megatron-core", "torchtitan") if refused else ():
                if not (folder / "refused.json").exists():
                    run([*question[:-1], stack, "--plan", refused, "-o", str(folder / "refused.json")])
            if refused:
                answer = run([sextant, "export", str(folder / "refused.json"), "--to", target, "-o", str(folder / "no"), "--json"])
                fields = [m["field"] for m in json.loads(answer.stdout)["inexpressible"]] if answer.returncode == 5 else []
                if field not in fields:
                    print(f"{target} {refused}: sextant refuses {fields}, not {field}\n{answer.stderr}")
                    bad = 1
            run([*question, "--plan", key, "-o", str(folder / "plan.json")])
            made = run([sextant, "export", str(folder / "plan.json"), "--to", target, "-o", str(folder / "job")])
            if made.returncode:
                print(f"{target} {key}: not exported\n{made.stdout}{made.stderr}")
                return 1
            for name, old, new in edits:
                text = (folder / "job" / name).read_text()
                assert old in text, (name, old)
                (folder / "job" / name).write_text(text.replace(old, new, 1))
            read = run([python, str(folder / "job" / "check.py")], env={**os.environ, "PYTHONWARNINGS": "ignore"})
            if read.returncode == 77:
                print(read.stdout.strip())
                return 77
            said = read.stderr.strip().splitlines()[-1] if read.stderr.strip() else ""
            if read.returncode == 0 or "other values" in read.stdout or words not in read.stderr:
                print(f"{target} takes {refused or edits}: {read.stdout[-300:]} {read.stderr[-2000:]}")
                bad = 1
            else:
                print(f"{target} refuses {refused or edits[0][2]} as sextant does ({field}): {said}")
    return bad


if __name__ == "__main__":
    sys.exit(main())

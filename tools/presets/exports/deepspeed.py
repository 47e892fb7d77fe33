"""Has DeepSpeed's own configuration class read ds_config.json, and its pipeline module share out the layers of a small model, on the
ranks of the plan, all but this one faked; compares what they made of it with plan.json.

Exit codes: 0 accepted with the same values, 1 refused or other values, 77 DeepSpeed is not installed.
"""
import contextlib
import importlib.metadata
import io
import json
import logging
import os
import sys
import types

folder = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, folder)
os.environ.update(LOCAL_RANK="0", RANK="0", DS_ACCELERATOR=os.environ.get("DS_ACCELERATOR", "cpu"))
logging.disable(logging.WARNING)


def last(what, code):
    print(what)
    sys.exit(code)



plan_file = json.load(open(os.path.join(folder, "plan.json")))
plan, training, model = plan_file["plan"], plan_file["training"], plan_file["model"]
world = plan["tp"] * plan["cp"] * plan["pp"] * plan["dp"]
try:
    import torch
    import torch.distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    with contextlib.redirect_stdout(io.StringIO()):
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled here, and nothing is sent
        from deepspeed.runtime.config import DeepSpeedConfig

        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    import check_rope
    import settings
    import train
except ImportError as error:
    last(f"DeepSpeed: {error}", 77)

# What transformers makes of the script's configuration.
rope, wanted_rope = check_rope.read_and_wanted(train.LlamaRotaryEmbedding(train.config()).inv_freq.tolist(), model)
if len(settings.STAGES) > 1:  # the class of the script, with as many layers of few channels
    train.tiny()
    with contextlib.redirect_stdout(io.StringIO()):
        stages = train.pipeline()
    parts = [b - a for a, b in zip(stages.parts, stages.parts[1:])]
    parts[0] -= 1  # the embedding
    parts[-1] -= 2  # norm and head
    grid = stages.mpu()
    layers, pp, replicas = parts, grid.pipe_parallel_size, grid.data_parallel_size
    if stages.activation_checkpoint_interval and not stages._is_checkpointable([stages.forward_funcs[1]]):
        last("its pipeline does not recompute the script's layers", 1)
    recompute = "full" if stages.activation_checkpoint_interval else "none"
else:
    layers, pp, replicas, recompute = settings.STAGES, 1, world // settings.TP, settings.RECOMPUTE
mpu = types.SimpleNamespace(get_data_parallel_world_size=lambda: replicas)
with contextlib.redirect_stdout(io.StringIO()):
    config = DeepSpeedConfig(os.path.join(folder, "ds_config.json"), mpu)
zero = config.zero_config

# Read back into the plan's own words.
back = {"tp": max(1, config.tensor_parallel_config.autotp_size), "cp": 1, "pp": pp, "dp": replicas, "chunk_layers": layers}
back["zero_stage"] = int(zero.stage)
back["shards"] = 1 if back["zero_stage"] == 0 else replicas
back["micro_batch"], back["global_batch"] = config.train_micro_batch_size_per_gpu, config.train_batch_size
back["micro_batches"] = config.gradient_accumulation_steps
back["seq_len"], back["n_layers"] = settings.SEQ_LEN, sum(layers)
back["overlap_grad_reduce"] = zero.overlap_comm
if back["zero_stage"] == 3:
    back["overlap_param_gather"] = zero.overlap_comm and zero.prefetch_bucket_size > 0
back["bucket"] = zero.reduce_bucket_size
host = zero.offload_optimizer
back["optimizer_offload"] = host.ratio if host and host.device == "cpu" else 0.0
back["parameter_offload"] = bool(zero.offload_param and zero.offload_param.device == "cpu")
back["recompute"] = recompute
back["activation_offload"] = config.activation_checkpointing_config.cpu_checkpointing
back["parameter"] = "bf16" if config.bfloat16_config.enabled else "fp16" if config.float16_config.enabled else "fp32"
back["gradient"] = config.grad_accum_dtype
back["reduction"] = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}[str(config.communication_data_type)]
for key, name in (("hidden", "HIDDEN"), ("ffn_hidden", "FFN"), ("vocab_size", "VOCAB"), ("n_heads", "HEADS"), ("n_kv_heads", "KV_HEADS"),
                  ("head_dim", "HEAD_DIM"), ("tied_embeddings", "TIED"), ("norm_eps", "NORM_EPS"), ("rope_theta", "ROPE_THETA")):
    if pp == 1:
        back[key] = getattr(settings, name)
back["rope"] = rope

wanted = {**plan, **training, **model, "rope": wanted_rope}
wanted["shards"] = 1 if plan["zero_stage"] == 0 else plan["shard_degree"] or plan["dp"]
wanted["micro_batches"] = training["global_batch"] // (plan["dp"] * plan["micro_batch"])
wanted["overlap_grad_reduce"] = plan["overlap_grad_reduce"] and plan["dp"] > 1 and plan["zero_stage"] > 0
wanted["overlap_param_gather"] = plan["overlap_param_gather"] and plan["dp"] > 1
wanted["bucket"] = plan["bucket_elements"] or 500000000
wanted["activation_offload"] = plan["activation_offload"] > 0
layers = model["n_layers"]
wanted["chunk_layers"] = plan["chunk_layers"] or [layers // plan["pp"] + (i < layers % plan["pp"]) for i in range(plan["pp"])]
if pp > 1:
    wanted["seq_len"] = settings.SEQ_LEN
other = {key: (value, wanted[key]) for key, value in back.items() if value != wanted[key]}
if other:
    last("other values than the plan's: " + ", ".join(f"{k} {a} instead of {b}" for k, (a, b) in other.items()), 1)
last(f"deepspeed {importlib.metadata.version('deepspeed')}: {len(back)} values read back as in the plan", 0)

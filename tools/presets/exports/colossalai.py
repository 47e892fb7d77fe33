"""Makes the booster's plugin that train.py makes, on the ranks of the plan, all but this one faked, and shards a model without weights
by its policy; compares what they made of settings.py with plan.json.

Exit codes: 0 accepted with the same values, 1 refused or other values, 77 Colossal-AI is not installed.
"""
import contextlib
import importlib.metadata
import io
import json
import logging
import os
import sys
import warnings

folder = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, folder)
logging.disable(logging.WARNING)
warnings.simplefilter("ignore")


def last(what, code):
    print(what, flush=True)
    os._exit(code)  # the plugin's __del__ wants its groups back, which are faked


plan_file = json.load(open(os.path.join(folder, "plan.json")))
plan, training, model = plan_file["plan"], plan_file["training"], plan_file["model"]
world = plan["tp"] * plan["cp"] * plan["pp"] * plan["dp"]
try:
    import torch
    import torch.distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from colossalai.cluster import ProcessGroupMesh
        from colossalai.shardformer.policies.auto_policy import get_autopolicy
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        import check_rope
        import settings
        import train
except ImportError as error:
    last(f"Colossal-AI: {error}", 77)

with contextlib.redirect_stdout(io.StringIO()):
    plugin = train.plugin()
shard = plugin.shard_config
gemini = settings.PLUGIN == "GeminiPlugin"

# The policy's own demands on heads and stages.
settings.HIDDEN, settings.FFN, settings.VOCAB = settings.HEADS * settings.HEAD_DIM, 64, 64
with torch.device("meta"):
    shell = train.model()
policy = get_autopolicy(shell)
policy.set_model(shell)
policy.set_shard_config(shard)
policy.config_sanity_check()
policy.preprocess()
policy.module_policy()

# Read back into the plan's own words.
back, micro = {}, settings.MICRO_BATCHES
if gemini:
    axes, config = {"dp": 0, "tp": 2}, plugin.gemini_config
    back["zero_stage"] = 3 if config["shard_param_frac"] == 1 and config["placement_policy"] == "static" else 2
    back["optimizer_offload"], back["parameter_offload"] = config["offload_optim_frac"], config["offload_param_frac"] == 1
    back["overlap_grad_reduce"], back["overlap_param_gather"] = config["enable_async_reduce"], config["max_prefetch"] > 0
    back["accumulates"] = config["enable_gradient_accumulation"]
    precision, reduction, fp8 = config["mixed_precision"], config["mixed_precision"], config["use_fp8"]
    back["shards"], back["sequence_parallel"] = plugin.zero_size, shard.enable_sequence_parallelism
    layers = [settings.LAYERS]
else:
    axes = {"dp": plugin.dp_axis, "pp": plugin.pp_axis, "tp": plugin.tp_axis, "cp": plugin.sp_axis}
    config = plugin.zero_config
    back["zero_stage"] = plugin.zero_stage
    if plugin.zero_stage:
        back["shards"] = torch.distributed.get_world_size(plugin.mixed_dp_group)
        back["bucket"] = config["reduce_bucket_size"]
        back["overlap_grad_reduce"], back["overlap_param_gather"] = config["overlap_communication"], config["overlap_allgather"]
    elif plan["pp"] == 1:
        back["bucket"] = plugin.ddp_config["bucket_cap_mb"] * 2**20
    back["optimizer_offload"] = 1 if config["cpu_offload"] else 0
    precision, fp8 = config["forced_dtype"], plugin.use_fp8
    reduction = config["communication_dtype"] or precision
    back["sequence_parallel"] = shard.enable_sequence_parallelism and shard.sequence_parallelism_mode == "split_gather"
    back["ring"] = shard.enable_sequence_parallelism and shard.sequence_parallelism_mode == "ring_attn"
    layers = [settings.LAYERS]
    if plugin.stage_manager:
        stages, pp = plugin.stage_manager, plan["pp"]
        counts = stages.distribute_layers(settings.LAYERS)
        chunks = [stages.get_stage_index(counts, stage) for stage in range(pp)]
        chunks = [[chunk] if stages.num_model_chunks == 1 else chunk for chunk in chunks]
        layers = [int(chunks[i % pp][i // pp][1] - chunks[i % pp][i // pp][0]) for i in range(pp * stages.num_model_chunks)]
        back["vp"] = stages.num_model_chunks
        micro = getattr(plugin.scheduler, "num_microbatch", None) or plugin.scheduler.num_microbatches
        recomputed = layers if settings.RECOMPUTE else [0] * len(layers)
        if shard.gradient_checkpoint_config is not None:
            recomputed = [shard.gradient_checkpoint_config.get_num_ckpt_layers(i % pp, pp, n, i // pp, stages.num_model_chunks)
                          for i, n in enumerate(layers)]
        back["recomputed"] = recomputed
back.update({axis: plugin.pg_mesh.size(i) for axis, i in axes.items()})
back["order"] = [axis for axis, i in sorted(axes.items(), key=lambda a: -a[1]) if plugin.pg_mesh.size(i) > 1]
back["coordinates"] = [{axis: int(ProcessGroupMesh.unravel(rank, plugin.pg_mesh.shape)[i]) for axis, i in axes.items()}
                       for rank in (1, world - 1) if world > 1]
names = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", None: "fp32"}
back["parameter"], back["compute"] = names[precision], "fp8" if fp8 else names[precision]
if back["zero_stage"]:
    back["reduction"] = names[reduction]
back["chunk_layers"], back["n_layers"] = layers, sum(layers)
back["recompute"] = "full" if shell.is_gradient_checkpointing else "none"
back["micro_batch"], back["micro_batches"], back["seq_len"] = settings.MICRO_BATCH, micro, settings.SEQ_LEN
back["head_dim"], back["n_heads"], back["n_kv_heads"] = shell.config.head_dim, shell.config.num_attention_heads, shell.config.num_key_value_heads
back["norm_eps"], back["rope_theta"] = shell.config.rms_norm_eps, shell.config.rope_theta
back["tied_embeddings"] = shell.config.tie_word_embeddings
# What transformers makes of the script's configuration.
back["rope"], rope = check_rope.read_and_wanted(LlamaRotaryEmbedding(shell.config).inv_freq.tolist(), model)

wanted = {**training, **model, **plan, "rope": rope}
replicas, chunks = plan["dp"] * plan["cp"], plan["pp"] * plan["vp"]
wanted["shards"] = plan.get("shard_degree") or replicas
wanted["micro_batches"] = training["global_batch"] // (plan["dp"] * plan["micro_batch"])
wanted["accumulates"] = wanted["micro_batches"] > 1
wanted["sequence_parallel"] = plan["sequence_parallel"] and plan["tp"] > 1
wanted["ring"] = plan["cp"] > 1
element = 1 if plan["zero_stage"] else {"bf16": 2, "fp16": 2, "fp32": 4}[training["gradient"]]
wanted["bucket"] = (plan["bucket_elements"] * element or (12 if plan["zero_stage"] else 25) * 2**20)
wanted["chunk_layers"] = plan["chunk_layers"] or [model["n_layers"] // chunks + (i < model["n_layers"] % chunks) for i in range(chunks)]
recompute = plan["recompute"]
kind, some = (recompute["kind"], recompute.get("layers", -1)) if isinstance(recompute, dict) else (recompute, plan.get("recompute_layers", -1))
wanted["recompute"] = kind
wanted["recomputed"] = [0 if kind == "none" else n if some < 0 else min(n, some) for n in wanted["chunk_layers"]]
order = plan["axis_order"] if isinstance(plan["axis_order"], list) else plan["axis_order"].split("-")
wanted["order"] = [axis for axis in order if plan[axis] > 1]


def coordinates(rank):
    at = {}
    for axis in order:
        at[axis], rank = rank % plan[axis], rank // plan[axis]
    return {axis: at[axis] for axis in axes}


wanted["coordinates"] = [coordinates(rank) for rank in (1, world - 1) if world > 1]
other = {key: (value, wanted[key]) for key, value in back.items() if value != wanted[key]}
if other:
    last("other values than the plan's: " + ", ".join(f"{k} {a} instead of {b}" for k, (a, b) in other.items()), 1)
last(f"colossalai {importlib.metadata.version('colossalai')}: {len(back)} values read back as in the plan", 0)

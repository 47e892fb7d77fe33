"""Has torchtitan's own configuration manager read sextant_plan.py, and compares what it made of it with plan.json.

Exit codes: 0 accepted with the same values, 1 refused or other values, 77 torchtitan is not installed.
"""
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def last(what, code):
    print(what)
    sys.exit(code)


try:
    import torchtitan
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
    from torchtitan.distributed.pipeline_parallel import _get_pp_rank_to_stage_indices_mapping
except ImportError as error:
    last(f"torchtitan: {error}", 77)

plan_file = json.load(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "plan.json")))
plan, training, model = plan_file["plan"], plan_file["training"], plan_file["model"]
world = plan["tp"] * plan["cp"] * plan["pp"] * plan["dp"]

config = ConfigManager().parse_args(["--module", "sextant_plan", "--config", "plan"])
par, tr = config.parallelism, config.training
dims = ParallelDims.from_config(par, world)  # checks that the degrees fill the ranks
config.model_spec.model.update_from_config(config=config)  # checks heads, positions and tied embeddings

# Read back into the plan's own words.
back = {"tp": dims.tp, "cp": dims.cp, "pp": dims.pp, "dp": dims.dp_replicate * dims.dp_shard}
back["sequence_parallel"] = par.enable_sequence_parallel and dims.tp > 1
sharded = dims.dp_shard * dims.cp > 1
back["zero_stage"] = (3 if par.fsdp_reshard_after_forward == "always" else 2) if sharded else 0
back["shards"] = dims.dp_shard * dims.cp
if hasattr(tr, "seq_len"):  # 0.3.0 counts sequences
    back["seq_len"], back["global_batch"] = tr.seq_len, tr.global_batch_size
    back["micro_batch"] = par.pipeline_parallel_microbatch_size if dims.pp > 1 else tr.local_batch_size
    if dims.pp > 1:
        assert tr.local_batch_size * back["dp"] == tr.global_batch_size, "micro-batches of one step run as one batch"
else:  # later versions count tokens
    back["seq_len"] = tr.max_context_length
    back["global_batch"] = tr.num_tokens_per_train_step // tr.max_context_length
    back["micro_batch"] = tr.num_tokens_per_microbatch_per_dp_rank // tr.max_context_length
    if dims.pp > 1:
        assert par.num_pp_microbatches * back["micro_batch"] * back["dp"] == back["global_batch"], "micro-batches"
schedules = {"1F1B": "1f1b", "Interleaved1F1B": "interleaved", "GPipe": "gpipe"}
back["schedule"] = schedules[par.pipeline_parallel_schedule] if dims.pp > 1 else "1f1b"
parts = par.module_fqns_per_model_part or [[f"layers.{i}" for i in range(len(config.model_spec.model.layers))]]
back["chunk_layers"] = [sum(name.startswith("layers.") for name in part) for part in parts]
back["vp"] = len(parts) // dims.pp
names = [name for part in parts for name in part if name.startswith("layers.")]
assert names == [f"layers.{i}" for i in range(model["n_layers"])], "layers in order, each once"
if dims.pp > 1:  # refuses what does not fill the ranks
    own = _get_pp_rank_to_stage_indices_mapping(0, dims.pp, par.pipeline_parallel_schedule, len(parts))
    assert own == tuple(range(0, len(parts), dims.pp)), own
ac = config.activation_checkpoint
back["recompute"] = "none" if ac is None else "selective" if isinstance(ac, SelectiveAC.Config) else "full"
back["recompute_layers"] = -1
if isinstance(ac, FullAC.Config) and hasattr(ac, "layers"):
    edges = [sum(back["chunk_layers"][:i]) for i in range(len(parts))]
    back["recompute_layers"] = max(sum(first <= i < first + n for i in ac.layers)
                                   for first, n in zip(edges, back["chunk_layers"]))
back["parameter_offload"] = tr.enable_cpu_offload
back["optimizer_offload"] = 1.0 if tr.enable_cpu_offload else 0.0
back["overlap_tp"] = config.compile.enable_async_tensor_parallel
back["parameter"] = {"bfloat16": "bf16", "float32": "fp32"}[tr.mixed_precision_param]
back["reduction"] = {"float32": "fp32"}[tr.mixed_precision_reduce]
shape = config.model_spec.model
block = shape.layers[0]
back["hidden"], back["vocab_size"], back["n_layers"] = shape.dim, shape.vocab_size, len(shape.layers)
back["n_heads"], back["tied_embeddings"] = block.attention.n_heads, shape.enable_weight_tying
back["n_kv_heads"], back["head_dim"] = block.attention.n_kv_heads, block.attention.rope.dim
back["ffn_hidden"] = block.feed_forward.w2.in_features
back["rope_theta"], back["norm_eps"] = block.attention.rope.theta, block.attention_norm.eps
rope = block.attention.rope
back["rope_scaling"] = rope.scaling == "llama" and [
    rope.scaling_factor, rope.low_freq_factor, rope.high_freq_factor, rope.original_max_position_embeddings]

wanted = {**plan, **training, **model}
if scaling := model.get("rope_scaling", False):
    scaling = [scaling[k] for k in ("factor", "low_freq_factor", "high_freq_factor", "original_max_positions")]
wanted["rope_scaling"] = scaling
per_rank = plan["cp"] * plan["dp"]
wanted["shards"] = plan["cp"] if plan["zero_stage"] == 0 else plan["shard_degree"] or per_rank
if wanted["shards"] == 1:  # nothing to shard: stages are one
    wanted["zero_stage"] = 0
if plan["pp"] == 1:
    wanted["schedule"] = "1f1b"
wanted["overlap_tp"] = plan["overlap_tp"] and plan["tp"] > 1
wanted["sequence_parallel"] = plan["sequence_parallel"] and plan["tp"] > 1
layers, chunks = model["n_layers"], plan["pp"] * plan["vp"]
wanted["chunk_layers"] = plan["chunk_layers"] or [layers // chunks + (i < layers % chunks) for i in range(chunks)]
if plan["recompute_layers"] >= 0:
    wanted["recompute_layers"] = min(plan["recompute_layers"], max(wanted["chunk_layers"]))
other = {key: (value, wanted[key]) for key, value in back.items() if value != wanted[key]}
if other:
    last("other values than the plan's: " + ", ".join(f"{k} {a} instead of {b}" for k, (a, b) in other.items()), 1)
last(f"torchtitan {torchtitan.__version__}: {len(back)} values read back as in the plan", 0)

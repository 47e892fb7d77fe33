"""Has Megatron-LM's own parser and validation read arguments.sh, and compares what they made of it with plan.json.

MEGATRON_LM names a checkout of NVIDIA/Megatron-LM; without it the installed megatron-core is asked.
Exit codes: 0 accepted with the same values, 1 refused or other values, 77 Megatron-LM is not installed.
"""
import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import typing

folder = os.path.dirname(os.path.abspath(__file__))
if os.environ.get("MEGATRON_LM"):
    sys.path.insert(0, os.environ["MEGATRON_LM"])


def last(what, code):
    print(what)
    sys.exit(code)


script = 'source ./environment.sh; source ./arguments.sh; printf "%s\\0" "${MEGATRON_ARGS[@]}"; printf "%s=%s\\0" CONNECTIONS "${CUDA_DEVICE_MAX_CONNECTIONS:-}"'
words = subprocess.run(["bash", "-c", script], cwd=folder, check=True, capture_output=True, text=True).stdout.split("\0")[:-1]
connections = words.pop().removeprefix("CONNECTIONS=")
if connections:
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = connections

plan_file = json.load(open(os.path.join(folder, "plan.json")))
plan, training, model = plan_file["plan"], plan_file["training"], plan_file["model"]
world = plan["tp"] * plan["cp"] * plan["pp"] * plan["dp"]
os.environ.update(WORLD_SIZE=str(world), RANK="0", LOCAL_RANK="0")
if not hasattr(typing, "override"):  # of Python 3.12, which it asks for; its parser uses nothing else of it
    typing.override = lambda function: function
try:
    import torch

    if not torch.cuda.is_available():  # the parser asks for the device's generation
        generations = {"volta": (7, 0), "ampere": (8, 0), "hopper": (9, 0), "blackwell": (10, 0), "blackwell_ultra": (10, 3)}
        capability = generations.get(plan_file["cluster"]["device"]["generation"], (9, 0))
        torch.cuda.get_device_capability = lambda *_: capability
        torch.cuda.get_device_properties = lambda *_: type("Properties", (), {"major": capability[0], "minor": capability[1]})()
        torch.cuda.device_count = lambda: plan_file["cluster"]["node"]["gpus"]
    import megatron.core
    from megatron.training import arguments
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
except ImportError as error:
    last(f"Megatron-LM: {error}", 77)

sys.argv = ["pretrain_gpt.py", *words]
with contextlib.redirect_stdout(io.StringIO()):  # it prints all of some 700 arguments
    args = arguments.parse_args()
    arguments.validate_args(args)
    if not importlib.util.find_spec("transformer_engine"):
        args.apply_rope_fusion = False
    arguments.core_transformer_config_from_args(args)  # which refuses more

# Read back into the plan's own words.
back = {"tp": args.tensor_model_parallel_size, "cp": args.context_parallel_size, "pp": args.pipeline_model_parallel_size}
back["dp"] = args.data_parallel_size
back["sequence_parallel"] = args.sequence_parallel
back["overlap_tp"] = args.tp_comm_overlap
back["micro_batch"], back["global_batch"], back["seq_len"] = args.micro_batch_size, args.global_batch_size, args.seq_length
back["vp"] = args.virtual_pipeline_model_parallel_size or 1
back["schedule"] = "interleaved" if back["vp"] > 1 else "1f1b"
if args.pipeline_model_parallel_layout:
    layout = args.pipeline_model_parallel_layout
    if isinstance(layout, str):
        layout = PipelineParallelLayerLayout.from_str(layout, back["pp"])
    counts = []
    for v in range(back["vp"]):
        for p in range(back["pp"]):
            counts.append(sum(layer.name == "decoder" for layer in layout.layout[p][v]))
    back["chunk_layers"] = counts
else:
    assert args.num_layers % (back["pp"] * back["vp"]) == 0, "equal chunks"
    back["chunk_layers"] = [args.num_layers // (back["pp"] * back["vp"])] * (back["pp"] * back["vp"])
strategy = args.data_parallel_sharding_strategy if args.use_megatron_fsdp else None
stages = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
back["zero_stage"] = stages[strategy] if strategy else int(args.use_distributed_optimizer)
back["shards"] = 1
if back["zero_stage"]:
    back["shards"] = back["dp"] * back["cp"] // args.num_distributed_optimizer_instances
back["overlap_grad_reduce"], back["overlap_param_gather"] = args.overlap_grad_reduce, args.overlap_param_gather
back["bucket_elements"] = args.ddp_bucket_size or 0
offload = args.optimizer_cpu_offload
back["optimizer_offload"] = float(args.optimizer_offload_fraction) if offload else 0.0
back["activation_offload"] = args.cpu_offloading_num_layers if args.cpu_offloading_num_layers else 0
back["recompute"], back["recompute_layers"] = args.recompute_granularity or "none", -1
if back["recompute"] == "selective":
    assert args.recompute_modules == ["core_attn"], args.recompute_modules
if args.recompute_method == "block":
    back["recompute_layers"] = args.recompute_num_layers
tp_pp_dp = args.use_tp_pp_dp_mapping
back["axis_order"] = ["tp", "cp", "pp", "dp"] if tp_pp_dp else ["tp", "cp", "dp", "pp"]
back["parameter"] = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}[str(args.params_dtype)]
back["compute"] = "fp8" if args.fp8 else back["parameter"]
back["gradient"] = "fp32" if args.accumulate_allreduce_grads_in_fp32 else back["parameter"]
state = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.uint8": "fp8"}
back["optimizer_state"] = state[str(args.exp_avg_dtype)] if args.use_precision_aware_optimizer else "fp32"
back["n_layers"], back["hidden"], back["ffn_hidden"] = args.num_layers, args.hidden_size, args.ffn_hidden_size
back["n_heads"], back["head_dim"] = args.num_attention_heads, args.kv_channels
back["n_kv_heads"] = args.num_query_groups if args.group_query_attention else args.num_attention_heads
back["vocab_size"] = args.vocab_size
back["tied_embeddings"] = not args.untie_embeddings_and_output_weights
back["gated_mlp"], back["linear_bias"] = args.swiglu, args.add_bias_linear
back["norm"] = {"RMSNorm": "rms", "LayerNorm": "layer"}[args.normalization]
back["norm_eps"] = args.layernorm_epsilon
if model["position"] == "rope":
    back["rope_theta"] = float(args.rotary_base)
    back["rope_factor"] = args.rope_scaling_factor if args.use_rope_scaling else 1

wanted = {**plan, **training, **model}
wanted["rope_factor"] = (model.get("rope_scaling") or {"factor": 1})["factor"]
replicas = plan["dp"] * plan["cp"]
wanted["shards"] = 1 if plan["zero_stage"] == 0 else plan["shard_degree"] or replicas
wanted["overlap_tp"] = plan["overlap_tp"] and plan["tp"] > 1
wanted["sequence_parallel"] = plan["sequence_parallel"] and plan["tp"] > 1
wanted["overlap_param_gather"] = plan["overlap_param_gather"] and plan["overlap_grad_reduce"] and plan["zero_stage"] > 0
layers, chunks = model["n_layers"], plan["pp"] * plan["vp"]
wanted["chunk_layers"] = plan["chunk_layers"] or [layers // chunks + (i < layers % chunks) for i in range(chunks)]
wanted["parameter"] = training["parameter"]


def order(axes):  # axes of one rank may stand anywhere
    return [a for a in axes if plan[a] > 1]


back["axis_order"], wanted["axis_order"] = order(back["axis_order"]), order(plan["axis_order"])
other = {key: (value, wanted[key]) for key, value in back.items() if value != wanted[key]}
if other:
    last("other values than the plan's: " + ", ".join(f"{k} {a} instead of {b}" for k, (a, b) in other.items()), 1)
last(f"megatron-core {megatron.core.__version__}: {len(back)} values read back as in the plan", 0)

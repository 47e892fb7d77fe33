"""Builds the model of train.py on the ranks of the plan, all but this one faked and without memory for parameters, and compares
what PyTorch made of it with plan.json.

Exit codes: 0 accepted with the same values, 1 refused or other values, 77 PyTorch is not installed.
"""
import json
import os
import sys
import warnings

folder = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, folder)
warnings.filterwarnings("ignore")


def last(what, code):
    print(what)
    sys.exit(code)


try:
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
    from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
    from torch.distributed.tensor import Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
except ImportError as error:
    last(f"PyTorch: {error}", 77)

import check_rope
import settings
import train

plan_file = json.load(open(os.path.join(folder, "plan.json")))
plan, training, model = plan_file["plan"], plan_file["training"], plan_file["model"]
world = plan["tp"] * plan["cp"] * plan["pp"] * plan["dp"]
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
built, mesh = train.build("cpu", compiled=False)  # refuses a mesh that does not fill the ranks

# Read back into the plan's own words, from the modules.
sizes = dict(zip(mesh.mesh_dim_names, mesh.shape))
back = {"tp": sizes["tp"], "cp": 1, "pp": 1, "dp": sizes["replicate"] * sizes["shard"]}
groups = [layer._get_fsdp_state()._fsdp_param_group for layer in built.layers]
assert isinstance(built, FSDPModule) and all(groups), "every layer is a unit of FSDP"
back["shards"] = groups[0].mesh_info.shard_mesh_size
back["zero_stage"] = 0 if back["shards"] == 1 else 2 if groups[0].post_forward_mesh_info is None else 3
policy = groups[0].fsdp_params[0].mp_policy
back["parameter"] = {"torch.bfloat16": "bf16", "torch.float32": "fp32"}[str(policy.param_dtype)]
back["reduction"] = {"torch.float32": "fp32"}[str(policy.reduce_dtype)]
assert {p.dtype for p in built.parameters()} == {torch.float32}, "fp32 master copy"
back["parameter_offload"] = isinstance(groups[0].offload_policy, CPUOffloadPolicy)
wrapped = [isinstance(layer, CheckpointWrapper) for layer in built.layers]
selective = wrapped[0] and "context_fn" in built.layers[0].checkpoint_fn.keywords
back["recompute"] = "none" if not wrapped[0] else "selective" if selective else "full"
back["recompute_layers"] = -1 if all(wrapped) or not any(wrapped) else sum(wrapped)
names = dict(built.named_parameters())
query = next(p for n, p in names.items() if n.endswith("layers.0.attention.q.weight") or n.endswith("attention.q.weight"))
back["query_split"] = Shard(0) in query.placements[2:] or any(
    getattr(place, "dim", None) == 0 for place in query.placements[-1:]) and len(query.placements) == 3
norm = next(p for n, p in names.items() if n.endswith("attention_norm.weight"))
back["sequence_parallel"] = len(norm.placements) == 3 and norm.placements[-1] == Replicate()
numbers = sum(p.numel() for p in built.parameters())
h, kv = model["hidden"], model["n_kv_heads"] * model["head_dim"]
q = model["n_heads"] * model["head_dim"]
back["parameters"] = numbers
back["n_layers"], back["vocab_size"] = len(built.layers), built.embedding.num_embeddings
back["n_heads"], back["n_kv_heads"], back["head_dim"] = settings.HEADS, settings.KV_HEADS, settings.HEAD_DIM
back["rope_theta"], back["norm_eps"] = settings.ROPE_THETA, built.norm.eps
cos, sin = train.rotary_table("cpu")  # at position 1 the angles are the frequencies
back["rope"], rope = check_rope.read_and_wanted(torch.atan2(sin[1], cos[1]).tolist(), model)
back["tied_embeddings"] = built.head.weight is built.embedding.weight
back["seq_len"], back["micro_batch"] = settings.SEQ_LEN, settings.MICRO_BATCH
back["global_batch"] = settings.MICRO_BATCH * settings.MICRO_BATCHES * back["dp"]

wanted = {**plan, **training, **model, "rope": rope}
wanted["shards"] = 1 if plan["zero_stage"] == 0 else plan["shard_degree"] or plan["dp"]
if wanted["shards"] == 1:  # nothing to shard: stages are one
    wanted["zero_stage"] = 0
wanted["sequence_parallel"] = plan["sequence_parallel"] and plan["tp"] > 1
wanted["query_split"] = plan["tp"] > 1
wanted["parameters"] = (model["n_layers"] * (2 * h * q + 2 * h * kv + 3 * h * model["ffn_hidden"] + 2 * h) + h
                        + (1 if model["tied_embeddings"] else 2) * model["vocab_size"] * h)
if plan["recompute_layers"] >= model["n_layers"]:
    wanted["recompute_layers"] = -1
if plan["recompute_layers"] == 0:
    wanted["recompute"] = "none"
    wanted["recompute_layers"] = -1
other = {key: (value, wanted[key]) for key, value in back.items() if value != wanted[key]}
if other:
    last("other values than the plan's: " + ", ".join(f"{k} {a} instead of {b}" for k, (a, b) in other.items()), 1)
last(f"torch {torch.__version__}: {len(back)} values read back as in the plan", 0)

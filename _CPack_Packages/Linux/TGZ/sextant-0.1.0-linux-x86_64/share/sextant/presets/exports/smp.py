"""Holds smp_config.json against AWS's list of SMP v2's parameters, and compares what it says with plan.json. The library itself is in
AWS's containers alone: where it is installed, its own torch.sagemaker reads the file when the job starts.

Keys, types and bounds: "The SageMaker model parallel library v2 reference", SMP v2 core feature configuration parameters.
Exit codes: 0 accepted with the same values, 1 refused or other values.
"""
import json
import os
import sys

folder = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, folder)
import settings

plan_file = json.load(open(os.path.join(folder, "plan.json")))
plan, training, model = plan_file["plan"], plan_file["training"], plan_file["model"]
world = plan["tp"] * plan["cp"] * plan["pp"] * plan["dp"]
config = json.load(open(os.path.join(folder, "smp_config.json")))


def last(what, code):
    print(what)
    sys.exit(code)


degree = (int, lambda v: 1 <= v <= world and world % v == 0, f"a divisor of the {world} ranks")
schema = {"hybrid_shard_degree": (int, lambda v: 0 <= v <= world, f"0 to {world}"), "sm_activation_offloading": (bool, lambda v: True, ""),
          "activation_loading_horizon": (int, lambda v: v >= 1, "1 or more"), "fsdp_cache_flush_warnings": (bool, lambda v: True, ""),
          "allow_empty_shards": (bool, lambda v: True, ""), "tensor_parallel_degree": degree, "context_parallel_degree": degree,
          "expert_parallel_degree": degree, "random_seed": (int, lambda v: v >= 0, "0 or more")}
for key, value in config.items():
    if key not in schema:
        last(f"smp_config.json: {key}: not one of {', '.join(schema)}", 1)
    kind, holds, expected = schema[key]
    if type(value) is not kind or not holds(value):
        last(f"smp_config.json: {key} {value}: expected {kind.__name__} {expected}", 1)

back = {"tp": config["tensor_parallel_degree"], "cp": config["context_parallel_degree"], "pp": 1}
back["dp"] = world // (back["tp"] * back["cp"])
back["shards"] = config["hybrid_shard_degree"]
back["zero_stage"] = 0 if back["shards"] == 1 else 3
back["activation_offload"] = config["sm_activation_offloading"]
if back["activation_offload"]:
    back["offload_horizon"] = config["activation_loading_horizon"]
back["micro_batch"], back["seq_len"] = settings.MICRO_BATCH, settings.SEQ_LEN
back["global_batch"] = settings.MICRO_BATCH * settings.MICRO_BATCHES * back["dp"]
back["recompute"] = "full" if settings.RECOMPUTE else "none"
back["n_layers"], back["hidden"] = settings.LAYERS, settings.HIDDEN
wanted = {**plan, **training, **model}
wanted["shards"] = 1 if plan["zero_stage"] == 0 else plan["shard_degree"] or plan["dp"] * plan["cp"]
if wanted["shards"] == 1:
    wanted["zero_stage"] = 0
wanted["activation_offload"] = plan["activation_offload"] > 0
other = {key: (value, wanted[key]) for key, value in back.items() if value != wanted[key]}
if other:
    last("other values than the plan's: " + ", ".join(f"{k} {a} instead of {b}" for k, (a, b) in other.items()), 1)
last(f"SMP v2's list of parameters, not its parser: {len(back)} values read back as in the plan", 0)

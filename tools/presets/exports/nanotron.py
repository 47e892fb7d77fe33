"""Has nanotron's own configuration classes read nanotron.yaml, and compares what they made of it with plan.json.

NANOTRON names a checkout of huggingface/nanotron; without it the installed one is asked.
Exit codes: 0 accepted with the same values, 1 refused or other values, 77 nanotron is not installed.
"""
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import sys
import types

folder = os.path.dirname(os.path.abspath(__file__))
if os.environ.get("NANOTRON"):
    sys.path.insert(0, os.path.join(os.environ["NANOTRON"], "src"))


def last(what, code):
    print(what)
    sys.exit(code)


class Absent(types.ModuleType):
    """flash-attn needs a GPU to be built; the parser uses nothing of it."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


if not importlib.util.find_spec("flash_attn"):
    for name in ("flash_attn", "flash_attn.flash_attn_interface"):
        sys.modules[name] = Absent(name)
    sys.modules["flash_attn"].__version__ = "2.8.0"
try:
    import nanotron.config
    from nanotron.config import get_config_from_file
    from nanotron.config.models_config import LlamaConfig
except ImportError as error:
    last(f"nanotron: {error}", 77)
if "data_stages" not in {f.name for f in dataclasses.fields(nanotron.config.Config)}:
    last("nanotron: the wheel of 2024 has other fields; NANOTRON names a checkout at 2411b02 or later", 77)

plan_file = json.load(open(os.path.join(folder, "plan.json")))
plan, training, model = plan_file["plan"], plan_file["training"], plan_file["model"]
config = get_config_from_file(os.path.join(folder, "nanotron.yaml"))
par, tokens, shape = config.parallelism, config.tokens, config.model.model_config
assert isinstance(shape, LlamaConfig), type(shape)

# Read back into the plan's own words.
back = {"tp": par.tp, "cp": par.context_parallel_size, "pp": par.pp, "dp": par.dp}
engines = {"OneForwardOneBackwardPipelineEngine": "1f1b", "AllForwardAllBackwardPipelineEngine": "gpipe"}
back["schedule"] = engines[type(par.pp_engine).__name__]
back["sequence_parallel"] = par.tp_mode.name == "REDUCE_SCATTER"
back["overlap_tp"] = par.tp_linear_async_communication
back["recompute"] = "full" if par.recompute_layer else "none"
back["zero_stage"] = config.optimizer.zero_stage
back["gradient"] = "fp32" if config.optimizer.accumulate_grad_in_fp32 else "bf16"
back["parameter"] = {"torch.bfloat16": "bf16"}[str(config.model.dtype)]
back["seq_len"], back["micro_batch"] = tokens.sequence_length, tokens.micro_batch_size
back["global_batch"] = config.global_batch_size
back["bucket_MiB"] = config.model.ddp_bucket_cap_mb
back["hidden"], back["ffn_hidden"], back["n_layers"] = shape.hidden_size, shape.intermediate_size, shape.num_hidden_layers
back["n_heads"], back["n_kv_heads"] = shape.num_attention_heads, shape.num_key_value_heads
back["head_dim"] = shape.hidden_size // shape.num_attention_heads
back["vocab_size"], back["tied_embeddings"] = shape.vocab_size, shape.tie_word_embeddings
back["rope_theta"], back["norm_eps"] = shape.rope_theta, shape.rms_norm_eps
back["rope_scaling"] = shape.rope_scaling  # a field that its model does not read: no export states it
# build_model() of models/base.py shares out the blocks by these costs.
layer = 4 * shape.hidden_size**2 + 3 * shape.intermediate_size * shape.hidden_size
total = layer * shape.num_hidden_layers + shape.vocab_size * shape.hidden_size
stages, stage, cost = [0] * par.pp, 0, 0
for _ in range(shape.num_hidden_layers):
    stages[stage] += 1
    cost += layer
    stage += cost > total * ((stage + 1) / par.pp)
back["chunk_layers"] = stages

wanted = {**plan, **training, "rope_scaling": None, **model}
wanted["sequence_parallel"] = plan["sequence_parallel"] and plan["tp"] > 1
wanted["overlap_tp"] = plan["overlap_tp"] and plan["tp"] > 1
wanted["bucket_MiB"] = max(1, round(plan["bucket_elements"] * 2 / 2**20)) if plan["bucket_elements"] else 25
wanted["chunk_layers"] = plan["chunk_layers"] or [
    model["n_layers"] // plan["pp"] + (i < model["n_layers"] % plan["pp"]) for i in range(plan["pp"])]
other = {key: (value, wanted[key]) for key, value in back.items() if value != wanted[key]}
if other:
    last("other values than the plan's: " + ", ".join(f"{k} {a} instead of {b}" for k, (a, b) in other.items()), 1)
last(f"nanotron {importlib.metadata.version('nanotron') if not os.environ.get('NANOTRON') else 'of the checkout'}: "
     f"{len(back)} values read back as in the plan", 0)

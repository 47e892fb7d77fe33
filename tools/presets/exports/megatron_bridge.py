"""Has Megatron-Bridge's own ConfigContainer finalize and validate the recipe of sextant_recipe.py on the ranks of the plan, and compares
what it made of it with plan.json.

Exit codes: 0 accepted with the same values, 1 refused or other values, 77 Megatron-Bridge is not installed.
"""
import contextlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import io
import json
import os
import subprocess
import sys
import types
import typing
import warnings

folder = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, folder)
warnings.filterwarnings("ignore")


def last(what, code):
    print(what)
    sys.exit(code)


class Name(type):
    """A class of which every attribute is one more."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Name(name, (), {})


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Transformer Engine and its kin need a GPU to be built, others are for data, logs and other models; of all these the
    configuration uses names alone."""

    names = ("transformer_engine", "modelopt", "nvidia_resiliency_ext", "flashinfer", "mamba_ssm", "causal_conv1d", "fla",
             "fast_hadamard_transform", "megatron.energon", "webdataset", "PIL", "torchvision", "datasets", "diffusers", "peft", "timm", "open_clip", "qwen_vl_utils", "mistral_common",
             "mlflow", "comet_ml", "wandb", "tensorboard", "tensorboardX", "librosa", "soxr", "nemo_run", "multistorageclient")

    def find_spec(self, name, path=None, target=None):
        if any(name == absent or name.startswith(absent + ".") for absent in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__version__ = "2.18.0"

        def attribute(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return Name(name, (), {})

        module.__getattr__ = attribute
        return module

    def exec_module(self, module):
        pass


plan_file = json.load(open(os.path.join(folder, "plan.json")))
plan, training, model = plan_file["plan"], plan_file["training"], plan_file["model"]
world = plan["tp"] * plan["cp"] * plan["pp"] * plan["dp"]
os.environ.update(WORLD_SIZE=str(world), RANK="0", LOCAL_RANK="0")
script = 'source ./environment.sh; printf "%s" "${CUDA_DEVICE_MAX_CONNECTIONS:-}"'
connections = subprocess.run(["bash", "-c", script], cwd=folder, check=True, capture_output=True, text=True).stdout
if connections:
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = connections
if not hasattr(typing, "override"):
    typing.override = lambda function: function
try:
    version = importlib.metadata.version("megatron-bridge")
    import torch

    if not torch.cuda.is_available():  # it asks for the device's generation
        generations = {"volta": (7, 0), "ampere": (8, 0), "hopper": (9, 0), "blackwell": (10, 0), "blackwell_ultra": (10, 3)}
        capability = generations.get(plan_file["cluster"]["device"]["generation"], (9, 0))
        torch.cuda.get_device_capability = lambda *_: capability
        torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=capability[0], minor=capability[1], name="GPU")
        torch.cuda.device_count = lambda: plan_file["cluster"]["node"]["gpus"]
        torch.cuda.current_device = lambda: 0
    import megatron.core.transformer.transformer_config  # before the stand-ins: Megatron-Core does without them
    import megatron.training.config

    sys.meta_path.append(Absent())  # what is installed is found first
    with contextlib.redirect_stdout(io.StringIO()):
        from megatron.bridge.training.config import ConfigContainer, runtime_config_update
        from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
    import sextant_recipe
except (ImportError, importlib.metadata.PackageNotFoundError) as error:
    last(f"Megatron-Bridge: {error}", 77)

config = sextant_recipe.plan()
assert isinstance(config, ConfigContainer)
if not importlib.util.find_spec("transformer_engine.pytorch.module") or "transformer_engine" in sys.modules:
    config.model.apply_rope_fusion = False
with contextlib.redirect_stdout(io.StringIO()):
    runtime_config_update(config)  # what pretrain() begins with; it validates
m, ddp, optimizer = config.model, config.ddp, config.optimizer

# Read back into the plan's own words.
back = {"tp": m.tensor_model_parallel_size, "cp": m.context_parallel_size, "pp": m.pipeline_model_parallel_size}
back["dp"], back["vp"] = config.data_parallel_size, m.virtual_pipeline_model_parallel_size or 1
back["schedule"] = "interleaved" if back["vp"] > 1 else "1f1b"
back["sequence_parallel"], back["overlap_tp"] = m.sequence_parallel, m.tp_comm_overlap
back["micro_batch"], back["global_batch"] = config.train.micro_batch_size, config.train.global_batch_size
back["seq_len"] = m.seq_length
layout, chunks = m.pipeline_model_parallel_layout, back["pp"] * back["vp"]
if layout:
    if isinstance(layout, (str, list)):
        layout = PipelineParallelLayerLayout.from_str(layout, back["pp"])
    back["chunk_layers"] = [sum(layer.name == "decoder" for layer in layout.layout[p][v])
                            for v in range(back["vp"]) for p in range(back["pp"])]
else:
    assert m.num_layers % chunks == 0, "equal chunks"
    back["chunk_layers"] = [m.num_layers // chunks] * chunks
stages = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
back["zero_stage"] = stages[ddp.data_parallel_sharding_strategy] if ddp.use_megatron_fsdp else int(ddp.use_distributed_optimizer)
back["shards"] = back["dp"] * back["cp"] // ddp.num_distributed_optimizer_instances if back["zero_stage"] else 1
back["overlap_grad_reduce"], back["overlap_param_gather"] = ddp.overlap_grad_reduce, ddp.overlap_param_gather
back["bucket_elements"] = ddp.bucket_size or 0
back["optimizer_offload"] = float(optimizer.optimizer_offload_fraction) if optimizer.optimizer_cpu_offload else 0.0
back["activation_offload"] = m.cpu_offloading_num_layers if m.cpu_offloading else 0
back["recompute"], back["recompute_layers"] = m.recompute_granularity or "none", -1
if back["recompute"] == "selective":
    assert m.recompute_modules == ["core_attn"], m.recompute_modules
if m.recompute_method == "block":
    back["recompute_layers"] = m.recompute_num_layers
back["axis_order"] = ["tp", "cp", "pp", "dp"] if config.dist.use_tp_pp_dp_mapping else ["tp", "cp", "dp", "pp"]
formats = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.uint8: "fp8"}
back["parameter"] = formats[m.params_dtype]
assert m.bf16 == (back["parameter"] == "bf16") and optimizer.bf16 == m.bf16, "formats of model and optimizer"
back["compute"] = "fp8" if m.fp8 else back["parameter"]
back["gradient"] = "fp32" if ddp.grad_reduce_in_fp32 else back["parameter"]
back["optimizer_state"] = formats[optimizer.exp_avg_dtype] if optimizer.use_precision_aware_optimizer else "fp32"
back["n_layers"], back["hidden"], back["ffn_hidden"] = m.num_layers, m.hidden_size, m.ffn_hidden_size
back["n_heads"], back["n_kv_heads"], back["head_dim"] = m.num_attention_heads, m.num_query_groups, m.kv_channels
back["vocab_size"], back["tied_embeddings"] = m.vocab_size, m.share_embeddings_and_output_weights
back["gated_mlp"], back["linear_bias"] = m.gated_linear_unit, m.add_bias_linear
back["norm"], back["norm_eps"] = {"RMSNorm": "rms", "LayerNorm": "layer"}[m.normalization], m.layernorm_epsilon
if model["position"] == "rope":
    back["rope_theta"] = float(m.rotary_base)
    back["rope_factor"] = m.rope_scaling_factor if m.rope_scaling else 1

wanted = {**plan, **training, **model}
wanted["rope_factor"] = (model.get("rope_scaling") or {"factor": 1})["factor"]
replicas = plan["dp"] * plan["cp"]
wanted["shards"] = 1 if plan["zero_stage"] == 0 else plan["shard_degree"] or replicas
wanted["overlap_tp"] = plan["overlap_tp"] and plan["tp"] > 1
wanted["sequence_parallel"] = plan["sequence_parallel"] and plan["tp"] > 1
wanted["overlap_param_gather"] = plan["overlap_param_gather"] and plan["overlap_grad_reduce"] and plan["zero_stage"] > 0
layers = model["n_layers"]
wanted["chunk_layers"] = plan["chunk_layers"] or [layers // chunks + (i < layers % chunks) for i in range(chunks)]


def order(axes):  # axes of one rank may stand anywhere
    return [a for a in axes if plan[a] > 1]


back["axis_order"], wanted["axis_order"] = order(back["axis_order"]), order(plan["axis_order"])
other = {key: (value, wanted[key]) for key, value in back.items() if value != wanted[key]}
if other:
    last("other values than the plan's: " + ", ".join(f"{k} {a} instead of {b}" for k, (a, b) in other.items()), 1)
last(f"megatron-bridge {version}: {len(back)} values read back as in the plan", 0)

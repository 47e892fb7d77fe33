"""Has `accelerate launch` read accelerate.yaml up to the environment that it gives to each rank, and the plugins of train.py read
that; compares what they made of it with plan.json.

Exit codes: 0 accepted with the same values, 1 refused or other values, 77 accelerate is not installed.
"""
import importlib.metadata
import json
import os
import sys
import types
import warnings

folder = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, folder)
os.chdir(folder)
os.environ.update(LOCAL_RANK="0", RANK="0", DS_ACCELERATOR=os.environ.get("DS_ACCELERATOR", "cpu"))
warnings.filterwarnings("ignore")


def last(what, code):
    print(what)
    sys.exit(code)


try:
    import torch
    import torch.distributed.fsdp
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
except ImportError as error:
    last(f"accelerate: {error}", 77)
import check_rope
import settings
import train

plan_file = json.load(open("plan.json"))
plan, training, model = plan_file["plan"], plan_file["training"], plan_file["model"]
words = ["--config_file", "accelerate.yaml", "--machine_rank", "1", "--main_process_ip", "localhost", "train.py"]
args = launch_command_parser().parse_args(words)
args, defaults, from_config = _validate_launch_command(args)
back = {}
if args.use_deepspeed:
    fields = [*defaults.deepspeed_config, *(["mixed_precision"] if from_config else [])]  # as launch_command() does
    args.deepspeed_fields_from_accelerate_config = ",".join(fields)
    command, environment = prepare_deepspeed_cmd_env(args)
    os.environ.update(environment)
    plugin = DeepSpeedPlugin()
    import deepspeed
    from deepspeed.runtime.config import DeepSpeedConfig
    from torch.testing._internal.distributed.fake_pg import FakeStore

    ranks = int(args.num_processes)  # all but this one faked
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled here, and nothing is sent
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    config = DeepSpeedConfig(plugin.deepspeed_config, types.SimpleNamespace(get_data_parallel_world_size=lambda: ranks))
    zero = config.zero_config
    back["zero_stage"], back["dp"] = int(plugin.zero_stage), ranks
    back["shards"] = 1 if back["zero_stage"] == 0 else ranks
    back["overlap_grad_reduce"], back["bucket"] = zero.overlap_comm, zero.reduce_bucket_size
    back["optimizer_offload"] = zero.offload_optimizer.ratio if zero.offload_optimizer else 0.0
    back["parameter_offload"] = zero.offload_param is not None
    back["parameter"] = "bf16" if config.bfloat16_config.enabled else "fp16" if config.float16_config.enabled else "fp32"
    back["gradient"] = config.grad_accum_dtype
    reduction = config.communication_data_type
    back["recompute"] = "full" if settings.RECOMPUTE else "none"
    back["micro_batch"], back["global_batch"] = config.train_micro_batch_size_per_gpu, config.train_batch_size
    back["zero3_init"] = plugin.zero3_init_flag
else:
    os.environ.update(prepare_multi_gpu_env(args))
    mesh = ParallelismConfig()
    policy = None
    if settings.DTYPE != "float32":
        policy = torch.distributed.fsdp.MixedPrecisionPolicy(
            param_dtype=getattr(torch, settings.DTYPE), reduce_dtype=getattr(torch, settings.REDUCE_DTYPE))
    plugin = FullyShardedDataParallelPlugin(mixed_precision_policy=policy)
    assert plugin.fsdp_version == 2 and plugin.transformer_cls_names_to_wrap == ["LlamaDecoderLayer"]
    mesh._validate_accelerator(types.SimpleNamespace(  # what Accelerator() asks of it
        multi_device=True, num_processes=int(args.num_processes), is_fsdp2=True, is_main_process=False, distributed_type="FSDP"))
    back["tp"], back["cp"], back["dp"] = mesh.tp_size, mesh.cp_size, mesh.data_parallel_size
    back["shards"], back["zero_stage"] = mesh.dp_shard_size, 3 if plugin.reshard_after_forward else 2
    back["parameter_offload"] = isinstance(plugin.cpu_offload, torch.distributed.fsdp.CPUOffloadPolicy)
    back["optimizer_offload"] = 1.0 if back["parameter_offload"] else 0.0
    back["recompute"] = "full" if plugin.activation_checkpointing else "none"
    back["parameter"] = {"bf16": "bf16", "fp16": "fp16", "no": "fp32"}[os.environ["ACCELERATE_MIXED_PRECISION"]]
    back["mixed_precision"] = os.environ["ACCELERATE_MIXED_PRECISION"]
    reduction = policy.reduce_dtype if policy else torch.float32
    back["micro_batch"] = settings.MICRO_BATCH
    back["global_batch"] = settings.MICRO_BATCH * settings.MICRO_BATCHES * back["dp"]
formats = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}
back["reduction"] = formats[str(reduction)]
back["nodes"] = args.num_machines
back["seq_len"] = settings.SEQ_LEN
for key, name in (("hidden", "HIDDEN"), ("ffn_hidden", "FFN"), ("vocab_size", "VOCAB"), ("n_layers", "LAYERS"), ("n_heads", "HEADS"),
                  ("n_kv_heads", "KV_HEADS"), ("head_dim", "HEAD_DIM"), ("tied_embeddings", "TIED"), ("norm_eps", "NORM_EPS"),
                  ("rope_theta", "ROPE_THETA")):
    back[key] = getattr(settings, name)
# What transformers makes of the script's configuration.
back["rope"], rope = check_rope.read_and_wanted(LlamaRotaryEmbedding(train.config()).inv_freq.tolist(), model)

wanted = {**plan, **training, **model, "rope": rope}
wanted["shards"] = 1 if plan["zero_stage"] == 0 else plan["shard_degree"] or plan["dp"]
wanted["overlap_grad_reduce"] = plan["overlap_grad_reduce"] and plan["dp"] > 1 and plan["zero_stage"] > 0
wanted["bucket"] = plan["bucket_elements"] or 500000000
wanted["mixed_precision"] = {"fp32": "no"}.get(training["parameter"], training["parameter"])
wanted["nodes"] = -(-plan["dp"] // plan_file["cluster"]["node"]["gpus"])
wanted["zero3_init"] = plan["zero_stage"] == 3
other = {key: (value, wanted[key]) for key, value in back.items() if value != wanted[key]}
if other:
    last("other values than the plan's: " + ", ".join(f"{k} {a} instead of {b}" for k, (a, b) in other.items()), 1)
last(f"accelerate {importlib.metadata.version('accelerate')}: {len(back)} values read back as in the plan", 0)

"""Written for this test, in the way of torchtitan b5bcd76, torchtitan/models/llama3/config_registry.py."""
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig

SEQ = 8192  # tokens


def small() -> Trainer.Config:
    spec = model_registry("8B")
    return Trainer.Config(
        model_spec=spec,
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=1 * SEQ,
            num_tokens_per_train_step=256 * SEQ,
            max_context_length=SEQ,
        ),
        parallelism=ParallelismConfig(
            pipeline_parallel_degree=2, pipeline_parallel_schedule="Interleaved1F1B",
            data_parallel_replicate_degree=2, data_parallel_shard_degree=4,
        ),
        activation_checkpoint=SelectiveAC.Config(),
    )


def large() -> Trainer.Config:
    compile_config = CompileConfig(enable=True, enable_async_tensor_parallel=True)
    spec = model_registry("405B", converters=[Float8LinearConverter.Config(filter_fqns=["lm_head"])])
    return Trainer.Config(
        model_spec=spec,
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * 8192, max_context_length=8192),
        parallelism=ParallelismConfig(tensor_parallel_degree=8),
        activation_checkpoint=FullAC.Config(),
        compile=compile_config,
    )

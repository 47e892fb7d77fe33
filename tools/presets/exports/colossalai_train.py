"""Trains the LLaMA of settings.py with Colossal-AI: transformers' model under the booster's plugin of the plan.

torchrun starts it (launch.sh). Options:
  --steps N  steps to train, 100 by default
  --tiny     the same ranks with a small model: does the layout run at all?
Tokens and weights are random: batches() and model() are yours, as are learning rate and checkpoints.
"""
import argparse
import contextlib
import time

import colossalai
import torch
import torch.distributed as dist
from colossalai.booster import Booster
from colossalai.booster import plugin as plugins
from colossalai.lazy import LazyInitContext
from colossalai.shardformer import PipelineGradientCheckpointConfig
from transformers import LlamaConfig, LlamaForCausalLM

import settings as S

GEMINI = S.PLUGIN == "GeminiPlugin"


def tiny():
    """The same layout with as few channels and tokens as it takes, and no more layers than stages need."""
    S.HEAD_DIM, S.FFN, S.VOCAB, S.SEQ_LEN = 8, 32 * S.OPTIONS["tp_size"], 64 * S.OPTIONS["tp_size"], 64
    S.HIDDEN = S.HEADS * S.HEAD_DIM
    if "num_layers_per_stage" not in S.OPTIONS:
        S.LAYERS = 4
    if GEMINI:
        S.OPTIONS["hidden_dim"] = S.HIDDEN


def plugin():
    options = dict(S.OPTIONS)
    if "communication_dtype" in options:
        options["communication_dtype"] = getattr(torch, options["communication_dtype"])
    if S.RECOMPUTED_LAYERS:
        options["gradient_checkpoint_config"] = PipelineGradientCheckpointConfig(num_ckpt_layers_per_stage=S.RECOMPUTED_LAYERS)
    return getattr(plugins, S.PLUGIN)(**options)


def model():
    """Yours: from_pretrained(), for weights that exist."""
    scaling = None
    if S.ROPE_SCALING:
        factor, low, high, original = S.ROPE_SCALING
        scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                   "original_max_position_embeddings": original}
    built = LlamaForCausalLM(LlamaConfig(
        hidden_size=S.HIDDEN, num_hidden_layers=S.LAYERS, intermediate_size=S.FFN, vocab_size=S.VOCAB,
        num_attention_heads=S.HEADS, num_key_value_heads=S.KV_HEADS, head_dim=S.HEAD_DIM, rms_norm_eps=S.NORM_EPS,
        max_position_embeddings=max(S.SEQ_LEN, S.MAX_POSITIONS), attention_bias=S.BIASES, mlp_bias=S.BIASES,
        tie_word_embeddings=S.TIED, rope_theta=S.ROPE_THETA, rope_scaling=scaling, use_cache=False))
    if S.RECOMPUTE:
        built.gradient_checkpointing_enable({"use_reentrant": False})
    return built


def optimizer(parameters):
    options = {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
    if GEMINI or S.OPTIONS["cpu_offload"]:  # one that updates on the host what rests there
        from colossalai.nn.optimizer import HybridAdam

        return HybridAdam(parameters, **options)
    return torch.optim.AdamW(parameters, **options)


def batches(replica, device, rows):
    """Yours: sequences of this replica."""
    generator = torch.Generator().manual_seed(replica)
    while True:
        tokens = torch.randint(S.VOCAB, (rows, S.SEQ_LEN), generator=generator).to(device)
        yield {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    if args.tiny:
        tiny()
    colossalai.launch_from_torch(seed=1)
    device = colossalai.accelerator.get_accelerator().get_current_device()
    how = plugin()
    with contextlib.nullcontext() if args.tiny else LazyInitContext(default_device=device):
        built = model()
    booster = Booster(plugin=how)
    built, adam, *_ = booster.boost(built, optimizer(built.parameters()))
    pipeline = S.OPTIONS.get("pp_size", 1) > 1
    replica = how.pg_mesh.coordinate(0 if GEMINI else how.dp_axis)
    data = batches(replica, device, S.MICRO_BATCH * (S.MICRO_BATCHES if pipeline else 1))
    for step in range(args.steps):
        start, losses = time.perf_counter(), []
        if pipeline:
            out = booster.execute_pipeline(data, built, lambda outputs, inputs: outputs[0], adam, return_loss=True)
            losses = [out["loss"]] if out["loss"] is not None else []
        else:
            for micro in range(S.MICRO_BATCHES):
                # ZeRO 2 and Gemini reduce in every micro-batch.
                later = not GEMINI and S.OPTIONS["zero_stage"] < 2 and micro + 1 < S.MICRO_BATCHES
                with booster.no_sync(built, adam) if later else contextlib.nullcontext():
                    loss = built(**next(data))[0]
                    booster.backward(loss / S.MICRO_BATCHES, adam)
                losses.append(loss.detach())
        adam.step()
        adam.zero_grad()
        if losses and dist.get_rank() in (0, dist.get_world_size() - 1):  # the last stage of a pipeline has it
            loss = float(torch.stack([l.float().reshape(()) for l in losses]).mean())
            memory = f"{torch.cuda.max_memory_reserved() / 2**30:.1f} GiB" if torch.cuda.is_available() else "on CPU"
            if pipeline or dist.get_rank() == 0:
                print(f"step {step + 1} loss {loss:.4f} {time.perf_counter() - start:.3f} s {memory}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

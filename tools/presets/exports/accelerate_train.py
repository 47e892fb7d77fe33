"""Trains the LLaMA of settings.py with accelerate: transformers' model under FSDP2 or DeepSpeed, as accelerate.yaml says.

accelerate launch starts it (launch.sh). Options:
  --steps N  steps to train, 100 by default
  --tiny     the same ranks with a small model, also on CPUs (gloo): does the layout run at all?
Tokens and weights are random: batches() and model() are yours, as are learning rate and checkpoints.
"""
import argparse
import time

import torch
import torch.distributed.fsdp
from accelerate import Accelerator
from accelerate.utils import DummyOptim, FullyShardedDataParallelPlugin, GradientAccumulationPlugin
from transformers import LlamaConfig, LlamaForCausalLM

import settings as S


def tiny():
    """The same layout with as few layers, channels and tokens as it takes."""
    S.LAYERS, S.HEAD_DIM, S.FFN, S.VOCAB, S.SEQ_LEN = 4, 8, 64, 64, 32
    S.HIDDEN = S.HEADS * S.HEAD_DIM


def config():
    rope = {"rope_type": "default", "rope_theta": S.ROPE_THETA}
    if S.ROPE_SCALING:
        factor, low, high, original = S.ROPE_SCALING
        rope |= {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                 "original_max_position_embeddings": original}
    return LlamaConfig(
        hidden_size=S.HIDDEN, num_hidden_layers=S.LAYERS, intermediate_size=S.FFN, vocab_size=S.VOCAB,
        num_attention_heads=S.HEADS, num_key_value_heads=S.KV_HEADS, head_dim=S.HEAD_DIM, rms_norm_eps=S.NORM_EPS,
        max_position_embeddings=max(S.SEQ_LEN, S.MAX_POSITIONS), attention_bias=S.BIASES, mlp_bias=S.BIASES,
        tie_word_embeddings=S.TIED, rope_parameters=rope, attn_implementation="sdpa", use_cache=False)


def model(dtype):
    """Yours: from_pretrained(), for weights that exist."""
    built = LlamaForCausalLM._from_config(config(), dtype=dtype)
    if S.RECOMPUTE:
        built.gradient_checkpointing_enable({"use_reentrant": False})
    return built


def make_accelerator():
    """Every micro-batch is reduced, as predicted; what accelerate.yaml has no key for is said here."""
    plugins = {}
    if not S.DEEPSPEED and S.DTYPE != "float32":
        plugins["fsdp_plugin"] = FullyShardedDataParallelPlugin(mixed_precision_policy=torch.distributed.fsdp.MixedPrecisionPolicy(
            param_dtype=getattr(torch, S.DTYPE), reduce_dtype=getattr(torch, S.REDUCE_DTYPE)))
    if not S.DEEPSPEED:  # DeepSpeed has its own count
        plugins["gradient_accumulation_plugin"] = GradientAccumulationPlugin(
            num_steps=S.MICRO_BATCHES, adjust_scheduler=False, sync_with_dataloader=False, sync_each_batch=True)
    return Accelerator(**plugins)


def batches(replica, device):
    """Yours: micro-batches of this replica."""
    generator = torch.Generator().manual_seed(replica)
    while True:
        yield torch.randint(S.VOCAB, (S.MICRO_BATCH, S.SEQ_LEN), generator=generator).to(device)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    if args.tiny:
        tiny()
    accelerator = make_accelerator()
    torch.manual_seed(1)
    built = model(getattr(torch, S.DTYPE) if S.DEEPSPEED else torch.float32)  # FSDP shards fp32 and casts what it gathers
    if S.DEEPSPEED:
        accelerator.state.deepspeed_plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = S.MICRO_BATCH
        optimizer = DummyOptim(built.parameters())  # that of ds_config.json
    else:
        optimizer = torch.optim.AdamW(built.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    built, optimizer = accelerator.prepare(built, optimizer)
    data = batches(accelerator.process_index, accelerator.device)
    for step in range(args.steps):
        start, losses = time.perf_counter(), []
        for _ in range(S.MICRO_BATCHES):
            with accelerator.accumulate(built):
                tokens = next(data)
                loss = built(tokens, labels=tokens).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients and not S.DEEPSPEED:
                    accelerator.clip_grad_norm_(built.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
        loss = accelerator.reduce(torch.stack(losses).mean(), "mean").item()
        if accelerator.is_main_process:
            memory = f"{torch.cuda.max_memory_reserved() / 2**30:.1f} GiB" if torch.cuda.is_available() else "on CPU"
            print(f"step {step + 1} loss {loss:.4f} {time.perf_counter() - start:.3f} s {memory}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Training steps of the Hugging Face LLaMA in PyTorch, to stand beside ours: torch_llama.py MODEL MODE SEQ MICRO_BATCH
MICRO_BATCHES [STEPS]. MODE: eager, compile (every layer, the last norm and the loss: what is the same is compiled once),
whole (the model as one graph, which takes minutes to compile), or both (eager, then compile). Parameters, gradients and
moments in bf16 (ours keep gradients, moments and master weights in fp32, which is more work), fused AdamW, and of the SDPA
backends that take these heads the one that is fastest here. Prints one JSON object, of both: one for each."""
import json
import os
import statistics
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

DEVICE = os.environ.get("TORCH_LLAMA_DEVICE", "cuda")  # another one for a rehearsal
FUSED = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
# While it is traced the library writes the causal mask out, and no fused backend then serves. Without one it asks for
# causal attention, as it does in eager mode, where sequences are not padded.
modeling_llama.create_causal_mask = lambda *_, **__: None


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def seconds(call, repeats):
    times = []
    for _ in range(repeats):
        synchronize()
        begin = time.perf_counter()
        call()
        synchronize()
        times.append(time.perf_counter() - begin)
    return times


def fastest_sdpa(config, mbs, seq):
    """The times of the backends on this model's heads, forward and backward, and the fastest one."""
    def heads(n):  # as the model has them: tokens first, then turned
        return torch.randn(mbs, seq, n, config.head_dim, device=DEVICE).transpose(1, 2).requires_grad_()

    q, k, v = heads(config.num_attention_heads), heads(config.num_key_value_heads), heads(config.num_key_value_heads)
    grouped = config.num_attention_heads != config.num_key_value_heads

    def call():
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        out.backward(torch.ones_like(out))

    times = {}
    for backend in FUSED:
        try:
            with sdpa_kernel(backend):
                seconds(call, 3)
                times[backend] = statistics.median(seconds(call, 5))
        except RuntimeError:  # it does not take them
            continue
    return times, min(times, key=times.get) if times else None


def main():
    name, mode, seq, mbs, micro = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    steps = int(sys.argv[6]) if len(sys.argv) > 6 else 6
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "presets", "models", name + ".json")) as file:
        spec = json.load(file)
    heads = spec["n_heads"]
    config = LlamaConfig(vocab_size=spec["vocab_size"], hidden_size=spec["hidden"], intermediate_size=spec["ffn_hidden"],
                         num_hidden_layers=spec["n_layers"], num_attention_heads=heads,
                         num_key_value_heads=spec.get("n_kv_heads", heads), max_position_embeddings=seq,
                         tie_word_embeddings=spec.get("tied_embeddings", False), use_cache=False,
                         head_dim=spec.get("head_dim", spec["hidden"] // heads))
    config._attn_implementation = "sdpa"
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    sdpa, best = fastest_sdpa(config, mbs, seq)
    with torch.device(DEVICE):
        model = LlamaForCausalLM(config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)

    def measured(how):
        forward = torch.compile(model) if how == "whole" else model
        if how == "compile":
            for layer in [*model.model.layers, model.model.norm]:
                layer.compile()
            model.loss_function = torch.compile(model.loss_function)

        def step():
            ids = torch.randint(0, config.vocab_size, (micro, mbs, seq), device=DEVICE)
            for m in range(micro):
                loss = forward(input_ids=ids[m], labels=ids[m]).loss / micro
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        warm = seconds(step, 2)
        if DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()
        times = seconds(step, steps)
        median = statistics.median(times)
        return {"mode": how, "torch": torch.__version__, "cuda": torch.version.cuda,
                "cudnn": torch.backends.cudnn.version(), "sdpa": best.name if best else "MATH",
                "sdpa_us": {b.name: 1e6 * t for b, t in sdpa.items()}, "step_time_s": median,
                "tokens_per_s": mbs * micro * seq / median, "times_s": times, "warm_up_s": warm,
                "memory_GiB": torch.cuda.max_memory_allocated() / 2**30 if DEVICE == "cuda" else 0,
                "parameters": sum(p.numel() for p in model.parameters())}

    # The others behind it, should the model's own tensors not suit it.
    order = [best] * bool(best) + [b for b in FUSED if b != best] + [SDPBackend.MATH]
    with sdpa_kernel(order, set_priority=True):
        if mode == "both":
            print(json.dumps({how: measured(how) for how in ("eager", "compile")}))
        else:
            print(json.dumps(measured(mode)))


if __name__ == "__main__":
    main()

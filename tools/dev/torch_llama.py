#!/usr/bin/env python3
"""Training steps of the Hugging Face LLaMA in PyTorch, to stand beside ours: torch_llama.py MODEL eager|compile SEQ
MICRO_BATCH MICRO_BATCHES. Parameters, gradients and moments in bf16 (ours keep gradients, moments and master weights
in fp32, which is more work), fused AdamW, SDPA with the best backend it finds. Prints one JSON object."""
import json
import os
import statistics
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main():
    name, mode, seq, mbs, micro = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
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
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
    forward = torch.compile(model) if mode == "compile" else model

    def step():
        ids = torch.randint(0, config.vocab_size, (micro, mbs, seq), device="cuda")
        for m in range(micro):
            loss = forward(input_ids=ids[m], labels=ids[m]).loss / micro
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for _ in range(3):
        step()
    times = []
    for _ in range(6):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    seconds = statistics.median(times)
    print(json.dumps({"mode": mode, "torch": torch.__version__, "cuda": torch.version.cuda,
                      "cudnn": torch.backends.cudnn.version(), "step_time_s": seconds,
                      "tokens_per_s": mbs * micro * seq / seconds, "times_s": times,
                      "memory_GiB": torch.cuda.max_memory_allocated() / 2**30,
                      "parameters": sum(p.numel() for p in model.parameters())}))


if __name__ == "__main__":
    main()

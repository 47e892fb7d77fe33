#!/usr/bin/env python3
"""Write tests/golden/hugging_face/: tiny LLaMA checkpoints as transformers saves them, and what it computes with them.

Needs torch and transformers (written with torch 1.13, transformers 4.45). Run: python3 tests/reference/make_hugging_face.py
One folder per case: the checkpoint, and expected.safetensors with `ids` [B, S], `logits` [B, S, V] and `loss` (mean of
next-token losses) computed in float64, and the greedy continuation `continued` of `prompt`.
"""
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

OUT = pathlib.Path(__file__).resolve().parent.parent / "golden" / "hugging_face"
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
CASES = {
    # Grouped queries, scaled rotary frequencies inside the sequence, head dimension of its own, several shards.
    "untied-shards": (dict(num_key_value_heads=2, head_dim=8, rope_scaling=LLAMA3, rope_theta=500000.0,
                           tie_word_embeddings=False), torch.float32, "10KB"),
    "tied-bf16": (dict(num_key_value_heads=4, tie_word_embeddings=True), torch.bfloat16, "5GB"),
    "mqa-fp16": (dict(num_key_value_heads=1, tie_word_embeddings=False), torch.float16, "5GB"),
}


def model_of(overrides, dtype):
    config = LlamaConfig(**{**dict(vocab_size=67, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                                   num_attention_heads=4, max_position_embeddings=128, rms_norm_eps=1e-5,
                                   initializer_range=0.4, bos_token_id=1, eos_token_id=2,
                                   attn_implementation="eager"), **overrides})
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.1)
    return model.to(dtype)


def expectations(model, ids=None):
    wide = LlamaForCausalLM(model.config).double()
    wide.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
    wide.eval()
    if ids is None:
        ids = torch.randint(0, model.config.vocab_size, (2, 24))
    with torch.no_grad():
        out = wide(ids, labels=ids)
        prompt = ids[:1, :5]
        sequence = prompt
        for _ in range(16):
            sequence = torch.cat([sequence, wide(sequence).logits[:, -1:].argmax(-1)], 1)
    # Loss once more in float64: transformers takes it in float32.
    loss = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1).double(), ids[:, 1:].flatten())
    return {"ids": ids, "logits": out.logits.double(), "loss": loss.double().reshape(1), "prompt": prompt[0].clone(),
            "continued": sequence[0, 5:].clone()}


def main():
    torch.manual_seed(20261120)
    for name, (overrides, dtype, shard) in CASES.items():
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        model = model_of(overrides, dtype)
        model.save_pretrained(folder, max_shard_size=shard)
        save_file(expectations(model), folder / "expected.safetensors")
        for file in folder.iterdir():
            file.chmod(0o644)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Round trip with a live transformers: tests/reference/hugging_face_round_trip.py SEXTANT [WEIGHTS_TEST]

Random LLaMA models (grouped, multi-query, tied, scaled rotary; fp32, bf16, fp16; one file or many) are saved by
transformers, judged and exported again by sextant, and loaded with from_pretrained: every tensor of the state dict must
be equal to the bit, and the configuration the same. With the tests' program WEIGHTS_TEST also the other way round: a model
is trained on text as tools/dev/train_on_text.sh shows it, its export is loaded with from_pretrained, and the logits of
transformers in float64, on text of the data set, must be ours (1e-5), and its likeliest continuation too. Without torch or
transformers it says SKIPPED and ends well.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM
except Exception as missing:  # torch may fail in more ways than ImportError
    print(f"SKIPPED: torch and transformers are needed: {missing}")
    sys.exit(0)

LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
CASES = [
    ("grouped", dict(num_key_value_heads=2), torch.float32, "40KB"),
    ("tied", dict(num_key_value_heads=8, tie_word_embeddings=True), torch.bfloat16, "5GB"),
    ("multi-query", dict(num_key_value_heads=1, head_dim=16), torch.float16, "30KB"),
    ("llama3", dict(num_key_value_heads=4, rope_scaling=LLAMA3, rope_theta=500000.0), torch.bfloat16, "20KB"),
]


def check(sextant, folder, name, overrides, dtype, shard):
    torch.manual_seed(len(name))
    config = LlamaConfig(**{**dict(vocab_size=131, hidden_size=64, intermediate_size=90, num_hidden_layers=3,
                                   num_attention_heads=8, max_position_embeddings=256, attn_implementation="eager"),
                            **overrides})
    model = LlamaForCausalLM(config).to(dtype)
    source, out = folder / name, folder / f"{name}-out"
    model.save_pretrained(source, max_shard_size=shard)
    subprocess.run([sextant, "weights", "show", source], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([sextant, "weights", "export", source, "--out", out, "--max-shard-size", "0.00005"], check=True,
                   stdout=subprocess.DEVNULL)
    again = LlamaForCausalLM.from_pretrained(out, torch_dtype="auto")
    before, after = model.state_dict(), again.state_dict()
    if before.keys() != after.keys():
        return f"tensors {sorted(before.keys() ^ after.keys())}"
    for key, value in before.items():
        if after[key].dtype != value.dtype or not torch.equal(after[key].view(torch.int16), value.view(torch.int16)):
            return f"{key} differs"
    kept = {k: v for k, v in json.loads((source / "config.json").read_text()).items()}
    if kept != {k: v for k, v in json.loads((out / "config.json").read_text()).items()}:
        return "config.json differs"
    first = next(iter(after.values()))
    first.view(torch.int16).flatten()[0] ^= 1  # control: one bit is seen
    if torch.equal(first.view(torch.int16), before[next(iter(after))].view(torch.int16)):
        return "a changed bit was not seen"
    return ""


def check_trained(sextant, weights_test, folder):
    from make_hugging_face import expectations
    walk = folder / "walk"
    script = pathlib.Path(__file__).resolve().parents[2] / "tools/dev/train_on_text.sh"
    subprocess.run([script, sextant, walk, "3", "32", "8"], check=True, stdout=subprocess.DEVNULL)
    model = LlamaForCausalLM.from_pretrained(walk / "weights", torch_dtype="auto")
    if model.dtype != torch.bfloat16:
        return f"{model.dtype} loaded, bfloat16 written"
    tokens = numpy.memmap(walk / "tokens/validation-00000.tokens", dtype="<u2")[:64].astype("int64")
    expected = expectations(model, torch.from_numpy(tokens).reshape(2, 32))
    save_file(expected, walk / "weights" / "expected.safetensors")
    names = "Live/HuggingFace.LogitsAreThoseOfTransformers/*:Live/HuggingFace.TheLikeliestContinuationIsTheirs/*"
    judged = subprocess.run([weights_test, f"--gtest_filter={names}"], text=True, capture_output=True,
                            env={**os.environ, "SEXTANT_HUGGING_FACE": str(walk / "weights")})
    if judged.returncode != 0 or "[  PASSED  ] 2 tests." not in judged.stdout:
        return judged.stdout + judged.stderr
    expected["logits"][0, -1, 0] += 1e-3 * expected["logits"].abs().max()  # control: one logit is seen
    save_file(expected, walk / "weights" / "expected.safetensors")
    spoiled = subprocess.run([weights_test, f"--gtest_filter={names}"], capture_output=True,
                             env={**os.environ, "SEXTANT_HUGGING_FACE": str(walk / "weights")})
    return "" if spoiled.returncode != 0 else "a changed logit was not seen"


def main():
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            problem = check(sys.argv[1], pathlib.Path(folder), *case)
            print(f"{case[0]}: {problem or 'every bit came back'}")
            failed = failed or bool(problem)
        if len(sys.argv) > 2:
            problem = check_trained(sys.argv[1], sys.argv[2], pathlib.Path(folder))
            print(f"trained on text: {problem or 'the logits of transformers are ours'}")
            failed = failed or bool(problem)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

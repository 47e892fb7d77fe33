#!/usr/bin/env python3
"""Round trip with a live transformers: tests/reference/hugging_face_round_trip.py SEXTANT [WEIGHTS_TEST]

Random models of LLaMA (grouped, multi-query, tied, scaled rotary) and of each family that transformers has a class for (fp32,
bf16, fp16; one file or many) are saved by transformers, judged and exported again by sextant, and loaded with from_pretrained: every tensor of the state dict must
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
    import transformers
    from transformers import AutoModelForCausalLM, LlamaForCausalLM
except Exception as missing:  # torch may fail in more ways than ImportError
    print(f"SKIPPED: torch and transformers are needed: {missing}")
    sys.exit(0)

LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 4.0, 8.0]}
CASES = [
    ("grouped", "Llama", dict(num_key_value_heads=2), torch.float32, "40KB"),
    ("tied", "Llama", dict(num_key_value_heads=8, tie_word_embeddings=True), torch.bfloat16, "5GB"),
    ("multi-query", "Llama", dict(num_key_value_heads=1, head_dim=16), torch.float16, "30KB"),
    ("llama3", "Llama", dict(num_key_value_heads=4, rope_scaling=LLAMA3, rope_theta=500000.0), torch.bfloat16, "20KB"),
    ("mistral", "Mistral", dict(num_key_value_heads=2, sliding_window=100), torch.bfloat16, "30KB"),
    ("qwen2", "Qwen2", dict(num_key_value_heads=2, tie_word_embeddings=True), torch.bfloat16, "30KB"),
    ("qwen3", "Qwen3", dict(num_key_value_heads=2, head_dim=16), torch.bfloat16, "30KB"),
    ("olmo2", "Olmo2", dict(num_key_value_heads=4, pad_token_id=None), torch.float32, "30KB"),
    ("phi3", "Phi3", dict(num_key_value_heads=2, pad_token_id=None, original_max_position_embeddings=64,
                          rope_parameters=LONGROPE), torch.bfloat16, "30KB"),
    ("seed-oss", "SeedOss", dict(num_key_value_heads=2, head_dim=16, pad_token_id=None), torch.float16, "30KB"),
]


def check(sextant, folder, name, family, overrides, dtype, shard):
    torch.manual_seed(len(name))
    config = getattr(transformers, f"{family}Config")(**{**dict(vocab_size=131, hidden_size=64, intermediate_size=90, num_hidden_layers=3,
                                   num_attention_heads=8, max_position_embeddings=256, attn_implementation="eager"),
                            **overrides})
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(dtype)
    with torch.no_grad():  # biases and norms begin as nothing but zeros and ones
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(0.1 * torch.randn(p.shape).to(dtype))
    source, out = folder / name, folder / f"{name}-out"
    model.save_pretrained(source, max_shard_size=shard)
    subprocess.run([sextant, "weights", "show", source], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([sextant, "weights", "export", source, "--out", out, "--max-shard-size", "0.00005"], check=True,
                   stdout=subprocess.DEVNULL)
    again = AutoModelForCausalLM.from_pretrained(out, torch_dtype="auto")
    if type(again) is not type(model):
        return f"a {type(again).__name__} came back"
    before, after = model.state_dict(), again.state_dict()
    if before.keys() != after.keys():
        return f"tensors {sorted(before.keys() ^ after.keys())}"
    for key, value in before.items():
        if after[key].dtype != value.dtype or not torch.equal(after[key].view(torch.int16), value.view(torch.int16)):
            return f"{key} differs"
    stated, written = (json.loads((where / "config.json").read_text()) for where in (source, out))
    if stated != written:
        differs = {k: (stated.get(k), written.get(k)) for k in stated.keys() | written.keys() if stated.get(k) != written.get(k)}
        return f"config.json differs: {differs or sorted(stated.keys() ^ written.keys())}"
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

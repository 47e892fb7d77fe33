#!/usr/bin/env python3
"""Models with a window, ALiBi or a normalized head, planned and run by the command: their losses on the emulated GPU are those of
CPU ranks, in bf16 through cuDNN's graphs and in fp32 from Hugging Face weights; documents are kept apart on both.

  models_run.py SEXTANT PRESETS FAMILIES
"""
import json
import os
import subprocess
import sys
import tempfile

SEXTANT, PRESETS, FAMILIES = sys.argv[1:4]
STEPS = ["--steps", "4", "--json"]
FP32 = [word for key in ("compute", "parameter") for word in ("--set", f"training.{key}=fp32")]
failures = []


def sextant(*words):
    done = subprocess.run([SEXTANT, *words, "--presets", PRESETS], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.returncode}\n{done.stderr}")
    return done.stdout


def expect(holds, what):
    if not holds:
        failures.append(what)


def losses(model, device, *more):
    key, *words = model
    sextant("simulate", "--plan", key, "--model", *words, "--cluster", "1x2xlaptop", "--stack", "sextant", "--seq-len", "32",
            "--global-batch", "4", "-o", "plan.json")
    run = json.loads(sextant("run", "plan.json", "--device", device, *STEPS, *more))
    return [step["loss"] for step in run["steps"]], run


def compare(name, model, bound, *more):
    (cpu, _), (gpu, run) = losses(model, "cpu", *more), losses(model, "cuda", *more)
    off = max(abs(x / y - 1) for x, y in zip(gpu, cpu))
    expect(len(gpu) == len(cpu) == 4 and off < bound, f"{name}: {gpu} on the GPU, {cpu} on CPU ranks")
    return gpu, run


with tempfile.TemporaryDirectory() as folder:
    small = ["tp2.sp.mbs2", "stories-260k"]
    features = {"a window": ["--set", "model.window=9"], "ALiBi": ["--set", "model.position=alibi"],
                "a normalized head": ["--set", "model.normalized_head=true", "--set", "model.tied_embeddings=false"]}
    plain, _ = compare("plain", small, 5e-3)
    for name, sets in features.items():
        got, run = compare(name, small + sets, 5e-3)
        expect(max(abs(x / y - 1) for x, y in zip(got, plain)) > 1e-5, f"control: {name} changes nothing")
        expect("slow_attention" not in run or not run["slow_attention"], f"{name}: {run.get('slow_attention')}")
    for name, sets in {"mistral-window": [], "olmo2": [], "baichuan2-7b": [], "baichuan2-alibi": ["--set", "model.position=alibi"]}.items():
        weights = os.path.join(FAMILIES, name)
        compare(name, ["tp2.sp.mbs2", weights, *FP32, *sets], 1e-5, *([] if sets else ["--init", weights]))

    with open(os.path.join(folder, "text.txt"), "w") as file:
        file.write("".join(f"document {i} is about {i * i} and {i * 7 % 5}\n" for i in range(400)))
    sextant("data", "text.txt", "--document", "line", "--tokenizer", "bytes", "--out", "tokens")
    packed = ["cp2.mbs2", "stories-260k", "--set", "model.window=9"]
    apart, run = compare("documents apart", packed, 5e-3, "--data", "tokens", "--packing", "apart")
    across, _ = losses(packed, "cuda", "--data", "tokens", "--packing", "across")
    expect(max(abs(x / y - 1) for x, y in zip(apart, across)) > 1e-5, "control: packing changes nothing")

if failures:
    sys.exit("\n".join(failures))
print("alike")

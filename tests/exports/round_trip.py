#!/usr/bin/env python3
"""Exports plans of all shapes and has each framework's own parser read them back into the plan's words.

usage: round_trip.py SEXTANT PYTHON TARGET[@VERSION] [MOST]

Plans are drawn with a fixed seed until MOST (default 36) were accepted; every export that sextant writes must be accepted with
the same values. What sextant refuses is counted by field. Exit codes: 0, 1 a parser said no, 77 the framework is not installed.
"""
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import types

MODELS = ["llama-3.1-8b", "llama-3.1-70b", "llama-2-7b", "llama-2-13b", "llama-3.2-1b"]
CLUSTERS = {8: "1x8xh100", 16: "2x8xa100-80gb", 32: "4x8xh100", 64: "8x8xh100", 128: "16x8xh100", 256: "32x8xa100-80gb"}
STACKS = {"megatron-lm": "megatron-core", "torchtitan": "torchtitan", "nanotron": "nanotron", "fsdp2": "torchtitan",
          "deepspeed": "deepspeed-zero", "megatron-bridge": "megatron-core",
          "accelerate": "torchtitan-eager", "accelerate-deepspeed": "deepspeed-zero", "smp": "smp-v2", "sextant": "sextant",
          "colossalai": "colossal-ai", "colossalai-gemini": "colossal-gemini"}
# Of these few drawn plans can be written as they are: the nearest is read back.
NEAREST = {"nanotron", "fsdp2", "deepspeed", "accelerate", "accelerate-deepspeed", "smp", "colossalai", "colossalai-gemini"}
# What check.py imports, once for all plans.
IMPORTS = {"smp": "json", "sextant": "json", "accelerate": "accelerate.commands.launch", "accelerate-deepspeed": "accelerate.commands.launch,deepspeed",
           "deepspeed": "deepspeed,transformers.models.llama.modeling_llama,torch.testing._internal.distributed.fake_pg",
           "colossalai": "colossalai.booster.plugin,transformers.models.llama.modeling_llama,torch.testing._internal.distributed.fake_pg",
           "colossalai-gemini": "colossalai.booster.plugin,transformers.models.llama.modeling_llama,torch.testing._internal.distributed.fake_pg",
           "torchtitan": "torchtitan.trainer,torchtitan.models.llama3,torchtitan.hf_datasets.text_datasets,torchtitan.components.checkpointer.dcp",
           "fsdp2": "torch.distributed.fsdp,torch.distributed.tensor.parallel,torch.testing._internal.distributed.fake_pg",
           "nanotron": "torch,datasets,transformers,dacite",
           "megatron-bridge": "bridge_imports"}
# What every target should see beside what is drawn.
FIXED = [
    ("llama-3.1-70b", 64, "tp8.pp4.dp2.z1.mbs1.sel", ["--seq-len", "8192", "--global-batch", "128"]),
    ("llama-3.1-8b", 32, "tp2.pp4.dp4.z1.mbs1.L7-8-9-8", ["--seq-len", "4096", "--global-batch", "64"]),
    ("llama-3.1-8b", 8, "dp8.z3.mbs2.full", ["--seq-len", "8192", "--global-batch", "64"]),
    ("llama-2-7b", 16, "dp16.z3.sd8.mbs1", ["--global-batch", "64"]),
    ("llama-2-7b", 8, "dp8.z2.mbs1", ["--global-batch", "64"]),
    ("llama-2-7b", 8, "tp2.dp4.z0.mbs1.full3", ["--global-batch", "64"]),
    ("llama-3.1-8b", 8, "tp8.z0.mbs1", ["--global-batch", "8", "--set", "training.compute=fp8"]),
]


def drawn(rng):
    gpus = rng.choice(list(CLUSTERS))
    key, left = {}, gpus
    for axis, choices in (("tp", [1, 2, 4, 8]), ("pp", [1, 2, 4, 8]), ("cp", [1, 1, 2, 4])):
        key[axis] = rng.choice([c for c in choices if left % c == 0])
        left //= key[axis]
    parts = [f"tp{key['tp']}", f"pp{key['pp']}", f"cp{key['cp']}", f"dp{left}"]
    if key["pp"] > 1 and rng.random() < 0.4:
        parts.append(f"vp{rng.choice([2, 4])}")
    replicas = left * key["cp"]
    zero = rng.choice([0, 1, 1, 2, 3, 3])
    parts.append(f"z{zero}")
    if zero and rng.random() < 0.25:
        parts.append(f"sd{rng.choice([d for d in (1, 2, 4, 8) if replicas % d == 0])}")
    parts.append(f"mbs{rng.choice([1, 1, 2, 4])}")
    parts += rng.choice([[], ["sel"], ["full"], [f"full{rng.randint(1, 4)}"]])
    if key["tp"] > 1:
        parts += rng.choice([[], [], ["nosp"]]) + rng.choice([[], [], ["tpo"]])
    parts += rng.choice([[], [], ["nogr", "nopg"], ["nopg"]]) + rng.choice([[], [], [f"b{rng.choice([20, 100])}M"]])
    parts += rng.choice([[], [], [], ["oo100"], ["oo100", "po"], ["oo50"], ["ao4"]])
    parts += rng.choice([[], [], ["ax-tp-cp-pp-dp"]])
    if rng.random() < 0.15:
        parts += rng.choice([["gpipe"], ["zb"]])
    more = ["--seq-len", str(rng.choice([2048, 4096])), "--global-batch", str(left * rng.choice([8, 16, 32]))]
    return rng.choice(MODELS), gpus, ".".join(parts), more


def run(words, **options):
    return subprocess.run(words, capture_output=True, text=True, **options)


class Checker:
    """check.py of one folder after another, in one interpreter (check_server.py)."""

    def __init__(self, python, target, sextant):
        here = pathlib.Path(__file__).parent
        self.process = subprocess.Popen(
            [python, str(here / "check_server.py"), IMPORTS.get(target.split("@")[0], "torch")], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONWARNINGS": "ignore", "DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "SEXTANT": sextant})

    def __call__(self, folder):
        self.process.stdin.write(f"{folder}\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return types.SimpleNamespace(returncode=answer["code"], stdout=answer["out"], stderr=answer["err"])


def main():
    sextant, python, target = sys.argv[1:4]
    sextant = os.path.abspath(sextant)  # check.py runs it from the folder of the export
    most = int(sys.argv[4]) if len(sys.argv) > 4 else 36
    rng = random.Random(20261126)
    cases, accepted, refused, drawn_count = list(FIXED), 0, collections.Counter(), 0
    shapes = collections.Counter()
    check = Checker(python, target, sextant)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        while accepted < most:
            drawn_count += 1
            if drawn_count > 4000:
                print(f"{target}: only {accepted} of {drawn_count} plans can be exported; refused: {dict(refused)}")
                return 1
            model, gpus, key, more = cases.pop(0) if cases else drawn(rng)
            plan, out = folder / "plan.json", folder / f"job{accepted}"
            plan.unlink(missing_ok=True)
            stack = STACKS[target.split("@")[0]]
            run([sextant, "simulate", "--model", model, "--cluster", CLUSTERS[gpus], "--stack", stack, "--plan", key, *more,
                 "-o", str(plan)])
            if not plan.exists():
                continue  # the stack cannot do it: no plan of it exists
            exported = run([sextant, "export", str(plan), "--to", target, "-o", str(out), "--json",
                            *(["--nearest"] if target.split("@")[0] in NEAREST else [])])
            if exported.returncode == 4:  # the nearest does not fit
                refused.update(["fits"])
                continue
            if exported.returncode == 5:
                refused.update({m["field"] for m in json.loads(exported.stdout)["inexpressible"]})
                continue
            if exported.returncode != 0:
                print(f"{key}: export ended with {exported.returncode}\n{exported.stderr}")
                return 1
            if "fp8" in " ".join(more) and target.startswith("torchtitan"):
                continue  # its converter asks for a GPU of that generation
            read = check(out)
            if read.returncode == 77:
                print(read.stdout.strip())
                return 77
            if read.returncode != 0:
                print(f"{model} on {gpus} GPUs, {key} {' '.join(more)}: {target} says no\n{read.stdout[-2000:]}{read.stderr[-3000:]}")
                return 1
            accepted += 1
            shapes.update(part.rstrip("0123456789") for part in key.split(".") if part[-1] != "1")
            if os.environ.get("VERBOSE"):
                print(f"{accepted} {model} {gpus} {key}: {read.stdout.splitlines()[-1]}", flush=True)
    print(f"{target}: {accepted} plans read back with the same values ({read.stdout.splitlines()[-1]})")
    print(f"  beyond 1: {dict(sorted(shapes.items()))}; refused by field: {dict(sorted(refused.items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""A run that adapts on GPUs: it tries several layouts in its first steps, its state goes from one to the next in memory, and its
losses are those of a run whose layout stayed. What only CPU ranks can do is refused.

  adapt_run.py SEXTANT PRESETS
"""
import json
import os
import subprocess
import sys
import tempfile

SEXTANT, PRESETS = map(os.path.abspath, sys.argv[1:3])
STEPS = ["--steps", "14", "--device", "cuda", "--json"]


def call(*words):
    return subprocess.run([SEXTANT, *words, "--presets", PRESETS], cwd=folder, capture_output=True, text=True)


def run(*words):
    done = call("run", "plan.json", *STEPS, *words)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def losses(answer):
    return [step["loss"] for step in answer["steps"]]


def off(one, other):
    return max(abs(x / y - 1) for x, y in zip(losses(one), losses(other)))


with tempfile.TemporaryDirectory() as folder:
    call("simulate", "--plan", "tp2.pp2.mbs2", "--model", "stories-260k", "--cluster", "laptop", "--stack", "sextant", "--seq-len",
         "64", "--global-batch", "8", "-o", "plan.json")
    plain, other = run(), run("--seed", "7")
    for attempt in range(3):  # on a busy machine the first layout's steps may take all of the budget
        out = f"run{attempt}"
        adapted = run("--adapt", "--adapt-budget", "100", "-o", out, "--no-save")
        with open(os.path.join(folder, out, "adaptation.jsonl")) as file:
            start = json.loads(file.readline())
        tried = {layout["plan"] for layout in start["alternatives"]}
        if len(tried) > 1:
            break
    failures = []
    if start["kind"] != "start" or not {plan for plan in tried if not plan.startswith("tp2.pp2")}:
        failures.append(f"no other kind of layout was tried: {start}")
    if len(losses(adapted)) != len(losses(plain)) or off(adapted, plain) > 1e-4:
        failures.append(f"its losses are {losses(adapted)}, and without changes {losses(plain)}")
    if off(other, plain) < 1e-3:
        failures.append("control: other weights give the same losses")
    for words, says in {("--emulate",): "cpu with --emulate", ("--cuda-graphs", "on"): "leave --cuda-graphs on out"}.items():
        refused = call("run", "plan.json", *STEPS, "--adapt", *words)
        if refused.returncode not in (2, 3) or says not in refused.stderr:
            failures.append(f"{words}: {refused.returncode} {refused.stderr}")
    print("\n".join(failures) or f"{len(tried)} layouts, losses within {off(adapted, plain):.1e}")
    sys.exit(1 if failures else 0)

#!/usr/bin/env python3
"""check.py sees a value that is not the plan's: the scaling of rotary positions, changed in an export that it accepts.

usage: changed_values.py SEXTANT PYTHON TARGET[@VERSION]

Exit codes: 0, 1 a change went unseen, 77 the framework is not installed.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

# target: (stack, key, file, [(old, new)]) of llama-3.1-8b, whose factors are 8, 1 and 4 and whose original positions are 8192
SETTINGS = [("ROPE_SCALING = (8, 1, 4, 8192)", f"ROPE_SCALING = {new}")
            for new in ("(4, 1, 4, 8192)", "(8, 2, 4, 8192)", "(8, 1, 5, 8192)", "(8, 1, 4, 4096)", "None")]
CASES = {
    "megatron-lm": ("megatron-core", "dp8.z1.mbs1", "arguments.sh", [("--rope-scaling-factor 8", "--rope-scaling-factor 4"),
                                                                    ("--use-rope-scaling\n", "")]),
    "megatron-bridge": ("megatron-core", "dp8.z1.mbs1", "sextant_recipe.py", [("rope_scaling_factor=8", "rope_scaling_factor=4"),
                                                                             ("rope_scaling=True", "rope_scaling=False")]),
    "torchtitan": ("torchtitan", "dp8.z3.mbs1", "sextant_plan.py", [("scaling_factor=8", "scaling_factor=4"),
                                                                    ("low_freq_factor=1", "low_freq_factor=2"),
                                                                    ("high_freq_factor=4", "high_freq_factor=5"),
                                                                    ('scaling="llama"', 'scaling="none"')]),
    "fsdp2": ("torchtitan", "dp8.z3.mbs1", "settings.py", SETTINGS),
    "deepspeed": ("deepspeed-zero", "dp8.z3.mbs1", "settings.py", SETTINGS),
    "accelerate": ("torchtitan-eager", "dp8.z3.mbs1", "settings.py", SETTINGS),
    "accelerate-deepspeed": ("deepspeed-zero", "dp8.z3.mbs1", "settings.py", SETTINGS),
    "colossalai": ("colossal-ai", "dp8.z2.mbs1", "settings.py", SETTINGS),
    "colossalai-gemini": ("colossal-gemini", "dp8.z3.mbs1", "settings.py", SETTINGS),
}
# Of models without scaling: what would scale it.
PLAIN = {"nanotron": ("nanotron", "tp2.dp4.z1.mbs1.nopg", "nanotron.yaml",
                      [("    rope_theta:", "    rope_scaling: {factor: 8.0}\n    rope_theta:")])}


def run(words, **options):
    return subprocess.run(words, capture_output=True, text=True, **options)


def reads_scaling(python, target):
    """Whether the model of a target whose exports may state no scaling reads one after all."""
    script = "import os, sys; sys.path[:0] = [os.environ.get('NANOTRON', '') + '/src']; import nanotron; print(nanotron.__path__[0])"
    folder = pathlib.Path(run([python, "-c", script]).stdout.strip())
    return target == "nanotron" and "rope_scaling" in (folder / "models/llama.py").read_text()


def main():
    sextant, python, target = sys.argv[1:4]
    name, bad = target.split("@")[0], 0
    if name not in CASES and name not in PLAIN:
        return 0
    stack, key, file, changes = {**CASES, **PLAIN}[name]
    question = [sextant, "simulate", "--cluster", "1x8xh100", "--seq-len", "4096", "--global-batch", "64", "--stack", stack, "--plan", key]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        run([*question, "--model", "llama-3.1-8b", "-o", str(folder / "scaled.json")])
        plan = folder / "scaled.json"
        if name in PLAIN:
            refused = run([sextant, "export", str(plan), "--to", target, "-o", str(folder / "no"), "--json"])
            fields = [m["field"] for m in json.loads(refused.stdout)["inexpressible"]] if refused.returncode == 5 else []
            if fields != ["model.rope_scaling"] or reads_scaling(python, name):
                print(f"{target}: sextant refuses {fields} of a model with scaled positions {refused.stderr}")
                return 1
            plan = folder / "plain.json"
            run([*question, "--model", "llama-2-7b", "-o", str(plan)])
        made = run([sextant, "export", str(plan), "--to", target, "-o", str(folder / "job")])
        if made.returncode:
            print(f"{target} {key}: not exported\n{made.stdout}{made.stderr}")
            return 1
        text = (folder / "job" / file).read_text()
        for old, new in [("", ""), *changes]:  # accepted as it is
            assert old in text, (file, old)
            (folder / "job" / file).write_text(text.replace(old, new, 1))
            read = run([python, str(folder / "job" / "check.py")], env={**os.environ, "PYTHONWARNINGS": "ignore"})
            if read.returncode == 77:
                print(read.stdout.strip())
                return 77
            seen = read.returncode == 1 and "other values than the plan's: rope" in read.stdout
            if read.returncode != 0 if not old else not seen:
                print(f"{target}, {file} with {new or 'no change'}: {read.returncode} {read.stdout[-300:]} {read.stderr[-2000:]}")
                bad = 1
            elif old:
                print(f"{target} with {new.strip() or 'no ' + old}: {read.stdout.strip()}")
    return bad


if __name__ == "__main__":
    sys.exit(main())

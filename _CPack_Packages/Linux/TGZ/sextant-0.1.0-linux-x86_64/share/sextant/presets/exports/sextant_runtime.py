"""Has `sextant simulate` read plan.json as `sextant run` does, and compares the layout that it made of it.

SEXTANT names the program; without it that of the PATH is asked.
Exit codes: 0 accepted with the same values, 1 refused or other values, 77 sextant is not there.
"""
import json
import os
import shutil
import subprocess
import sys

folder = os.path.dirname(os.path.abspath(__file__))
sextant = os.environ.get("SEXTANT", "sextant")


def last(what, code):
    print(what)
    sys.exit(code)


if not shutil.which(sextant):
    last("sextant: not in the PATH, and SEXTANT names none", 77)
plan = json.load(open(os.path.join(folder, "plan.json")))
again = os.path.join(folder, "__pycache__")
os.makedirs(again, exist_ok=True)
read = subprocess.run([sextant, "simulate", os.path.join(folder, "plan.json"), "--json", "-o", os.path.join(again, "plan.json")],
                      capture_output=True, text=True)
if read.returncode not in (0, 4):  # 4: it fits no device here
    last(read.stderr, 1)
other = {}
written = json.load(open(os.path.join(again, "plan.json")))
for part in ("plan", "model", "training"):
    for key, value in plan[part].items():
        if written[part].get(key) != value:
            other[f"{part}.{key}"] = (written[part].get(key), value)
if other:
    last("other values than the plan's: " + ", ".join(f"{k} {a} instead of {b}" for k, (a, b) in other.items()), 1)
version = subprocess.run([sextant, "--version"], capture_output=True, text=True).stdout.split("\n")[0].strip()
last(f"{version}: {sum(len(plan[part]) for part in ('plan', 'model', 'training'))} values read back as in the plan", 0)

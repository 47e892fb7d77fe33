#!/usr/bin/env python3
"""`sextant profile --device cuda` on the emulated GPU, whose driver says fixed figures: what is said of the machine, what is
measured of it, and that a prediction's peak is then what the runtime allocates and what lies outside.

  profile_facts.py SEXTANT PRESETS
"""
import json
import subprocess
import sys
import tempfile

SEXTANT, PRESETS = sys.argv[1:3]
CONTEXT_GIB = 700 / 1024  # of the emulated driver
failures = []


def expect(holds, what):
    if not holds:
        failures.append(what)


def sextant(*words, **more):
    done = subprocess.run([SEXTANT, *words, "--presets", PRESETS, "--json"], cwd=folder, capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


with tempfile.TemporaryDirectory() as folder:
    machine = sextant("profile", "--device", "cuda", "--quick", "-o", "machine.json")
    facts = machine["facts"]
    expect(facts["driver"] == "999.1" and facts["compute_capability"] == "9.0", "the driver and the GPU are named")
    expect((facts["most_sm_clock_MHz"], facts["power_limit_W"]) == (1980, 700), "highest clock and power limit")
    at = [c["at"] for c in facts["conditions"]]
    expect("before copies" in at and any("stories" in a for a in at) and at[-1] == "at the end", f"conditions at {at}")
    expect(all(c["sm_clock_MHz"] == 1755 and c["limited_by"] == "power cap" for c in facts["conditions"]), "states of the GPU")
    measured = {m["what"] for m in facts["measurements"]}
    expect({"copy device_to_device 1048576B", "copy host_to_device 1048576B", "gemm bf16 128x128x128", "launch"} <= measured,
           f"measured: {sorted(measured)}")
    expect(machine["operations"] and any("quick" in note for note in machine["notes"]), "works of a ladder, said to be quick")
    expect(facts["outside_GiB"] > CONTEXT_GIB, "the ladder tells what lies outside")

    shared = sextant("profile", "--device", "cuda", "--quick", "--ranks", "2", "-o", "shared.json")["facts"]["measurements"]
    expect(any(m["what"].endswith("g2 one_device") for m in shared), "exchanges of ranks that share a GPU are marked")

    question = ["--model", "stories-260k", "--cluster", "1x1xlaptop", "--stack", "sextant", "--seq-len", "64",
                "--global-batch", "4", "--set", "device.memory_GiB=4"]
    sextant("simulate", *question, "--plan", "dp1.z0.mbs2", "-o", "plan.json")
    profile = sextant("profile", "--for", "plan.json", "--device", "cuda", "-o", "profile.json")
    expect(not profile["facts"]["measurements"] and profile["facts"]["outside_GiB"] > 0, "a plan alone tells outside too")
    expect("/" not in " ".join(profile["command"]), f"no folder of the machine: {profile['command']}")
    run = sextant("run", "plan.json", "--device", "cuda", "--steps", "1")
    peak = sextant("simulate", "--plan", "plan.json", "--profile", "profile.json")["prediction"]["peak_memory_GiB"]
    truth = run["memory"]["allocated_bytes"] / 2**30 + CONTEXT_GIB
    expect(abs(peak / truth - 1) < 0.002, f"peak {peak} GiB, taken {truth} GiB")
    # For a GPU: what is predicted is what is allocated, to the byte.
    sextant("simulate", "--model", "stories-260k", "--cluster", "1x1xh100", "--stack", "sextant", "--seq-len", "64",
            "--global-batch", "4", "--plan", "dp1.z0.mbs2.ao1.oo50", "-o", "h100.json")
    predicted = sextant("simulate", "--plan", "h100.json")["runtime_bytes"]
    allocated = sextant("run", "h100.json", "--device", "cuda", "--steps", "1")["memory"]["allocated_bytes"]
    expect(predicted == allocated, f"predicted {predicted} bytes, allocated {allocated}")
    # Control: what is assumed without a profile is something else.
    assumed = sextant("simulate", "--plan", "plan.json")["prediction"]["peak_memory_GiB"]
    expect(abs(assumed / truth - 1) > 0.02, f"assumed {assumed} GiB")

for failure in failures:
    print(failure, file=sys.stderr)
sys.exit(1 if failures else 0)

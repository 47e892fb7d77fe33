#!/usr/bin/env python3
"""All checks of the GPU backend on this machine: tests, kernel benchmarks, this machine's profile, compute-sanitizer,
training steps of LLaMA beside PyTorch's in turns, the largest model that fits; and what that says about each target of
the backend (gpu_verdicts.py). It runs in the folder that tools/dev/gpu_checks.sh makes, which builds what it runs. Writes
one JSON file, anew after every step; a file that is there already is added to, so that parts can be run one by one:

  python3 gpu_run.py --out results.json                            # everything, as far as --budget-s goes
  python3 gpu_run.py --out results.json --only bench --only tests  # these, in this order
  python3 gpu_run.py --out results.json --only train --model llama-3.2-1b --seq-len 4096

Parts: tests, sanitizer, checks (both side by side), bench, ab (each choice of the runtime both ways, gpu_ab.py), ours (each
model profiled, run and recorded), peers (steps beside PyTorch's in turns), graphs (ours as CUDA graphs), train (these three),
machine (the table to ship), edge (the largest model that fits).
Where a GPU is lent for minutes: checks, ab and train first, with --steps 6 and one --seq-len. On a machine that is still
the same a later call goes on where an earlier one ended: with its plans, profiles and rounds. Each part ends within nine
minutes. Exit status: 0 all is well, 1 something failed or was not run or a target was missed, 2 usage, 3 `sextant doctor`
finds no usable GPU.
"""
import argparse
import contextlib
import json
import os
import re
import shutil
import sys
import threading
import time

import gpu_ab
import gpu_edge
import gpu_verdicts
from gpu_steps import BIN, HERE, SKIPPED, WORK, DriverMemory, Runner, preset_of

PRESETS = ["--presets", os.path.join(HERE, "presets")]
# name of the preset, layout, sequence length, micro-batch (the largest that is planned on an H200), micro-batches of a step, micro-batch
# of PyTorch's, which keeps all logits and more of each layer. As many as nine minutes allow, since the update of all weights,
# some hundredths of a step here, is a thousandth of one in earnest. Every model once comes first.
MODELS = [("llama-3.2-1b", "mbs32", 2048, 32, 2, 8), ("llama-3.2-3b", "mbs16", 2048, 16, 2, 4),
          ("llama-2-7b", "mbs3", 2048, 3, 6, 3), ("llama-3.2-1b", "mbs8", 4096, 8, 2, 4),
          ("llama-3.2-3b", "mbs8", 4096, 8, 2, 2), ("llama-2-7b", "mbs1", 4096, 1, 8, 1)]
# Seconds that a start of each and a step take at the least: what cannot end is not begun.
LEAST_S = {"llama-3.2-1b": (3, 1.7), "llama-3.2-3b": (3, 2.2), "llama-2-7b": (4, 2.5)}
ROUNDS = 2  # with PyTorch
LAWFUL_SKIP = re.compile(r"(?!no usable GPU).*(NCCL|CUPTI|\d GPUs)", re.IGNORECASE | re.DOTALL)  # a test's reason


def tests(r):
    r.gtest("cuda_math_test", 20)
    r.gtest("cuda_kernels_test", 120)
    r.gtest("cuda_training_test", 260)
    r.gtest("cuda_trace_test", 40)


def checks(r):
    """Tests and sanitizer side by side: nothing of them is timed but by the test of the trace, which runs alone."""
    both = [threading.Thread(target=sanitizer, args=(r,))]
    both += [threading.Thread(target=r.gtest, args=(program, limit))
             for program, limit in (("cuda_math_test", 40), ("cuda_kernels_test", 170), ("cuda_training_test", 320))]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    r.gtest("cuda_trace_test", 40)


def sanitizer(r):
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(tool):
        r.update(r.results, sanitizer="compute-sanitizer was not found")
        r.skip("sanitizer", r.results["sanitizer"])
        return
    r.update(r.results, sanitizer=tool)
    shared = "*Rmsnorm*:*Embedding*:*CrossEntropy*:*ANormalizedHead*:*SquaredNorm*:*AttentionByTiles*:*MasksByTiles*:*MatrixProductsByTiles*"
    # Races are looked for in our own kernels, by tests that call no library: libraries order their shared memory by means that
    # racecheck does not know, and its instrumentation of them has ended a process (an illegal access of its own, 2026-11-26).
    # Calls that a library makes and gets refused are no errors of memory; ours are checked one by one where they are made.
    def look(check, share, cases, more):
        r.gtest("cuda_kernels_test", 170, "--gtest_filter=" + cases, name=check,
                prefix=["env", f"SEXTANT_SHARE={share}", tool, "--tool", check, *more, "--error-exitcode", "9"])
        r.update(r.last(), share=share, asked=cases.split(":"))
        r.save()

    both = [threading.Thread(target=look, args=arguments) for arguments in (
        ("memcheck", 16, shared + ":*ByTheLibrary*:*Rope*:*Adamw*:*Swiglu*:*RandomNormal*:*PassesOverFlatState*",
         ["--report-api-errors", "no"]),
        ("racecheck", 60, shared + ":*RepeatInEveryBit*", ["--kernel-name", "kns=sextant"]))]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()


def bench(r):
    """Ours, and behind them torch.matmul at the shapes of our GEMMs, where PyTorch is there."""
    r.results["kernels"] = r.json("cuda_bench", [os.path.join(BIN, "cuda_bench")], 100, least_s=20)
    r.save()
    ours_at = list(dict.fromkeys((g["m"], g["n"], g["k"]) for g in (r.results["kernels"] or {}).get("gemm") or []))
    if ours_at:
        r.results["torch_gemms"] = r.json("torch.matmul", [sys.executable, os.path.join(HERE, "torch_gemms.py"),
                                                              json.dumps(ours_at)], 60, env=dict(os.environ))


def machine(r):
    """The profile of this machine, with the works of LLaMA at usual widths: a table to ship."""
    profile = os.path.join(WORK, f"machine-{os.getpid()}.json")
    r.results["profile"] = r.json("profile machine", [os.path.join(BIN, "sextant"), "profile", "--device", "cuda", "-o", profile,
                                                      "--json", *PRESETS], 150, least_s=40)
    if not r.results["profile"] and os.path.exists(profile):  # as far as it came
        with open(profile) as file:
            r.results["profile"] = json.load(file)


def ab(r):
    gpu_ab.run(r, cluster(r), PRESETS)


def selected(r):
    return [m for m in MODELS if (not r.models or m[0] in r.models) and (not r.sequences or m[2] in r.sequences)]


def row_of(r, model, layout, seq, mbs, micro, _theirs):
    """The row of this model and sequence: that of an earlier call on this machine, or a new one."""
    plan = os.path.join(WORK, f"plan-{model}-{seq}.json")
    found = [x for x in r.results.get("training", []) if (x["model"], x["seq_len"]) == (model, seq)]
    if found and found[-1].get("made") and os.path.exists(plan) and found[-1]["made"] == os.path.getmtime(plan):
        return found[-1], plan
    row = {"model": model, "layout": layout, "seq_len": seq, "global_batch": mbs * micro, "rounds": []}
    r.results.setdefault("training", []).append(row)
    # Nothing on the host, which a planner likes to use for the last per cent: what is judged is the GPU.
    fix = f"mbs={mbs},oo=0,po=0,ao=0," + ("rec=sel" if ".sel" in layout else "rec=none")
    made = r.run(f"plan {model} {seq}", [os.path.join(BIN, "sextant"), "plan", "--model", model, *cluster(r), "--stack",
                                         "sextant", "--seq-len", str(seq), "--global-batch", str(mbs * micro), "--fix", fix,
                                         "-o", plan, *PRESETS], 20)
    if made is None:
        row["refused"] = r.last().get("errors") or r.last().get("skipped")
        return row, plan
    with open(plan) as file:
        planned = json.load(file)
    row["made"] = os.path.getmtime(plan)
    row["peak_TFLOPS"] = planned["cluster"]["device"]["peak_TFLOPS"]["bf16"]
    row["planned_peak_GiB"] = planned["prediction"]["peak_memory_GiB"]["value"]
    if os.path.exists(plan + ".profile"):  # of another plan
        os.remove(plan + ".profile")
    return row, plan


def run_command(row, plan):
    profile = ["--profile", plan + ".profile"] if row.get("profiled") else []
    return [os.path.join(BIN, "sextant"), "run", plan, "--device", "cuda", "--json", *PRESETS, *profile]


def least(model, steps):
    start, step = LEAST_S[model]
    return start + (steps + 1) * step  # one is rehearsed


def timed(r, row, plan, name):
    """Steps of ours as they are; the driver is asked what it sees of them in one run that ends well."""
    asks = contextlib.nullcontext() if row.get("driver_peak_GiB") else DriverMemory()
    with asks as driver:
        run = r.json(f"run {name}", run_command(row, plan) + ["--steps", str(r.steps)], 240, least_s=least(row["model"], r.steps))
    if run and driver and driver.peak_GiB:
        row["driver_peak_GiB"] = driver.peak_GiB
    return run


def ours(r):
    """Each model planned, profiled and run, as far as it is not there yet; then each run once more with its operations by
    their kernels. What does not fit on this GPU says so."""
    rows = []
    for entry in selected(r):
        name = f"{entry[0]} {entry[2]}"
        row, plan = row_of(r, *entry)
        if "refused" in row:
            continue
        rows.append((row, plan, name))
        if not row.get("profiled"):
            r.run(f"profile {name}", [os.path.join(BIN, "sextant"), "profile", "--for", plan, "-o", plan + ".profile",
                                      "--device", "cuda", *PRESETS], 200, least_s=least(entry[0], 4))
            row["profiled"] = os.path.exists(plan + ".profile")
            if row["profiled"]:
                with open(plan + ".profile") as file:
                    row["profile"] = json.load(file)
                predicted = r.json(f"simulate {name}", [os.path.join(BIN, "sextant"), "simulate", "--plan", plan, "--profile",
                                                       plan + ".profile", "--json", *PRESETS], 20)
                if predicted:
                    row["planned_peak_GiB"] = predicted["prediction"]["peak_memory_GiB"]
                    row["predicted_bytes"] = predicted.get("runtime_bytes")
        if not any(x.get("sextant") for x in row["rounds"]):
            row["rounds"].append({"sextant": timed(r, row, plan, name)})
        r.save()
    for row, plan, name in rows:
        if not row.get("by_kernels") and not r.quick:
            row["by_kernels"] = r.json(f"record {name}", run_command(row, plan) + ["--record", "--steps", "3"], 200,
                                       least_s=least(row["model"], 3))
            r.save()


def peers(r):
    """Steps beside PyTorch's in turns, model after model, so that what was begun is complete."""
    for entry in selected(r):
        model, _, seq, mbs, micro, theirs = entry
        row, plan = row_of(r, *entry)
        if "refused" in row:
            continue
        torch = [sys.executable, os.path.join(HERE, "torch_llama.py"), model]
        sizes = [str(seq), str(theirs), str(mbs * micro // theirs), str(max(3, r.steps - 2))]
        while sum("eager" in x for x in row["rounds"]) < r.rounds:
            turn = sum("eager" in x for x in row["rounds"])
            name = f"{model} {seq} {turn}"
            if r.left() < 2 * least(model, r.steps) + 40:  # two starts of PyTorch's, which has to compile, and steps
                r.skip(f"round {name}", "out of time")
                return
            own = {"env": dict(os.environ)}  # PyTorch brings libraries of its own
            both = [lambda: ("sextant", timed(r, row, plan, name)),
                    lambda: ("torch", r.json(f"torch {name}", torch + ["both", *sizes], 300, **own) or {})]
            alone = next((x for x in row["rounds"] if "eager" not in x), None)  # of this machine, by `ours`
            if alone:
                both = both[1:]
            of_round = dict(one() for one in (both if turn % 2 == 0 else reversed(both)))  # whoever is first finds a cooler GPU
            beside = of_round.pop("torch")
            whole = {**(alone or {}), **of_round, "eager": beside.get("eager"), "compile": beside.get("compile")}
            if alone:
                row["rounds"].remove(alone)
            row["rounds"].append(whole)
            r.save()
            if r.whole:
                row["rounds"][-1]["whole"] = r.json(f"torch whole {name}", torch + ["whole", *sizes], 300, **own)
                r.save()


def graphs(r):
    """No target asks for it."""
    for entry in selected(r):
        row, plan = row_of(r, *entry)
        if "refused" not in row:
            row["with_graphs"] = r.json(f"graphs {entry[0]} {entry[2]}", run_command(row, plan) + [
                "--steps", str(r.steps), "--cuda-graphs", "on"], 240, least_s=least(entry[0], r.steps))
            r.save()


def train(r):
    ours(r)
    peers(r)
    graphs(r)


def outside(r):
    """What a process takes of this GPU beside its allocations, as profiles have seen it: for the planner."""
    profiles = [r.results.get("profile"), *(row.get("profile") for row in r.results.get("training", []))]
    seen = max(((p or {}).get("facts") or {}).get("outside_GiB", 0) for p in profiles)
    return ["--set", f"stack.memory.outside_GiB={seen:.3f}"] if seen else []


def edge(r):
    gpu_edge.run(r, [*cluster(r), *outside(r)], host_memory(r), PRESETS)


def host_memory(r):
    return r.results["doctor"]["machine"].get("memory_GiB", 128)


def cluster(r):
    """This GPU for the planner: its preset, with the memory that the driver gives out (what nvidia-smi calls total holds what
    the driver keeps), and nine tenths of the host's."""
    name, memory = (r.results.get("gpu") or "NVIDIA H200,,143771 MiB").split(",")[0::2][:2]
    kind = preset_of(name)
    if not kind:
        kind = "H200-SXM5-141GB"
        said = f"{name} has no preset here: plans and predictions are of an {kind} with its memory"
        if r.results.get("planned_as") != said:
            print(said, file=sys.stderr)
        r.results["planned_as"] = said
    gives = r.results["doctor"]["machine"]["gpus"][0].get("memory_GiB") or float(memory.split()[0]) / 1024
    return ["--cluster", "1x1x" + kind, "--set", f"device.memory_GiB={gives:.3f}",
            "--set", f"node.host_memory_GiB={0.9 * host_memory(r):.0f}"]


def unready(r):
    """Why nothing can be checked here and the exit status that says so, or None. Asked whatever time is left."""
    doctor = r.results["doctor"] = r.json("doctor", [os.path.join(BIN, "sextant"), "doctor", "--json", "--presets",
                                                     os.path.join(HERE, "presets")], 120, probe=True)
    asked = r.last()
    smi = r.run("nvidia-smi", ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.sm,temperature.gpu,power.limit",
                               "--format=csv"], 20, probe=True)
    r.results["gpu"] = smi.strip().splitlines()[-1] if smi and smi.strip() else None
    r.results.pop("no_gpu", None)
    if doctor is None:
        why = asked.get("not_json") or asked.get("errors", "").strip()
        return f"sextant doctor failed: exit {asked['exit']}" + (f", {why}" if why else ""), 1
    lacking = [c for c in doctor["checks"] if c["name"] in ("GPU", "GPU backend") and c["status"] != "ok"]
    if doctor["machine"].get("gpus") and not lacking:
        return None
    r.results["no_gpu"] = "; ".join(": ".join(filter(None, (c["found"], c["advice"]))) for c in lacking) or \
        "sextant doctor lists none"
    return f"no usable GPU: {r.results['no_gpu']}", 3


def not_run(step):
    """Why a step that did not fail says less than it should, or None."""
    if "skipped" in step or "not_json" in step:
        return step.get("skipped") or step.get("not_json") or "no reason was given"
    reasons = step.get("skip_reasons", {})
    unlawful = [t for t in step.get("skipped_tests", []) if not LAWFUL_SKIP.match(reasons.get(t, ""))]
    if step.get("passed") != 0 and not unlawful:
        return None
    what = f"tests skipped: {len(unlawful)}" if step.get("passed") else "no test passed"
    return ", ".join(filter(None, (what, next((reasons[t] for t in unlawful or sorted(reasons) if t in reasons), ""))))


def not_writable(path):
    folder = os.path.dirname(os.path.abspath(path))
    return None if os.access(folder, os.W_OK) else f"{folder} is no folder that can be written to"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parts = {part.__name__: part for part in (tests, sanitizer, checks, bench, ab, ours, peers, graphs, train, machine,
                                               edge)}
    parser.add_argument("--only", choices=list(parts), action="append", help="in the order given; default: all")
    parser.add_argument("--model", choices=sorted({m[0] for m in MODELS}), action="append", help="of train; default: all")
    parser.add_argument("--seq-len", type=int, choices=sorted({m[2] for m in MODELS}), action="append",
                        help="of train; default: all")
    parser.add_argument("--steps", type=int, default=8, help="of each run of ours, at least 6; default: 8")
    parser.add_argument("--way", choices=[way[0] for way in gpu_ab.WAYS], action="append",
                        help="of ab; default: all, and the usual one again")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"with PyTorch; default: {ROUNDS}")
    parser.add_argument("--quick", action="store_true", help="part ours without a run by kernels")
    parser.add_argument("--whole", action="store_true", help="PyTorch's model compiled as one graph too, which takes minutes")
    parser.add_argument("--budget-s", type=float, default=540)
    options = parser.parse_args()
    if options.steps < 6:
        parser.error("--steps: at least 6, of which all but the first three and the last count")
    if not os.path.exists(os.path.join(BIN, "sextant")):
        print(f"{BIN} has no sextant: this script runs in the folder that tools/dev/gpu_checks.sh FOLDER makes\n"
              "  for example: tools/dev/gpu_checks.sh build/gpu-bundle && python3 build/gpu-bundle/gpu_run.py --out results.json",
              file=sys.stderr)
        return 2
    if why := gpu_verdicts.unreadable(options.out) if os.path.exists(options.out) else not_writable(options.out):
        print(f"--out {options.out}: {why}", file=sys.stderr)
        return 2
    r = Runner(options.out, options.budget_s, options.model, options.seq_len, options.steps, options.rounds,
               options.whole, options.way, options.quick)
    r.results["date"] = time.strftime("%Y-%m-%d")
    why = unready(r)
    r.save()
    if why:
        print(why[0] + "; nothing was checked", file=sys.stderr)
        return why[1]
    chosen = options.only or ["checks", "bench", "ab", "ours", "peers", "machine", "edge", "graphs"]
    if "asked" in r.results or r.first == 0:  # results without it are of everything
        asked = r.results.setdefault("asked", {"parts": [], "rows": []})
        rows = [[m[0], m[2]] for m in selected(r)] if {"ours", "peers", "graphs", "train"} & set(chosen) else []
        asked["parts"] += [part for part in chosen if part not in asked["parts"]]
        asked["rows"] += [row for row in rows if row not in asked["rows"]]
    for name in chosen:
        parts[name](r)
        r.save()
    steps = r.results["steps"][r.first:]
    bad = [s["step"] for s in steps if s.get("exit") not in (0, SKIPPED, None) and not s.get("expected_to_fail")]
    left_out = [f"{s['step']} ({why})" for s in steps if s.get("exit") in (0, SKIPPED, None) and (why := not_run(s))]
    judged = r.results["verdicts"] = gpu_verdicts.verdicts(r.results)
    r.save()
    beside = gpu_verdicts.gemms(r.results) if "bench" in chosen else []
    summary = [*gpu_ab.table(r.results), *beside, *gpu_verdicts.table(judged)]
    if bad:
        summary.append("failed: " + ", ".join(bad))
    if left_out:
        summary.append(f"{len(left_out)} step{'s'[:len(left_out) > 1]} not run: " + ", ".join(left_out))
    if not bad and not left_out:
        summary.append("all steps ended well")
    print("\n".join(gpu_verdicts.fitted([*summary, "results: " + options.out])))
    return 1 if bad or left_out or any(v["verdict"] == "missed" for v in judged) else 0


if __name__ == "__main__":
    sys.exit(main())

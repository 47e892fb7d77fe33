#!/usr/bin/env python3
"""What the results of gpu_run.py say about each target of the GPU backend: met, missed, or not measured and why, with the
figure and the bar.

  python3 gpu_verdicts.py results.json

A target is met when all that was asked for of it was measured and reaches the bar; one case below the bar misses it. What
no call asked for is not judged. Targets are
of one H200: figures of another GPU are shown, and are not measurements of them.
"""
import fnmatch
import json
import re
import statistics
import sys

PEAK_TFLOPS = 989.4  # dense bf16 of an H200
SEQUENCES = (2048, 4096)
MFU_BARS = {"llama-3.2-1b": 0.57, "llama-3.2-3b": 0.60, "llama-2-7b": 0.61}
ALL_ROWS = [(model, seq) for model in MFU_BARS for seq in SEQUENCES]
LEAST_ROUNDS = 2  # of taking turns with PyTorch
FIRST_STEADY = 3  # steps of a run before it are of warming up, and of every operation's times, as is the last one
# Rows of cuda_bench, which has one for every kernel that is bound by memory.
MEMORY_BOUND = ("add", "cast bf16 to bf16", "rmsnorm forward", "rmsnorm again", "residual and rmsnorm", "rmsnorm backward",
                "rmsnorm backward, 2048 wide", "rope", "rope back", "embedding forward", "embedding backward", "swiglu forward",
                "swiglu backward", "cross entropy statistics", "cross entropy gradient", "row lengths", "projected rows",
                "scaled columns", "adamw", "squared norm", "scale",
                "cast fp32 to bf16", "cast bf16 to fp32", "accumulate bf16", "accumulate fp32", "reduce of 2 parts in fp32",
                "reduce of 8 parts in fp32", "reduce of 2 parts in bf16", "reduce of 8 parts in bf16", "zero")
PARTS = ("tests", "sanitizer", "checks", "bench", "ours", "peers", "graphs", "train", "machine", "edge")
SCREEN = 8000  # characters of a summary that whoever runs this from afar is shown
LEAST_SHARE = 1e-3  # of a step: what takes less, as operations that launch nothing do, is no class to predict


def judge(target, bar, cases, at_least=True, unit="%"):
    """`cases`: (name, figure or None, why there is none). The worst figure stands for the target."""
    figures = [(figure, name) for name, figure, _ in cases if figure is not None]
    verdict = {"target": target, "bar": bar, "at_least": at_least, "unit": unit}
    if figures:
        verdict["figure"], verdict["of"] = (min if at_least else max)(figures)
        if verdict["figure"] < bar if at_least else verdict["figure"] > bar:
            return {**verdict, "verdict": "missed"}
    missing = [f"{name}: {why}" for name, figure, why in cases if figure is None] if cases else ["nothing was run"]
    return {**verdict, "verdict": "not measured", "why": "; ".join(missing)} if missing else {**verdict, "verdict": "met"}


def steady(run, key):
    """Median over the steps of a run that count; None without any."""
    steps = (run or {}).get("steps", [])
    steps = steps[FIRST_STEADY:-1] or steps[FIRST_STEADY:]
    values = [s[key] for s in steps if not s.get("skipped") and s.get(key) is not None]
    return statistics.median(values) if values else None


def asked_for(results):
    """Which parts of gpu_run.py its calls asked for, and which models at which sequences: of older results, everything."""
    asked = results.get("asked") or {}
    return set(asked.get("parts", PARTS)), [tuple(row) for row in asked.get("rows", ALL_ROWS)]


def rows_of(results, model=None):
    """A row for each model and sequence asked for: the last one measured, or one that says why there is none."""
    _, asked = asked_for(results)
    for name, seq in ALL_ROWS:
        if (name, seq) in asked and model in (None, name):
            found = [r for r in results.get("training", []) if (r["model"], r["seq_len"]) == (name, seq)]
            yield f"{name} at {seq}", found[-1] if found else {"rounds": [], "refused": "not run"}


def mfu(results, model):
    cases = []
    for name, row in rows_of(results, model):
        figures = [f for f in (steady(r.get("sextant"), "mfu_causal_halved") for r in row["rounds"]) if f is not None]
        if row.get("peak_TFLOPS") != PEAK_TFLOPS and figures:
            cases.append((name, None, f"MFU is of a peak of {row.get('peak_TFLOPS')} TFLOP/s"))
        else:
            cases.append((name, statistics.median(figures) if figures else None, row.get("refused") or "no run ended well"))
    return judge(f"MFU of {model}, causal halved", MFU_BARS[model], cases)


def ratio(results, mode, bar):
    cases = []
    for name, row in rows_of(results):
        # Compiled in parts or as a whole: the faster one.
        modes = (mode, "whole") if mode == "compile" else (mode,)
        pairs = [(steady(r.get("sextant"), "tokens_per_s"),
                  r.get(mode) and max((r.get(m) or {}).get("tokens_per_s") or 0 for m in modes)) for r in row["rounds"]]
        ratios = [ours / theirs for ours, theirs in pairs if ours and theirs]
        why = row.get("refused") or f"{len(ratios)} rounds of both, {LEAST_ROUNDS} are asked for"
        cases.append((name, statistics.median(ratios) if len(ratios) >= LEAST_ROUNDS else None, why))
    judged = judge(f"tokens/s over PyTorch {mode}", bar, cases, unit="times")
    if mode == "compile" and not any((r.get("whole") or {}).get("tokens_per_s") for _, row in rows_of(results) for r in row["rounds"]):
        judged["note"] = "compiled layer by layer, as torchtitan does; the model compiled as a whole was not measured (--whole)"
    return judged


def predicted_step(results):
    cases = []
    for name, row in rows_of(results):
        runs = [r.get("sextant") for r in row["rounds"]] if row.get("profiled") else []
        pairs = [(steady(run, "predicted_step_time_s"), steady(run, "step_time_s")) for run in runs]
        errors = [abs(p / m - 1) for p, m in pairs if p and m]
        why = row.get("refused") or ("no run ended well" if row.get("profiled") else "no profile was taken before it")
        cases.append((name, statistics.median(errors) if errors else None, why))
    return judge("predicted against measured step", 0.03, cases, at_least=False)


def predicted_classes(results):
    cases, small = [], set()
    for name, row in rows_of(results):
        operations = ((row.get("by_kernels") or {}).get("comparison") or {}).get("operations") or []
        if not operations or not row.get("profiled"):
            cases.append((name, None, row.get("refused") or ("no recorded run" if row.get("profiled") else "no profile")))
            continue
        least = LEAST_SHARE * sum(o["measured_s"] for o in operations)
        for o in operations:
            if max(o["measured_s"], o["predicted_s"]) < least:
                small.add(o["operations"])
            elif o["measured_s"] > 0:
                cases.append((f"{name}, {o['operations']}", abs(o["predicted_s"] / o["measured_s"] - 1), ""))
            else:
                cases.append((f"{name}, {o['operations']}", None, "predicted, but never seen"))
    judged = judge("predicted against measured classes of operations", 0.10, cases, at_least=False)
    note = f"less than {100 * LEAST_SHARE:g} % of a step, and not judged: " + ", ".join(sorted(small))
    return {**judged, **({"note": note} if small else {})}


def memory_allocated(results):
    cases = []
    for name, row in rows_of(results):
        memory = [(r.get("sextant") or {}).get("memory") for r in row["rounds"]]
        simulated = row.get("predicted_bytes", row.get("foretold_bytes"))  # the latter in results of version 0.1
        apart = [max(abs(m["allocated_bytes"] - predicted) for predicted in (m["planned_bytes"], simulated) if predicted)
                 for m in memory if m]
        cases.append((name, max(apart) if apart else None, row.get("refused") or "no run ended well"))
    return judge("memory that the runtime allocates, against the plan", 0, cases, at_least=False, unit="bytes")


def memory_of_driver(results):
    cases = []
    for name, row in rows_of(results):
        planned, seen = row.get("planned_peak_GiB"), row.get("driver_peak_GiB")
        why = row.get("refused") or "the driver was not asked"
        cases.append((name, abs(planned / seen - 1) if planned and seen else None, why))
    return judge("planned peak against what the driver reports", 0.02, cases, at_least=False)


def bandwidth(results):
    kernels = results.get("kernels") or {}
    shares = {k["kernel"]: k["share_of_copy"] for k in kernels.get("memory_bound") or []}
    names = dict.fromkeys([*MEMORY_BOUND, *shares]) if shares else []
    judged = judge("own kernels, share of the copy bandwidth", 0.85, [(n, shares.get(n), "not timed") for n in names])
    small = [f"{k['kernel']} {k['time_us']:.1f} us, where a copy of its bytes takes {k['copy_us']:.1f} us"
             for k in kernels.get("latency_bound") or []]
    return {**judged, **({"note": "too small for a bandwidth, and not judged: " + "; ".join(small)} if small else {})}


def edge(results):
    """1 where the planner and the GPU agree: what is said to fit runs, one layer more ends for want of memory."""
    rows, cases = {r["offload"]: r for r in results.get("edge") or []}, []
    for offload, name in ((False, "without offload"), (True, "with offload")):
        row = rows.get(offload) or {}
        said, more = row.get("fits_exit"), row.get("one_more_exit")
        if said is None or more is None or "timeout" in (said, more):
            cases.append((name, None, "not run to its end"))
        else:
            cases.append((name, float(said == 0 and more != 0 and bool(row.get("one_more_lacks_memory"))), ""))
    return judge("the largest model that fits runs, one layer more does not", 1, cases, unit="")


def sanitizer(results):
    """A check has to pass every test that its filter selects, and at least one of each of the filter's patterns."""
    cases, shares = [], []
    for check in ("memcheck", "racecheck"):
        steps = [s for s in results.get("steps", []) if s["step"] == check]
        step = steps[-1] if steps else {}
        passed, failed = step.get("passed_tests", []), step.get("failed", {})
        chosen = {*passed, *failed, *step.get("skipped_tests", [])}
        chosen |= {pattern for pattern in step.get("asked", []) if not fnmatch.filter(chosen, pattern)}
        if not passed and not failed or step.get("exit") == "timeout":
            cases.append((check, None, "not run to its end"))
        elif step.get("exit") == 0 and not failed and len(passed) < len(chosen):
            cases.append((check, None, f"{len(passed)} of {len(chosen)} tests"))
        else:
            cases.append((check, float(step.get("exit") == 0 and not failed), ""))
        if step.get("share", 1) > 1 and (passed or failed):
            shares.append(f"{check} ran 1 in {step['share']} of the cases: the first of each test, the rest by chance")
    return {**judge("compute-sanitizer is clean", 1, cases, unit=""), **({"note": "; ".join(shares)} if shares else {})}


def verdicts(results):
    """One entry for each target that a part which was asked for measures."""
    parts, rows = asked_for(results)
    models = [model for model in MFU_BARS if model in dict(rows)]
    of_ours = [*(lambda r, m=model: mfu(r, m) for model in models), predicted_step, predicted_classes, memory_allocated,
               memory_of_driver]
    of_peers = [lambda r: ratio(r, "eager", 1.45), lambda r: ratio(r, "compile", 1.10)]
    judged = [judge_of(results) for measured_by, targets in (
        ({"ours", "peers", "train"}, of_ours), ({"peers", "train"}, of_peers), ({"bench"}, [bandwidth]), ({"edge"}, [edge]),
        ({"sanitizer", "checks"}, [sanitizer])) if parts & measured_by for judge_of in targets]
    gpu = (results.get("gpu") or "no GPU").split(",")[0]
    words = re.findall(r"[A-Z0-9]+", gpu.upper())
    if "H200" not in words or "NVL" in words:  # nor a GH200
        for v in judged:
            v["verdict"], v["why"] = "not measured", "; ".join(filter(None, (f"targets are of an H200, this is {gpu}", v.get("why"))))
    return judged


def table(judged):
    def shown(x, unit):
        return f"{100 * x:.1f} %" if unit == "%" else f"{x:.2f} times" if unit == "times" else f"{x:.0f} {unit}".strip()

    for v in judged:
        line = f"{v['verdict']:12}  {v['target']}: "
        if "figure" in v:
            line += f"{shown(v['figure'], v['unit'])} ({v['of']}), "
        line += f"{'at least' if v['at_least'] else 'at most'} {shown(v['bar'], v['unit'])} asked"
        more = "; ".join(filter(None, (v.get("why"), v.get("note"))))
        yield line + (f" [{more}]" if more else "")


def gemms(results):
    """Our GEMMs next to torch.matmul, a line each; nothing where that was not timed."""
    theirs = {(g["m"], g["n"], g["k"], g["form"]): g["TFLOPs"] for g in (results.get("torch_gemms") or {}).get("gemm", [])}
    for g in (results.get("kernels") or {}).get("gemm", []):
        torch = theirs.get((g["m"], g["n"], g["k"], g["form"]))
        if torch:
            yield (f"GEMM {g['m']}x{g['n']}x{g['k']} {g['form']}: {g['TFLOPs']:.0f} TFLOP/s, "
                   f"torch.matmul {torch:.0f} ({g['TFLOPs'] / torch:.2f} times)")


def fitted(lines, limit=SCREEN):
    """The lines, the longest of them cut so that all fit in `limit` characters with their ends."""
    lines, width = list(lines), limit
    while width > 40 and sum(min(len(line), width) + 1 for line in lines) > limit:
        width -= max(1, (width - 40) // 8)
    return [line if len(line) <= width else line[:width - 4] + " ..." for line in lines]


def unreadable(path):
    """Why the file holds no results of gpu_run.py, or None."""
    try:
        with open(path) as file:
            results = json.load(file)
    except (OSError, ValueError) as error:
        return str(error)
    return None if isinstance(results, dict) and "steps" in results else "no results of gpu_run.py: it has no steps"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if why := unreadable(sys.argv[1]):
        sys.exit(f"{sys.argv[1]}: {why}")
    with open(sys.argv[1]) as results_file:
        print("\n".join(fitted(table(verdicts(json.load(results_file))))))

#!/usr/bin/env python3
"""All checks of the GPU backend on this machine: tests, kernel benchmarks, this machine's profile, compute-sanitizer,
training steps of LLaMA beside PyTorch's in turns, the largest model that fits; and what that says about each target of
the backend (gpu_verdicts.py). It runs in the folder that tools/dev/gpu_checks.sh makes, which builds what it runs. Writes
one JSON file, anew after every step; a file that is there already is added to, so that parts can be run one by one:

  python3 gpu_run.py --out results.json                            # everything, as far as --budget-s goes
  python3 gpu_run.py --out results.json --only tests               # tests, bench, machine, sanitizer, train or edge
  python3 gpu_run.py --out results.json --only train --model llama-3.2-1b --seq-len 4096

Each part ends within nine minutes. Exit status: 0 all is well, 1 something failed or was not run or a target was missed,
2 usage, 3 `sextant doctor` finds no usable GPU.
"""
import argparse
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time

import gpu_verdicts

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.path.join(HERE, "bin")
START = time.monotonic()
# name of the preset, layout, sequence length, micro-batch, micro-batches of a step: as many as nine minutes allow, since the
# update of all weights, some hundredths of a step here, is a thousandth of one in earnest
MODELS = [("llama-3.2-1b", "mbs4", 2048, 4, 8), ("llama-3.2-1b", "mbs2", 4096, 2, 8),
          ("llama-3.2-3b", "mbs2", 2048, 2, 16), ("llama-3.2-3b", "mbs1", 4096, 1, 16),
          ("llama-2-7b", "mbs1", 2048, 1, 16), ("llama-2-7b", "mbs1", 4096, 1, 8)]
SKIPPED = 77  # exit status of a program of tests that were all skipped
KINDS = {"h200": "h200", "h100": "h100", "a100": "a100-80gb"}  # in a GPU's name, and its preset
LAWFUL_SKIP = re.compile(r"(?!no usable GPU).*(NCCL|CUPTI|\d GPUs)", re.IGNORECASE | re.DOTALL)  # a test's reason


def environment():
    env = dict(os.environ)
    folders = []
    for base in sys.path:  # pip's packages of CUDA's libraries: those of the PyTorch beside which we run
        folders += sorted(glob.glob(os.path.join(base, "nvidia", "*", "lib")))
    folders += ["/usr/local/cuda/lib64", "/usr/local/cuda/extras/CUPTI/lib64"]
    env["LD_LIBRARY_PATH"] = ":".join(folders + [env.get("LD_LIBRARY_PATH", "")])
    env["SEXTANT_PRESETS"] = os.path.join(HERE, "presets")
    return env


class Runner:
    def __init__(self, out, budget_s, models=None, sequences=None):
        self.out, self.budget_s, self.env = out, budget_s, environment()
        self.models, self.sequences = models, sequences
        self.results = {"steps": []}
        if os.path.exists(out):
            with open(out) as file:
                self.results = json.load(file)
        self.first = len(self.results["steps"])  # of this call

    def save(self):
        partial = self.out + ".partial"
        with open(partial, "w") as file:
            json.dump(self.results, file, indent=1)
        os.replace(partial, self.out)

    def left(self):
        return self.budget_s - (time.monotonic() - START)

    def skip(self, name, why, **more):
        self.results["steps"].append({"step": name, **more, "skipped": why})
        self.save()

    def run(self, name, command, limit_s, keep=4000, env=None, probe=False):
        """Runs a step within its limit and what is left, which a probe is not held to; returns its standard output, or
        None. Without `env` it finds CUDA's libraries where ours look for them."""
        limit = limit_s if probe else min(limit_s, self.left() - 5)
        if limit < 5:
            self.skip(name, "out of time", command=" ".join(command))
            return None
        entry = {"step": name, "command": " ".join(command)}
        self.results["steps"].append(entry)
        begin = time.monotonic()
        try:
            done = subprocess.run(command, env=env or self.env, capture_output=True, text=True, timeout=limit, cwd=HERE)
            entry["exit"], out, err = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            entry["exit"] = "timeout"
            out, err = ((text or b"").decode(errors="replace") if isinstance(text, bytes) else text or ""
                        for text in (late.stdout, late.stderr))
        except OSError as error:
            entry["exit"], out, err = str(error), "", ""
        entry["time_s"] = round(time.monotonic() - begin, 1)
        if entry["exit"] not in (0, SKIPPED):
            entry["output"], entry["errors"] = out[-keep:], err[-keep:]
        print(f"{name}: exit {entry['exit']}, {entry['time_s']} s, {self.left():.0f} s left", flush=True)
        self.save()
        return out if entry["exit"] in (0, SKIPPED) else None

    def gtest(self, program, limit_s, *arguments, prefix=(), name=""):
        report = os.path.join("/tmp", f"gtest-{os.getpid()}-{program}.json")
        out = self.run(name or program, [*prefix, os.path.join(BIN, program), f"--gtest_output=json:{report}", *arguments],
                       limit_s, keep=8000)
        entry = self.results["steps"][-1]
        if out is not None:
            entry["passed"] = 0  # unless a report says more
            entry["skip_reasons"] = {test: why.strip() for why, test in re.findall(
                r": Skipped\n((?:(?!\[  SKIPPED).*\n)*)\[  SKIPPED \] (\S+) \(", out)}
        if os.path.exists(report):
            with open(report) as file:
                tests = [t for suite in json.load(file)["testsuites"] for t in suite["testsuite"]]
            os.remove(report)
            entry["passed_tests"] = sorted(t["classname"] + "." + t["name"] for t in tests
                                           if t["result"] == "COMPLETED" and "failures" not in t)
            entry["passed"] = len(entry["passed_tests"])
            entry["skipped_tests"] = sorted(t["classname"] + "." + t["name"] for t in tests if t["result"] == "SKIPPED")
            entry["failed"] = {t["classname"] + "." + t["name"]: len(t["failures"]) for t in tests if "failures" in t}
            for t in tests:  # the first messages of each, the rest by number
                for failure in t.get("failures", [])[:6]:
                    entry.setdefault("messages", []).append(failure["failure"][:400])
            self.save()

    def json(self, name, command, limit_s, **more):
        out = self.run(name, command, limit_s, **more)
        if out is None:
            return None
        entry = self.results["steps"][-1]
        try:
            said = json.loads(out)
        except ValueError as error:
            entry["not_json"] = str(error)
            return None
        if isinstance(said, dict) and isinstance(said.get("skipped"), str):
            entry["skipped"] = said["skipped"]
        return said


class DriverMemory:
    """What the driver says is in use on the GPU beyond what was before, at most, while the block runs; GiB."""

    def __init__(self):
        self.peak_GiB, self.before, self.over = None, self.used(), threading.Event()

    @staticmethod
    def used():
        try:
            return int(subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"],
                                      capture_output=True, text=True, timeout=10).stdout.strip())
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return None

    def watch(self):
        pause_s = 0.25  # longer and longer: what is held stays, and PyTorch's rounds have no such company
        while not self.over.wait(pause_s):
            pause_s = min(2 * pause_s, 8)
            now = self.used()
            if now is not None and self.before is not None:
                self.peak_GiB = max(self.peak_GiB or 0, (now - self.before) / 1024)

    def __enter__(self):
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def tests(r):
    r.gtest("cuda_math_test", 20)
    r.gtest("cuda_kernels_test", 120)
    r.gtest("cuda_training_test", 150)
    r.gtest("cuda_trace_test", 40)


def sanitizer(r):
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(tool):
        r.results["sanitizer"] = "compute-sanitizer was not found"
        r.skip("sanitizer", r.results["sanitizer"])
        return
    r.results["sanitizer"] = tool
    shared = "*Rmsnorm*:*Embedding*:*CrossEntropy*:*SquaredNorm*:*AttentionTiles*:*MatrixProducts*"
    # Races are looked for in our own kernels: the libraries' order their shared memory by means that racecheck does not know.
    for check, share, cases, more in (("memcheck", 16, shared + ":*Rope*:*Adamw*:*Swiglu*:*PassesOverFlatState*", []),
                                      ("racecheck", 60, shared + ":*Repeat*", ["--kernel-name", "kns=sextant"])):
        r.gtest("cuda_kernels_test", 150, "--gtest_filter=" + cases, name=check,
                prefix=["env", f"SEXTANT_SHARE={share}", tool, "--tool", check, *more, "--error-exitcode", "9"])
        r.results["steps"][-1].update(share=share, asked=cases.split(":"))


def bench(r):
    r.results["kernels"] = r.json("cuda_bench", [os.path.join(BIN, "cuda_bench")], 100)


def machine(r):
    """The profile of this machine, with the works of LLaMA at usual widths: a table to ship."""
    profile = os.path.join("/tmp", f"machine-{os.getpid()}.json")
    r.results["profile"] = r.json("profile machine", [os.path.join(BIN, "sextant"), "profile", "--device", "cuda", "-o", profile,
                                                      "--json", "--presets", os.path.join(HERE, "presets")], 150)


def train(r):
    """Each model profiled, then steps beside PyTorch's in turns; what does not fit on this GPU says so."""
    sextant, presets = os.path.join(BIN, "sextant"), ["--presets", os.path.join(HERE, "presets")]
    rows = r.results.setdefault("training", [])
    for model, layout, seq, mbs, micro in MODELS:
        if (r.models and model not in r.models) or (r.sequences and seq not in r.sequences):
            continue
        name = f"{model} {seq}"
        plan = os.path.join("/tmp", f"plan-{os.getpid()}-{model}-{seq}.json")
        # Nothing on the host, which a planner likes to use for the last per cent: what is judged is the GPU.
        fix = f"mbs={mbs},oo=0,po=0,ao=0," + ("rec=sel" if ".sel" in layout else "rec=none")
        row = {"model": model, "layout": layout, "seq_len": seq, "global_batch": mbs * micro, "rounds": []}
        rows.append(row)
        made = r.run(f"plan {name}", [sextant, "plan", "--model", model, *cluster(r), "--stack", "sextant",
                                       "--seq-len", str(seq), "--global-batch", str(mbs * micro), "--fix", fix,
                                       "-o", plan, *presets], 20)
        if made is None:
            row["refused"] = r.results["steps"][-1].get("errors")
            continue
        with open(plan) as file:
            planned = json.load(file)
        row["peak_TFLOPS"] = planned["cluster"]["device"]["peak_TFLOPS"]["bf16"]
        row["planned_peak_GiB"] = planned["prediction"]["peak_memory_GiB"]["value"]
        profile = plan + ".profile"
        r.run(f"profile {name}", [sextant, "profile", "--for", plan, "-o", profile, "--device", "cuda", *presets], 120)
        base = [sextant, "run", plan, "--device", "cuda", "--json", *presets]
        row["profiled"] = os.path.exists(profile)
        if row["profiled"]:
            base += ["--profile", profile]
        ours = base + ["--steps", "8"]
        untouched = {"env": dict(os.environ)}  # PyTorch brings libraries of its own
        torch = [sys.executable, os.path.join(HERE, "torch_llama.py"), model]
        sizes = [str(seq), str(mbs), str(micro)]
        for turn in range(2):
            with DriverMemory() as driver:
                of_round = {"sextant": r.json(f"run {name} {turn}", ours, 120)}
            if of_round["sextant"] and driver.peak_GiB:
                row["driver_peak_GiB"] = max(row.get("driver_peak_GiB", 0), driver.peak_GiB)
            if turn == 0:  # no target asks for it, and starting takes its time
                of_round["with_graphs"] = r.json(f"graphs {name}", ours + ["--cuda-graphs"], 120)
            row["rounds"].append({
                **of_round,
                "eager": r.json(f"torch eager {name} {turn}", torch + ["eager", *sizes], 90, **untouched),
                "compile": r.json(f"torch compile {name} {turn}", torch + ["compile", *sizes], 150, **untouched)})
            r.save()
        # Operations by their kernels; the steps above count as a whole.
        row["by_kernels"] = r.json(f"record {name}", base + ["--record", "--steps", "3"], 120)
        r.save()


def edge(r):
    """The largest depth of LLaMA-2-7B that the planner says fits runs; one layer more, forced, does not."""
    sextant, presets = os.path.join(BIN, "sextant"), ["--presets", os.path.join(HERE, "presets")]
    r.results["edge"] = []
    for offload in (False, True):
        name = "with offload" if offload else "without offload"
        fix = "mbs=1,rec=none" + ("" if offload else ",oo=0,po=0,ao=0")

        def plan(layers, force=False, fix=fix):
            path = os.path.join("/tmp", f"edge-{os.getpid()}-{layers}-{int(offload)}.json")
            more = ["--set", "device.memory_GiB=4000"] if force else []
            done = subprocess.run([sextant, "plan", "--model", "llama-2-7b", "--set", f"model.n_layers={layers}",
                                   *cluster(r), *more, "--stack", "sextant", "--seq-len", "2048", "--global-batch", "2",
                                   "--fix", fix, "-o", path, *presets], env=r.env, capture_output=True, text=True,
                                  timeout=max(min(60, r.left() - 5), 0.1))
            return path if done.returncode == 0 else None

        fits, too_many = 1, 400
        try:
            while too_many - fits > 1:
                middle = (fits + too_many) // 2
                fits, too_many = (middle, too_many) if plan(middle) else (fits, middle)
            paths = {"fits": plan(fits)}
            if paths["fits"]:  # one layer more with as much on the host, which a larger device would leave out
                with open(paths["fits"]) as file:
                    p = json.load(file)["plan"]
                same = (f"mbs=1,rec=none,oo={100 * p['optimizer_offload']:.0f},po={int(p['parameter_offload'])},"
                        f"ao={p['activation_offload']}")
                if p["activation_offload"] or p["parameter_offload"]:
                    same += f",hz={p['offload_horizon']}"
                paths["one_more"] = plan(too_many, force=True, fix=same)
        except subprocess.TimeoutExpired as late:
            r.skip(f"edge, {name}", f"a plan was not made within {late.timeout:.0f} s", command=" ".join(late.cmd))
            continue
        row = {"offload": offload, "planner_says": fits}
        r.results["edge"].append(row)
        for key, path in paths.items():
            if not path:
                r.skip(f"{key}, {name}", "the planner made no plan")
            else:
                row[key] = r.json(f"{key}, {name}", [sextant, "run", path, "--device", "cuda", "--json", "--steps", "2",
                                                     *presets], 300 if offload else 120)
                row[key + "_exit"] = r.results["steps"][-1].get("exit")
                if key == "one_more":  # the failure is what was predicted
                    step = r.results["steps"][-1]
                    step["expected_to_fail"] = isinstance(step.get("exit"), int)
                    row["one_more_lacks_memory"] = "bytes asked" in step.get("errors", "")
        r.save()


def cluster(r):
    """This GPU for the planner: its preset, with the memory that a program can have of it (half a GiB less than nvidia-smi
    says), and nine tenths of the host's."""
    name = (r.results.get("gpu") or "NVIDIA H200").split(",")[0]
    kind = next((kind for part, kind in KINDS.items() if part in name.lower()), None)
    if not kind:
        kind = "h200"
        said = f"{name} has no preset here: plans and predictions are of an {kind} with its memory"
        if r.results.get("planned_as") != said:
            print(said, file=sys.stderr)
        r.results["planned_as"] = said
    machine = r.results["doctor"]["machine"]
    host_GiB, memory_GiB = machine.get("memory_GiB", 128), machine["gpus"][0]["memory_GiB"]
    return ["--cluster", "1x1x" + kind, "--set", f"device.memory_GiB={memory_GiB:.3f}",
            "--set", f"node.host_memory_GiB={0.9 * host_GiB:.0f}"]


def unready(r):
    """Why nothing can be checked here and the exit status that says so, or None. Asked whatever time is left."""
    doctor = r.results["doctor"] = r.json("doctor", [os.path.join(BIN, "sextant"), "doctor", "--json", "--presets",
                                                     os.path.join(HERE, "presets")], 120, probe=True)
    asked = r.results["steps"][-1]
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", choices=["tests", "bench", "machine", "sanitizer", "train", "edge"], action="append")
    parser.add_argument("--model", choices=sorted({m[0] for m in MODELS}), action="append", help="of train; default: all")
    parser.add_argument("--seq-len", type=int, choices=sorted({m[2] for m in MODELS}), action="append",
                        help="of train; default: all")
    parser.add_argument("--budget-s", type=float, default=540)
    options = parser.parse_args()
    if not os.path.exists(os.path.join(BIN, "sextant")):
        print(f"{BIN} has no sextant: this script runs in the folder that tools/dev/gpu_checks.sh FOLDER makes\n"
              "  for example: tools/dev/gpu_checks.sh build/gpu-bundle && python3 build/gpu-bundle/gpu_run.py --out results.json",
              file=sys.stderr)
        return 2
    r = Runner(options.out, options.budget_s, options.model, options.seq_len)
    r.results["date"] = time.strftime("%Y-%m-%d")
    why = unready(r)
    r.save()
    if why:
        print(why[0] + "; nothing was checked", file=sys.stderr)
        return why[1]
    for group in (tests, bench, machine, sanitizer, train, edge):
        if not options.only or group.__name__ in options.only:
            group(r)
            r.save()
    steps = r.results["steps"][r.first:]
    bad = [s["step"] for s in steps if s.get("exit") not in (0, SKIPPED, None) and not s.get("expected_to_fail")]
    left_out = [f"{s['step']} ({why})" for s in steps if s.get("exit") in (0, SKIPPED, None) and (why := not_run(s))]
    judged = r.results["verdicts"] = gpu_verdicts.verdicts(r.results)
    r.save()
    print("\n".join(gpu_verdicts.table(judged)))
    if bad:
        print("failed: " + ", ".join(bad))
    if left_out:
        print(f"{len(left_out)} step{'s'[:len(left_out) > 1]} not run: " + ", ".join(left_out))
    if not bad and not left_out:
        print("all steps ended well")
    print("results: " + options.out)
    return 1 if bad or left_out or any(v["verdict"] == "missed" for v in judged) else 0


if __name__ == "__main__":
    sys.exit(main())

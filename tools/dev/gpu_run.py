#!/usr/bin/env python3
"""All checks of the GPU backend on this machine: tests, kernel benchmarks, this machine's profile, compute-sanitizer,
training steps of LLaMA beside PyTorch's in turns, the largest model that fits. Made by tools/dev/gpu_checks.sh, which
builds what it runs. Writes one JSON file, anew after every step; a file that is there already is added to, so that
parts can be run one by one:

  python3 gpu_run.py --out results.json                            # everything, as far as --budget-s goes
  python3 gpu_run.py --out results.json --only tests               # tests, bench, machine, sanitizer, train or edge
  python3 gpu_run.py --out results.json --only train --model llama-3.2-1b

Each part ends within nine minutes. Exit status: 0 all is well, 1 something failed, 3 there is no GPU.
"""
import argparse
import glob
import json
import os
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.path.join(HERE, "bin")
START = time.monotonic()
# name of the preset, layout, sequence length, micro-batch, micro-batches of a step
MODELS = [("llama-3.2-1b", "mbs4", 2048, 4, 4), ("llama-3.2-3b", "mbs2", 2048, 2, 8),
          ("llama-2-7b", "mbs1.sel", 2048, 1, 16)]


def environment():
    env = dict(os.environ)
    folders = ["/usr/local/cuda/lib64"]
    for base in sys.path:  # pip's packages of CUDA's libraries
        folders += glob.glob(os.path.join(base, "nvidia", "*", "lib"))
    folders.append("/usr/local/cuda/extras/CUPTI/lib64")
    env["LD_LIBRARY_PATH"] = ":".join(folders + [env.get("LD_LIBRARY_PATH", "")])
    env["SEXTANT_PRESETS"] = os.path.join(HERE, "presets")
    return env


class Runner:
    def __init__(self, out, budget_s, models=None):
        self.out, self.budget_s, self.models, self.env = out, budget_s, models, environment()
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

    def run(self, name, command, limit_s, keep=4000):
        """Runs a step within its limit and what is left; returns its standard output, or None."""
        limit = min(limit_s, self.left() - 5)
        entry = {"step": name, "command": " ".join(command)}
        self.results["steps"].append(entry)
        if limit < 5:
            entry["skipped"] = "out of time"
            self.save()
            return None
        begin = time.monotonic()
        try:
            done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=limit, cwd=HERE)
            entry["exit"], out, err = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            entry["exit"] = "timeout"
            out, err = ((text or b"").decode(errors="replace") if isinstance(text, bytes) else text or ""
                        for text in (late.stdout, late.stderr))
        except OSError as error:
            entry["exit"], out, err = str(error), "", ""
        entry["time_s"] = round(time.monotonic() - begin, 1)
        if entry["exit"] != 0:
            entry["output"], entry["errors"] = out[-keep:], err[-keep:]
        print(f"{name}: exit {entry['exit']}, {entry['time_s']} s, {self.left():.0f} s left", flush=True)
        self.save()
        return out if entry["exit"] == 0 else None

    def gtest(self, program, limit_s, *arguments, prefix=(), name=""):
        report = os.path.join("/tmp", f"gtest-{os.getpid()}-{program}.json")
        self.run(name or program, [*prefix, os.path.join(BIN, program), f"--gtest_output=json:{report}", *arguments],
                 limit_s, keep=8000)
        entry = self.results["steps"][-1]
        if os.path.exists(report):
            with open(report) as file:
                tests = [t for suite in json.load(file)["testsuites"] for t in suite["testsuite"]]
            os.remove(report)
            entry["passed"] = sum(t["result"] == "COMPLETED" and "failures" not in t for t in tests)
            entry["skipped_tests"] = sorted(t["classname"] + "." + t["name"] for t in tests if t["result"] == "SKIPPED")
            entry["failed"] = {t["classname"] + "." + t["name"]: len(t["failures"]) for t in tests if "failures" in t}
            for t in tests:  # the first messages of each, the rest by number
                for failure in t.get("failures", [])[:6]:
                    entry.setdefault("messages", []).append(failure["failure"][:400])
            self.save()

    def json(self, name, command, limit_s):
        out = self.run(name, command, limit_s)
        try:
            return json.loads(out) if out else None
        except ValueError as error:
            self.results["steps"][-1]["not_json"] = str(error)
            return None


def tests(r):
    r.gtest("cuda_math_test", 20)
    r.gtest("cuda_kernels_test", 120)
    r.gtest("cuda_training_test", 150)
    r.gtest("cuda_trace_test", 40)


def sanitizer(r):
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(tool):
        r.results["sanitizer"] = "compute-sanitizer was not found"
        return
    r.results["sanitizer"] = tool
    shared = "*Rmsnorm*:*Embedding*:*CrossEntropy*:*SquaredNorm*:*AttentionTiles*:*MatrixProducts*"
    for check, share, cases in (("memcheck", 16, shared + ":*Rope*:*Adamw*:*Swiglu*:*PassesOverFlatState*"),
                                ("racecheck", 60, shared + ":*Repeat*")):
        r.gtest("cuda_kernels_test", 150, "--gtest_filter=" + cases, name=check,
                prefix=["env", f"SEXTANT_SHARE={share}", tool, "--tool", check, "--error-exitcode", "9"])


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
        if r.models and model not in r.models:
            continue
        plan = os.path.join("/tmp", f"plan-{os.getpid()}-{model}.json")
        fix = f"mbs={mbs}," + ("rec=sel" if ".sel" in layout else "rec=none")
        row = {"model": model, "layout": layout, "seq_len": seq, "global_batch": mbs * micro, "rounds": []}
        rows.append(row)
        made = r.run(f"plan {model}", [sextant, "plan", "--model", model, *cluster(r), "--stack", "sextant",
                                       "--seq-len", str(seq), "--global-batch", str(mbs * micro), "--fix", fix,
                                       "-o", plan, *presets], 20)
        if made is None:
            row["refused"] = r.results["steps"][-1].get("errors")
            continue
        profile = plan + ".profile"
        r.run(f"profile {model}", [sextant, "profile", "--for", plan, "-o", profile, "--device", "cuda", *presets], 90)
        base = [sextant, "run", plan, "--device", "cuda", "--json", *presets]
        ours = base + ["--steps", "8"] + (["--profile", profile] if os.path.exists(profile) else [])
        torch = [sys.executable, os.path.join(HERE, "torch_llama.py"), model]
        sizes = [str(seq), str(mbs), str(micro)]
        for turn in range(2):
            row["rounds"].append({
                "sextant": r.json(f"run {model} {turn}", ours, 90),
                "with_graphs": r.json(f"graphs {model} {turn}", base + ["--steps", "8", "--cuda-graphs"], 90),
                "eager": r.json(f"torch eager {model} {turn}", torch + ["eager", *sizes], 60),
                "compile": r.json(f"torch compile {model} {turn}", torch + ["compile", *sizes], 110)})
            r.save()
        # Operations by their kernels; the steps above count as a whole.
        row["by_kernels"] = r.json(f"record {model}", base + ["--record", "--steps", "3"], 90)
        r.save()


def edge(r):
    """The largest depth of LLaMA-2-7B that the planner says fits runs; one layer more, forced, does not."""
    sextant, presets = os.path.join(BIN, "sextant"), ["--presets", os.path.join(HERE, "presets")]
    r.results["edge"] = []
    for offload in (False, True):
        fix = "mbs=1,rec=none" + ("" if offload else ",oo=0,po=0,ao=0")

        def plan(layers, force=False):
            path = os.path.join("/tmp", f"edge-{os.getpid()}-{layers}-{int(offload)}.json")
            more = ["--set", "device.memory_GiB=4000"] if force else []
            done = subprocess.run([sextant, "plan", "--model", "llama-2-7b", "--set", f"model.n_layers={layers}",
                                   *cluster(r), *more, "--stack", "sextant", "--seq-len", "2048", "--global-batch", "2",
                                   "--fix", fix, "-o", path, *presets], env=r.env, capture_output=True, text=True,
                                  timeout=60)
            return path if done.returncode == 0 else None

        fits, too_many = 1, 400
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            fits, too_many = (middle, too_many) if plan(middle) else (fits, middle)
        name = "with offload" if offload else "without offload"
        row = {"offload": offload, "planner_says": fits}
        r.results["edge"].append(row)
        for key, path in (("fits", plan(fits)), ("one_more", plan(too_many, force=True))):
            if path:
                row[key] = r.json(f"{key}, {name}", [sextant, "run", path, "--device", "cuda", "--json", "--steps", "2",
                                                     *presets], 120)
                row[key + "_exit"] = r.results["steps"][-1].get("exit")
                if key == "one_more":  # the failure is what was predicted
                    r.results["steps"][-1]["expected_to_fail"] = True
        row["as_predicted"] = row.get("fits_exit") == 0 and row.get("one_more_exit") not in (0, None)
        r.save()


def cluster(r):
    """This GPU for the planner: its preset, with the memory that the driver says it has, and nine tenths of the host's."""
    name, memory = (r.results.get("gpu") or "NVIDIA H200,,143771 MiB").split(",")[0::2][:2]
    kind = next((k for k in ("h200", "h100", "a100-80gb") if k.split("-")[0] in name.lower()), "h200")
    host_GiB = r.results["doctor"]["machine"].get("memory_GiB", 128)
    return ["--cluster", "1x1x" + kind, "--set", f"device.memory_GiB={float(memory.split()[0]) / 1024:.3f}",
            "--set", f"node.host_memory_GiB={0.9 * host_GiB:.0f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", choices=["tests", "bench", "machine", "sanitizer", "train", "edge"], action="append")
    parser.add_argument("--model", choices=[m[0] for m in MODELS], action="append", help="of train; default: all")
    parser.add_argument("--budget-s", type=float, default=540)
    options = parser.parse_args()
    r = Runner(options.out, options.budget_s, options.model)
    r.results["date"] = time.strftime("%Y-%m-%d")
    doctor = r.results["doctor"] = r.json("doctor", [os.path.join(BIN, "sextant"), "doctor", "--json", "--presets",
                                                     os.path.join(HERE, "presets")], 30)
    smi = r.run("nvidia-smi", ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.sm,temperature.gpu,power.limit",
                               "--format=csv"], 20)
    r.results["gpu"] = smi.strip().splitlines()[-1] if smi else None
    if not smi and not (doctor or {}).get("machine", {}).get("gpus"):
        found = [c["found"] for c in (doctor or {}).get("checks", []) if c["name"] == "GPU"]
        r.results["no_gpu"] = found[0] if found else "sextant doctor says nothing of one"
        r.save()
        print(f"no GPU: {r.results['no_gpu']}; nothing was checked", file=sys.stderr)
        return 3
    for group in (tests, bench, machine, sanitizer, train, edge):
        if not options.only or group.__name__ in options.only:
            group(r)
            r.save()
    bad = [s["step"] for s in r.results["steps"][r.first:]
           if s.get("exit") not in (0, None) and not s.get("expected_to_fail")]
    bad += [f"edge of memory, offload {row['offload']}" for row in r.results.get("edge", []) if not row.get("as_predicted")]
    print("failed: " + ", ".join(bad) if bad else "all steps ended well")
    print("results: " + options.out)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

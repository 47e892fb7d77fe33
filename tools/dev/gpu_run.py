#!/usr/bin/env python3
"""All checks of the GPU backend on this machine, in one go: tests, compute-sanitizer, kernel benchmarks, training
steps of LLaMA beside PyTorch's. Writes one JSON file. Made by tools/dev/gpu_checks.sh, which builds what it runs.

  python3 gpu_run.py --out results.json                  # everything, in less than ten minutes
  python3 gpu_run.py --out results.json --only tests     # tests, sanitizer, bench, machine or train
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
    def __init__(self, budget_s, models=None):
        self.budget_s, self.models, self.results, self.env = budget_s, models, {"steps": []}, environment()

    def left(self):
        return self.budget_s - (time.monotonic() - START)

    def run(self, name, command, limit_s, keep=4000):
        """Runs a step within its limit and what is left; returns its standard output, or None."""
        limit = min(limit_s, self.left() - 5)
        entry = {"step": name, "command": " ".join(command)}
        self.results["steps"].append(entry)
        if limit < 5:
            entry["skipped"] = "out of time"
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
    r.gtest("cuda_kernels_test", 70, "--gtest_filter=*Rope*:*Embedding*:*CrossEntropy*:*Adamw*",
            prefix=[tool, "--tool", "memcheck", "--error-exitcode", "9"], name="memcheck")
    r.gtest("cuda_kernels_test", 50, "--gtest_filter=*Embedding*:*Repeat*",
            prefix=[tool, "--tool", "racecheck", "--error-exitcode", "9"], name="racecheck")


def bench(r):
    r.results["kernels"] = r.json("cuda_bench", [os.path.join(BIN, "cuda_bench")], 100)


def machine(r):
    """The profile of this machine, with the works of LLaMA at usual widths: a table to ship."""
    profile = os.path.join("/tmp", f"machine-{os.getpid()}.json")
    r.results["profile"] = r.json("profile machine", [os.path.join(BIN, "sextant"), "profile", "--device", "cuda", "-o", profile,
                                                      "--json", "--presets", os.path.join(HERE, "presets")], 150)


def train(r):
    sextant, presets = os.path.join(BIN, "sextant"), ["--presets", os.path.join(HERE, "presets")]
    r.results["training"] = []
    for model, layout, seq, mbs, micro in MODELS:
        if r.models and model not in r.models:
            continue
        plan = os.path.join("/tmp", f"plan-{os.getpid()}-{model}.json")
        fix = f"mbs={mbs}," + ("rec=sel" if ".sel" in layout else "rec=none")
        made = r.run(f"plan {model}", [sextant, "plan", "--model", model, "--cluster", "1x1xh200", "--stack", "sextant",
                                       "--seq-len", str(seq), "--global-batch", str(mbs * micro), "--fix", fix,
                                       "-o", plan, *presets], 20)
        row = {"model": model, "layout": layout, "seq_len": seq, "global_batch": mbs * micro}
        r.results["training"].append(row)
        if made is not None:
            profile = plan + ".profile"
            r.run(f"profile {model}", [sextant, "profile", "--for", plan, "-o", profile, "--device", "cuda", *presets], 120)
            base = [sextant, "run", plan, "--device", "cuda", "--json", *presets]
            # Once by events, whose steps count, and once by kernels, whose operations do.
            command = base + ["--steps", "8"]
            row["by_kernels"] = r.json(f"record {model}", base + ["--record", "--steps", "3"], 100)
            row["with_graphs"] = r.json(f"graphs {model}", command + ["--cuda-graphs"], 100)
            row["sextant"] = r.json(f"run {model}", command + (["--profile", profile] if os.path.exists(profile) else []),
                                    150)
        for mode in ("eager", "compile"):
            row[mode] = r.json(f"torch {mode} {model}",
                               [sys.executable, os.path.join(HERE, "torch_llama.py"), model, mode, str(seq), str(mbs),
                                str(micro)], 110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", choices=["tests", "sanitizer", "bench", "machine", "train"], action="append")
    parser.add_argument("--model", choices=[m[0] for m in MODELS], action="append", help="of train; default: all")
    parser.add_argument("--budget-s", type=float, default=570)
    options = parser.parse_args()
    r = Runner(options.budget_s, options.model)
    r.results["date"] = time.strftime("%Y-%m-%d")
    smi = r.run("nvidia-smi", ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.sm,temperature.gpu,power.limit",
                               "--format=csv"], 20)
    r.results["gpu"] = smi.strip().splitlines()[-1] if smi else None
    r.results["doctor"] = r.json("doctor", [os.path.join(BIN, "sextant"), "doctor", "--json", "--presets",
                                            os.path.join(HERE, "presets")], 30)
    for group in (tests, bench, machine, sanitizer, train):
        if not options.only or group.__name__ in options.only:
            group(r)
            with open(options.out, "w") as file:  # after each group, so that a stop loses little
                json.dump(r.results, file, indent=1)
    bad = [s["step"] for s in r.results["steps"] if s.get("exit") not in (0, None)]
    print("failed: " + ", ".join(bad) if bad else "all steps ended well")
    print("results: " + options.out)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

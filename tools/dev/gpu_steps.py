"""Steps of gpu_run.py: a program within its limit and what is left of the time, whose end is kept in a results file; tests
by their reports; what the driver says of memory meanwhile."""
import contextlib
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.path.join(HERE, "bin")
START = time.monotonic()
WORK = os.path.join(tempfile.gettempdir(), f"sextant-gpu-run-{os.getuid()}")  # plans and profiles of this machine
SKIPPED = 77  # exit status of a program of tests that were all skipped


def environment():
    env = dict(os.environ)
    folders = []
    for base in sys.path:  # pip's packages of CUDA's libraries: those that PyTorch takes, so that both have the same
        folders += sorted(glob.glob(os.path.join(base, "nvidia", "*", "lib")))
    folders += ["/usr/local/cuda/lib64", "/usr/local/cuda/extras/CUPTI/lib64"]
    env["LD_LIBRARY_PATH"] = ":".join(folders + [env.get("LD_LIBRARY_PATH", "")])
    env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as nvidia-smi counts
    env["SEXTANT_PRESETS"] = os.path.join(HERE, "presets")
    env["SEXTANT_REFERENCE"] = os.path.join(HERE, "reference")
    env["SEXTANT_FAMILIES"] = os.path.join(HERE, "families")
    return env


class Runner:
    def __init__(self, out, budget_s, models=None, sequences=None, steps=8, rounds=2, whole=False, ways=None, quick=False):
        self.out, self.budget_s, self.env = out, budget_s, environment()
        self.models, self.sequences, self.steps, self.rounds, self.whole = models, sequences, steps, rounds, whole
        self.ways, self.quick = ways, quick  # of parts ab and ours
        self.lock = threading.RLock()  # of results: some steps run side by side
        self.of_thread = threading.local()
        os.makedirs(WORK, exist_ok=True)
        self.results = {"steps": []}
        if os.path.exists(out):
            with open(out) as file:
                self.results = json.load(file)
        self.first = len(self.results["steps"])  # of this call

    def save(self):
        partial = self.out + ".partial"
        with self.lock:
            with open(partial, "w") as file:
                json.dump(self.results, file, indent=1)
            os.replace(partial, self.out)

    def update(self, entry, **more):
        with self.lock:
            entry.update(more)

    def last(self):
        """The step that this thread was at last."""
        return self.of_thread.entry

    def add(self, entry):
        with self.lock:
            self.of_thread.entry = entry
            self.results["steps"].append(entry)

    def left(self):
        return self.budget_s - (time.monotonic() - START)

    def skip(self, name, why, **more):
        self.add({"step": name, **more, "skipped": why})
        self.save()

    def run(self, name, command, limit_s, keep=4000, env=None, probe=False, least_s=5):
        """Runs a step within its limit and what is left, which a probe is not held to; returns its standard output, or
        None. What takes `least_s` is not begun with less. Without `env` it finds CUDA's libraries where ours look."""
        limit = limit_s if probe else min(limit_s, self.left() - 5)
        if limit < min(least_s, limit_s):
            self.skip(name, "out of time", command=" ".join(command))
            return None
        entry, ended = {"step": name, "command": " ".join(command)}, {}
        self.add(entry)
        begin = time.monotonic()
        try:
            with subprocess.Popen(command, env=env or self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  errors="replace", cwd=HERE, process_group=0) as process:
                try:
                    out, err = process.communicate(timeout=limit)
                    ended["exit"] = process.returncode
                except subprocess.TimeoutExpired:  # with all that it has started, which would go on using the GPU
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    out, err = process.communicate()
                    ended["exit"] = "timeout"
        except OSError as error:
            ended["exit"], out, err = str(error), "", ""
        ended["time_s"] = round(time.monotonic() - begin, 1)
        if ended["exit"] not in (0, SKIPPED):
            ended["output"], ended["errors"] = out[-keep:], err[-keep:]
        self.update(entry, **ended)
        print(f"{name}: exit {entry['exit']}, {entry['time_s']} s, {self.left():.0f} s left", flush=True)
        self.save()
        return out if entry["exit"] in (0, SKIPPED) else None

    def gtest(self, program, limit_s, *arguments, prefix=(), name=""):
        report = os.path.join(WORK, f"gtest-{os.getpid()}-{name or program}.json")
        out = self.run(name or program, [*prefix, os.path.join(BIN, program), f"--gtest_output=json:{report}", *arguments],
                       limit_s, keep=8000)
        found = {}
        if out is not None:
            found["passed"] = 0  # unless a report says more
            found["skip_reasons"] = {test: why.strip() for why, test in re.findall(
                r": Skipped\n((?:(?!\[  SKIPPED).*\n)*)\[  SKIPPED \] (\S+) \(", out)}
        if os.path.exists(report):
            with open(report) as file:
                tests = [t for suite in json.load(file)["testsuites"] for t in suite["testsuite"]]
            os.remove(report)
            found["passed_tests"] = sorted(t["classname"] + "." + t["name"] for t in tests
                                           if t["result"] == "COMPLETED" and "failures" not in t)
            found["passed"] = len(found["passed_tests"])
            found["skipped_tests"] = sorted(t["classname"] + "." + t["name"] for t in tests if t["result"] == "SKIPPED")
            found["failed"] = {t["classname"] + "." + t["name"]: len(t["failures"]) for t in tests if "failures" in t}
            distances = {t["name"] + ", " + key.removeprefix("distance "): t[key] for t in tests for key in t
                         if key.startswith("distance ")}  # that a test has written down (RecordProperty)
            if distances:
                found["distances"] = distances
            for t in tests:  # the first messages of each, the rest by number
                for failure in t.get("failures", [])[:6]:
                    found.setdefault("messages", []).append(failure["failure"][:400])
        self.update(self.last(), **found)
        self.save()

    def json(self, name, command, limit_s, **more):
        out = self.run(name, command, limit_s, **more)
        if out is None:
            return None
        entry = self.last()
        try:
            said = json.loads(out)
        except ValueError as error:
            entry["not_json"] = str(error)
            return None
        if isinstance(said, dict) and isinstance(said.get("skipped"), str):
            entry["skipped"] = said["skipped"]
        return said


def preset_of(gpu):
    """The preset of the device that the driver calls so: its model and form, and its memory where both say it; or None."""
    words = re.findall(r"[A-Z0-9]+", gpu.upper())
    for preset in sorted(os.listdir(os.path.join(HERE, "presets", "devices"))):
        own = re.findall(r"[A-Z0-9]+", preset.upper())
        sizes = [{w for w in names if re.fullmatch(r"\d+GB", w)} for names in (words, own)]
        if (own[0] in words and all((form in words) == (form in own) for form in ("PCIE", "NVL"))
                and (not all(sizes) or sizes[0] & sizes[1])):
            return preset.removesuffix(".json")
    return None


class DriverMemory:
    """What the driver says is in use on the GPU beyond what was before, at most, while the block runs; GiB."""

    def __init__(self):
        self.peak_GiB, self.before, self.over = None, self.used(), threading.Event()

    @staticmethod
    def used():
        try:
            first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
            return int(subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", first],
                                      capture_output=True, text=True, timeout=10).stdout.strip())
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return None

    def watch(self):
        while not self.over.wait(0.5):
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

#!/usr/bin/env python3
"""Runs that adapt, against what they are to reach: CPU ranks that emulate a cluster, real steps, injected events. Prints a table
of measured figures and ends with 1 when one of them is missed.

    adaptation_bars.py --sextant build/release/bin/sextant [--only start,x2,x4,link,kill,changes,alarms] [--alarm-steps 2000]

Steps are slept, not computed, so that eight ranks fit on two cores; a machine that is busy otherwise disturbs them all the same.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

DEVICE = {
    "name": "emulated", "generation": "cpu", "memory_GiB": 4, "memory_bandwidth_GBps": 5,
    "peak_TFLOPS": {"fp32": 0.01, "bf16": 0.01, "fp64": 0.005}, "multiprocessors": 1, "launch_overhead_us": 1,
    "host_link_GBps": 1, "power_W": 15,
}
NODE = {
    "gpus": 8, "link": "shared_memory", "link_bandwidth_GBps": 0.2, "link_latency_us": 50, "host_memory_GiB": 8,
    "host_memory_bandwidth_GBps": 20,
}
# Two nodes of four ranks between which the gradients of this model are a good part of a step.
FABRIC = {"name": "emulated", "kind": "ethernet", "bandwidth_GBps": 0.02, "efficiency": 1.0, "latency_us": 100}
MODEL = {
    "name": "sixteen-layers", "n_layers": 16, "hidden": 64, "n_heads": 8, "n_kv_heads": 4, "head_dim": 8, "ffn_hidden": 172,
    "vocab_size": 512, "gated_mlp": True, "tied_embeddings": False, "norm": "rms", "norm_eps": 1e-05, "position": "rope",
    "max_positions": 512, "rope_theta": 10000.0,
}
BATCH = 128


class Trial:
    def __init__(self, sextant: str, folder: pathlib.Path) -> None:
        self.sextant, self.folder, self.runs = sextant, folder, 0
        self.rows: list[tuple[str, str, str, bool]] = []
        (folder / "model.json").write_text(json.dumps(MODEL))
        self.one_node = self.cluster("one", {"nodes": 1, "node": NODE, "fabric": "none"})
        nics = {"gpus": 4, "nics": 1, "nic_bandwidth_GBps": FABRIC["bandwidth_GBps"]}
        self.two_nodes = self.cluster("two", {"nodes": 2, "node": {**NODE, **nics}, "fabric": FABRIC})

    def cluster(self, name: str, parts: dict, defects: list | None = None) -> pathlib.Path:
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({"name": name, "device": DEVICE, **parts, **({"defects": defects} if defects else {})}))
        return path

    def sick(self, cluster: pathlib.Path, name: str, defects: list) -> pathlib.Path:
        spec = json.loads(cluster.read_text())
        return self.cluster(name, {k: spec[k] for k in ("nodes", "node", "fabric")}, defects)

    def call(self, *arguments: object) -> str:
        done = subprocess.run([self.sextant, *map(str, arguments)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"sextant {' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")
        return done.stdout

    def question(self, cluster: pathlib.Path, batch: int = BATCH, seq: int = 64) -> list[object]:
        return ["--model", self.folder / "model.json", "--cluster", cluster, "--stack", "sextant", "--seq-len", seq,
                "--global-batch", batch]

    def plan(self, cluster: pathlib.Path, key: str) -> pathlib.Path:
        path = self.folder / f"plan{self.runs}.json"
        self.runs += 1
        self.call("simulate", *self.question(cluster), "--plan", key, "-o", path)
        return path

    def run(self, plan: list[object], steps: int, events: str = "", more: tuple[object, ...] = ()) -> pathlib.Path:
        out = self.folder / f"run{self.runs}"
        self.runs += 1
        inject: list[object] = []
        if events:
            (self.folder / f"{out.name}.events").write_text(events)
            inject = ["--inject", self.folder / f"{out.name}.events"]
        self.call("run", *plan, "--steps", steps, "--emulate", "-o", out, *inject, *more)
        return out

    def say(self, what: str, measured: str, asked: str, good: bool) -> None:
        self.rows.append((what, measured, asked, good))
        print(f"{what:<58} {measured:<34} {asked:<16} {'' if good else 'MISSED'}", flush=True)

    def static(self, cluster: pathlib.Path, keys: list[str], steps: int = 7) -> dict[str, float]:
        """The median step of each layout that stays, on the machine as it is."""
        found = {}
        for key in dict.fromkeys(keys):
            run = self.run([self.plan(cluster, key)], steps, more=("--no-save",))
            found[key] = statistics.median(step_times(run)[2:])
        return found

    def by_hand(self, defect: dict) -> list[str]:
        """What an engineer would try for one slow rank of eight: its replica gets fewer micro-batches."""
        slow = defect.get("compute_factor", 1)
        if slow == 1:
            return []
        keys = []
        for size in (1, 2, 4):
            count = BATCH // size
            few = [n for n in range(1, count // 8) if n >= slow * count / (7 + slow) - 1][:3]
            for n in few:
                many, more = divmod(count - n, 7)
                counts = [many + (i < more) for i in range(7)]
                keys += [f"dp8.z{z}.mbs{size}.ga" + "-".join(map(str, counts[:3] + [n] + counts[3:])) for z in (0, 1)]
        return keys

    def layouts(self, cluster: pathlib.Path, count: int) -> list[str]:
        answer = json.loads(self.call("plan", *self.question(cluster), "--fix", "oo=0,po=off,ao=0", "--top", count, "--json", "--details"))
        return [p["key"] for p in answer["ranked"]]


def lines(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def step_times(run: pathlib.Path) -> list[float]:
    return [s["step_time_s"] for s in lines(run / "steps.jsonl") if "step_time_s" in s]


def losses(run: pathlib.Path) -> list[float]:
    return [s["loss"] for s in lines(run / "steps.jsonl") if "loss" in s]


def start(t: Trial) -> None:
    run = t.run(t.question(t.one_node), 40, more=("--adapt", "--adapt-budget", 50, "--no-save"))
    decision = lines(run / "adaptation.jsonl")[0]
    apart = t.static(t.one_node, [a["plan"] for a in decision["alternatives"]])
    kept, best = apart[decision["to"]["plan"]], min(apart.values())
    t.say("start: kept layout against the best of the list", f"{100 * (kept / best - 1):.2f} % of {len(apart)} layouts", "within 1 %",
          kept <= 1.01 * best)
    t.say("start: what the trial cost", f"{decision['spent_s']:.2f} of {decision['budget_s']:.2f} s", "the budget",
          decision["spent_s"] <= decision["budget_s"])


def sickness(t: Trial, what: str, cluster: pathlib.Path, event: str, defect: dict, times: float | None) -> None:
    onset, steps = 20, 60
    events = f"step {onset} {event}\n"
    run = t.run(t.question(cluster), steps, events, ("--adapt", "--adapt-budget", 0, "--no-save"))
    t.call("plan", *t.question(cluster), "-o", t.folder / "first.json")
    fixed = statistics.median(step_times(t.run([t.folder / "first.json"], onset + 6, events, ("--no-save",)))[onset + 1:])
    adapted = statistics.median(step_times(run)[-10:])
    changes = [d for d in lines(run / "adaptation.jsonl") if d.get("kind") == "change"]
    sick = t.sick(cluster, f"sick{t.runs}", [defect])
    keys = t.layouts(sick, 10) + t.by_hand(defect) + ([changes[-1]["to"]["plan"]] if changes and "idle" not in changes[-1]["to"] else [])
    best = min(t.static(sick, keys).values())
    t.say(f"{what}: throughput against the best static layout", f"{100 * best / adapted:.1f} % of {len(dict.fromkeys(keys))} layouts",
          ">= 95 %", best / adapted >= 0.95)
    asked = f">= {times} times" if times else ""
    t.say(f"{what}: against going on unadapted", f"{fixed / adapted:.2f} times", asked, times is None or fixed / adapted >= times)
    if changes:
        took = [d for d in lines(run / "adaptation.jsonl") if d.get("changed") == changes[0]["decision"]][0]["stood_still_s"]
        lag = changes[0]["step"] + 1 - onset
        t.say(f"{what}: from onset to the new layout", f"{lag} steps + {took:.2f} s", "<= 20 steps + 2 s", lag <= 20 and took <= 2)


def kill(t: Trial) -> None:
    with_replicas = t.run([*t.question(t.one_node), "--set", "stack.can.zero_stages=[0]"], 16, "step 8 kill rank 5\n",
                          ("--adapt", "--adapt-budget", 0, "--no-save"))
    t.say("lost rank: steps lost with replicas", f"{16 - len(step_times(with_replicas))}", "0", len(step_times(with_replicas)) == 16)
    saved = t.run([*t.question(t.one_node), "--set", "stack.can.zero_stages=[3]"], 16, "step 10 kill rank 5\n",
                  ("--adapt", "--adapt-budget", 0, "--save-every", 4, "--json"))
    whole = t.run(t.question(t.one_node), 16, more=("--no-save",))
    off = max(abs(a / b - 1) for a, b in zip(losses(saved), losses(whole)))
    t.say("lost rank: loss against an undisturbed run, from a checkpoint", f"{off:.1e}", "<= 1e-4", off <= 1e-4)


def changes(t: Trial) -> None:
    times = 8
    steps = 60 * times + 30
    events = "".join(f"step {20 + 60 * i} rank {i} compute x4 until {50 + 60 * i}\n" for i in range(times))
    run = t.run(t.question(t.one_node, 32), steps, events, ("--adapt", "--adapt-budget", 0, "--no-save"))
    whole = t.run(t.question(t.one_node, 32), steps, more=("--no-save",))
    made = sum(d.get("kind") in ("change", "go_back") for d in lines(run / "adaptation.jsonl"))
    off = max(abs(a / b - 1) for a, b in zip(losses(run), losses(whole)))
    t.say(f"loss over {made} changes against none", f"{off:.1e}", "10; <= 1e-3", made >= 10 and off <= 1e-3)


def alarms(t: Trial, steps: int) -> None:
    run = t.run(t.question(t.one_node, 8, 16), steps, more=("--adapt", "--adapt-budget", 0, "--no-save"))
    seen = [d for d in lines(run / "adaptation.jsonl") if d.get("trigger") == "drift"]
    t.say(f"false alarms in {steps} undisturbed real steps", f"{len(seen)}", "0", not seen)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sextant", required=True)
    parser.add_argument("--only", default="start,x2,x4,link,kill,changes,alarms")
    parser.add_argument("--alarm-steps", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        t = Trial(options.sextant, pathlib.Path(folder))
        slow = {"node": 0, "gpu": 3}
        run = {
            "start": lambda: start(t),
            "x2": lambda: sickness(t, "straggler x2", t.one_node, "rank 3 compute x2", {**slow, "compute_factor": 0.5}, 1.5),
            "x4": lambda: sickness(t, "straggler x4", t.one_node, "rank 3 compute x4", {**slow, "compute_factor": 0.25}, 2.5),
            "link": lambda: sickness(t, "link x0.25", t.two_nodes, "link node0-node1 bandwidth x0.25",
                                     {"node": 0, "network_factor": 0.25}, None),
            "kill": lambda: kill(t),
            "changes": lambda: changes(t),
            "alarms": lambda: alarms(t, options.alarm_steps),
        }
        for name in options.only.split(","):
            if name not in run:
                parser.error(f"--only: {name} is none of {', '.join(run)}")
            run[name]()
        return 0 if all(good for *_, good in t.rows) else 1


if __name__ == "__main__":
    sys.exit(main())

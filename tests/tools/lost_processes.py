#!/usr/bin/env python3
"""Processes of a run that adapts, some of which are killed (kill -9) while it trains.

System: four processes that meet over TCP (--comm env), a tiny model, real steps. Expectation: those that are left end
well with every step once, and their losses are those of an undisturbed run within 1e-4; where each piece of state has
a living copy no step is lost, else those since the newest checkpoint and no more. Without --adapt the job ends, as ever.

  lost_processes.py --sextant SEXTANT [--only CASE]... [--kills N] [--seed S]     --kills: at random moments, beside the cases
"""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

CLUSTER = {
    "name": "slow", "nodes": 1, "fabric": "none",
    "device": {"name": "slow", "generation": "cpu", "memory_GiB": 4, "memory_bandwidth_GBps": 5, "multiprocessors": 1,
               "peak_TFLOPS": {"fp32": 0.01, "bf16": 0.01, "fp64": 0.005}, "launch_overhead_us": 1, "host_link_GBps": 1},
    "node": {"gpus": 4, "link": "shared_memory", "link_bandwidth_GBps": 0.2, "link_latency_us": 50, "host_memory_GiB": 8,
             "host_memory_bandwidth_GBps": 20}}
REPLICAS, SHARDS = "dp4.z0.mbs3", "dp4.z3.mbs3"  # 12 sequences a step: for 4, 3 or 2 ranks
# Each piece of state with two ranks or more; of shards updates overlap with exchanges.
TWO_COPIES = (REPLICAS, "dp4.z1.mbs3.sd2", "dp4.z3.mbs3.sd2", "tp2.dp2.z0.mbs6", "pp2.dp2.z0.mbs3")
RANKS = 4
TOLERANCE = 1e-4
WAIT_S = 120


class Failure(Exception):
    """What a case has found."""


def require(condition, what):
    if not condition:
        raise Failure(what)


class Job:
    """Processes of one run, in a folder of their own."""

    def __init__(self, trial, plan, steps, *options, adapt=True, events="", save_every=0):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=trial.folder))
        self.run = self.folder / "run"
        command = [trial.sextant, "run", str(trial.plan(plan)), "--comm", "env", "--steps", str(steps), "--threads", "1",
                   "--print-every", "1", "-o", str(self.run), *options]
        if adapt:
            command.append("--adapt")
        if adapt and "--adapt-budget" not in options:
            command += ["--adapt-budget", "0"]
        if events:
            (self.folder / "events").write_text(events)
            command += ["--emulate", "--inject", str(self.folder / "events")]
        if save_every:
            command += ["--save-every", str(save_every)]
        self.port = free_port()
        self.processes = []
        for rank in range(RANKS):
            environment = dict(trial.environment, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS),
                               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self.port))
            with open(self.folder / f"rank{rank}.txt", "w", encoding="utf-8") as out:
                self.processes.append(subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT))

    def text(self, rank):
        return (self.folder / f"rank{rank}.txt").read_text(encoding="utf-8", errors="replace")

    def lines(self, name):
        file = self.run / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def steps(self):
        try:
            return self.lines("steps.jsonl")
        except json.JSONDecodeError:  # half a line
            return []

    def decisions(self):
        return self.lines("adaptation.jsonl")

    def wait_for(self, happened, what):
        until = time.monotonic() + WAIT_S
        while not happened():
            require(time.monotonic() < until, f"{what} was waited for: {self.all_text()}")
            require(any(p.poll() is None for p in self.processes), f"the job has ended before {what}: {self.all_text()}")
            time.sleep(0.002)

    def wait_for_step(self, step):
        self.wait_for(lambda: len(self.steps()) > step, f"step {step}")

    def kill(self, rank, how=signal.SIGKILL):
        self.processes[rank].send_signal(how)

    def end(self):
        """Exit codes, by rank."""
        until = time.monotonic() + WAIT_S
        for process in self.processes:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired as late:
                for other in self.processes:
                    other.kill()
                raise Failure(f"a process has not ended: {self.all_text()}") from late
        return [p.returncode for p in self.processes]

    def all_text(self):
        return "\n".join(f"--- rank {rank}: {self.processes[rank].poll()}\n{self.text(rank)[-1500:]}" for rank in range(RANKS))


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Trial:
    """What the cases share: the program, plans, and undisturbed runs to compare with."""

    def __init__(self, sextant, folder):
        self.sextant, self.folder = sextant, folder
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("SEXTANT_SECRET", "XDG_CONFIG"))}
        self.environment["HOME"] = str(folder)
        self.environment["MALLOC_PERTURB_"] = "90"  # what is used after it was given back is found
        (folder / "slow.json").write_text(json.dumps(CLUSTER))
        self.undisturbed = {}

    def plan(self, key):
        file = self.folder / f"{key}.json"
        if not file.exists():
            subprocess.run([self.sextant, "simulate", "--model", "stories-260k", "--cluster", str(self.folder / "slow.json"),
                            "--stack", "sextant", "--seq-len", "64", "--global-batch", "12", "--plan", key, "-o", str(file)],
                           check=True, stdout=subprocess.DEVNULL, env=self.environment)
        return file

    def losses(self, steps):
        if steps not in self.undisturbed:
            out = subprocess.run([self.sextant, "run", str(self.plan(REPLICAS)), "--steps", str(steps), "--threads", "1", "--json"],
                                 check=True, capture_output=True, text=True, env=self.environment).stdout
            self.undisturbed[steps] = [step["loss"] for step in json.loads(out)["steps"]]
        return self.undisturbed[steps]

    def check(self, job, steps, killed, most_lost=0):
        """The job has ended as it should when these ranks were killed; steps lost in all."""
        codes = job.end()
        for rank, code in enumerate(codes):
            want = -signal.SIGKILL if rank in killed else 0
            require(code == want, f"rank {rank} ended with {code}: {job.all_text()}")
        done = job.steps()
        require([s["step"] for s in done] == list(range(steps)), f"steps {[s['step'] for s in done]}")
        for step, loss in zip(done, self.losses(steps)):
            require(abs(step["loss"] - loss) <= TOLERANCE * loss, f"step {step['step']}: loss {step['loss']}, {loss} undisturbed")
        lost = [line["steps_lost"] for line in job.decisions() if "steps_lost" in line]
        numbers = [line["decision"] for line in job.decisions() if "decision" in line]
        require(numbers == sorted(set(numbers)), f"decisions {numbers}")
        require(any(line.get("kind") == "lost" for line in job.decisions()), f"no decision: {job.decisions()}")
        require(lost and sum(lost) <= most_lost, f"steps lost {lost}: {job.decisions()}")
        return sum(lost)


def replicas(trial):
    """One of four, told by --inject: from replicas, in a layout for three."""
    job = Job(trial, REPLICAS, 30, events="step 12 kill rank 2")
    trial.check(job, 30, {2})
    kinds = [line for line in job.decisions() if line.get("kind") == "lost"]
    require(len(kinds) == 1 and kinds[0]["step"] == 11, f"behind step 11: {kinds}")
    require("GPU 2 is lost" in kinds[0]["evidence"][0] and "dp3" in kinds[0]["to"]["plan"], f"another is lost: {kinds}")
    told = subprocess.run([trial.sextant, "explain", str(job.run), "--decision", "1"], capture_output=True, text=True, check=True,
                          env=trial.environment).stdout
    require("steps lost: 0" in told and "GPU 2 is lost" in told, told)


def somebody_outside(trial):
    """kill -9 in the middle of steps, as fast as they are."""
    job = Job(trial, REPLICAS, 150)
    job.wait_for_step(40)
    job.kill(1)
    trial.check(job, 150, {1})


def the_first(trial):
    """Rank 0, which decides and writes: the lowest that is left does that from then on."""
    job = Job(trial, REPLICAS, 150, save_every=20)
    job.wait_for_step(50)
    job.kill(0)
    trial.check(job, 150, {0})
    # Rank 0 may have taken decisions of its own before: on a busy machine a layout is changed.
    require(re.search(r"decision \d+ behind step", job.text(1)), f"rank 1 says nothing: {job.all_text()}")
    require((job.run / "checkpoints" / "step-00000150").exists(), "the last checkpoint")


def no_replicas(trial):
    """Shards that nobody else has: from the newest checkpoint."""
    job = Job(trial, SHARDS, 150, save_every=25)
    job.wait_for_step(60)
    job.kill(3)
    lost = trial.check(job, 150, {3}, most_lost=50)  # the newest may be under way
    require(lost > 0, "no step was lost, though shards were")
    require("going back to the checkpoint of step" in job.text(0), job.all_text())


def no_copy_at_all(trial):
    """Neither replicas nor a checkpoint: the job ends, and says what would have kept one."""
    job = Job(trial, SHARDS, 3000)
    job.wait_for_step(20)
    job.kill(3)
    codes = job.end()
    require(codes == [7, 7, 7, -signal.SIGKILL], f"codes {codes}: {job.all_text()}")
    require("no other has a copy, and there is no checkpoint" in job.text(0), job.all_text())


def while_saving(trial):
    """A checkpoint is being written all the time."""
    for rank in (2, 0):
        job = Job(trial, REPLICAS, 120, save_every=1)
        job.wait_for_step(30)
        job.kill(rank)
        trial.check(job, 120, {rank})
        require(not list((job.run / "checkpoints").glob(".*unfinished")), "what was not finished lies there")


def while_changing(trial):
    """Layouts are tried at the start: the state moves every few steps."""
    for moment in (4, 6, 8, 8, 11, 12):
        job = Job(trial, REPLICAS, 100, "--adapt-budget", "100")
        job.wait_for_step(moment)
        time.sleep(0.005 * moment)
        job.kill(2)
        job_codes = job.end()
        # Some of the layouts that are tried have shards without copies.
        if job_codes == [0, 0, -signal.SIGKILL, 0]:
            trial.check(job, 100, {2})
        else:
            require(job_codes == [7, 7, -signal.SIGKILL, 7] and "no other has a copy" in job.text(0), job.all_text())


def two(trial):
    """One after the other, the second perhaps with shards that nobody else has; and two at once."""
    job = Job(trial, REPLICAS, 200, save_every=10)
    job.wait_for_step(30)
    job.kill(1)
    job.wait_for(lambda: any("steps_lost" in line for line in job.decisions()), "the first loss")
    job.wait_for_step(len(job.steps()) + 20)
    job.kill(3)
    trial.check(job, 200, {1, 3}, most_lost=20)
    job = Job(trial, REPLICAS, 150)
    job.wait_for_step(30)
    job.kill(0)
    job.kill(2)
    trial.check(job, 150, {0, 2})


def strangers(trial):
    """Whoever connects while those that are left meet finds nobody who listens."""
    job = Job(trial, REPLICAS, 150)
    job.wait_for_step(40)
    job.kill(1)
    answered = 0
    while any(p.poll() is None for p in job.processes):
        try:
            with socket.create_connection(("127.0.0.1", job.port), 0.2) as one:
                one.sendall(b"GET / HTTP/1.0\r\n\r\n")
                answered += 1
        except OSError:
            time.sleep(0.005)
    require(answered == 0, f"{answered} strangers were let in")
    trial.check(job, 150, {1})


def silent(trial):
    """One that is stopped is left out after the deadline, and ends when it wakes: it does not go on by itself."""
    job = Job(trial, REPLICAS, 400, "--deadline", "2")
    job.wait_for_step(40)
    job.kill(2, signal.SIGSTOP)
    job.wait_for(lambda: any("steps_lost" in line for line in job.decisions()), "a layout for three")
    job.kill(2, signal.SIGCONT)
    codes = job.end()
    require(codes == [0, 0, 7, 0], f"codes {codes}: {job.all_text()}")
    require("have given this one up" in job.text(2), job.all_text())
    require([s["step"] for s in job.steps()] == list(range(400)), "every step once")


def without_adapt(trial):
    """The job ends, as it did."""
    job = Job(trial, REPLICAS, 3000, adapt=False)
    job.wait_for_step(20)
    job.kill(2)
    codes = job.end()
    require(codes == [7, 7, -signal.SIGKILL, 7], f"codes {codes}: {job.all_text()}")
    require("rank 2 has gone without a word" in job.text(0), job.all_text())


def refused(trial):
    """Processes do not join a run; nor is one killed on purpose that would end the job."""
    job = Job(trial, REPLICAS, 30, events="step 12 join 1")
    require(job.end() == [3] * RANKS and "resume --adapt" in job.text(0), job.all_text())
    job = Job(trial, REPLICAS, 30, adapt=False, events="step 12 kill rank 1")
    require(job.end() == [3] * RANKS and "add --adapt" in job.text(0), job.all_text())


def at_random(trial, kills, seed):
    """kill -9 of any process at any moment: every extent has a living copy, so no step is lost."""
    chance = random.Random(seed)
    stood = []
    for kill in range(kills):
        rank, delay, save_every = chance.randrange(RANKS), chance.random() * 0.1, chance.choice((0, 1, 7))
        plan = chance.choice(TWO_COPIES)
        job = Job(trial, plan, 60, save_every=save_every)
        job.wait_for_step(chance.randrange(1, 40))
        time.sleep(delay)
        job.kill(rank)
        try:
            trial.check(job, 60, {rank})
        except Failure as failure:
            if [p.returncode for p in job.processes].count(0) == RANKS:  # it was done already
                continue
            raise Failure(f"kill {kill} of rank {rank}, seed {seed}, {plan} --save-every {save_every}: {failure}") from failure
        stood += [line["stood_still_s"] for line in job.decisions() if "steps_lost" in line]
        shutil.rmtree(job.folder)
    stood.sort()
    print(f"{len(stood)} of {kills} kills at random moments: 0 steps lost; stood still for {stood[len(stood) // 2]:.3f} s "
          f"(median), {stood[-1]:.3f} s at most")


CASES = [replicas, somebody_outside, the_first, no_replicas, no_copy_at_all, while_saving, while_changing, two, strangers, silent,
         without_adapt, refused]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sextant", required=True)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    o = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp())
    failed = 0
    try:
        trial = Trial(os.path.abspath(o.sextant), folder)
        cases = [case for case in CASES if not o.only or case.__name__ in o.only]
        for name, case in [(c.__name__, lambda c=c: c(trial)) for c in cases] + (
                [("at_random", lambda: at_random(trial, o.kills, o.seed))] if o.kills else []):
            began = time.monotonic()
            try:
                case()
                print(f"{name}: well, {time.monotonic() - began:.1f} s", flush=True)
            except Failure as failure:
                failed += 1
                print(f"{name}: FAILED: {failure}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

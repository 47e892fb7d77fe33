#!/usr/bin/env python3
"""Processes of a run that adapts, some of which are killed (kill -9) while it trains.

System: four processes that meet over TCP (--comm env), a tiny model, real steps. Expectation: those that are left end
well with every step once, and their losses are those of an undisturbed run within 1e-4; where each piece of state has
a living copy no step is lost, else those since the newest checkpoint and no more. One that is started again is taken in. Without --adapt the job ends, as ever.

  lost_processes.py --sextant SEXTANT [--only CASE]... [--kills N] [--returns N] [--seed S]
  --kills, --returns: at random moments, beside the cases

Longer than others: the cases share one way of starting, killing and judging processes.
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
CHALLENGE_BYTES = 4 + 32  # a magic number and a nonce
TOLERANCE = 1e-4
OVER_CHANGES = 1e-3  # hundreds of steps whose sums have had several orders
WAIT_S = 120
LATE_S = 15  # from the end of the run to where a process that is told of it has ended


class Failure(Exception):
    """What a case has found."""


def require(condition, what):
    if not condition:
        raise Failure(what)


class Job:
    """Processes of one run, in a folder of their own."""

    def __init__(self, trial, plan, steps, *options, adapt=True, events="", save_every=0, ranks=RANKS):
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
        self.command, self.environment, self.ranks = command, trial.environment, ranks
        self.processes = [self.start(rank, command) for rank in range(ranks)]

    def start(self, rank, command):
        ranks = max(self.ranks, rank + 1)
        environment = dict(self.environment, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
                           MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self.port))
        with open(self.folder / f"rank{rank}.txt", "a", encoding="utf-8") as out:
            return subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)

    def start_again(self, rank, *options):
        process = self.start(rank, [*self.command, "--resume", *options])
        self.processes[rank:rank + 1] = [process]

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

    def end_late(self):
        """Ends those that came when the run was over: they wait ten minutes for others to begin with. Their exit code counts as 7."""
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until and 0 not in [p.poll() for p in self.processes]:
            time.sleep(0.1)
        over = time.monotonic() + LATE_S
        while time.monotonic() < over and None in [p.poll() for p in self.processes]:
            time.sleep(0.1)
        for rank, process in enumerate(self.processes):
            if process.poll() is None and " to answer, for another " in self.text(rank):
                process.kill()
                process.wait()
                process.returncode = 7

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
        return "\n".join(f"--- rank {rank}: {self.processes[rank].poll()}\n{self.text(rank)[-6000:]}" for rank in range(len(self.processes)))


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

    def check(self, job, steps, killed, most_lost=0, lost=True, tolerance=TOLERANCE):
        """The job has ended as it should when these ranks were killed; steps lost in all."""
        codes = job.end()
        for rank, code in enumerate(codes):
            want = -signal.SIGKILL if rank in killed else 0
            require(code == want, f"rank {rank} ended with {code}: {job.all_text()}")
        done = job.steps()
        require([s["step"] for s in done] == list(range(steps)), f"steps {[s['step'] for s in done]}")
        for step, loss in zip(done, self.losses(steps)):
            require(abs(step["loss"] - loss) <= tolerance * loss, f"step {step['step']}: loss {step['loss']}, {loss} undisturbed")
        gone = [line["steps_lost"] for line in job.decisions() if "steps_lost" in line]
        numbers = [line["decision"] for line in job.decisions() if "decision" in line]
        require(numbers == sorted(set(numbers)), f"decisions {numbers}")
        require(not lost or any(line.get("kind") == "lost" for line in job.decisions()), f"no decision: {job.decisions()}")
        # On a busy machine the run may have taken a layout without copies before, by its own choice.
        changed = any(line.get("kind") == "change" for line in job.decisions())
        require((gone or not lost) and (changed or sum(gone) <= most_lost), f"steps lost {gone}: {job.decisions()}")
        return sum(gone)


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
    """Whoever connects while those that are left meet, and afterwards, hears a random number and no more."""
    job = Job(trial, REPLICAS, 150)
    job.wait_for_step(40)
    job.kill(1)
    longest = 0
    while any(p.poll() is None for p in job.processes):
        try:
            with socket.create_connection(("127.0.0.1", job.port), 0.2) as one:
                one.sendall(b"GET / HTTP/1.0\r\n\r\n" * 20)
                one.settimeout(0.5)
                heard = 0
                while part := one.recv(4096):
                    heard += len(part)
                longest = max(longest, heard)
        except OSError:
            time.sleep(0.005)
    require(longest <= CHALLENGE_BYTES, f"a stranger heard {longest} bytes")
    trial.check(job, 150, {1})


def comes_back(trial, rank=2, plan=REPLICAS, steps=200):
    """One that was killed is started again, by the same command with --resume: it waits, a layout takes it in, and all end well."""
    job = Job(trial, plan, steps, "--deadline", "20", save_every=50)
    job.wait_for_step(20)
    job.kill(rank)
    job.wait_for(lambda: any("steps_lost" in line for line in job.decisions()), "a layout for three")
    job.start_again(rank)
    trial.check(job, steps, {}, tolerance=OVER_CHANGES)
    joined = [line for line in job.decisions() if line.get("trigger") == "joined"]
    require(joined and joined[-1]["kind"] == "change" and "dp4" in joined[-1]["to"]["plan"], f"{rank}: {job.decisions()}")
    require("the job is under way" in job.text(rank), job.text(rank))


def comes_back_as_any(trial):
    """As the rank that the job began with; and where shards have two copies."""
    comes_back(trial, 0)
    comes_back(trial, 1, "dp4.z3.mbs3.sd2")


def comes_and_goes(trial):
    """One that waits is killed, comes again, is taken in, and is killed as a member; then another one is."""
    job = Job(trial, REPLICAS, 600, save_every=10)
    job.wait_for_step(30)
    job.kill(3)
    job.wait_for(lambda: any("steps_lost" in line for line in job.decisions()), "a layout for three")
    job.start_again(3)
    time.sleep(0.3)
    job.kill(3)
    job.processes[3].wait()
    job.start_again(3)
    job.wait_for(lambda: sum("changed" in line for line in job.decisions()) >= 2, "a layout for four")
    job.wait_for_step(len(job.steps()) + 20)
    job.kill(3)
    job.wait_for(lambda: sum(line.get("kind") == "lost" and "to" in line for line in job.decisions()) >= 2, "the second loss")
    job.wait_for_step(len(job.steps()) + 20)
    job.kill(0)
    trial.check(job, 600, {0, 3}, most_lost=100, tolerance=OVER_CHANGES)


def gone_while_taken_in(trial):
    """Killed at moments from the decision to take it in on: before it is given a seat, while all meet, while state moves."""
    job = Job(trial, REPLICAS, 1200, save_every=5)
    job.wait_for_step(20)
    job.kill(3)
    for moment in range(12):
        job.processes[3].wait()
        joined = lambda: sum(line.get("trigger") == "joined" and line["kind"] == "change" for line in job.decisions())
        before = joined()
        job.wait_for_step(len(job.steps()) + 5)
        job.start_again(3)
        job.wait_for(lambda: joined() > before, "a decision to take it in")
        time.sleep(0.03 * moment)
        job.kill(3)
    trial.check(job, 1200, {3}, most_lost=12 * 10, tolerance=OVER_CHANGES)


def comes_with_other_options(trial):
    """Who would train otherwise is refused at the door, and the run goes on."""
    job = Job(trial, REPLICAS, 150)
    job.wait_for_step(20)
    job.kill(2)
    job.wait_for(lambda: any("steps_lost" in line for line in job.decisions()), "a layout for three")
    job.start_again(2, "--lr", "0.5")
    require(job.processes[2].wait(WAIT_S) == 7 and "other settings than the job" in job.text(2), job.text(2))
    codes = job.end()
    require(codes == [0, 0, 7, 0], f"codes {codes}: {job.all_text()}")
    require([s["step"] for s in job.steps()] == list(range(150)), "every step once")


def one_more(trial):
    """Three were started where the machine has place for four: the fourth comes later."""
    job = Job(trial, REPLICAS, 400, ranks=3)
    job.wait_for_step(30)
    job.start_again(3)
    trial.check(job, 400, {}, lost=False, tolerance=OVER_CHANGES)
    require("dp4" in [line["to"]["plan"] for line in job.decisions() if line.get("trigger") == "joined"][-1], f"{job.decisions()}")


def comes_too_late(trial):
    """Over a few steps a change does not pay: who waits is told when the run ends, and the others notice nothing."""
    job = Job(trial, REPLICAS, 60)
    job.wait_for_step(30)
    job.kill(1)
    job.wait_for_step(50)
    job.start_again(1)
    codes = job.end()
    require(codes[0] == codes[2] == codes[3] == 0, f"codes {codes}: {job.all_text()}")
    require([s["step"] for s in job.steps()] == list(range(60)), "every step once")
    require(codes[1] in (0, 7), f"codes {codes}: {job.text(1)}")


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
    require(job.end() == [3] * RANKS and "start one more process" in job.text(0), job.all_text())
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


def returns_at_random(trial, times, seed):
    """kill -9 and another start of any process at any moments, also before it has been taken in: the job goes on, and loses no more
    than the steps since a checkpoint."""
    chance = random.Random(seed)
    taken = not_yet = 0
    stood = []
    for time_ in range(times):
        plan, save_every = chance.choice(TWO_COPIES), chance.choice((5, 10))
        job = Job(trial, plan, 400, save_every=save_every)
        told = f"time {time_}, seed {seed}, {plan} --save-every {save_every}"
        try:
            job.wait_for_step(chance.randrange(2, 30))
            for _ in range(3):
                rank = chance.randrange(RANKS)
                job.kill(rank)
                job.processes[rank].wait()
                time.sleep(chance.choice((0, 0, 0.05, 0.5, 1)) * chance.random())
                job.start_again(rank)
                time.sleep(chance.random() * 2)
            job.end_late()
            codes = job.end()
            # Who waits in the end is told that it is over; who came when all were about to end finds nobody.
            require(codes.count(0) >= 2 and all(code in (0, 7) for code in codes), f"codes {codes}: {job.all_text()}")
            require([s["step"] for s in job.steps()] == list(range(400)), f"steps: {job.all_text()}")
            for step, loss in zip(job.steps(), trial.losses(400)):
                require(abs(step["loss"] - loss) <= OVER_CHANGES * loss, f"step {step['step']}: loss {step['loss']}, {loss} undisturbed")
        except Failure as failure:
            raise Failure(f"{told}: {failure}") from failure
        taken += sum(line.get("trigger") == "joined" and line["kind"] == "change" for line in job.decisions())
        not_yet += codes.count(7)
        stood += [line["stood_still_s"] for line in job.decisions() if "stood_still_s" in line]
        shutil.rmtree(job.folder)
    stood.sort()
    print(f"{3 * times} times a process was killed and started again: {taken} taken in, {not_yet} waited when the run ended; stood still for "
          f"{stood[len(stood) // 2]:.3f} s (median), {stood[-1]:.3f} s at most")


CASES = [comes_back, comes_back_as_any, comes_and_goes, gone_while_taken_in, comes_with_other_options, one_more, comes_too_late, replicas, somebody_outside, the_first, no_replicas, no_copy_at_all, while_saving, while_changing, two, strangers, silent,
         without_adapt, refused]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sextant", required=True)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--returns", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    o = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp())
    failed = 0
    try:
        trial = Trial(os.path.abspath(o.sextant), folder)
        cases = [case for case in CASES if not o.only or case.__name__ in o.only]
        for name, case in [(c.__name__, lambda c=c: c(trial)) for c in cases] + (
                [("at_random", lambda: at_random(trial, o.kills, o.seed))] if o.kills else []) + (
                [("returns_at_random", lambda: returns_at_random(trial, o.returns, o.seed))] if o.returns else []):
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

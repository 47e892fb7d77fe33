#!/usr/bin/env python3
"""Absurd questions, little time and impatient users: does every command end in bounded time and memory?

    tests/campaigns/load.py SEXTANT [--short] [--only WORDS] [--slack S]

Each case says how long it may take (seconds of wall clock), how much memory, and how it may end. `--budget-s` is to be kept
within 10 %; Ctrl-C is to be answered within a second. `--slack` is what a busy machine adds to each (default: measured, by how
long a small question takes). Prints a line for each case, and ends with 1 where one was not as it should be.
"""
import argparse
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

GIB = 2**30
PLAN = ["plan", "--json"]
HUGE = [*PLAN, "--model", "llama-3-70b", "--global-batch", "131072"]


class Campaign:
    def __init__(self, sextant, slack, only):
        self.sextant, self.only = sextant, only
        self.failed = self.cases = 0
        self.slack = 0.0
        took = [self.call(["plan", "--model", "llama-2-7b", "--cluster", "8x8xa100-80gb", "--budget-s", "0.1"])[1] for _ in range(3)]
        self.slack = max(0.3, min(took)) if slack is None else slack
        print(f"a small question takes {min(took):.2f} to {max(took):.2f} s on this machine; slack {self.slack:.2f} s")

    def call(self, arguments, interrupt_s=None, most_s=600.0):
        """(exit code, seconds in all or since Ctrl-C, GiB at most, end of what it said)"""
        with tempfile.TemporaryFile() as said:
            start = time.monotonic()
            process = subprocess.Popen([self.sextant, *arguments], stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            if interrupt_s is not None:
                time.sleep(interrupt_s)
                start = time.monotonic()
                process.send_signal(signal.SIGINT)
            killer = threading.Timer(most_s, process.kill)
            killer.start()
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.monotonic() - start
            killer.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
            said.seek(0, os.SEEK_END)
            said.seek(max(0, said.tell() - 400))
            return process.returncode, seconds, usage.ru_maxrss * 1024 / GIB, said.read().decode(errors="replace")

    def expect(self, name, arguments, most_s, most_gib=2.0, codes=(0, 4), interrupt_s=None):
        if self.only and self.only not in name:
            return
        self.cases += 1
        code, seconds, gib, said = self.call(arguments, interrupt_s, most_s * 3 + 30)
        wrong = []
        if seconds > most_s + self.slack:
            wrong.append(f"expected at most {most_s:.1f} s")
        if gib > most_gib:
            wrong.append(f"expected at most {most_gib} GiB")
        if code not in codes:
            wrong.append(f"expected exit {' or '.join(map(str, codes))}: {said[-300:]}")
        print(f"{'FAILED' if wrong else 'ok':6} {seconds:7.2f} s  {gib:6.3f} GiB  exit {code:4}  {name}" + "".join(f"\n       {w}" for w in wrong), flush=True)
        self.failed += bool(wrong)


def budgets(c, short):
    """--budget-s is kept within 10 %, whatever is asked."""
    questions = {
        "1,048,576 GPUs, batch 131,072": [*HUGE, "--cluster", "131072x8xh100"],
        "nothing fits: 1,000,000 GPUs, batch 131,072": [*HUGE, "--cluster", "125000x8xh100"],
        "batch 10,485,760": [*PLAN, "--model", "llama-3-70b", "--cluster", "131072x8xh100", "--global-batch", "10485760"],
        "one GPU, batch 10,000,000": [*PLAN, "--model", "llama-3.2-1b", "--cluster", "1x1xh100", "--global-batch", "10000000"],
        "sequence of 1,048,576": [*PLAN, "--model", "llama-3-8b", "--cluster", "128x8xh100", "--seq-len", "1048576"],
        "p90": [*PLAN, "--model", "llama-3.1-405b", "--cluster", "2048x8xh100", "--rank-by", "p90", "--straggler-sigma", "0.02"],
        "pareto": [*PLAN, "--model", "llama-3.1-405b", "--cluster", "2048x8xh100", "--pareto"],
        "scale": [*PLAN, "--model", "llama-2-70b", "--cluster", "1024x8xh100", "--scale", "64,128,...,8192"],
        "fewest GPUs": [*PLAN, "--model", "llama-2-70b", "--cluster", "1024x8xh100", "--objective", "fewest-gpus", "--tokens", "2T", "--deadline", "30d"],
        "least memory": [*PLAN, "--model", "llama-3.1-405b", "--cluster", "2048x8xh100", "--objective", "least-memory"],
        "goodput": [*PLAN, "--model", "llama-2-70b", "--cluster", "1024x8xh100", "--objective", "goodput", "--node-mtbf-hours", "5000", "--storage-GBps", "20", "--restart-s", "300"],
        "explain": ["explain", "--json", "--model", "llama-3.1-405b", "--cluster", "2048x8xh100"],
        "explain of 1,048,576 GPUs": ["explain", "--json", "--model", "llama-3-70b", "--cluster", "131072x8xh100", "--global-batch", "131072"],
    }
    for name, arguments in questions.items():
        for budget in [3] if short else [2, 10, 30]:
            c.expect(f"budget {budget} s: {name}", [*arguments, "--budget-s", str(budget)], 1.1 * budget, codes=(0, 4))


def absurd(c, short):
    """No budget: within a minute, the answer or the reason."""
    most = 66
    c.expect("no budget: 1,000,000 GPUs, batch 131,072", [*HUGE, "--cluster", "125000x8xh100"], most)
    c.expect("no budget: plan of one GPU, batch 10,000,000", [*PLAN, "--model", "llama-3.2-1b", "--cluster", "1x1xh100", "--global-batch", "10000000"], most)
    c.expect("no budget: sequence of 1,000,000", [*PLAN, "--model", "llama-3-8b", "--cluster", "128x8xh100", "--seq-len", "1000000"], most)
    if not short:
        c.expect("no budget: 1,048,576 GPUs, batch 131,072", [*HUGE, "--cluster", "131072x8xh100"], most)
        c.expect("no budget: 1,048,576 GPUs, batch 10,485,760", [*PLAN, "--model", "llama-3-70b", "--cluster", "131072x8xh100", "--global-batch", "10485760"], most)
    layout = ["simulate", "--json", "--model", "llama-3-70b"]
    c.expect("simulate 10,485,760 sequences on 64 GPUs", [*layout, "--cluster", "8x8xh100", "--global-batch", "10485760", "--plan", "tp8.pp8.dp1.z1.mbs1"], 20, 4.0, (0, 2, 3, 4))
    c.expect("simulate 1,048,576 GPUs", [*layout, "--cluster", "131072x8xh100", "--global-batch", "131072", "--plan", "tp8.pp8.dp16384.z1.mbs1"], 20)
    c.expect("a number beyond all", [*PLAN, "--model", "llama-3-8b", "--cluster", "99999999x99999999xh100"], 5, codes=(2, 3, 4))
    c.expect("a batch beyond all", [*PLAN, "--model", "llama-3-8b", "--cluster", "8x8xh100", "--global-batch", "9223372036854775807"], 5, codes=(2, 3, 4))
    c.expect("a sequence beyond all", [*PLAN, "--model", "llama-3-8b", "--cluster", "8x8xh100", "--seq-len", "2147483647"], most, codes=(0, 2, 3, 4))


def text(folder, size, name, line=100):
    """A file of words, lines of so many bytes."""
    path = folder / name
    words = (b"the quick brown fox jumps over the lazy dog " * (line // 44 + 1))[: line - 1] + b"\n"
    block = words * max(1, (1 << 20) // len(words))
    with open(path, "wb") as out:
        for _ in range(max(1, size // len(block))):
            out.write(block)
    return path


def data(c, short, folder):
    """Texts of any size in bounded memory."""
    size = 64 << 20 if short else 2 << 30
    one = text(folder, size, "one.txt")
    c.expect(f"data: {size >> 20} MiB in one file", ["data", str(one), "--tokenizer", "bytes", "--out", str(folder / "t1")], 30 + size / 10e6, 1.5, (0,))
    c.expect("data: Ctrl-C amid it", ["data", str(one), "--tokenizer", "bytes", "--out", str(folder / "t2")], 1.0, 1.5, (130, 0), interrupt_s=0.5)
    one.unlink()
    lines = text(folder, size // 2, "lines.txt", 10_000_000)
    c.expect("data: lines of 10 MB", ["data", str(lines), "--tokenizer", "bytes", "--document", "line", "--out", str(folder / "t3")], 30 + size / 10e6, 2.0, (0,))
    lines.unlink()
    number = 100_000 if short else 1_000_000
    many = text(folder, number * 60, "many.txt", 60)
    c.expect(f"data: {number} documents", ["data", str(many), "--tokenizer", "bytes", "--document", "line", "--out", str(folder / "t4")], 60 + number / 10e3, 1.5, (0,))
    for part in folder.glob("t*"):
        shutil.rmtree(part, ignore_errors=True)


def interrupts(c, short, folder):
    """Ctrl-C at any time: the best so far, or nothing, within a second."""
    plan = folder / "plan.json"
    c.call(["plan", "--model", "stories-260k", "--cluster", "laptop", "--stack", "sextant", "--seq-len", "64", "--global-batch", "8", "-o", str(plan)])
    verbs = {
        "plan of 1,048,576 GPUs": [*HUGE, "--cluster", "131072x8xh100"],
        "plan of 1,000,000 GPUs, which nothing fits": [*HUGE, "--cluster", "125000x8xh100"],
        "plan of one GPU, batch 10,000,000": [*PLAN, "--model", "llama-3.2-1b", "--cluster", "1x1xh100", "--global-batch", "10000000"],
        "plan p90": [*PLAN, "--model", "llama-3.1-405b", "--cluster", "2048x8xh100", "--rank-by", "p90", "--straggler-sigma", "0.02"],
        "plan pareto": [*PLAN, "--model", "llama-3.1-405b", "--cluster", "2048x8xh100", "--pareto"],
        "plan least memory": [*PLAN, "--model", "llama-3.1-405b", "--cluster", "2048x8xh100", "--objective", "least-memory"],
        "plan fewest GPUs": [*PLAN, "--model", "llama-2-70b", "--cluster", "1024x8xh100", "--objective", "fewest-gpus", "--tokens", "2T", "--deadline", "30d"],
        "explain": ["explain", "--json", "--model", "llama-3.1-405b", "--cluster", "2048x8xh100"],
        "explain of 1,048,576 GPUs": ["explain", "--json", "--model", "llama-3-70b", "--cluster", "131072x8xh100", "--global-batch", "131072"],
        "simulate 10,485,760 sequences": ["simulate", "--json", "--model", "llama-3-70b", "--cluster", "8x8xh100", "--global-batch", "10485760", "--plan", "tp8.pp8.dp1.z1.mbs1"],
        "run": ["run", str(plan), "--steps", "1000000", "--no-save"],
        "profile": ["profile", "--for", str(plan), "--steps", "100000"],
        "export": ["export", str(plan), "--to", "torchtitan", "-o", str(folder / "exported")],
    }
    for name, arguments in verbs.items():
        for after in [1.5] if short else [0.05, 0.5, 2, 6]:
            c.expect(f"Ctrl-C after {after} s: {name}", arguments, 1.0, 4.0, (0, 4, 5, 130, -2), interrupt_s=after)


def many_at_once(c, short):
    """Plans that run beside each other give the answers that each gives alone."""
    number = 8 if short else 50
    arguments = ["plan", "--json", "--model", "llama-2-13b", "--cluster", "8x8xa100-80gb"]
    if c.only and c.only not in "plans at once":
        return
    answer = lambda: subprocess.run([c.sextant, *arguments], capture_output=True, check=False)
    best = lambda done: [line for line in done.stdout.decode().splitlines() if '"key"' in line][:1]
    start = time.monotonic()
    alone = answer()
    single = time.monotonic() - start
    done = [None] * number
    threads = [threading.Thread(target=lambda i=i: done.__setitem__(i, answer())) for i in range(number)]
    start = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    took = time.monotonic() - start
    same = sum(d.returncode == 0 and best(d) == best(alone) for d in done)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / GIB
    c.cases += 1
    c.failed += same != number
    print(f"{'ok' if same == number else 'FAILED':6} {took:7.2f} s  {number} plans at once: {same} as alone ({single:.2f} s); the largest child so far {peak:.3f} GiB", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sextant")
    parser.add_argument("--short", action="store_true", help="some of the cases, for every change")
    parser.add_argument("--only", help="cases whose name has these words")
    parser.add_argument("--slack", type=float, help="seconds that a busy machine adds; default: measured")
    options = parser.parse_args()
    start = time.monotonic()
    c = Campaign(str(pathlib.Path(options.sextant).resolve()), options.slack, options.only)
    with tempfile.TemporaryDirectory(prefix="sextant-load-") as folder:
        interrupts(c, options.short, pathlib.Path(folder))
        budgets(c, options.short)
        absurd(c, options.short)
        many_at_once(c, options.short)
        data(c, options.short, pathlib.Path(folder))
    print(f"{c.cases - c.failed} of {c.cases} cases as expected, in {time.monotonic() - start:.0f} s")
    return 1 if c.failed or c.cases == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

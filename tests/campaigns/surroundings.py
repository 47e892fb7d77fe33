#!/usr/bin/env python3
"""A clock that jumps, a network that loses, delays and is cut, memory that runs out: a clear end, and never a hang.

    tests/campaigns/surroundings.py SEXTANT FAULTS.SO [--short] [--only clocks|networks|memory]

Clocks: the time of day jumps by an hour or a year, ahead and back, in the middle of runs, searches and preparations; losses and
data are the same, and limits of time are kept. Networks: two processes of `--comm env` in network namespaces, with a link between
them that loses, delays, doubles, reorders and damages packets (emulated_link.py); losses of the training are the same, and a link that
is cut ends both. Memory: the address space of every command is limited, from far too little to enough: it ends as documented, and a
run that goes on where there is room ends with the right losses. Namespaces need root, `ip` and /dev/net/tun; without, networks are
left out, which is printed. Exit code 1 when something was wrong.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import disk_cases
import faults
from campaign import must, run

NAMES = ["sextant-campaign-a", "sextant-campaign-b"]
CABLE = ["10.213.7.1", "10.213.7.2"]  # a veth pair
DISTURBED = ["10.213.8.1", "10.213.8.2"]  # emulated_link.py


class Campaign:
    def __init__(self, sextant, library, folder, short):
        self.sextant, self.library, self.folder, self.short = sextant, library, folder, short
        self.cases = self.failed = 0
        disk_cases.plans(folder, sextant)
        (folder / "texts").mkdir()
        disk_cases.data(folder / "texts", sextant)

    def judge(self, name, wrong, seconds):
        self.cases += 1
        self.failed += bool(wrong)
        print(f"{'FAILED' if wrong else 'ok':6} {seconds:7.2f} s  {name}{': ' + wrong if wrong else ''}", flush=True)


def losses(text):
    return re.findall(r'"loss": *([0-9.e+-]+)', text)


# --- clocks ----------------------------------------------------------------------------------------------------------


def clocks(c):
    """Steady clocks are not touched: as a time service or a person sets the time of day."""
    plain = losses(must([c.sextant, "run", "plan.json", "--steps", "60", "--gemms", "exact", "--json"], c.folder))
    hour, year = 3600, 366 * 86400
    for jump in [-year, hour] if c.short else [-hour, -year, hour, year]:
        jumped = faults.environment(c.library, c.folder, c.folder / "log") | {"FAULTS_CLOCK_S": str(jump), "FAULTS_CLOCK_AFTER_S": "0.03"}

        def case(name, words, most_s, wrong, codes=(0,), jumped=jumped, jump=jump):
            ended = run([c.sextant, *words], c.folder, limit_s=60, environment=jumped)
            found = "hangs" if ended.hung else f"exit code {ended.code}: {ended.err[-200:]}" if ended.code not in codes else wrong(ended)
            if not found and ended.seconds > most_s:
                found = f"took more than {most_s} s"
            c.judge(f"the clock jumps by {jump} s: {name}", found, ended.seconds)

        shutil.rmtree(c.folder / "saved", ignore_errors=True)
        case("a run with checkpoints", ["run", "plan.json", "--steps", "60", "--save-every", "20", "--gemms", "exact", "-o", "saved", "--json"], 30,
             lambda ended: "" if losses(ended.out) == plain else "other losses")
        case("a run of at most 1 s", ["run", "plan.json", "--steps", "1000000", "--time-limit-s", "1", "--no-save"], 8, lambda ended: "")
        case("--budget-s 2", ["plan", "--model", "llama-3.1-405b", "--cluster", "2048x8xh100", "--budget-s", "2"], 6, lambda ended: "", (0, 4))
        case("data", ["data", "texts/a.txt", "--tokenizer", "bytes", "--out", f"tokens{jump}"], 10,
             lambda ended, jump=jump: "" if (c.folder / f"tokens{jump}").is_dir() else "no data set")
        shutil.rmtree(c.folder / f"tokens{jump}", ignore_errors=True)


# --- networks --------------------------------------------------------------------------------------------------------


def quiet(*words, check=True):
    return subprocess.run(words, check=check, capture_output=True, text=True)


def remove_namespaces():
    for name in NAMES:
        quiet("ip", "netns", "delete", name, check=False)


def make_namespaces():
    """Two machines with one cable. Why not, where that cannot be."""
    if not shutil.which("ip"):
        return "ip is not installed"
    remove_namespaces()
    try:
        for name in NAMES:
            quiet("ip", "netns", "add", name)
        quiet("ip", "link", "add", "sxc-a", "netns", NAMES[0], "type", "veth", "peer", "name", "sxc-b", "netns", NAMES[1])
        for name, device, address in zip(NAMES, ("sxc-a", "sxc-b"), CABLE):
            quiet("ip", "-n", name, "address", "add", f"{address}/24", "dev", device)
            quiet("ip", "-n", name, "link", "set", device, "up")
            quiet("ip", "-n", name, "link", "set", "lo", "up")
        return ""
    except subprocess.CalledProcessError as e:
        remove_namespaces()
        return f"{' '.join(e.cmd)}: {e.stderr.strip()}"


class Disturbed:
    """A second link between the two, with what emulated_link.py is told; `counts` at its end."""

    def __init__(self, how):
        words = [word for pair in zip(NAMES, DISTURBED) for word in pair]
        self.process = subprocess.Popen([sys.executable, pathlib.Path(__file__).with_name("emulated_link.py"), *words, *how.split()],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.counts = None

    def __enter__(self):
        self.is_ready = self.process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_):
        self.process.terminate()
        out, self.err = self.process.communicate(timeout=10)
        self.counts = json.loads(out) if self.is_ready else None


def start(c, rank, words, address=CABLE[0]):
    environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": "29511",
                   "SEXTANT_SECRET": "of this campaign and no other"}
    return subprocess.Popen(["ip", "netns", "exec", NAMES[rank], c.sextant, *words, "--comm", "env"], cwd=c.folder, env=environment,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ends(processes, limit_s):
    """(code, out, err) of each; a code of None: it had to be killed."""
    found, end = [], time.monotonic() + limit_s
    for process in processes:
        try:
            out, err = process.communicate(timeout=max(0.1, end - time.monotonic()))
            found.append((process.returncode, out, err))
        except subprocess.TimeoutExpired:
            process.kill()
            found.append((None, *process.communicate()))
    return found


# What emulated_link.py is told, and which of its counts must not be zero then.
DISTURBANCES = [
    ("", []),
    ("--delay-ms 5 --jitter-ms 2", []),
    ("--loss 0.05", ["lost"]),
    ("--loss 0.01", ["lost"]),
    ("--loss 0.1", ["lost"]),
    ("--delay-ms 20 --jitter-ms 10", []),
    ("--duplicate 0.05", ["doubled"]),
    ("--reorder 0.3 --delay-ms 5", ["overtook"]),
    ("--corrupt 0.01", ["damaged"]),
    ("--rate-Mbps 10", []),
]


def networks(c):
    if why := make_namespaces():
        print(f"networks are left out: {why}")
        return
    try:
        words = ["run", "plan.json", "--steps", "20", "--gemms", "exact", "--threads", "1", "--json"]
        plain = losses(must([c.sextant, *words], c.folder))
        for how, does in DISTURBANCES[:3] if c.short else DISTURBANCES:
            begun = time.monotonic()
            with Disturbed(how) as link:
                if link.is_ready:
                    ended = ends([start(c, rank, words, DISTURBED[0]) for rank in (0, 1)], 120)
            if not link.is_ready:
                reason = link.err.strip().splitlines() or ["it ended"]
                print(f"networks that lose and delay are left out: {reason[-1]}")
                break
            codes = [code for code, _, _ in ended]
            wrong = "" if codes == [0, 0] else f"exit codes {codes}: {ended[0][2][-200:]} {ended[1][2][-200:]}"
            if not wrong and losses(ended[0][1]) != plain:
                wrong = "other losses"
            if not wrong and (link.counts["packets"] == 0 or any(link.counts[word] == 0 for word in does)):
                wrong = "the link did nothing"
            c.judge(f"network with {how or 'nothing wrong'}: {json.dumps(link.counts)}", wrong, time.monotonic() - begun)
        flapping(c, words)
        cut(c)
    finally:
        remove_namespaces()


def flapping(c, words):
    """A cable with a loose contact: everything under way is lost, again and again."""
    words = [w if w != "20" else "400" for w in words]
    plain = losses(must([c.sextant, *words], c.folder))
    begun, downs = time.monotonic(), 0
    processes = [start(c, rank, words) for rank in (0, 1)]
    while any(p.poll() is None for p in processes) and time.monotonic() < begun + 30 and downs < 12:
        time.sleep(0.15)
        quiet("ip", "-n", NAMES[1], "link", "set", "sxc-b", "down")
        time.sleep(0.1)
        quiet("ip", "-n", NAMES[1], "link", "set", "sxc-b", "up")
        downs += 1
    ended = ends(processes, 120)
    codes = [code for code, _, _ in ended]
    wrong = f"exit codes {codes}: {ended[0][2][-200:]}" if codes != [0, 0] else "" if losses(ended[0][1]) == plain else "other losses"
    c.judge(f"the network is gone for 0.1 s, {downs} times", wrong, time.monotonic() - begun)


def cut(c):
    """The cable is pulled while they train, and while one waits for the other: both end by themselves, and say why. They wait for
    each other for ten minutes."""
    words = ["run", "plan.json", "--steps", "1000000", "--no-save", "--threads", "1", "--deadline", "3"]
    processes = [start(c, rank, words) for rank in (0, 1)]
    time.sleep(3)
    quiet("ip", "-n", NAMES[1], "link", "set", "sxc-b", "down")
    begun = time.monotonic()
    ended = ends(processes, 120)
    wrong = "" if all(code == 7 for code, _, _ in ended) else f"exit codes {[code for code, _, _ in ended]}"
    wrong = wrong or ("" if all("rank" in err for _, _, err in ended) else f"not said why: {[err[-200:] for _, _, err in ended]}")
    c.judge("the network is cut in the middle", wrong, time.monotonic() - begun)
    quiet("ip", "-n", NAMES[1], "link", "set", "sxc-b", "up")
    if c.short:
        return
    processes = [start(c, 0, words)]
    time.sleep(0.5)  # it listens, and the other has not come
    quiet("ip", "-n", NAMES[1], "link", "set", "sxc-b", "down")
    processes.append(start(c, 1, words))
    begun = time.monotonic()
    ended = ends(processes, 660)
    wrong = "" if all(code == 7 for code, _, _ in ended) else f"exit codes {[code for code, _, _ in ended]}"
    if not wrong and not all("waits for" in err and "rank" in err for _, _, err in ended):
        wrong = f"not said who is missing: {[err[-200:] for _, _, err in ended]}"
    c.judge("the network is cut while they meet", wrong, time.monotonic() - begun)


# --- memory ----------------------------------------------------------------------------------------------------------


def memory(c):
    """Address spaces from far too small to enough."""
    plain = losses(must([c.sextant, "run", "plan.json", "--steps", "4", "--gemms", "exact", "--json"], c.folder))
    verbs = {
        "plan": ["plan", "--model", "llama-2-7b", "--cluster", "2x8xa100-80gb", "--global-batch", "64", "--budget-s", "2"],
        "simulate": ["simulate", "--model", "llama-2-7b", "--cluster", "2x8xa100-80gb", "--global-batch", "64", "--plan", "tp2.pp2.dp4.z1.mbs1"],
        "data": ["data", "texts/a.txt", "texts/b.jsonl", "--tokenizer", "bytes", "--document", "paragraph", "--out", "limited"],
        "run": ["run", "plan.json", "--steps", "4", "--save-every", "1", "--gemms", "exact", "-o", "limited", "--json"],
        "profile": ["profile", "--for", "plan.json", "-o", "limited"],
        "export": ["export", "plan.json", "--to", "megatron-lm", "-o", "limited"],
        "report": ["report", "plan.json", "-o", "limited"],
    }
    # Below, the loader and the libraries' own beginnings fail, before the first instruction of sextant.
    least = next(n for n in range(16, 1024, 4) if run([c.sextant, "--version"], c.folder, memory_gib=n / 1024).code == 0)
    for name, words in verbs.items():
        begun, found, ends_with = time.monotonic(), "", {}
        limits = [least + n for n in ([0, 8, 24, 100, 400, 1500] if c.short else [*range(0, 128, 4), *range(128, 600, 40), 800, 1200, 2000, 4000])]
        for limit in limits:
            target = c.folder / "limited"
            shutil.rmtree(target, ignore_errors=True) if target.is_dir() else target.unlink(missing_ok=True)
            ended = run([c.sextant, *words], c.folder, limit_s=60, memory_gib=limit / 1024)
            ends_with[ended.code] = ends_with.get(ended.code, 0) + 1
            if ended.hung or ended.crashed:
                found = found or f"{limit} MiB: {'hangs' if ended.hung else f'exit code {ended.code}'}: {ended.err[-300:]}"
            elif ended.code in (3, 7) and not re.search("memory|threads|ulimit", ended.err):
                found = found or f"{limit} MiB: the reason is missing: {ended.err[-300:]}"
            elif name == "run" and target.is_dir() and not found:
                again = run([c.sextant, "run", "plan.json", "--resume", *words[2:]], c.folder)
                if again.code != 0 or losses(again.out)[-1:] not in ([], plain[-1:]):
                    found = f"{limit} MiB, resumed: exit code {again.code}, losses {losses(again.out)}: {again.err[-200:]}"
        c.judge(f"{len(limits)} limits of memory: {name}, exit codes {json.dumps(ends_with)}", found, time.monotonic() - begun)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sextant")
    parser.add_argument("library", help="faults.cpp, built")
    parser.add_argument("--short", action="store_true", help="some of the cases, for every change")
    parser.add_argument("--only", choices=["clocks", "networks", "memory"])
    options = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sextant-surroundings-") as place:
        c = Campaign(*(str(pathlib.Path(p).resolve()) for p in (options.sextant, options.library)), pathlib.Path(place), options.short)
        for part in (clocks, networks, memory):
            if options.only in (None, part.__name__):
                part(c)
    print(f"{c.cases - c.failed} of {c.cases} cases as expected, in {time.monotonic() - begun:.0f} s")
    return 1 if c.failed else 0


if __name__ == "__main__":
    sys.exit(main())

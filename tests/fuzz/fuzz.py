#!/usr/bin/env python3
"""Lets every fuzzer of a folder look for inputs that a parser does not bear, some minutes each, round by round; what has had least on
record goes first.

    cmake --preset fuzz && cmake --build build/fuzz --target fuzzers
    tests/fuzz/fuzz.py build/fuzz/bin --hours 24 [--jobs 2] [--minutes-each 10] [--only WORDS]
    tests/fuzz/fuzz.py --spent          what core_hours.csv has, summed by target

`--hours` are core-hours in all. A fuzzer with a planted fault runs first and has to find it. What is found is kept in FOLDER/found,
inputs that reach new code in FOLDER/corpus (--keep FOLDER; default: build/fuzz/kept), from where the next call goes on; with
--record what was spent is added to tests/fuzz/core_hours.csv and the corpora are put into tests/fuzz/grown. Ends with 1 where
something was found. Ctrl-C and SIGTERM end the round; what was done until then counts.
"""
import argparse
import collections
import concurrent.futures
import csv
import dataclasses
import datetime
import os
import pathlib
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SEEDS, GROWN, LEDGER = HERE / "corpus", HERE / "grown", HERE / "core_hours.csv"
COLUMNS = ["date", "commit", "target", "core_s", "executions", "edges", "inputs", "found"]
PLANTED = "planted_fault"
MOST_PACKED = 200_000  # bytes of one target's corpus in the tree


@dataclasses.dataclass
class Spent:
    """Of the calls of a fuzzer: seconds of a processor, inputs tried, edges of code reached, files of what it found."""

    core_s: float = 0.0
    executions: int = 0
    edges: int = 0
    found: list = dataclasses.field(default_factory=list)

    def add(self, more):
        self.core_s += more.core_s
        self.executions += more.executions
        self.edges = max(self.edges, more.edges)
        self.found += more.found


def last_number(pattern, text):
    numbers = re.findall(pattern, text)
    return int(numbers[-1]) if numbers else 0


RUNNING = set()


def fuzz(program, target, folder, seconds, seeds=""):
    """One fuzzer for so long; its corpus and what it finds lie below `folder`."""
    corpus, found = folder / "corpus" / target, folder / "found"
    corpus.mkdir(parents=True, exist_ok=True), found.mkdir(parents=True, exist_ok=True)
    before = set(found.glob(f"{target}-*"))
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [program, corpus, SEEDS / (seeds or target), f"-max_total_time={int(seconds)}", f"-artifact_prefix={found}/{target}-", "-timeout=20",
             "-rss_limit_mb=3000", "-max_len=16384", "-print_final_stats=1", "-verbosity=1"],
            stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env={**os.environ, "ASAN_OPTIONS": "detect_leaks=1"})
        RUNNING.add(process)
        _, status, used = os.wait4(process.pid, 0)
        RUNNING.discard(process)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read().decode(errors="replace")
    new = sorted(set(found.glob(f"{target}-*")) - before)
    if process.returncode not in (0, -signal.SIGINT, 72) and not new:  # it ended before it could keep the input
        new = [found / f"{target}-ended-with-{process.returncode}.txt"]
    for file in new:
        file.with_name(file.name + ".report").write_text(text[-20_000:])
    executions = last_number(r"number_of_executed_units: (\d+)", text) or last_number(r"#(\d+)", text)
    return Spent(used.ru_utime + used.ru_stime, executions, last_number(r"cov: (\d+)", text), new)


def finds_a_planted_fault(programs):
    """Most find it within 10,000 inputs; one in some is led astray, and begins again."""
    spent = Spent()
    for _ in range(5):
        with tempfile.TemporaryDirectory() as place:
            spent.add(fuzz(programs / f"fuzz_{PLANTED}", PLANTED, pathlib.Path(place), 60, seeds="plan_key"))
        if spent.found:
            print(f"a planted fault was found after {spent.core_s:.1f} s and {spent.executions:,} inputs", flush=True)
            return True
    return False


def unpack_grown(folder):
    for packed in sorted(GROWN.glob("*.tar.gz")):
        corpus = folder / "corpus" / packed.name.removesuffix(".tar.gz")
        corpus.mkdir(parents=True, exist_ok=True)
        with tarfile.open(packed) as inputs:
            for member in inputs:
                if member.isfile() and "/" not in member.name:
                    (corpus / member.name).write_bytes(inputs.extractfile(member).read())


def pack_grown(program, target, folder):
    """The fewest inputs that reach all that the corpus reaches, the small ones first, in one file of the tree."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([program, "-merge=1", place, folder / "corpus" / target], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        inputs = sorted((f for f in pathlib.Path(place).iterdir()), key=lambda f: (f.stat().st_size, f.name))
        GROWN.mkdir(exist_ok=True)
        out = GROWN / f"{target}.tar.gz"
        most = len(inputs)
        while most > 0:  # what is too large for the tree stays in --keep
            with tarfile.open(out, "w:gz", compresslevel=9) as packed:
                for file in sorted(inputs[:most], key=lambda f: f.name):
                    info = tarfile.TarInfo(file.name)
                    info.size = file.stat().st_size
                    packed.addfile(info, file.open("rb"))
            if out.stat().st_size <= MOST_PACKED:
                return most
            most = most * 3 // 4
    out.unlink(missing_ok=True)
    return 0


def record(rows, programs, folder):
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False).stdout.strip()
    new = not LEDGER.exists()
    with LEDGER.open("a", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        if new:
            out.writerow(COLUMNS)
        for target, spent in sorted(rows.items()):
            if not spent.executions:  # the campaign ended before its turn
                continue
            inputs = pack_grown(programs / f"fuzz_{target}", target, folder)
            out.writerow([datetime.date.today(), commit, target, round(spent.core_s), spent.executions, spent.edges, inputs, len(spent.found)])


def recorded():
    if not LEDGER.exists():
        return []
    with LEDGER.open(newline="") as file:
        return list(csv.DictReader(file))


def print_spent():
    rows = recorded()
    if not rows:
        print(f"nothing is recorded yet ({LEDGER}): --record")
        return
    core_s, executions, edges, found = (collections.Counter() for _ in range(4))
    for row in rows:
        target = row["target"]
        core_s[target] += int(row["core_s"])
        executions[target] += int(row["executions"])
        found[target] += int(row["found"])
        edges[target] = max(edges[target], int(row["edges"]))
    print(f"{'target':20} {'core-hours':>10} {'inputs tried':>14} {'edges':>7} {'found':>5}")
    for target in sorted(core_s):
        print(f"{target:20} {core_s[target] / 3600:10.2f} {executions[target]:14,} {edges[target]:7,} {found[target]:5}")
    print(f"{'all':20} {core_s.total() / 3600:10.2f} {executions.total():14,} {'':7} {found.total():5}   {rows[0]['date']} to {rows[-1]['date']}")


def campaign(args):
    programs, folder = args.programs, args.keep
    targets = sorted(p.name.removeprefix("fuzz_") for p in programs.glob("fuzz_*") if p.name != f"fuzz_{PLANTED}" and "test" not in p.name)
    targets = [t for t in targets if not args.only or any(word in t for word in args.only.split(","))]
    spent = collections.Counter()
    for row in recorded():
        spent[row["target"]] += int(row["core_s"])
    targets.sort(key=lambda t: spent[t])
    if not targets:
        sys.exit(f"fuzz.py: {programs}: no fuzzer{' of these' if args.only else ''}\n  try: cmake --preset fuzz && cmake --build build/fuzz --target fuzzers")
    if not finds_a_planted_fault(programs):
        sys.exit("fuzz.py: the planted fault was not found: what this campaign does not find says nothing")
    unpack_grown(folder)
    each_s = min(args.minutes_each * 60, args.hours * 3600 / len(targets))
    rows = {t: Spent() for t in targets}
    begun = time.monotonic()

    def hours():
        return sum(s.core_s for s in rows.values()) / 3600

    def add(target, spent):
        row = rows[target]
        row.add(spent)
        left = (args.hours - hours()) * (time.monotonic() - begun) / max(hours(), 1e-9) / 60
        print(f"{target:20} {row.executions:12,} inputs {row.edges:6,} edges {len(row.found)} found   {hours():5.2f} of {args.hours:g} core-hours, {max(left, 0):.0f} min left", flush=True)

    stopped = False
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        while not stopped and hours() < args.hours - each_s / 7200:
            going = {pool.submit(fuzz, programs / f"fuzz_{t}", t, folder, each_s): t for t in targets}
            try:
                for done in concurrent.futures.as_completed(list(going)):
                    add(going.pop(done), done.result())
                    if hours() >= args.hours:
                        break
            except KeyboardInterrupt:
                stopped = True
            running = [(one, target) for one, target in going.items() if not one.cancel()]
            for process in list(RUNNING) if stopped else ():  # in a terminal they have it already
                process.send_signal(signal.SIGINT)
            for one, target in running:  # what runs still ends, and counts
                add(target, one.result())
    found = [f for s in rows.values() for f in s.found]
    for file in found:
        print(f"found: {file}, and why in {file}.report")
    if args.record:
        record(rows, programs, folder)
    print(f"{len(targets)} fuzzers, {hours():.2f} core-hours, {sum(s.executions for s in rows.values()):,} inputs: {len(found)} found")
    return 1 if found else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="?", type=pathlib.Path)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--minutes-each", type=float, default=10.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=pathlib.Path, default=HERE.parents[1] / "build/fuzz/kept")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--spent", action="store_true")
    args = parser.parse_args()
    if args.spent:
        print_spent()
        return 0
    if not args.programs or not args.programs.is_dir():
        parser.error(f"{args.programs}: no folder with fuzzers")
    if args.hours <= 0 or args.minutes_each <= 0 or args.jobs < 1:
        parser.error("--hours, --minutes-each and --jobs are above 0")
    args.keep = args.keep.resolve()
    for number in (signal.SIGINT, signal.SIGTERM):  # what a shell runs in the background ignores the first
        signal.signal(number, signal.default_int_handler)
    return campaign(args)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Disks that are full, failing, slow, read-only, or lie: does every command that writes keep what the documents promise?

    tests/campaigns/disks.py SEXTANT FAULTS.SO [--count N] [--seed S] [--only WORDS] [--keep DIR]

Runs each command once as it is, and then with each call that it makes on its files failing in turn, once or from then on
(tests/campaigns/faults.cpp). A fault of sextant is: a hang, a crash or exit code 1; exit code 0 with something missing or
other than without the fault; a message without file and cause; something torn where the answer or what was there before
should stand; files left behind that no document names; or the same command, given again on a good disk, that does not
end with the answer of an undisturbed one.

Then: power that fails at any call, with a disk that does all that it is asked, and with one whose syncs lie; standard output
that is full; disks that are too small, without inodes, and read-only in the middle (these need root).
Prints what became of them; exit code 1 when there was a fault. --self-test breaks the promises, and each has to be noticed.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import errno
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

import faults
from campaign import Progress, run, table, unnoticed
from disk_cases import CASES, tree
from disk_promises import after_power, judged, names_of, repeated

COLUMNS = ["same answer", "clear end", "faults"]


class Box:
    """A copy of a case's folder, to be spoiled. The log and what a power failure needs lie beside it."""

    def __init__(self, base, place):
        self.outer = pathlib.Path(place)
        self.folder, self.log, self.kept = self.outer / "box", self.outer / "log", self.outer / "kept"
        shutil.copytree(base, self.folder, symlinks=True)
        self.kept.mkdir()


def with_box(base, work):
    with tempfile.TemporaryDirectory(prefix="sextant-disks-") as place:
        return work(Box(base, place))


def undisturbed(case, base, sextant, library):
    """The right answer, and the calls on the way to it."""

    def work(box):
        before = tree(box.folder / "out")
        ended = run([sextant, *case.command], box.folder, environment=faults.environment(library, box.folder, box.log))
        if ended.code != 0:
            sys.exit(f"{case.name}: {' '.join(case.command)} fails by itself: {ended.err}")
        found = {"before": before, "tree": tree(box.folder / "out"), "names": names_of(box.folder / "out"), "out": ended.out}
        return found | {"answer": case.answer(box.folder, sextant), "calls": faults.calls(box.log)}

    return with_box(base, work)


def failing(task):
    """One call that fails."""
    index, base, right, sextant, broken, library, (call, at, way, stays), keep = task
    case = CASES[index]

    def work(box):
        environment = faults.environment(library, box.folder, box.log, call, at, way, stays)
        ended = run([broken, *case.command], box.folder, environment=environment)
        hit = faults.faults(box.log)
        if not hit:
            return "same answer", "", ended
        cleaning = any(c == "remove" or os.path.isdir(p) for c, p in hit)  # a folder is removed by opening it
        wrong = judged(case, box, ended, right, sextant, way, [p.removeprefix(str(box.folder)) for _, p in hit], cleaning)
        end = "same answer" if ended.code == 0 else "clear end"
        if not wrong and ended.code != 0:
            wrong = repeated(case, box, right, sextant)
        if wrong and keep:
            kept = pathlib.Path(keep) / f"{case.name.replace(' ', '-')}-{call}-{at}-{way}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(box.folder, kept, symlinks=True)
        return "faults" if wrong else end, f"{wrong} [{hit[0][1].removeprefix(str(box.folder))}]" if wrong else "", ended

    outcome, wrong, ended = with_box(base, work)
    return case.name, f"{call} {at} fails with {way}{', all later ones too' if stays else ''}", outcome, wrong, ended


def power(task):
    """Power that fails at a call; some of the syncs before it may have lied."""
    index, base, right, sextant, broken, library, (at, lie, seed), _ = task
    case = CASES[index]
    r = random.Random(seed)

    def work(box):
        environment = faults.environment(library, box.folder, box.log, "any", at, "kill", power=box.kept)
        if lie:
            environment["FAULTS_LIE"] = str(lie)
        ended = run([broken, *case.command], box.folder, environment=environment)
        if ended.code != -9:
            return "same answer", "" if ended.code == 0 else f"exit code {ended.code}", ended
        lost = faults.lose_power(box.log, box.folder, r)
        wrong = after_power(case, box, right, sextant, lie)
        return "faults" if wrong else "clear end", f"{wrong} [lost: {lost}]" if wrong else "", ended

    outcome, wrong, ended = with_box(base, work)
    return case.name, f"power fails at call {at}" + (f", syncs lie from number {lie} on" if lie else ""), outcome, wrong, ended


@contextlib.contextmanager
def mounted(base, out, options):
    """A tmpfs of these options as the folder `out`, with what stood there."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", out], check=True)
    try:
        shutil.copytree(base / "out", out, dirs_exist_ok=True)
        yield
    finally:
        subprocess.run(["umount", "-l", out], check=True)


def full_output(base, case, sextant):
    """Standard output that takes nothing more: said, with exit code 7."""

    def work(box):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([sextant, *case.command], cwd=box.folder, stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=60, check=False)
        said = done.stderr.decode(errors="replace")
        return "" if done.returncode == 7 and "standard output" in said else f"exit code {done.returncode}: {said[-200:]}"

    return with_box(base, work)


def small_disk(case, base, right, sextant, options):
    """The case on a tmpfs with these options under `out`, which is too small for it; then on a larger one."""

    def work(box):
        out = box.folder / "out"
        try:
            with mounted(base, out, options):
                ended = run([sextant, *case.command], box.folder)
                wrong = judged(case, box, ended, right, sextant, "space", [], False)
                if not wrong and ended.code != 0:
                    subprocess.run(["mount", "-o", "remount,size=64m,nr_inodes=100000", out], check=True)
                    wrong = repeated(case, box, right, sextant)
                return ("same answer" if ended.code == 0 else "clear end") if not wrong else "faults", wrong, ended
        except (OSError, shutil.Error):
            return "same answer", "", None  # not even what stood there before fits

    outcome, wrong, ended = with_box(base, work)
    return case.name, f"tmpfs of {options}", outcome, wrong, ended


def read_only(case, base, right, sextant, after_s):
    """The disk becomes read-only while the command works."""

    def work(box):
        out = box.folder / "out"
        with mounted(base, out, "size=64m"):
            # Files that are open for writing keep a disk from that; the super block is told by force, as after an I/O error.
            helper = subprocess.Popen(["sh", "-c", f"sleep {after_s}; mount -o remount,ro '{out}'"], stderr=subprocess.DEVNULL)
            ended = run([sextant, *case.command], box.folder)
            helper.wait()
            subprocess.run(["mount", "-o", "remount,rw", out], check=True)
            wrong = ""
            no_folder = ended.code == 2 and "a folder that can be made" in " ".join(ended.err.split())
            if ended.hung or ended.crashed or ended.code not in (0, 3, 7) and not no_folder:
                wrong = f"exit code {ended.code}"
            elif ended.code != 0:
                wrong = "" if "Read-only" in ended.err + ended.out else "does not say the cause"
                wrong = wrong or repeated(case, box, right, sextant)
            elif case.answer(box.folder, sextant) != right["answer"]:
                wrong = "exit code 0 with another answer"
            return ("same answer" if ended.code == 0 else "clear end") if not wrong else "faults", wrong, ended

    outcome, wrong, ended = with_box(base, work)
    return case.name, f"read-only after {after_s} s", outcome, wrong, ended


def can_mount():
    with tempfile.TemporaryDirectory() as place:
        if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, check=False).returncode != 0:
            return False
        subprocess.run(["umount", place], check=True)
        return True


def ways_of(right, case):
    """Every call of an undisturbed run, failing in each way, once and from then on; and power that fails at each."""
    calls = [(call, at, way, stays) for call, number in right["calls"].items() for at in range(1, number + 1)
             for way in [*faults.WAYS[call], "slow"] for stays in ([False, True] if at % 3 == 1 and way != errno.EINTR else [False])]
    total = sum(right["calls"].values())
    cuts = [(at, lie, f"{case.name}/{at}/{lie}") for at in range(1, total + 1) for lie in (0, 1 + at % max(1, right["calls"]["sync"]))]
    return calls, cuts


def disks_that_are_spoilt(options, chosen, rights, sextant, r):
    """Works, each of one command on a disk that is full, too small, or read-only. With a count, a third of the disks for each."""

    def output(i):
        problem = full_output(rights[i][0], CASES[i], sextant)
        return CASES[i].name, "standard output is full", "clear end", problem, None

    works = [lambda i=i: output(i) for i in chosen] if "output" in options.parts else []
    if "mounts" in options.parts and not can_mount():
        print("small and read-only disks are left out: mounting one needs root")
    elif "mounts" in options.parts:
        disks = [(small_disk, f"size={n}k") for n in (4, 8, 12, 20, 32, 64, 128, 256, 512, 1024)]
        disks += [(small_disk, f"nr_inodes={n}") for n in range(1, 14)]
        disks += [(read_only, after) for after in (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)]
        for i in chosen:
            base, right = rights[i]
            for work, how in r.sample(disks, len(disks) // 3) if options.count else disks:
                works.append(lambda work=work, i=i, base=base, right=right, how=how: work(CASES[i], base, right, sextant, how))
    return works


def campaign(options, sextant, library, broken=None):
    r = random.Random(options.seed)
    chosen = [i for i, c in enumerate(CASES) if not options.only or re.search(options.only, c.name)]
    found = {CASES[i].name: collections.Counter() for i in chosen}
    wrong, rights, tasks = [], {}, []
    with tempfile.TemporaryDirectory(prefix="sextant-disks-base-") as place:
        for i in chosen:
            base = pathlib.Path(place) / str(i)
            base.mkdir()
            CASES[i].make(base, sextant)
            (base / "out").mkdir(exist_ok=True)
            rights[i] = (base, undisturbed(CASES[i], base, sextant, library))
            calls, cuts = ways_of(rights[i][1], CASES[i])
            for part, work, all_of_them in (("calls", failing, calls), ("power", power, cuts)):
                if part not in options.parts:
                    continue
                share = len(all_of_them) if not options.count else min(len(all_of_them), max(1, options.count // len(chosen) // 2))
                tasks += [(work, (i, base, rights[i][1], sextant, broken or sextant, library, what, options.keep)) for what in r.sample(all_of_them, share)]
        # What differs most comes first to light.
        r.shuffle(tasks)
        works = [lambda task=task: task[0](task[1]) for task in tasks] + disks_that_are_spoilt(options, chosen, rights, sextant, r)
        progress = Progress(len(works))
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for done in pool.map(lambda work: work(), works):
                add(found, wrong, done)
                progress.step(f", {len(wrong)} faults")
    return found, wrong


def add(found, wrong, done):
    name, what, outcome, problem, ended = done
    found[name]["faults" if problem else outcome] += 1
    if problem:
        wrong.append((name, what, problem, ended))


def self_test(options, sextant, library):
    """Programs that break a promise where something failed: each has to be noticed."""
    options.count, options.only, options.parts = 48, "^simulate", ["calls"]
    broken = {
        "says that all is well": "exit 0",
        "crashes": "kill -SEGV $$",
        "leaves its draft": "touch out/plan.json.AbCdEf; exit 7",
        "leaves half of it": "echo '{' >out/plan.json; exit 7",
        "reports a mistake of its own": "exit 1",
    }
    scripts = {what: f"'{sextant}' \"$@\" && exit 0\n{script}" for what, script in broken.items()}
    missed = unnoticed(scripts, lambda program, _: campaign(options, sextant, library, program)[1])
    print("every program that breaks a promise is noticed" if not missed else "missed: one that " + "; ".join(missed))
    return 1 if missed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sextant")
    parser.add_argument("library", help="faults.cpp, built")
    parser.add_argument("--count", type=int, default=0, help="how many faults in all, drawn (0: all that there are)")
    parser.add_argument("--parts", type=lambda words: words.split(","), default=["calls", "power", "output", "mounts"], help="some of calls,power,output,mounts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="commands whose name has this pattern")
    parser.add_argument("--keep", help="a folder for the files of each fault")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--show", type=int, default=20, help="faults to print in full (20)")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    sextant, library = (str(pathlib.Path(p).resolve()) for p in (options.sextant, options.library))
    if options.self_test:
        return self_test(options, sextant, library)
    start = time.monotonic()
    found, wrong = campaign(options, sextant, library)
    rows = [[name, sum(c.values()), *[c[o] for o in COLUMNS]] for name, c in found.items()]
    rows.append(["in all", *[sum(row[i] for row in rows) for i in range(1, len(COLUMNS) + 2)]])
    table(["command", "disturbed", *COLUMNS], rows)
    for name, what, problem, ended in wrong[: options.show]:
        print(f"\n{name}: {what}: {problem}")
        if ended:
            print(f"  exit code {ended.code} after {ended.seconds:.1f} s: {(ended.err or ended.out).strip()[-400:]}")
    print(f"\n{rows[-1][1]} disturbed commands in {time.monotonic() - start:.0f} s, seed {options.seed}: {len(wrong)} faults")
    return 1 if wrong or rows[-1][1] == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

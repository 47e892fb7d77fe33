#!/usr/bin/env python3
"""Every kind of file that sextant reads, damaged in thousands of ways: found, or harmless?

    tests/campaigns/damaged_bytes.py SEXTANT [--count N] [--seed S] [--only KIND] [--keep DIR]

Makes valid inputs with the program itself, damages one file (bytes, text, or what stands in its place: a pipe, a loop of links, a
folder, an endless device), runs the command that reads it, and looks at how that ends. Prints for each kind how many were
refused (exit code 2 to 5), were harmless (the same answer), or gave another answer, which is right where a value was changed
and wrong where digests guard it. A fault is: a crash (a signal, or a code that is not documented), a hang, more memory than the
limit, a refusal that names no file, a wrong number, or a change outside what the command may write. Exit code 1 when there was
one. --keep DIR keeps the folder of each fault; --self-test damages the program instead, and each fault has to be found.
"""
import argparse
import collections
import concurrent.futures
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time

import mutations
from campaign import Progress, listing, run, table, unnoticed
from kinds import KINDS, numbers

OUTCOMES = ["refused", "harmless", "another answer"]
FAULTS = ["crash", "hang", "unnamed", "wrong", "outside", "code 7"]


def targets(kind, folder):
    return sorted({f for pattern in kind.files for f in folder.glob(pattern) if f.is_file()})


def command_for(kind, number, file, sextant):
    words = kind.commands[number % len(kind.commands)]
    if kind.name == "nccl-tests":  # each has its own
        words = kind.commands[0 if file.suffix == ".txt" else 1]
    fill = {"{}": str(file), "{folder}": str(file.parent)}
    return [sextant, *[fill.get(w, w) for w in words]]


def answer(kind, folder, ended):
    return repr(kind.answer(folder, ended.out)) if kind.answer else numbers(ended.out)


def named(message, file):
    """Whether what was said names the damaged file, or the folder that it belongs to."""
    return any(part in message for part in [file.name, *[p for p in file.parent.parts if p not in (".", "")]])


def attempt(task):
    """One damaged file: (kind, what became of it, what was done, command, how it ended)."""
    kind_index, number, seed, base, sextant, keep, limit_s, right = task
    kind = KINDS[kind_index]
    r = random.Random(f"{seed}/{kind.name}/{number}")
    with tempfile.TemporaryDirectory(prefix="sextant-bytes-") as place:
        outer = pathlib.Path(place)
        (outer / "outside.txt").write_text("nobody writes here\n")
        box = outer / "box"
        shutil.copytree(base, box, symlinks=True)
        files = targets(kind, box)
        path = r.choice(files)
        others = [f for f in files if f != path] or [path]
        if r.random() < 0.12:
            what = r.choice(mutations.PLACES)
            source = r.choice(others)
            backup = source.read_bytes()
            stand_in = outer / "other"
            stand_in.write_bytes(backup)
            mutations.replaced(r, path, what, [stand_in], outer / "outside.txt")
            stand_in.unlink()
        else:
            what, data = mutations.damaged(r, path.read_bytes(), [f.read_bytes() for f in others[:8]])
            path.write_bytes(data)
        file = path.relative_to(box)
        command = command_for(kind, number, file, sextant)
        outside, inside = listing(outer, but=("box",)), listing(box, but=("out", *kind.changes))
        ended = run(command, box, limit_s=limit_s)
        if ended.hung:
            outcome = "hang"
        elif ended.crashed:
            outcome = "crash"
        elif outside != listing(outer, but=("box",)) or inside != listing(box, but=("out", *kind.changes)):
            outcome = "outside"
        elif ended.code == 0:
            now = answer(kind, box, ended)
            outcome = "harmless" if now == right[command_key(kind, command)] else "wrong" if kind.sealed else "another answer"
        elif ended.code == 7:
            outcome = "code 7"
        else:
            # Exit code 4 is an answer: what the file asks for does not fit.
            outcome = "refused" if ended.code == 4 or named(ended.err + ended.out, file) else "unnamed"
        if outcome in FAULTS and keep:
            kept = pathlib.Path(keep) / f"{kind.name.replace(' ', '-')}-{number}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(box, kept, symlinks=True, ignore=lambda d, names: [n for n in names if not special_free(d, n)])
        return kind.name, outcome, f"{number}: {what} of {file}", command, ended


def special_free(folder, name):
    path = os.path.join(folder, name)
    return os.path.islink(path) or os.path.isdir(path) or (os.path.isfile(path) and os.path.getsize(path) < 1 << 26)


def command_key(kind, command):
    return " ".join(command[1:]) if any("{" in w for words in kind.commands for w in words) else command[1] + command[2]


def right_answers(kind, base, sextant):
    """What each command says of the valid files; a campaign of files that were never valid would prove nothing."""
    right = {}
    for number in range(len(kind.commands)):
        for file in targets(kind, base):
            command = command_for(kind, number, file.relative_to(base), sextant)
            if command_key(kind, command) in right:
                continue
            with tempfile.TemporaryDirectory(prefix="sextant-bytes-") as place:
                box = pathlib.Path(place) / "box"
                shutil.copytree(base, box)
                ended = run(command, box)
                # A file of another framework may lack what only an option states; the answer to it is the refusal.
                if ended.code != 0 and "{}" not in kind.commands[number]:
                    sys.exit(f"the valid files of {kind.name} are refused: {' '.join(command)}: {ended.err}")
                right[command_key(kind, command)] = answer(kind, box, ended) if ended.code == 0 else ""
    return right


def campaign(sextant, broken, count, seed, only, keep, limit_s, jobs, quiet=False):
    """Runs it; returns what became of each kind, and the faults. `broken` is run in place of `sextant` on damaged files."""
    chosen = [i for i, k in enumerate(KINDS) if not only or only in k.name]
    counts = {KINDS[i].name: collections.Counter() for i in chosen}
    faults = []
    with tempfile.TemporaryDirectory(prefix="sextant-bytes-base-") as place:
        tasks = []
        for i in chosen:
            base = pathlib.Path(place) / str(i)
            base.mkdir()
            KINDS[i].make(base, sextant)
            right = right_answers(KINDS[i], base, sextant)
            share = max(1, count // len(chosen))
            tasks += [(i, n, seed, base, broken, keep, limit_s, right) for n in range(share)]
        progress = Progress(len(tasks), every_s=1e9 if quiet else 10)
        with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
            for name, outcome, what, command, ended in pool.map(attempt, tasks, chunksize=4):
                counts[name][outcome] += 1
                if outcome in FAULTS:
                    faults.append((name, outcome, what, command, ended))
                progress.step(f", {len(faults)} faults")
    return counts, faults


def self_test(sextant):
    """Programs that do what no program may: each has to be found."""
    wrong = {
        "crash": "kill -SEGV $$",
        "hang": "sleep 60",
        "unnamed": "echo something is wrong >&2; exit 3",
        "wrong": "echo '{}'; exit 0",
        "outside": "echo x > ../outside.txt; echo plan.json; exit 3",
        "code 7": "echo plan.json; exit 7",
    }
    counts = {}

    def notices(program, fault):
        counts[fault] = campaign(sextant, program, 3, 1, "plan", None, 1.0, 2, quiet=True)[0]["plan"]
        return counts[fault][fault] > 0

    missed = [f"{fault}: {dict(counts[fault])}" for fault in unnoticed(wrong, notices)]
    print("every fault of a broken program is found" if not missed else "missed: " + "; ".join(missed))
    return 1 if missed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sextant")
    parser.add_argument("--count", type=int, default=10000, help="damaged files in all (10000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="kinds whose name has these words")
    parser.add_argument("--keep", help="a folder for the inputs of each fault")
    parser.add_argument("--limit-s", type=float, default=20, help="what takes longer hangs (20)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--show", type=int, default=20, help="faults to print in full (20)")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    sextant = str(pathlib.Path(options.sextant).resolve())
    if options.self_test:
        return self_test(sextant)
    start = time.monotonic()
    counts, faults = campaign(sextant, sextant, options.count, options.seed, options.only, options.keep, options.limit_s, options.jobs)
    columns = [*OUTCOMES, *FAULTS]
    rows = [[name, sum(c.values()), *[c[o] for o in columns]] for name, c in counts.items()]
    rows.append(["in all", *[sum(r[i] for r in rows) for i in range(1, len(columns) + 2)]])
    table(["kind", "damaged", *columns], rows)
    for name, outcome, what, command, ended in faults[: options.show]:
        print(f"\n{outcome}: {name} {what}\n  {' '.join(command)}\n  exit code {ended.code} after {ended.seconds:.1f} s: {(ended.err or ended.out).strip()[-600:]}")
    print(f"\n{rows[-1][1]} damaged files in {time.monotonic() - start:.0f} s, seed {options.seed}: {len(faults)} faults")
    return 1 if faults or rows[-1][1] == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

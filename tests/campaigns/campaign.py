"""What the campaigns share: a program under limits of time and memory, what it changed around itself, and progress."""
import dataclasses
import functools
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time

# `sextant --help` lists them; 1 is a mistake inside sextant, and a campaign never accepts it.
DOCUMENTED = {0, 2, 3, 4, 5, 6, 7, 130}


@dataclasses.dataclass
class Ended:
    """How a program ended: exit code (negative: by that signal), whether it had to be stopped, what it printed."""

    code: int
    hung: bool
    out: str
    err: str
    seconds: float

    @property
    def crashed(self):
        return not self.hung and self.code not in DOCUMENTED


def limited(memory_gib, file_mib):
    """Limits of the program that is started: a fault ends it and not the machine."""

    def set_limits():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if memory_gib:
            size = int(memory_gib * 2**30)
            resource.setrlimit(resource.RLIMIT_AS, (size, size))
        if file_mib:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_mib << 20, file_mib << 20))

    return set_limits


@functools.cache
def sanitized(program):
    """Whether AddressSanitizer or ThreadSanitizer is in it, which reserve more addresses than any limit leaves, and are slow."""
    try:
        code = pathlib.Path(program).read_bytes()
    except OSError:
        return False
    return b"__asan_init" in code or b"__tsan_init" in code


def run(command, cwd, limit_s=20.0, memory_gib=6.0, file_mib=512, environment=None, interrupt_s=None):
    """Runs a command in `cwd`; all that it started is ended behind `limit_s`."""
    if sanitized(command[0]):
        memory_gib, limit_s = None, 10 * limit_s
    start = time.monotonic()
    process = subprocess.Popen(
        [str(c) for c in command], cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, preexec_fn=limited(memory_gib, file_mib), env={**os.environ, "COLUMNS": "200", **(environment or {})})
    hung = False
    try:
        if interrupt_s is not None:
            time.sleep(interrupt_s)
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        hung = True
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    return Ended(process.returncode, hung, out.decode(errors="replace"), err.decode(errors="replace"), time.monotonic() - start)


def must(command, cwd):
    """Of what a campaign is built from: ends it when the command fails."""
    ended = run(command, cwd, limit_s=120)
    if ended.code != 0 or ended.hung:
        sys.exit(f"{' '.join(map(str, command))} in {cwd}\nended with {ended.code}: {ended.err[-2000:]}")
    return ended.out


def unnoticed(scripts, notices):
    """Of broken programs, by what is wrong with them the lines of a shell, those that `notices(program, what)` takes for whole."""
    missed = []
    for what, lines in scripts.items():
        with tempfile.TemporaryDirectory() as place:
            program = pathlib.Path(place) / "broken"
            program.write_text(f"#!/bin/sh\n{lines}\n")
            program.chmod(0o755)
            if not notices(str(program), what):
                missed.append(what)
    return missed


def listing(folder, but=()):
    """Everything below a folder: kind, size and time of change of each name; `but` leaves out names at its top."""
    found = {}
    for place, folders, files in os.walk(folder):
        at = pathlib.Path(place).relative_to(folder)
        if at == pathlib.Path("."):
            folders[:] = [f for f in folders if f not in but]
            files = [f for f in files if f not in but]
        for name in [*folders, *files]:
            s = os.lstat(os.path.join(place, name))
            is_folder = name in folders and os.path.isdir(os.path.join(place, name))
            found[str(at / name)] = (s.st_mode, 0 if is_folder else s.st_size, 0 if is_folder else s.st_mtime_ns)
    return found


class Progress:
    """A line on stderr every few seconds: how many of how many, and how long still."""

    def __init__(self, total, every_s=10.0):
        self.total, self.done, self.every_s = total, 0, every_s
        self.start = self.last = time.monotonic()

    def step(self, note=""):
        self.done += 1
        now = time.monotonic()
        if now - self.last < self.every_s and self.done < self.total:
            return
        self.last = now
        left = (now - self.start) / self.done * (self.total - self.done)
        print(f"{self.done}/{self.total}, {now - self.start:.0f} s, {left:.0f} s left{note}", file=sys.stderr, flush=True)


def table(head, rows):
    """Columns of text, the first left-aligned."""
    rows = [list(map(str, r)) for r in [head, *rows]]
    widths = [max(len(r[i]) for r in rows) for i in range(len(head))]
    for r in rows:
        print("  ".join(r[i].ljust(w) if i == 0 else r[i].rjust(w) for i, w in enumerate(widths)).rstrip())

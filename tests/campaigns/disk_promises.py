"""What must hold of a command that a disk has disturbed: how it ends, what it says, what it leaves, and what comes after it."""
import json
import os
import re
import shutil

import faults
from campaign import run
from disk_cases import tree


def plain_names(path):
    """The names of a path that a message may have: NAME.XXXXXX is the draft of NAME."""
    found = set()
    for name in path.split("/"):
        found |= {name, re.sub(r"\.[A-Za-z0-9]{6}$", "", name), re.sub(r"\.partial(-\d+)?$", "", name)}
    return {n for n in found if len(n) > 2 and n != "box"}


def causes(way):
    return ["No space", "full"] if way == "space" else [os.strerror(way)] if isinstance(way, int) else []


def names_of(folder):
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir()} if folder.exists() else set()


def drop_drafts(box, right):
    """What a process that could not clean up any more leaves beside the answer has names of its own, and nobody reads it."""
    for name in names_of(box.folder / "out") - right["names"]:
        if re.search(r"\.partial-\d+/|\.[A-Za-z0-9]{6}$", name):
            (box.folder / "out" / name).unlink()


def judged(case, box, ended, right, sextant, way, hit, cleaning):
    """What is wrong with how a command ended, or nothing. `hit`: paths of the calls that failed; `cleaning`: a removal failed, so
    that something may be left."""
    if ended.hung:
        return "hangs"
    if ended.crashed:
        return f"exit code {ended.code}"
    said = " ".join((ended.err + ended.out).split())  # messages are wrapped
    if ended.code == 0:
        now = case.answer(box.folder, sextant)
        if now != right["answer"]:
            return f"exit code 0 with another answer: {str(now)[:300]}"
        if case.same_text and ended.out != right["out"]:
            return "exit code 0 with another text"
        left = names_of(box.folder / "out") - right["names"]
        left = {n for n in left if not re.fullmatch(case.own, n)}
        return f"left behind: {sorted(left)}" if left and not cleaning else ""
    if way in faults.TRANSIENT:
        return "fails where nothing was wrong"
    if hit and not any(n in said for path in hit for n in plain_names(path)):
        return "does not name the file"
    if not any(c in said for c in causes(way)):
        return "does not say the cause"
    return left_wrong(case, box, right, cleaning)


def left_wrong(case, box, right, cleaning):
    """Of a command that failed: what may stand in `out` is what stood there, all of the answer, or what the documents name."""
    now = tree(box.folder / "out")
    if now in (right["before"], right["tree"]):
        return ""
    for name in now:
        if name.endswith(".json") and now[name] != right["before"].get(name) and not cleaning:
            try:
                json.loads((box.folder / "out" / name).read_text(errors="replace"))
            except ValueError:
                return f"torn: {name}"
    torn = {n for n, d in now.items() if not re.fullmatch(case.own, n) and d not in (right["before"].get(n), right["tree"].get(n))}
    if torn and not cleaning:
        return f"left behind or torn: {sorted(torn)}"
    mixed = {n for n in now if not re.fullmatch(case.own, n)}
    whole = mixed == set(right["before"]) or mixed == set(right["tree"]) or not mixed
    return "" if whole or cleaning else f"half of the files: {sorted(mixed)}"


def repeated(case, box, right, sextant):
    """The same command on a good disk ends with the right answer."""
    finished = case.answer(box.folder, sextant) if (box.folder / "out").exists() and tree(box.folder / "out") == right["tree"] else None
    if finished == right["answer"]:
        return ""
    command = case.again or case.command
    if case.again and not (box.folder / "out/run").exists():
        command = case.command
    ended = run([sextant, *command], box.folder)
    if ended.code != 0 or ended.hung:
        return f"given again: exit code {ended.code}: {ended.err.strip()[-300:]}"
    shutil.rmtree(box.folder / "weights", ignore_errors=True)
    drop_drafts(box, right)
    now = case.answer(box.folder, sextant)
    return "" if now == right["answer"] else f"given again, another answer: {str(now)[:300]}"


def after_power(case, box, right, sextant, lie):
    """The command again: the right answer. After a lie it may refuse, by name, what is damaged; never take it for whole."""
    if not case.own:
        now, allowed = tree(box.folder / "out"), [right["before"], right["tree"]]
        shown = {n: d for n, d in now.items() if n in right["names"]}
        if not lie and case.name != "export over an earlier one":
            torn = [n for n, d in shown.items() if d not in (allowed[0].get(n), allowed[1].get(n))]
            if torn and case.same_text:
                return f"torn: {torn}"
    drop_drafts(box, right)
    if tree(box.folder / "out") == right["tree"]:
        return ""
    command = case.again if case.again and (box.folder / "out/run").exists() else case.command
    if case.name.startswith("weights") or case.name == "export":
        shutil.rmtree(box.folder / "out", ignore_errors=True)
        (box.folder / "out").mkdir()
    ended = run([sextant, *command], box.folder)
    if ended.hung or ended.crashed:
        return f"given again: exit code {ended.code}{' (hangs)' if ended.hung else ''}: {ended.err[-300:]}"
    if ended.code != 0:
        refused = lie and ended.code in (2, 3) and any(w in ended.err for w in ("step-", "tokens", "run", "job"))
        return "" if refused else f"given again: exit code {ended.code}: {ended.err.strip()[-300:]}"
    now = case.answer(box.folder, sextant)
    if lie and case.name.startswith("run") and now[1] == right["answer"][1] and now[0].items() <= right["answer"][0].items():
        return ""  # the log of steps was emptied, which is told
    return "" if now == right["answer"] else f"given again, another answer: {str(now)[:300]}"

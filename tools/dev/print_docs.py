#!/usr/bin/env python3
"""Prints the blocks of the documents anew: in README.md and docs/*.md, what stands behind each "$ COMMAND" of a ```console block is
what the command prints at 100 columns. With --check it writes nothing and fails where a block is stale; how long a search took is
not compared. Blocks about the published runs (../shared/measured) stay as they are where that folder is absent.

A ```console shape block shows what depends on the machine and the hour. Its commands are run as well, and each of its lines must be
printed, whatever the numbers; "..." stands for any text, or any lines.

    tools/dev/print_docs.py [--check] [--sextant build/release/bin/sextant] [FILE...]
"""
import argparse
import difflib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHAPE = re.compile(r"^```console shape\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# "in 0.1 s" of a search; never a predicted time, which no "in" precedes
CLOCK = re.compile(r"\bin [0-9.]+ (?:ms|s)\b")


MEASURED = ROOT.parent / "shared" / "measured"


def printed(command: str, folder: str, sextant: pathlib.Path) -> str:
    command = command.replace("../shared/measured", str(MEASURED))
    environment = {
        **os.environ,
        "PATH": f"{sextant.parent}:{os.environ['PATH']}",
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "SEXTANT_SOURCE": str(ROOT),
    }
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command}\n  ended with {done.returncode}: {done.stderr.strip()}")
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()).strip("\n")


def commands(block: str) -> list[str]:
    """Each with the lines that a backslash continues."""
    found: list[str] = []
    continued = False
    for line in block.splitlines():
        if continued:
            found[-1] += "\n" + line
        elif line.startswith("$ "):
            found.append(line)
        continued = bool(found) and (continued or line.startswith("$ ")) and line.endswith("\\")
    return found


def shape(line: str) -> str:
    """The line with every number, rule and gap as one sign."""
    line = re.sub(r"[-+]?\b\d[\d.,]*(?:e[-+]?\d+)?", "#", line.strip())
    return re.sub(r"\s+", " ", re.sub(r"\u2500+", "-", line))


def unlike(block: str, folder: str, sextant: pathlib.Path) -> list[str]:
    """The lines of a shape block that its commands do not print."""
    found = []
    parts = re.split(r"^(?=\$ )", block, flags=re.MULTILINE)
    for part in parts:
        if not (asked := commands(part)):
            continue
        shown = part[len(asked[0]):].splitlines()
        said = printed("{ " + asked[0].removeprefix("$ ") + "\n} 2>&1", folder, sextant)
        lines = {shape(line) for line in said.splitlines()}
        for line in shown:
            if not line.strip() or line.strip() == "...":
                continue
            pattern = re.compile(re.escape(shape(line)).replace(r"\.\.\.", ".*"))
            if not any(pattern.fullmatch(one) for one in lines):
                found.append(f"{asked[0].splitlines()[0]}\n  does not print: {line}")
                break
    return found


def anew(text: str, sextant: pathlib.Path) -> str:
    with tempfile.TemporaryDirectory() as folder:

        def block(match: re.Match) -> str:
            if "../shared/measured" in match.group(1) and not MEASURED.is_dir():
                return match.group(0)
            parts = []
            for command in commands(match.group(1)):
                answer = printed(command.removeprefix("$ "), folder, sextant)
                parts.append(command + ("\n\n" + answer if answer else ""))
            return "```console\n" + "\n\n".join(parts) + "\n```"

        return BLOCK.sub(block, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--sextant", type=pathlib.Path, default=ROOT / "build/release/bin/sextant")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    asked = parser.parse_args()
    files = asked.files or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    stale = blocks = shapes = 0
    for file in files:
        before = file.read_text()
        blocks += len(BLOCK.findall(before)) + len(SHAPE.findall(before))
        with tempfile.TemporaryDirectory() as folder:
            wrong = [line for block in SHAPE.findall(before) for line in unlike(block, folder, asked.sextant.resolve())]
        if wrong:
            print(f"{os.path.relpath(file, ROOT)}: to be mended by hand:", *wrong, sep="\n")
            shapes += 1
        after = anew(before, asked.sextant.resolve())
        if CLOCK.sub("in # s", before) == CLOCK.sub("in # s", after):
            continue
        stale += 1
        if asked.check:
            sys.stdout.writelines(difflib.unified_diff(before.splitlines(True), after.splitlines(True), str(file), "printed now"))
        else:
            file.write_text(after)
            print(f"printed anew: {os.path.relpath(file, ROOT)}")
    if not blocks:
        sys.exit("no ```console block in these files: nothing is held to what the program prints")
    if shapes:
        return 1
    if asked.check and stale:
        print(f"{stale} files are stale: tools/dev/print_docs.py prints them anew")
    return 1 if asked.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

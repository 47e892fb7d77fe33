#!/usr/bin/env python3
"""Prints the blocks of the documents anew: in README.md and docs/*.md, what stands behind each "$ COMMAND" of a ```console block is
what the command prints at 100 columns. With --check it writes nothing and fails where a block is stale; how long a search took is
not compared.

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
# "in 0.1 s" of a search; never a predicted time, which no "in" precedes
CLOCK = re.compile(r"\bin [0-9.]+ (?:ms|s)\b")


def printed(command: str, folder: str, sextant: pathlib.Path) -> str:
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


def anew(text: str, sextant: pathlib.Path) -> str:
    with tempfile.TemporaryDirectory() as folder:

        def block(match: re.Match) -> str:
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
    stale = blocks = 0
    for file in files:
        before = file.read_text()
        blocks += len(BLOCK.findall(before))
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
    if asked.check and stale:
        print(f"{stale} files are stale: tools/dev/print_docs.py prints them anew")
    return 1 if asked.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

"""Finds the program and asks it: arguments in, the JSON answer out."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

Value = Any  # what an option takes: str, int, float, a path, True (a flag), a sequence (joined by commas) or a mapping


class SextantError(Exception):
    """The program ended without an answer.

    exit_code: as `sextant --help` lists them (2 wrong question, 3 bad input, 4 no feasible plan, ...); 127: no program.
    message: what it printed, with file, key, value and what was expected.
    answer: the JSON answer where there is one all the same (of 4: why nothing fits), else None.
    """

    def __init__(self, exit_code: int, message: str, answer: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.message = message
        self.answer = answer


def _on_path() -> str | None:
    """A `sextant` of PATH that is a program: the command that pip installs is a script, which would call itself."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        found = shutil.which("sextant", path=folder) if folder else None
        if found:
            with open(found, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    return found
    return None


def program() -> str:
    """Path of the program: the one of this wheel, else `sextant` on PATH, else what SEXTANT_PROGRAM names."""
    bundled = pathlib.Path(__file__).parent / "bin" / "sextant"
    if bundled.is_file():
        return str(bundled)
    named = os.environ.get("SEXTANT_PROGRAM", "")
    found = _on_path() or (shutil.which(named) if named else None)
    if found:
        return found
    raise SextantError(
        127,
        f"SEXTANT_PROGRAM is {named!r}, expected the path of an executable"
        if named
        else "there is no program sextant in this package or on PATH; SEXTANT_PROGRAM names it where it lies elsewhere",
    )


def arguments(options: Mapping[str, Value]) -> list[str]:
    """Options as the command line has them: seq_len=4096 is --seq-len 4096; None and False are left out.

    True is a flag, a sequence is joined by commas (scale=[8, 16]), a mapping is FIELD=VALUE,... (fix={"tp": 2}); of set each pair is an
    option of its own.
    """
    words: list[str] = []
    for key, value in options.items():
        flag = "--" + key.strip("_").replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(flag)
        elif key == "set":
            pairs = [f"{k}={_text(v)}" for k, v in value.items()] if isinstance(value, Mapping) else _several(value)
            words += [f"--set={pair}" for pair in pairs]
        elif isinstance(value, Mapping):
            words.append(f"{flag}=" + ",".join(f"{k}={_text(v)}" for k, v in value.items()))
        else:
            words.append(f"{flag}=" + ",".join(_several(value)))
    return words


def _several(value: Value) -> list[str]:
    return [_text(v) for v in value] if isinstance(value, (list, tuple, range)) else [_text(value)]


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def ask(verb: str, *words: str, accept: frozenset[int] = frozenset(), **options: Value) -> dict[str, Any]:
    """The answer of `sextant VERB WORDS --OPTION=VALUE ... --json` as docs/json.md describes it.

    Raises SextantError for any exit code but 0 and those of `accept`. Interrupted, the program is sent Ctrl-C and ends in order.
    """
    command = [program(), verb, *words, *arguments(options), "--json"]
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise SextantError(127, f"{command[0]} cannot be run: {error.strerror}") from error
    try:
        out, err = process.communicate()
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.communicate()
        raise
    message = err.decode("utf-8", "replace").strip()
    try:
        answer = json.loads(out) if out else None
    except json.JSONDecodeError as error:
        raise SextantError(process.returncode, f"{' '.join(command)} printed no JSON ({error}); {message}") from error
    if process.returncode != 0 and process.returncode not in accept:
        said = message or (f"sextant {verb} found no feasible plan" if process.returncode == 4 else "")
        raise SextantError(process.returncode, said or f"sextant {verb} ended with exit code {process.returncode}", answer)
    if not isinstance(answer, dict):
        raise SextantError(process.returncode, f"sextant {verb} printed no answer; {message}")
    return answer


def main() -> NoReturn:
    """The command `sextant` that pip installs: becomes the program."""
    try:
        path = program()
        os.execv(path, ["sextant", *sys.argv[1:]])
    except SextantError as error:
        sys.exit(f"sextant: {error}")
    except OSError as error:
        sys.exit(f"sextant: {path} cannot be run: {error.strerror}")

#!/usr/bin/env python3
"""Runs check.py of many exports in one interpreter: what they import is imported once, each runs in a process forked from it.

usage: check_server.py MODULE,... < folders, one a line. Writes a line of JSON for each: {"code", "out", "err"}.
"""
import importlib
import json
import os
import runpy
import sys
import tempfile
import traceback


def check(folder):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                os.chdir(folder)
                sys.argv = [os.path.join(folder, "check.py")]
                runpy.run_path(sys.argv[0], run_name="__main__")
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0)
        err.seek(0)
        return {"code": code, "out": out.read().decode(errors="replace"), "err": err.read().decode(errors="replace")}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what imports print is no answer
    for module in sys.argv[1].split(",") if len(sys.argv) > 1 and sys.argv[1] else []:
        try:
            importlib.import_module(module)
        except ImportError:
            pass  # check.py says what is absent
    for line in sys.stdin:
        print(json.dumps(check(line.strip())), file=answers, flush=True)


if __name__ == "__main__":
    main()

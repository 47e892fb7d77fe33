#!/usr/bin/env python3
"""Fail on any include that points up or across the house, and on two types of one name.

core <- cost_models <- planner ; core <- kernels <- runtime <- profiler ; tools on top of everything.
No CUDA, NCCL or MPI header in any header, nor anywhere in the planning wing. Two headers that define a type of the same
name in the same namespace break the program without a word from compiler or linker.
"""
import pathlib
import re
import sys
import tempfile

MAY_INCLUDE = {
    "core": {"core"},
    "cost_models": {"core", "cost_models"},
    "planner": {"core", "cost_models", "planner"},
    "kernels": {"core", "kernels"},
    "runtime": {"core", "kernels", "runtime"},
    "profiler": {"core", "kernels", "runtime", "profiler"},
    "tools": {"core", "cost_models", "planner", "kernels", "runtime", "profiler", "tools"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
BACKEND = re.compile(r"^(cuda|cublas|cudnn|cupti|nccl|mpi)[\w./]*\.h(pp)?$", re.IGNORECASE)
PLANNING = {"core", "cost_models", "planner"}
SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh", ".h"}


TYPE = re.compile(r"^(?:struct|class|enum class) (\w+)[^;]*\{")
NAMESPACE = re.compile(r"^namespace (sextant[\w:]*) \{")


def doubles(root: pathlib.Path) -> list[str]:
    """Types at namespace level, which start a line in this code."""
    first: dict[str, str] = {}
    found = []
    for room in MAY_INCLUDE:
        for path in sorted((root / room).rglob("*.hpp")):
            namespace = ""
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                if match := NAMESPACE.match(line):
                    namespace = match.group(1)
                elif match := TYPE.match(line):
                    name, where = f"{namespace}::{match.group(1)}", f"{path.relative_to(root)}:{number}"
                    if name in first:
                        found.append(f"{where}: {name} is defined in {first[name]} as well")
                    first.setdefault(name, where)
    return found


def violations(root: pathlib.Path) -> list[str]:
    found = []
    for room, allowed in MAY_INCLUDE.items():
        for path in sorted((root / room).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                target = match.group(2)
                other = target.split("/")[0]
                where = f"{path.relative_to(root)}:{number}"
                if match.group(1) == '"' and other in MAY_INCLUDE and other not in allowed:
                    found.append(f"{where}: {room} may not include {target}")
                if BACKEND.match(target) and (room in PLANNING or path.suffix == ".hpp"):
                    found.append(f"{where}: backend header {target} may only be included by a backend's .cpp or .cu")
    return found


def self_test() -> int:
    """The negative control: an upward include, a backend header in the planning wing and a type defined twice."""
    with tempfile.TemporaryDirectory() as tmp:
        root = pathlib.Path(tmp)
        for room in MAY_INCLUDE:
            (root / room).mkdir()
        (root / "core" / "a.hpp").write_text('#include "planner/search.hpp"\n')
        (root / "runtime" / "b.cpp").write_text('#include "planner/search.hpp"\n#include <mpi.h>\n')
        (root / "planner" / "c.cpp").write_text("#include <cuda_runtime.h>\n")
        (root / "tools" / "ok.cpp").write_text('#include "planner/search.hpp"\n')
        for room in ("planner", "tools"):
            (root / room / "split.hpp").write_text("namespace sextant {\nstruct Split {\n};\n}\n")
        found = violations(root) + doubles(root)
    if len(found) != 4:
        print("expected 4 violations, found:", *found, sep="\n  ")
        return 1
    return 0


def main() -> int:
    if "--self-test" in sys.argv[1:]:
        return self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = violations(root) + doubles(root)
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

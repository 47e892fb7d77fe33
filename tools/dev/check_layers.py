#!/usr/bin/env python3
"""Fail on any include that points up or across the house, on a circle of includes, on two types of one name, on two
private functions or constants, and on a file above 400 lines that does not say why.

core <- cost_models <- planner ; core <- kernels <- runtime <- profiler ; tools on top of everything. Within a room its
sub-rooms, lowest first, as SUB_ROOMS lists them; a file beside them is above them all, unless the room lists OWN_FILES.
A folder within a sub-room is a sub-room, too, above or below the files beside it. "a|b" stand side by side: neither
includes the other.
No CUDA, NCCL or MPI header in any header, nor anywhere in the planning wing. Two headers that define a type of the same
name in the same namespace break the program without a word from compiler or linker. Sources of a room are compiled
several at a time: of two private functions of one name, a call may mean the other source's, and two constants of one
name are an error on the machine that happens to compile their sources together.
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
OWN_FILES = ""
SUB_ROOMS = {
    "core": ["base", "model", "cluster", "plan", "graph", "graph/checks", "timeline", "runs"],
    "kernels": [OWN_FILES, "cpu|cuda"],
    "planner": ["lowering", "simulation", "search/bounds", "search", "answers", "explain", "validation", "calibration", "adaptation"],
    "runtime": ["devices", "communicators", "weights", "data", "execution", "execution/launcher", "execution/trainer",
                "checkpoint", "training"],
    "tools": ["terminal", "traces", "import", "inputs", "output", "export", "adaptation", "report", "verbs"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
BACKEND = re.compile(r"^(cuda|cublas|cudnn|cupti|nccl|mpi)[\w./]*\.h(pp)?$", re.IGNORECASE)
PLANNING = {"core", "cost_models", "planner"}
SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh", ".h"}
SCRIPTS = {".py", ".sh"}
OTHER_FOLDERS = ["tests", "python"]


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


FUNCTION = re.compile(r"^(?:\[\[\w+\]\] |constexpr |inline |static |template <.*> )*[\w:<>,\s&*]+?[ &*](\w+)\(")
CONSTANT = re.compile(r"^(?:inline |static )*(?:constexpr|const) .*?\b(k[A-Z]\w*)(?=\s*[={;]|\[)")
# Overloads that each take a type of their own source: the verbs' entries, and what JSON finds by type.
OVERLOADED = {"run", "to_json", "from_json"}
LONGEST, REASON = 400, "Longer than others:"
HEAD = 12  # lines of a script in which that is looked for
APART = {"kernels"}  # not compiled several at a time


def private_names(path: pathlib.Path) -> dict[str, int]:
    """Functions and constants in the unnamed namespace, which start a line in this code, and where."""
    found: dict[str, int] = {}
    inside = False
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if line == "namespace {":
            inside = True
        elif line == "}  // namespace":
            inside = False
        elif inside and line[:1].strip() and not line.startswith(("using ", "struct ", "class ", "enum ")):
            if match := CONSTANT.match(line) or FUNCTION.match(line):
                found.setdefault(match.group(1), number)
    return found


def shared_privates(root: pathlib.Path) -> list[str]:
    first: dict[tuple[str, str], str] = {}
    found = []
    for room in MAY_INCLUDE:
        for path in sorted((root / room).rglob("*.cpp")):
            name = path.relative_to(root).as_posix()
            if room in APART:
                continue
            library = room  # some sub-rooms are compiled at once
            for private, number in private_names(path).items():
                where = f"{name}:{number}"
                other = first.setdefault((library, private), where)
                if other != where and private not in OVERLOADED:
                    found.append(f"{where}: {private} is a private name of {other} as well")
    return found


def sub_room(path: str) -> tuple[str, int]:
    """Of "planner/search/bounds/bound.hpp": "search/bounds" and its place among the sub-rooms of its room."""
    room, _, rest = path.partition("/")
    levels = [level.split("|") for level in SUB_ROOMS.get(room, [])]
    places = {name: place for place, level in enumerate(levels) for name in level}
    folder, file = rest.rpartition("/")[::2]
    while folder and folder not in places:
        folder = folder.rpartition("/")[0]
    return folder, places.get(folder, len(levels))


def strays(root: pathlib.Path) -> list[str]:
    """Folders with sources that are no sub-rooms, at any depth: nothing would hold them to an order."""
    found = []
    for room in MAY_INCLUDE:
        known = {name for level in SUB_ROOMS.get(room, []) for name in level.split("|")}
        for path in sorted((root / room).rglob("*/")):
            if path.relative_to(root / room).as_posix() not in known and any(p.suffix in SUFFIXES for p in path.glob("*.*")):
                found.append(f"{path.relative_to(root)}: no sub-room; list it in SUB_ROOMS")
    return found


def circles(root: pathlib.Path) -> list[str]:
    """Files that include each other, directly or through others."""
    includes = {
        path.relative_to(root).as_posix(): [m.group(2) for line in path.read_text(errors="replace").splitlines() if (m := INCLUDE.match(line))]
        for room in MAY_INCLUDE
        for path in sorted((root / room).rglob("*"))
        if path.suffix in SUFFIXES
    }
    found, done = [], set()

    def visit(file: str, way: list[str]) -> None:
        if file in way:
            found.append(f"{file}: includes itself: {' -> '.join([*way[way.index(file):], file])}")
        elif file in includes and file not in done:
            for target in includes[file]:
                visit(target, [*way, file])
            done.add(file)

    for file in includes:
        visit(file, [])
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
                if target.startswith("."):
                    found.append(f"{where}: {target} hides whose file it is; name it from the root of the tree")
                if match.group(1) == '"' and other in MAY_INCLUDE and other not in allowed:
                    found.append(f"{where}: {room} may not include {target}")
                if match.group(1) == '"' and other == room:
                    (mine, here), (theirs, there) = sub_room(path.relative_to(root).as_posix()), sub_room(target)
                    if there > here:
                        found.append(f"{where}: {room}/{mine} may not include {target}: {theirs or room} lies above it")
                    elif there == here and theirs != mine:
                        found.append(f"{where}: {room}/{mine} may not include {target}: {theirs} stands beside it")
                if BACKEND.match(target) and (room in PLANNING or path.suffix == ".hpp"):
                    found.append(f"{where}: backend header {target} may only be included by a backend's .cpp or .cu")
    return found


def too_long(root: pathlib.Path) -> list[str]:
    """Files above 400 lines that do not say why: sources before anything else, scripts in their first lines."""
    found = []
    for folder in [*MAY_INCLUDE, *OTHER_FOLDERS, "."]:
        for path in sorted((root / folder).glob("*") if folder == "." else (root / folder).rglob("*")):
            if not path.is_file() or path.suffix not in SUFFIXES | SCRIPTS:
                continue
            text = path.read_text(errors="replace")
            head = "\n".join(text.splitlines()[:HEAD]) if path.suffix in SCRIPTS else text.partition("\n#")[0]
            if (lines := text.count("\n")) > LONGEST and REASON not in head:
                found.append(f"{path.relative_to(root)}: {lines} lines; split it, or say why not in its first lines: \"{REASON} ...\"")
    return found


# The negative controls: a tree of these files has these faults and no others.
PRIVATE = "namespace {\nconstexpr int kHalf = 2;\nint half(int x) {\n}\n}  // namespace\n"
FAULTY = {
    # Between rooms, and backend headers in the planning wing.
    "core/a.hpp": '#include "planner/search/search.hpp"\n',
    "runtime/b.cpp": '#include "planner/search/search.hpp"\n#include <mpi.h>\n',
    "planner/c.cpp": "#include <cuda_runtime.h>\n",
    "tools/ok.cpp": '#include "planner/search/search.hpp"\n',
    # Between sub-rooms, a folder that is none, a relative path.
    "planner/search/up.hpp": '#include "planner/answers/scale.hpp"\n',
    "planner/answers/down.hpp": '#include "planner/search/search.hpp"\n',
    "planner/guesses/stray.hpp": "\n",
    "planner/search/hidden.hpp": '#include "../answers/scale.hpp"\n',
    # Between a folder and the files beside it: above them, below them, unknown; side by side; the room's own files.
    "core/graph/graph.hpp": '#include "core/graph/checks/proof.hpp"\n',
    "core/graph/checks/proof.hpp": '#include "core/graph/work.hpp"\n',
    "planner/search/bounds/bound.hpp": '#include "planner/search/search.hpp"\n',
    "planner/search/tree.hpp": '#include "planner/search/bounds/least.hpp"\n',
    "core/graph/checks/deep/stray.hpp": '#include "core/timeline/trace.hpp"\n',
    "profiler/parts/stray.cpp": "\n",
    "kernels/cpu/one.cpp": '#include "kernels/cuda/other.hpp"\n#include "kernels/table.hpp"\n',
    "kernels/blocks.hpp": '#include "kernels/cpu/one.hpp"\n',
    # A circle.
    "core/base/first.hpp": '#include "core/base/second.hpp"\n',
    "core/base/second.hpp": '#include "core/base/third.hpp"\n#include "core/base/fourth.hpp"\n',
    "core/base/third.hpp": '#include "core/base/first.hpp"\n',
    "core/base/fourth.hpp": "\n",
    # Names twice.
    "planner/split.hpp": "namespace sextant {\nstruct Split {\n};\n}\n",
    "tools/split.hpp": "namespace sextant {\nstruct Split {\n};\n}\n",
    "planner/split.cpp": PRIVATE,
    "tools/split.cpp": PRIVATE,
    "tools/parts.cpp": "namespace {\nconst char* const kHalf = \"\";\nconst T& half(const T& x) {\n}\n}  // namespace\n",
    # Long ones.
    "core/long.cpp": "\n" * 401,
    "core/reasoned.cpp": f"// {REASON} it is a table.\n#include <map>\n" + "\n" * 400,
    "tests/tools/long.py": "\n" * 401,
    "tests/long.sh": "\n" * 400 + f"# {REASON} nobody reads so far.\n",
    "tests/reasoned.sh": f"#!/bin/bash\n# {REASON} it is one list.\n" + "\n" * 400,
    "python/fits.py": "\n" * 400,
}
FAULTS = [
    "core/a.hpp:1: core may not include planner/search/search.hpp",
    "core/base/first.hpp: includes itself: core/base/first.hpp -> core/base/second.hpp -> core/base/third.hpp -> core/base/first.hpp",
    "core/graph/checks/deep/stray.hpp:1: core/graph/checks may not include core/timeline/trace.hpp: timeline lies above it",
    "core/graph/checks/deep: no sub-room",
    "core/graph/graph.hpp:1: core/graph may not include core/graph/checks/proof.hpp: graph/checks lies above it",
    "core/long.cpp: 401 lines",
    "kernels/blocks.hpp:1: kernels/ may not include kernels/cpu/one.hpp: cpu lies above it",
    "kernels/cpu/one.cpp:1: kernels/cpu may not include kernels/cuda/other.hpp: cuda stands beside it",
    "planner/c.cpp:1: backend header",
    "planner/guesses: no sub-room",
    "planner/search/bounds/bound.hpp:1: planner/search/bounds may not include planner/search/search.hpp: search lies above it",
    "planner/search/hidden.hpp:1: ../answers/scale.hpp hides whose file it is",
    "planner/search/up.hpp:1: planner/search may not include planner/answers/scale.hpp: answers lies above it",
    "profiler/parts: no sub-room",
    "runtime/b.cpp:1: runtime may not include planner/search/search.hpp",
    "tests/long.sh: 401 lines",
    "tests/tools/long.py: 401 lines",
    "tools/split.cpp:2: kHalf is a private name of tools/parts.cpp:2 as well",
    "tools/split.cpp:3: half is a private name of tools/parts.cpp:3 as well",
    "tools/split.hpp:2: sextant::Split is defined in planner/split.hpp:2 as well",
]


def self_test() -> int:
    with tempfile.TemporaryDirectory() as tmp:
        root = pathlib.Path(tmp)
        for name, text in FAULTY.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found = all_of(root)
    missed = [fault for fault in FAULTS if not any(line.startswith(fault) for line in found)]
    invented = [line for line in found if not line.startswith(tuple(FAULTS))]
    print(*[f"not found: {line}" for line in missed], *[f"found: {line}" for line in invented], sep="\n", end="")
    return 1 if missed or invented or len(found) != len(FAULTS) else 0


def all_of(root: pathlib.Path) -> list[str]:
    return violations(root) + strays(root) + circles(root) + doubles(root) + shared_privates(root) + too_long(root)


def main() -> int:
    if "--self-test" in sys.argv[1:]:
        return self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    if not (root / "core").is_dir():
        sys.exit(f"check_layers.py: {root} has no folder core: not the tree of sextant")
    found = all_of(root)
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

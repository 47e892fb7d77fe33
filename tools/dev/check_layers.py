#!/usr/bin/env python3
"""Fail on any include that points up or across the house, on two types of one name, on two private functions or
constants, and on a file above 400 lines that does not say why.

core <- cost_models <- planner ; core <- kernels <- runtime <- profiler ; tools on top of everything. Within a room its
sub-rooms, lowest first, as SUB_ROOMS lists them; a file beside them is above them all.
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
SUB_ROOMS = {
    "core": ["base", "model", "cluster", "plan", "graph", "timeline", "runs"],
    "planner": ["lowering", "simulation", "search/bounds", "search", "answers", "explain", "validation", "calibration", "adaptation"],
    "runtime": ["devices", "communicators", "weights", "data", "execution", "checkpoint", "training"],
    "tools": ["terminal", "traces", "import", "inputs", "output", "export", "adaptation", "report", "verbs"],
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


FUNCTION = re.compile(r"^(?:\[\[\w+\]\] |constexpr |inline |static |template <.*> )*[\w:<>,\s&*]+?[ &*](\w+)\(")
CONSTANT = re.compile(r"^(?:inline |static )*(?:constexpr|const) .*?\b(k[A-Z]\w*)(?=\s*[={;]|\[)")
# Overloads that each take a type of their own source: the verbs' entries, and what JSON finds by type.
OVERLOADED = {"run", "to_json", "from_json"}
LONGEST, REASON = 400, "Longer than others:"
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
    order = SUB_ROOMS.get(room, [])
    inside = [name for name in order if rest.startswith(name + "/")]
    return (max(inside, key=len), order.index(max(inside, key=len))) if inside else ("", len(order))


def strays(root: pathlib.Path) -> list[str]:
    """Folders of a room that are no sub-rooms: nothing would hold them to an order."""
    known = {room: {name.split("/")[0] for name in order} for room, order in SUB_ROOMS.items()}
    return [
        f"{path.relative_to(root)}: no sub-room; list it in SUB_ROOMS"
        for room in SUB_ROOMS
        for path in sorted((root / room).glob("*/"))
        if path.is_dir() and path.name not in known[room] and any(p.suffix in SUFFIXES for p in path.rglob("*"))
    ]


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
                if BACKEND.match(target) and (room in PLANNING or path.suffix == ".hpp"):
                    found.append(f"{where}: backend header {target} may only be included by a backend's .cpp or .cu")
    return found


def too_long(root: pathlib.Path) -> list[str]:
    """Files above 400 lines that do not say why before anything else."""
    found = []
    for room in [*MAY_INCLUDE, "tests"]:
        for path in sorted((root / room).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            text = path.read_text(errors="replace")
            head = text.partition("\n#")[0]
            if (lines := text.count("\n")) > LONGEST and REASON not in head:
                found.append(f"{path.relative_to(root)}: {lines} lines; split it, or say why not in its first lines: \"{REASON} ...\"")
    return found


def self_test() -> int:
    """The negative control: upward includes between rooms and between sub-rooms, a folder that is no sub-room, backend
    headers in the planning wing, an include by a relative path, a type, a function and a constant defined twice, a long file."""
    with tempfile.TemporaryDirectory() as tmp:
        root = pathlib.Path(tmp)
        for room in MAY_INCLUDE:
            (root / room).mkdir()
        (root / "core" / "a.hpp").write_text('#include "planner/search/search.hpp"\n')
        (root / "runtime" / "b.cpp").write_text('#include "planner/search/search.hpp"\n#include <mpi.h>\n')
        (root / "planner" / "c.cpp").write_text("#include <cuda_runtime.h>\n")
        (root / "tools" / "ok.cpp").write_text('#include "planner/search/search.hpp"\n')
        for room in ("search", "answers", "guesses"):
            (root / "planner" / room).mkdir()
        (root / "planner" / "search" / "up.hpp").write_text('#include "planner/answers/scale.hpp"\n')
        (root / "planner" / "answers" / "down.hpp").write_text('#include "planner/search/search.hpp"\n')
        (root / "planner" / "guesses" / "stray.hpp").write_text("\n")
        (root / "planner" / "search" / "hidden.hpp").write_text('#include "../answers/scale.hpp"\n')
        for room in ("planner", "tools"):
            (root / room / "split.hpp").write_text("namespace sextant {\nstruct Split {\n};\n}\n")
            (root / room / "split.cpp").write_text("namespace {\nconstexpr int kHalf = 2;\nint half(int x) {\n}\n}  // namespace\n")
        (root / "tools" / "parts.cpp").write_text("namespace {\nconst char* const kHalf = \"\";\nconst T& half(const T& x) {\n}\n}  // namespace\n")
        (root / "core" / "long.cpp").write_text("\n" * 401)
        (root / "core" / "reasoned.cpp").write_text(f"// {REASON} it is a table.\n#include <map>\n" + "\n" * 400)
        found = all_of(root)
    if len(found) != 10:
        print("expected 10 violations, found:", *found, sep="\n  ")
        return 1
    return 0


def all_of(root: pathlib.Path) -> list[str]:
    return violations(root) + strays(root) + doubles(root) + shared_privates(root) + too_long(root)


def main() -> int:
    if "--self-test" in sys.argv[1:]:
        return self_test()
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = all_of(root)
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

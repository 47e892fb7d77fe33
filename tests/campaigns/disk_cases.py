"""The commands of the campaign of disks: how each is prepared, what it writes, and what must hold of that after any fault."""
import dataclasses
import hashlib
import json
import re

import kinds
from campaign import must, run

WORDS = "The quick brown fox jumps over the lazy dog, and the lazy dog is not amused by the quick brown fox.\n\n"
STEPS = "6"


@dataclasses.dataclass
class Case:
    """`command` writes into `out` alone."""

    name: str
    make: object  # (folder, sextant)
    command: list
    answer: object  # (folder, sextant): what was made, to compare
    again: list = None  # what a person gives after a failure; None: the same command
    own: str = ""  # names that may stand in `out` after a failure, beside those from before and those of the answer: a pattern
    same_text: bool = True  # what it prints is the same each time


def contents(file):
    """The digest of a file without what differs from one good run to the next: dates, digests over them, seconds of searching."""
    data = file.read_bytes()
    if file.suffix != ".tokens":
        data = re.sub(rb'"(created|digest|measured|date|command)": "[^"]*"', b"", data)
        data = re.sub(rb'"(?:[a-z_]*(?:seconds|elapsed|searched|wall|simulated_in)[a-z_]*)": [-\d.e+]+', b"", data)
        data = re.sub(rb"\d{4}-\d\d-\d\d[T ]?[\d:]*Z?|sextant-disks-\w+", b"", data)
    return hashlib.sha256(data).hexdigest()


def tree(folder):
    """Each file below a folder, with contents()."""
    return {str(f.relative_to(folder)): contents(f) for f in sorted(folder.rglob("*")) if f.is_file()}


def made(folder, _):
    return tree(folder / "out")


def readable_profile(folder, sextant):
    """Times differ from run to run; what matters is that it is whole."""
    ended = run([sextant, "simulate", "plan.json", "--profile", "out/profile.json", "--json"], folder)
    return ended.code


def trained(folder, sextant):
    """Each step's loss, and the weights of the newest checkpoint; of a run that is damaged, what is said of it."""
    found = {}
    for text in (folder / "out/run/steps.jsonl").read_text(errors="replace").splitlines():
        step = json.loads(text)
        found[step["step"]] = step.get("loss")
    ended = run([sextant, "weights", "export", "out/run", "--out", "weights"], folder)
    return found, tree(folder / "weights") if ended.code == 0 else ended.err


def empty_out(make):
    def both(folder, sextant):
        make(folder, sextant)
        (folder / "out").mkdir(exist_ok=True)

    return both


def with_old(make, name):
    """Something of an earlier call stands where the answer will."""

    def both(folder, sextant):
        empty_out(make)(folder, sextant)
        (folder / "out" / name).write_text("of an earlier call\n")

    return both


def plans(folder, sextant):
    empty_out(kinds.small_plan)(folder, sextant)


def exported(folder, sextant):
    plans(folder, sextant)
    must([sextant, "export", "plan.json", "--to", "nanotron", "--nearest", "-o", "out/job"], folder)


def data(folder, _):
    (folder / "out").mkdir()
    (folder / "a.txt").write_text(WORDS * 200)
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": WORDS * i}) + "\n" for i in range(1, 9)))


def ran(folder, sextant):
    plans(folder, sextant)
    must([sextant, "run", "plan.json", "--steps", STEPS, "--save-every", "2", "--time-limit-s", "0.001", "--gemms", "exact", "-o", "out/run"], folder)


def whole_run(folder, sextant):
    plans(folder, sextant)
    must([sextant, "run", "plan.json", "--steps", "3", "--gemms", "exact", "-o", "run"], folder)


RUN = ["run", "plan.json", "--steps", STEPS, "--save-every", "2", "--gemms", "exact", "-o", "out/run"]
RUN_FILES = r"run/(\.lock|plan\.json|options\.json|steps\.jsonl|timeline\.json|aside-steps(-\d+)?\.jsonl|checkpoints/step-\d+/.*)"

CASES = [
    Case("simulate -o", with_old(lambda folder, _: kinds.model(folder), "plan.json"), ["simulate", *kinds.TINY, "--plan", "dp2.z1.mbs1", "-o", "out/plan.json"], made),
    Case("plan -o", with_old(lambda folder, _: kinds.model(folder), "plan.json"), ["plan", *kinds.TINY[:-1], "1", "-o", "out/plan.json"], made, same_text=False),
    Case("export", plans, ["export", "plan.json", "--to", "megatron-lm", "-o", "out/job"], made),
    Case("export over an earlier one", exported, ["export", "plan.json", "--to", "megatron-lm", "-o", "out/job"], made),
    Case("calibrate", with_old(kinds.log, "calibration.json"), ["calibrate", "--log", "train.log", "--model", "llama-2-13b", "--cluster", "8x8xa100-80gb", "-o", "out/calibration.json"], made),
    Case("validate --predictions", with_old(kinds.runs, "p.csv"), ["validate", "runs.csv", "--predictions", "out/p.csv"], made),
    Case("report", with_old(kinds.small_plan, "page.html"), ["report", "plan.json", "-o", "out/page.html"], made),
    Case("profile", with_old(kinds.small_plan, "profile.json"), ["profile", "--for", "plan.json", "-o", "out/profile.json"], readable_profile, own=r"profile\.json", same_text=False),
    Case("compare --trace", with_old(whole_run, "trace.json"), ["compare", "plan.json", "run", "--trace", "out/trace.json"], made),
    Case("data", data, ["data", "a.txt", "b.jsonl", "--tokenizer", "bytes", "--document", "paragraph", "--validation", "0.1", "--shard-tokens", "9000", "--out", "out/tokens"],
         made, own=r"tokens\.partial/.*", same_text=False),
    Case("data --check", kinds.data_set, ["data", "--check", "tokens"], lambda folder, _: 0),
    Case("weights export", empty_out(whole_run), ["weights", "export", "run", "--out", "out/weights"], made),
    Case("run", plans, RUN, trained, again=["run", "plan.json", "--resume", *RUN[2:]], own=RUN_FILES, same_text=False),
    Case("run --resume", ran, ["run", "-o", "out/run", "--resume", "--time-limit-s", "0"], trained, own=RUN_FILES, same_text=False),
]

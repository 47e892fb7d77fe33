"""The kinds of files that sextant reads: how a valid one is made, which files of it are damaged, and what reads it then."""
import dataclasses
import gzip
import hashlib
import json
import pathlib
import re
import shutil

from campaign import must

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
TINY = ["--model", "model/config.json", "--cluster", "laptop", "--stack", "sextant", "--seq-len", "32", "--global-batch", "4"]
SEVEN = ["--model", "llama-2-7b", "--cluster", "2x8xa100-80gb", "--global-batch", "64"]
LAYOUT = ["--plan", "tp2.pp2.dp4.z1.mbs1"]


@dataclasses.dataclass
class Kind:
    """Commands read files of a folder and write to `out` alone (`changes` names what else may change)."""

    name: str
    files: list  # patterns of those that are damaged
    commands: list
    make: object  # (folder, sextant): what the folder holds before
    sealed: bool = False  # digests guard it: what is accepted must give the same answer
    changes: tuple = ()
    answer: object = None  # (folder, what the command printed): what must stay the same; otherwise what was printed


def numbers(text):
    """What was printed, without what differs from run to run."""
    return re.sub(r'"(?:[a-z_]*(?:seconds|elapsed|searched|wall|simulated_in)[a-z_]*)": [-\d.e+]+', "", text)


def digest_of(folder, pattern):
    digest = hashlib.sha256()
    for file in sorted(folder.glob(pattern)):
        if file.is_file():
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def weights_written(folder, _):
    return digest_of(folder / "out", "*.safetensors")


def tokens_written(folder, _):
    return digest_of(folder / "out", "*.[td]o*")


def losses(folder, _):
    """The loss of the step that the run still does."""
    found = {}
    for text in (folder / "run/steps.jsonl").read_text(errors="replace").splitlines():
        try:
            step = json.loads(text)
            found[step["step"]] = step.get("loss")
        except (ValueError, KeyError, TypeError):
            pass
    return found.get(4)  # what stood in the log before is no answer of this run, and no digest guards it


# --- how they are made -----------------------------------------------------------------------------------------------


def copy(*names):
    def make(folder, _):
        for name in names:
            source = GOLDEN / name
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, folder / source.name)

    return make


def model(folder):
    shutil.copytree(GOLDEN / "hugging_face/tied-bf16", folder / "model", ignore=shutil.ignore_patterns("expected*"))


def plan(folder, sextant):
    must([sextant, "simulate", *SEVEN, *LAYOUT, "-o", "plan.json"], folder)


def small_plan(folder, sextant):
    model(folder)
    must([sextant, "simulate", *TINY, "--plan", "dp2.z1.mbs1", "-o", "plan.json"], folder)


def parts(folder, sextant):
    """Model, cluster and stack of a plan file, each for itself."""
    plan(folder, sextant)
    whole = json.loads((folder / "plan.json").read_text())
    for part in ("model", "cluster", "stack"):
        (folder / f"{part}.json").write_text(json.dumps(whole[part], indent=1))
    (folder / "plan.json").unlink()


def profile(folder, sextant):
    small_plan(folder, sextant)
    must([sextant, "profile", "--for", "plan.json", "-o", "profile.json"], folder)


def log(folder, sextant):
    (folder / "train.log").write_text(must([sextant, "calibrate", "--example"], folder))


def calibration(folder, sextant):
    plan(folder, sextant)
    log(folder, sextant)
    must([sextant, "calibrate", "--log", "train.log", "--model", "llama-2-13b", "--cluster", "8x8xa100-80gb", "-o", "calibration.json"], folder)
    (folder / "train.log").unlink()


def runs(folder, sextant):
    text = must([sextant, "validate", "--example"], folder)
    head, row = text.splitlines()[:2]
    measured = [row.replace("example-1", f"example-{i}").rstrip(",") + f",{30 + i},{40 + i},ok" for i in range(3)]
    (folder / "runs.csv").write_text("\n".join([head, row, *measured]) + "\n")


def tried(folder, sextant):
    must([sextant, "plan", *SEVEN, "--budget-s", "1", "--shortlist", "3", "-o", "tried.json"], folder)
    whole = json.loads((folder / "tried.json").read_text())
    for i, candidate in enumerate(whole["plans"]):
        candidate["measured_step_s"] = 3.0 + i
    (folder / "tried.json").write_text(json.dumps(whole, indent=1))


def nccl(folder, _):
    lines = ["# nThread 1 nGpus 1 minBytes 33554432 maxBytes 8589934592 step: 2(factor)", "#", "# Using devices"]
    lines += [f"#  Rank {r:2} Group  0 Pid {1000 + r:6} on   node{r // 8:03} device  {r % 8} [0x07] NVIDIA A100-SXM4-80GB" for r in range(16)]
    lines += ["#", f"# {'out-of-place':>80} {'in-place':>30}", "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"]
    results = []
    for power in range(25, 34):
        size = 1 << power
        us = 50 + size * 1.875 / 150e3
        lines.append(f"{size:12} {size // 4:13} {'float':>9} {'sum':>7} {-1:7} {us:8.1f} {size / us / 1e3:7.2f} {size / us * 1.875 / 1e3:7.2f} {0:6} {us:8.1f} {size / us / 1e3:7.2f} {size / us * 1.875 / 1e3:7.2f} {0:6}")
        of = {"time": us, "alg_bw": size / us / 1e3, "bus_bw": size / us * 1.875 / 1e3, "nwrong": "0"}
        results.append({"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "-1", "out_of_place": of, "in_place": of})
    (folder / "all_reduce.txt").write_text("\n".join(lines) + "\n")
    devices = [{"rank": r, "hostname": f"node{r // 8}", "device": r % 8, "device_info": "NVIDIA A100-SXM4-80GB"} for r in range(16)]
    whole = {"version": 3, "args": ["/opt/all_reduce_perf", "-b", "16M"], "env": ["X=1"], "devices": devices, "results": results}
    (folder / "all_reduce.json").write_text(json.dumps(whole, indent=1))


def events(folder, sextant):
    small_plan(folder, sextant)
    (folder / "events").write_text("step 4 rank 0 compute x2 until 12\nstep 9 kill rank 1\n")


def presets(folder, sextant):
    shutil.copytree(ROOT / "tools/presets", folder / "presets")


def texts(folder, _):
    words = "The quick brown fox jumps over the lazy dog. It's 12345 \u00e9\u4e16\n\n"
    (folder / "a.txt").write_text(words * 5)
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": words * i, "n": i}) + "\n" for i in range(1, 6)))
    (folder / "c.txt.gz").write_bytes(gzip.compress((words * 9).encode(), mtime=0))


def tokenizers(folder, sextant):
    texts(folder, sextant)
    for name in ("tokenizer.json", "ranks.model", "sentencepiece.model"):
        shutil.copyfile(GOLDEN / "tokenizers" / name, folder / name)


def data_set(folder, sextant):
    texts(folder, sextant)
    must([sextant, "simulate", "--model", "stories-260k", *TINY[2:], "--plan", "dp2.z1.mbs1", "-o", "plan.json"], folder)
    must([sextant, "data", "a.txt", "b.jsonl", "--tokenizer", "bytes", "--document", "paragraph", "--validation", "0.1", "--shard-tokens", "500", "--out", "tokens"], folder)


def trained(folder, sextant):
    small_plan(folder, sextant)
    must([sextant, "run", "plan.json", "--steps", "4", "--save-every", "2", "--gemms", "exact", "-o", "run"], folder)


def hugging_face(folder, sextant):
    shutil.copytree(GOLDEN / "hugging_face/untied-shards", folder / "hf", ignore=shutil.ignore_patterns("expected*"))
    shutil.copytree(GOLDEN / "hugging_face/tied-bf16", folder / "hf1", ignore=shutil.ignore_patterns("expected*"))


def meta(folder, _):
    (folder / "params.json").write_text('{"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-05, "vocab_size": 32000}\n')


KINDS = [
    Kind("plan", ["plan.json"], [["simulate", "plan.json", "--json"], ["export", "plan.json", "--to", "megatron-lm", "-o", "out"]], plan, sealed=True),
    Kind("model, cluster, stack", ["*.json"], [["simulate", "--model", "model.json", "--cluster", "cluster.json", "--stack", "stack.json", "--global-batch", "64", *LAYOUT, "--json"]], parts),
    Kind("model of Meta", ["params.json"], [["simulate", "--model", "params.json", "--cluster", "2x8xa100-80gb", "--global-batch", "64", *LAYOUT, "--json"]], meta),
    Kind("profile", ["profile.json"], [["simulate", "plan.json", "--profile", "profile.json", "--json"]], profile),
    Kind("calibration", ["calibration.json"], [["simulate", "plan.json", "--calibration", "calibration.json", "--json"]], calibration),
    Kind("runs", ["runs.csv"], [["validate", "runs.csv", "--json", "--predictions", "out"], ["calibrate", "--runs", "runs.csv", "--cluster", "8x8xa100-80gb", "--json", "-o", "out"]], runs),
    Kind("shortlist", ["tried.json"], [["calibrate", "--tried", "tried.json", "--json", "-o", "out"]], tried),
    Kind("log", ["train.log"], [["calibrate", "--log", "train.log", "--model", "llama-2-13b", "--cluster", "8x8xa100-80gb", "--json", "-o", "out"]], log),
    Kind("nccl-tests", ["all_reduce.*"], [["calibrate", "--nccl", "all_reduce.txt", "--cluster", "2x8xa100-80gb", "--json", "-o", "out"], ["calibrate", "--nccl", "all_reduce.json", "--cluster", "2x8xa100-80gb", "--json", "-o", "out"]], nccl),
    Kind("events", ["events"], [["simulate", "plan.json", "--events", "events", "--steps", "20", "--json"]], events),
    Kind("presets", ["presets/models/llama-2-7b.json", "presets/devices/A100*.json", "presets/fabrics/hdr*.json", "presets/stacks/megatron-core.json", "presets/cost/ampere.json", "presets/*.json", "presets/calibration/*.json"],
         [["simulate", "--presets", "presets", *SEVEN, *LAYOUT, "--json"], ["presets", "--presets", "presets", "--json"]], presets),
    Kind("files of other frameworks", ["import/*"], [["simulate", "--from", "{}", "--cluster", "8x8xa100-80gb", "--json"]], copy("import")),
    Kind("texts", ["a.txt", "b.jsonl", "c.txt.gz"], [["data", "a.txt", "b.jsonl", "c.txt.gz", "--tokenizer", "bytes", "--document", "paragraph", "--out", "out"]], texts, answer=tokens_written),
    Kind("tokenizers", ["tokenizer.json", "ranks.model", "sentencepiece.model"], [["data", "a.txt", "--tokenizer", "{}", "--out", "out"]], tokenizers, answer=tokens_written),
    Kind("data set", ["tokens/*"], [["data", "--check", "tokens"], ["run", "plan.json", "--data", "tokens", "--steps", "2", "--eval-every", "1", "--no-save", "--gemms", "exact", "-o", "run"]], data_set, sealed=True, changes=("run",),
         answer=lambda folder, out: digest_of(folder / "run", "nothing") if not (folder / "run").exists() else losses_from_start(folder)),
    Kind("checkpoint", ["run/checkpoints/step-00000004/*"], [["weights", "export", "run", "--out", "out"]], trained, sealed=True, answer=weights_written),
    Kind("run that goes on", ["run/*.json", "run/*.jsonl", "run/checkpoints/*/*"], [["run", "-o", "run", "--resume", "--steps", "5"]], trained, sealed=True, changes=("run",), answer=losses),
    Kind("run that is compared", ["run/*.json", "run/*.jsonl", "plan.json"], [["compare", "plan.json", "run", "--json"]], trained),
    Kind("Hugging Face folder", ["hf/*", "hf1/*"], [["weights", "show", "{folder}", "--json"], ["weights", "export", "{folder}", "--out", "out", "--dtype", "fp32"]], hugging_face),
]


def losses_from_start(folder):
    found = []
    for text in (folder / "run/steps.jsonl").read_text(errors="replace").splitlines():
        step = json.loads(text)
        found.append((step.get("step"), step.get("loss"), step.get("validation_loss")))
    return found

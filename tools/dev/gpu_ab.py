"""Part `ab` of gpu_run.py: each choice of the runtime, on and off, on one GPU in one call. Each way is a run of a few steps of
the same model and batch; one line each says what a step takes against the usual way, which is measured first and last."""
import os
import statistics

from gpu_steps import BIN, WORK

# name of the model's preset, sequence length, sequences of a step, micro-batch of the usual way.
MODELS = [("llama-3.2-1b", 2048, 32, 16), ("llama-2-7b", 2048, 16, 2)]
STEPS = 6  # of which the first two and the last are not counted: all operations are timed in them
# What is changed: name, settings of the plan, micro-batch as a share of the usual one, options of the run, of the plan.
WAYS = [
    ("as usual", [], 1, [], []),
    ("GEMMs apart", ["stack.rules.fused_projections=false"], 1, [], []),
    ("GEMMs as proposed", [], 1, ["--gemms", "proposed"], []),
    ("head in chunks of 1024", ["stack.rules.head_logits_GiB=0"], 1, [], []),
    ("logits in fp32", ["stack.rules.short_logits=false"], 1, [], []),
    ("gradients cleared", ["stack.rules.gradients_begin_written=false"], 1, [], []),
    ("half the micro-batch", [], 0.5, [], []),
    ("CUDA graphs", [], 1, ["--cuda-graphs", "on"], []),
    ("fp8", [], 1, [], ["--precision", "fp8"]),
]


def run(r, cluster, presets):
    for model, seq, batch, mbs in MODELS:
        if r.models and model not in r.models:
            continue
        for way in [*WAYS, ("as usual, again", [], 1, [], [])]:
            if r.ways and way[0] not in r.ways:
                continue
            one(r, cluster, presets, (model, seq, batch, mbs), way)


def one(r, cluster, presets, of, way):
    (model, seq, batch, mbs), (name, settings, share, options, asked) = of, way
    path = os.path.join(WORK, "ab-plan.json")
    fix = f"mbs={int(mbs * share)},oo=0,po=0,ao=0,rec=none"
    plan = [os.path.join(BIN, "sextant"), "plan", "--model", model, *cluster, "--stack", "sextant", "--seq-len", str(seq),
            "--global-batch", str(batch), "--fix", fix, "-o", path, *presets, *asked]
    for setting in settings:
        plan += ["--set", setting]
    if "--cuda-graphs" not in options:  # which the first steps would be spent on comparing
        options = [*options, "--cuda-graphs", "off"]
    row = {"model": model, "seq_len": seq, "global_batch": batch, "way": name}
    r.results.setdefault("ab", []).append(row)
    if r.run(f"ab plan, {model}, {name}", plan, 30) is None:
        return
    said = r.json(f"ab {model}, {name}", [os.path.join(BIN, "sextant"), "run", path, "--device", "cuda", "--json", "--steps",
                                          str(STEPS), *presets, *options], 120, least_s=5)
    times = [s["step_time_s"] for s in (said or {}).get("steps", [])][2:-1]
    if times:
        row["step_time_s"] = statistics.median(times)
        row["start_time_s"] = said.get("start_time_s")
        row["mfu_causal_halved"] = statistics.median(s["mfu_causal_halved"] for s in said["steps"][2:-1])


def table(results):
    """One line for each way: its step, and what it takes against the mean of the usual way's runs."""
    rows = results.get("ab", [])
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        usual = [row["step_time_s"] for row in own if row["way"].startswith("as usual") and "step_time_s" in row]
        best = min((row for row in own if "step_time_s" in row), key=lambda row: row["step_time_s"], default=None)
        for row in own:
            if "step_time_s" not in row:
                yield f"ab            {model}, {row['way']}: not measured"
            elif usual:
                ratio = row["step_time_s"] / statistics.mean(usual)
                yield (f"ab            {model}, {row['way']}: {1e3 * row['step_time_s']:.1f} ms, {ratio:.3f} times as usual, MFU "
                       f"{100 * row['mfu_causal_halved']:.1f} %" +
                       (f", started in {row['start_time_s']:.1f} s" if row.get("start_time_s") else "") +
                       (", the best" if row is best else ""))

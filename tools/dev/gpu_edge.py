"""Part `edge` of gpu_run.py: the largest model that fits runs, and one layer more does not."""
import json
import os
import subprocess

from gpu_steps import BIN, WORK

EDGE_HOST_SHARE = 0.35  # of the host's memory for the largest model with offload: pages are locked at some GB/s


def run(r, cluster, host_memory, presets):
    """The largest depth of LLaMA-2-7B that the planner says fits runs; one layer more, forced, does not."""
    sextant = os.path.join(BIN, "sextant")
    r.results["edge"] = []
    for offload in (False, True):
        name = "with offload" if offload else "without offload"
        host = f"{(EDGE_HOST_SHARE if offload else 0.9) * host_memory:.0f}"

        def plan(layers, fix, force=False):
            path = os.path.join(WORK, f"edge-{layers}-{int(offload)}-{int(force)}.json")
            more = ["device.memory_GiB=4000", "node.host_memory_GiB=4000"] if force else ["node.host_memory_GiB=" + host]
            done = subprocess.run([sextant, "plan", "--model", "llama-2-7b", "--set", f"model.n_layers={layers}",
                                   *cluster, *(x for s in more for x in ("--set", s)), "--stack", "sextant",
                                   "--seq-len", "2048", "--global-batch", "2", "--fix", fix, "-o", path, *presets],
                                  env=r.env, capture_output=True, text=True, timeout=max(min(60, r.left() - 5), 0.1))
            return path if done.returncode == 0 else None

        fits, too_many, fix = 1, 400, "mbs=1,rec=none" + ("" if offload else ",oo=0,po=0,ao=0")
        try:
            while too_many - fits > 1:
                middle = (fits + too_many) // 2
                fits, too_many = (middle, too_many) if plan(middle, fix) else (fits, middle)
            paths = {"fits": plan(fits, fix)}
            if paths["fits"] and offload:  # the same on the host: with memory enough nothing would be brought there
                with open(paths["fits"]) as file:
                    of = json.load(file)["plan"]
                fix += (f",oo={100 * of['optimizer_offload']:g},po={'on' if of['parameter_offload'] else 'off'},"
                        f"ao={of['activation_offload']}")
            paths["one_more"] = plan(too_many, fix, force=True)
        except subprocess.TimeoutExpired as late:
            r.skip(f"edge, {name}", f"a plan was not made within {late.timeout:.0f} s", command=" ".join(late.cmd))
            continue
        row = {"offload": offload, "planner_says": fits, "fix": fix, "host_GiB": float(host), "cluster": cluster}
        r.results["edge"].append(row)
        for key, path in paths.items():
            if not path:
                r.skip(f"{key}, {name}", "the planner made no plan")
            else:
                row[key] = r.json(f"{key}, {name}", [sextant, "run", path, "--device", "cuda", "--json", "--steps", "2",
                                                     *presets], 200, least_s=20 if key == "fits" else 5)
                step = r.last()
                if "exit" in step:
                    row[key + "_exit"] = step["exit"]
                if key == "one_more":  # the failure is what was predicted
                    step["expected_to_fail"] = isinstance(step.get("exit"), int)
                    row["one_more_lacks_memory"] = "bytes asked" in step.get("errors", "")
        r.save()

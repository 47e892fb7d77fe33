"""System: the verdicts of tools/dev/gpu_run.py on the targets of the GPU backend. Expectation: made-up results that reach
every bar meet every target, and each of them moved below its bar, or left out, is seen in that target alone.

  gpu_verdicts_test.py SOURCE_FOLDER
  gpu_verdicts_test.py SOURCE_FOLDER SEXTANT PLAN_FILE [OPTIONS OF RUN]      that `sextant run --json` gives what they read
  gpu_verdicts_test.py SOURCE_FOLDER CUDA_BENCH SMALLER                      that the benchmark of kernels does
"""
import copy
import json
import os
import subprocess
import sys
import unittest

SOURCE = sys.argv[1]
sys.path.insert(0, os.path.join(SOURCE, "tools", "dev"))
import gpu_verdicts  # noqa: E402


def run_of(tokens_per_s, mfu, step_s):
    slow = {"tokens_per_s": tokens_per_s / 10, "mfu_causal_halved": mfu / 10, "step_time_s": 10 * step_s,
            "predicted_step_time_s": step_s, "skipped": False}
    step = {**slow, "tokens_per_s": tokens_per_s, "mfu_causal_halved": mfu, "step_time_s": step_s,
            "predicted_step_time_s": 1.02 * step_s}
    operations = [{"operations": "mlp forward", "predicted_s": 0.91, "measured_s": 1.0},
                  {"operations": "optimizer", "predicted_s": 0.109, "measured_s": 0.1}]
    return {"steps": [slow] * 3 + [step] * 4 + [slow], "memory": {"planned_bytes": 1 << 36, "allocated_bytes": 1 << 36},
            "comparison": {"operations": operations}}


def results():
    """Invented: no machine gave these figures."""
    rows = []
    for model, bar in gpu_verdicts.MFU_BARS.items():
        for seq in gpu_verdicts.SEQUENCES:
            one = {"sextant": run_of(20000, bar + 0.01, 1.5), "eager": {"tokens_per_s": 20000 / 1.8},
                   "compile": {"tokens_per_s": 20000 / 1.12}}
            rows.append({"model": model, "seq_len": seq, "peak_TFLOPS": 989.4, "profiled": True, "planned_peak_GiB": 100.0,
                         "driver_peak_GiB": 101.5, "rounds": [one, copy.deepcopy(one)], "by_kernels": run_of(1, 1, 1)})
    edge = {"fits_exit": 0, "one_more_exit": 7, "one_more_lacks_memory": True}
    return {"gpu": "NVIDIA H200, 0, 143771 MiB", "training": rows,
            "kernels": {"memory_bound": [{"kernel": name, "share_of_copy": 0.86} for name in gpu_verdicts.MEMORY_BOUND],
                        "latency_bound": [{"kernel": "total", "time_us": 3.0, "copy_us": 2.0}]},
            "edge": [{"offload": False, **edge}, {"offload": True, **edge}],
            "steps": [{"step": check, "exit": 0, "passed_tests": ["Kernels.Rope", "Kernels.RopeBothWays", "Kernels.Adamw"],
                       "skipped_tests": [], "failed": {}, "asked": ["*Rope*", "*Adamw"], "share": share}
                      for check, share in (("memcheck", 16), ("racecheck", 60))]}


def spoil_runs(key, factor):
    def spoil(r):
        for round_of in r["training"][-1]["rounds"]:
            for step in round_of["sextant"]["steps"]:
                step[key] *= factor
    return spoil


def left_out(*path):
    def spoil(r):
        for key in path[:-1]:
            r = r[key]
        del r[path[-1]]
    return spoil


def set_to(value, *path):
    def spoil(r):
        for key in path[:-1]:
            r = r[key]
        r[path[-1]] = value
    return spoil


class Verdicts(unittest.TestCase):
    def expect(self, spoil, target, verdict):
        """Only `target` changes, and to `verdict`."""
        r = results()
        spoil(r)
        got = {v["target"]: v for v in gpu_verdicts.verdicts(r)}
        changed = {name: v["verdict"] for name, v in got.items() if v["verdict"] != "met"}
        self.assertEqual(changed, {target: verdict})
        if verdict == "not measured":
            self.assertTrue(got[target]["why"])
        else:
            self.assertIn("figure", got[target])

    def test_all_are_met(self):
        judged = gpu_verdicts.verdicts(results())
        self.assertEqual({v["verdict"] for v in judged}, {"met"})
        self.assertEqual(len(judged), 12)
        self.assertEqual([v["target"].split()[0] for v in judged[7:9]], ["tokens/s"] * 2)
        self.assertAlmostEqual(judged[0]["figure"], 0.58)  # steps of warming up are left out
        self.assertEqual(len(list(gpu_verdicts.table(judged))), 12)

    def test_only_what_was_asked_for_is_judged(self):
        r = results()
        r["training"] = r["training"][:1]
        for parts, rows, said in (
                (["bench"], [], ["own kernels, share of the copy bandwidth"]),
                (["checks"], [], ["compute-sanitizer is clean"]), (["tests", "machine"], [], []),
                (["ours"], [["llama-3.2-1b", 2048]], ["MFU of llama-3.2-1b, causal halved", "predicted against measured step",
                                                      "predicted against measured classes of operations",
                                                      "memory that the runtime allocates, against the plan",
                                                      "planned peak against what the driver reports"])):
            r["asked"] = {"parts": parts, "rows": rows}
            judged = gpu_verdicts.verdicts(r)
            self.assertEqual([v["target"] for v in judged], said)
            self.assertEqual({v["verdict"] for v in judged}, {"met"} if said else set())
        r["asked"]["rows"] += [["llama-3.2-1b", 4096], ["llama-2-7b", 2048]]  # asked for, and not there
        judged = gpu_verdicts.verdicts(r)
        self.assertEqual({v["verdict"] for v in judged}, {"not measured"})
        self.assertEqual(judged[2]["why"], "llama-3.2-1b at 4096: not run; llama-2-7b at 2048: not run")

    def test_a_summary_fits_a_screen(self):
        lines = [f"{i} " + "x" * length for i, length in enumerate((10, 700, 90, 30000, 5000, 800))]
        fit = gpu_verdicts.fitted(lines)
        self.assertLessEqual(len("\n".join(fit)) + 1, 8000)
        self.assertGreater(len("\n".join(fit)), 6000)
        self.assertEqual([line.split()[0] for line in fit], ["0", "1", "2", "3", "4", "5"])
        self.assertEqual((fit[0], fit[2], fit[3][-4:]), (lines[0], lines[2], " ..."))
        self.assertEqual(gpu_verdicts.fitted(lines[:3]), lines[:3])

    def test_nothing_is_measured(self):
        for r in ({}, {"gpu": "NVIDIA H200", "training": [], "steps": []}):
            self.assertEqual({v["verdict"] for v in gpu_verdicts.verdicts(r)}, {"not measured"})
            self.assertTrue(all("figure" not in v for v in gpu_verdicts.verdicts(r)))

    def test_another_gpu_measures_no_target(self):
        r = results()
        for gpu in ("NVIDIA A100-SXM4-80GB", "NVIDIA GH200 480GB", "NVIDIA H200 NVL"):
            r["gpu"] = gpu + ", 0, 81920 MiB"
            judged = gpu_verdicts.verdicts(r)
            self.assertEqual({v["verdict"] for v in judged}, {"not measured"}, gpu)
            self.assertIn("figure", judged[0])

    def test_a_figure_below_its_bar_misses_its_target_alone(self):
        eager = ["training", 0, "rounds"]
        for spoil, target in (
                (spoil_runs("mfu_causal_halved", 0.60 / 0.62), "MFU of llama-2-7b, causal halved"),
                (lambda r: [set_to(20000 / 1.44, *eager, i, "eager", "tokens_per_s")(r) for i in (0, 1)],
                 "tokens/s over PyTorch eager"),
                (lambda r: [set_to(20000 / 1.09, *eager, i, "compile", "tokens_per_s")(r) for i in (0, 1)],
                 "tokens/s over PyTorch compile"),
                (spoil_runs("predicted_step_time_s", 0.94 / 1.02), "predicted against measured step"),
                (set_to(0.89, "training", 3, "by_kernels", "comparison", "operations", 0, "predicted_s"),
                 "predicted against measured classes of operations"),
                (set_to((1 << 36) + 1, "training", 2, "rounds", 1, "sextant", "memory", "allocated_bytes"),
                 "memory that the runtime allocates, against the plan"),
                (set_to((1 << 36) + 1, "training", 2, "predicted_bytes"),
                 "memory that the runtime allocates, against the plan"),
                (set_to(102.1, "training", 1, "driver_peak_GiB"), "planned peak against what the driver reports"),
                (set_to(0.849, "kernels", "memory_bound", 0, "share_of_copy"), "own kernels, share of the copy bandwidth"),
                (set_to(7, "edge", 0, "fits_exit"), "the largest model that fits runs, one layer more does not"),
                (set_to(0, "edge", 1, "one_more_exit"), "the largest model that fits runs, one layer more does not"),
                (set_to(False, "edge", 1, "one_more_lacks_memory"),
                 "the largest model that fits runs, one layer more does not"),
                (set_to({"Rope": 1}, "steps", 1, "failed"), "compute-sanitizer is clean")):
            with self.subTest(target=target):
                self.expect(spoil, target, "missed")

    def test_what_was_not_run_is_not_measured(self):
        for spoil, target in (
                (left_out("training", 0, "rounds", 1, "eager"), "tokens/s over PyTorch eager"),
                (set_to(None, "training", 0, "by_kernels"), "predicted against measured classes of operations"),
                (left_out("training", 5, "driver_peak_GiB"), "planned peak against what the driver reports"),
                (left_out("kernels"), "own kernels, share of the copy bandwidth"),
                (left_out("kernels", "memory_bound", 3), "own kernels, share of the copy bandwidth"),
                (left_out("edge", 1), "the largest model that fits runs, one layer more does not"),
                (set_to("timeout", "edge", 1, "one_more_exit"), "the largest model that fits runs, one layer more does not"),
                (left_out("steps", 0), "compute-sanitizer is clean"),
                (set_to([], "steps", 0, "passed_tests"), "compute-sanitizer is clean"),
                (set_to(["Kernels.Swiglu"], "steps", 0, "skipped_tests"), "compute-sanitizer is clean"),
                (set_to(["Kernels.Rope"], "steps", 1, "passed_tests"), "compute-sanitizer is clean"),
                (set_to(312.0, "training", 0, "peak_TFLOPS"), "MFU of llama-3.2-1b, causal halved")):
            with self.subTest(target=target):
                self.expect(spoil, target, "not measured")

    def test_what_the_sanitizer_left_out_is_said(self):
        r = results()
        judged = gpu_verdicts.verdicts(r)
        self.assertIn("memcheck ran 1 in 16 of the cases", list(gpu_verdicts.table(judged))[-1])
        self.assertIn("racecheck ran 1 in 60 of the cases", judged[-1]["note"])
        r["steps"][0]["skipped_tests"] = ["Kernels.Swiglu"]
        r["steps"][1]["passed_tests"].remove("Kernels.Adamw")  # no test of this pattern
        self.assertEqual(gpu_verdicts.verdicts(r)[-1]["why"], "memcheck: 3 of 4 tests; racecheck: 2 of 3 tests")
        r["steps"][0]["passed_tests"] = []
        self.assertNotIn("memcheck", gpu_verdicts.verdicts(r)[-1]["note"])

    def test_operations_that_take_no_time_are_not_judged(self):
        r = results()
        operations = r["training"][2]["by_kernels"]["comparison"]["operations"]
        operations.append({"operations": "head forward", "predicted_s": 5e-4, "measured_s": 2e-6})
        judged = {v["target"]: v for v in gpu_verdicts.verdicts(r)}["predicted against measured classes of operations"]
        self.assertEqual(judged["verdict"], "met")
        self.assertIn("not judged: head forward", judged["note"])
        operations[-1]["predicted_s"] = 5e-3
        self.assertEqual(gpu_verdicts.predicted_classes(r)["verdict"], "missed")

    def test_the_faster_way_to_compile_counts(self):
        def whole_is_faster(r):
            for of_round in r["training"][4]["rounds"]:
                of_round["whole"] = {"tokens_per_s": 20000 / 1.09}

        self.expect(whole_is_faster, "tokens/s over PyTorch compile", "missed")

    def test_a_sequence_that_was_not_run_leaves_its_targets_open(self):
        r = results()
        r["training"] = [row for row in r["training"] if row["seq_len"] == 2048]
        judged = gpu_verdicts.verdicts(r)
        self.assertEqual([v["verdict"] for v in judged], ["not measured"] * 9 + ["met"] * 3)
        self.assertIn("4096: not run", judged[0]["why"])

    def test_without_a_profile_no_prediction_is_judged(self):
        r = results()
        for row in r["training"]:
            row["profiled"] = False
        names = [v["target"] for v in gpu_verdicts.verdicts(r) if v["verdict"] == "not measured"]
        self.assertEqual(names, ["predicted against measured step", "predicted against measured classes of operations"])


class Fields(unittest.TestCase):
    """What the verdicts read is what the command writes."""

    def test_run_has_them(self):
        done = subprocess.run([sys.argv[2], "run", sys.argv[3], "--json", "--steps", "4", "--presets",
                               os.path.join(SOURCE, "tools", "presets"), *sys.argv[4:]], capture_output=True, text=True,
                              timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        got, expected = json.loads(done.stdout), run_of(1, 1, 1)
        self.assertLessEqual(expected["steps"][0].keys(), got["steps"][0].keys())
        self.assertLessEqual(expected["comparison"]["operations"][0].keys(), got["comparison"]["operations"][0].keys())
        self.assertGreater(gpu_verdicts.steady(got, "mfu_causal_halved"), 0)
        self.assertEqual(got["memory"]["planned_bytes"], got["memory"]["allocated_bytes"])
        self.assertGreater(got["start_time_s"], 0)
        self.assertLess(got["start_time_s"], 100)


class Rows(unittest.TestCase):
    """What is judged of the kernels is what the benchmark times, and all of it."""

    def test_the_benchmark_has_them(self):
        done = subprocess.run(sys.argv[2:], capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        kernels = json.loads(done.stdout)
        self.assertEqual([k["kernel"] for k in kernels["memory_bound"]], list(gpu_verdicts.MEMORY_BOUND))
        self.assertTrue(all(k["share_of_copy"] > 0 for k in kernels["memory_bound"]))
        judged = gpu_verdicts.bandwidth({"kernels": kernels})
        self.assertIn("total", judged["note"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + (["Verdicts"] if len(sys.argv) == 2 else
                                       ["Rows"] if sys.argv[3].isdigit() else ["Fields"]))

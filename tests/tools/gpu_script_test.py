"""System: tools/dev/gpu_run.py over stand-ins for its programs. Expectation: it forms the figures that the verdicts want, and
says what it could not measure.

  gpu_script_test.py SOURCE_FOLDER
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

SOURCE = sys.argv[1]
sys.path.insert(0, os.path.join(SOURCE, "tools", "dev"))
import gpu_steps  # noqa: E402
import gpu_verdicts  # noqa: E402
from gpu_verdicts_test import run_of  # noqa: E402


FAKE = """#!{python}
import json, os, sys, time
verb = sys.argv[1]
if verb == "doctor":
    if os.environ["DOCTOR"] == "broken":
        sys.exit("no such library")
    found = json.loads(os.environ["DOCTOR"])
    print(json.dumps({{"machine": {{"memory_GiB": 128, "gpus": found["gpus"]}}, "checks": found["checks"]}}))
elif verb in ("plan", "profile"):
    if "llama-2-7b" in sys.argv and "SLOW" in os.environ:
        time.sleep(60)
    out = sys.argv[sys.argv.index("-o") + 1]
    with open(out, "w") as file:
        json.dump({{"cluster": {{"device": {{"peak_TFLOPS": {{"bf16": 989.4}}}}}},
                   "prediction": {{"peak_memory_GiB": {{"value": 3.0}}}}}}, file)
elif verb == "simulate":
    print(json.dumps({{"prediction": {{"peak_memory_GiB": 3.0}}}}))
elif verb == "run":
    trial = any(word.endswith("ab-plan.json") for word in sys.argv)
    if not trial and "on" not in sys.argv and not "--record" in sys.argv:
        with open(os.environ["USED"], "w") as file:
            file.write("3500")
        time.sleep(0.9)
        with open(os.environ["USED"], "w") as file:
            file.write("428")
    assert trial or "--profile" in sys.argv
    print(os.environ["RUN"])
"""
# A program of gtest: what became of each test, and the reason of those skipped.
TESTS = """#!{python}
import json, os, sys
tests, report = json.loads(os.environ["TESTS"]), []
for name, why in tests.items():
    print("[ RUN      ] Gpu." + name)
    print("a.cpp:1: Skipped\\n" + why + "\\n\\n[  SKIPPED ]" if why else "[       OK ]", "Gpu." + name, "(0 ms)")
    report.append({{"name": name, "classname": "Gpu", "result": "SKIPPED" if why else "COMPLETED"}})
with open(sys.argv[1].split(":", 1)[1], "w") as file:
    json.dump({{"testsuites": [{{"testsuite": report}}]}}, file)
sys.exit(77 if all(tests.values()) else 0)
"""
TORCH = """import json, os
one = {"tokens_per_s": 10000, "libraries": os.environ.get("LD_LIBRARY_PATH")}
print(json.dumps({"eager": one, "compile": one}))
"""
ONE_GPU = {"gpus": [{"name": "x"}], "checks": [{"name": "GPU", "status": "ok", "found": "1 x x", "advice": ""}]}
SMI = """#!/bin/bash
case $1 in *memory.used*) cat "$USED" ;; *) printf 'name\\nNVIDIA {gpu}, 1.0, 143771 MiB, 1, 2, 3\\n' ;; esac
"""


class Script(unittest.TestCase):
    """gpu_run.py over stand-ins for sextant, PyTorch and the driver."""

    def call(self, *arguments, gpu="H200", mfu=0.59, built=True, only="train", doctor=ONE_GPU, skips=None, then=None, programs=None,
             **env_of):
        """`then`: arguments of a second call beside the first's results; `programs`: texts in place of the stand-ins."""
        with tempfile.TemporaryDirectory() as folder:
            made = {"torch_llama.py": TORCH, "used": "428"}
            os.makedirs(os.path.join(folder, "presets", "devices"))
            made["presets/devices/H200-SXM5-141GB.json"] = ""
            if built:
                os.mkdir(os.path.join(folder, "bin"))
                made.update({"bin/sextant": FAKE.format(python=sys.executable), "bin/nvidia-smi": SMI.format(gpu=gpu),
                             "bin/compute-sanitizer": '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift 2; done\nexec "$@"\n',
                             "bin/cuda_bench": '#!/bin/bash\necho "$BENCH"\n'})
                for program in ("math", "kernels", "training", "trace"):
                    made[f"bin/cuda_{program}_test"] = TESTS.format(python=sys.executable)
            made.update(programs or {})
            for name, text in made.items():
                with open(os.path.join(folder, name), "w") as file:
                    file.write(text)
                os.chmod(os.path.join(folder, name), 0o755)
            for name in ("gpu_run.py", "gpu_ab.py", "gpu_edge.py", "gpu_steps.py", "gpu_verdicts.py"):
                shutil.copy(os.path.join(SOURCE, "tools", "dev", name), folder)
            out = os.path.join(folder, "results.json")
            env = {**os.environ, "PATH": os.path.join(folder, "bin") + ":" + os.environ["PATH"],
                   "USED": os.path.join(folder, "used"), "RUN": json.dumps(run_of(20000, mfu, 1.5)),
                   "DOCTOR": doctor if isinstance(doctor, str) else json.dumps(doctor),
                   "TESTS": json.dumps({"Adds": "", **(skips or {})}), "TMPDIR": folder, **env_of}
            for of_call in (["--only", only, *arguments], then):
                if of_call is None:
                    break
                done = subprocess.run([sys.executable, os.path.join(folder, "gpu_run.py"), "--out", out, "--model", "llama-3.2-1b",
                                       *of_call], env=env, capture_output=True, text=True, timeout=100)
            if not os.path.exists(out):
                return done, None
            with open(out) as file:
                return done, json.load(file)

    def test_figures_become_verdicts(self):
        done, found = self.call()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        of = {v["target"]: v for v in found["verdicts"]}
        self.assertEqual(of["MFU of llama-3.2-1b, causal halved"]["verdict"], "met")
        self.assertNotIn("MFU of llama-2-7b, causal halved", of)  # nobody asked for it
        self.assertNotIn("own kernels, share of the copy bandwidth", of)
        self.assertLessEqual(len(done.stdout), 8000)
        self.assertEqual(of["tokens/s over PyTorch eager"]["figure"], 2.0)
        self.assertEqual([row["driver_peak_GiB"] for row in found["training"]], [3.0, 3.0])
        self.assertIn("met           MFU of llama-3.2-1b", done.stdout)

    def test_ways_stand_beside_the_usual_one(self):
        done, found = self.call("--seq-len", "2048", only="ab")
        ways = [row["way"] for row in found["ab"]]
        self.assertEqual(ways[0], "as usual")
        self.assertEqual(ways[-1], "as usual, again")
        self.assertIn("GEMMs apart", ways)
        self.assertTrue(all("step_time_s" in row for row in found["ab"]), found["ab"])
        lines = [line for line in done.stdout.splitlines() if line.startswith("ab ")]
        self.assertEqual(len([line for line in lines if "times as usual" in line]), len(ways), done.stdout)
        self.assertEqual(sum("the best" in line for line in lines), 1)

    def test_a_missed_target_is_no_success(self):
        done, _ = self.call("--seq-len", "4096", mfu=0.48)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("missed        MFU of llama-3.2-1b, causal halved: 48.0 % (llama-3.2-1b at 4096)", done.stdout)

    def test_a_gpu_is_planned_as_its_own_form(self):
        gpu_steps.HERE = os.path.join(SOURCE, "tools")
        for gpu, preset in (("A100-SXM4-40GB", "A100-SXM4-40GB"), ("A100 80GB PCIe", "A100-PCIe-80GB"), ("H200", "H200-SXM5-141GB"),
                            ("H200 NVL", "H200-NVL-141GB"), ("H100 80GB HBM3", "H100-SXM5-80GB"), ("GH200 480GB", None)):
            self.assertEqual(gpu_steps.preset_of("NVIDIA " + gpu), preset)

    def test_an_unknown_gpu_is_said(self):
        done, found = self.call("--seq-len", "2048", gpu="L40S")
        self.assertIn("no preset here: plans and predictions are of an H200-SXM5-141GB", done.stderr)
        self.assertIn("L40S", found["planned_as"])
        self.assertEqual({v["verdict"] for v in found["verdicts"]}, {"not measured"})

    def test_without_a_usable_gpu_nothing_is_checked_whatever_the_driver_says(self):
        old = {"name": "GPU", "status": "absent", "found": "NVIDIA driver, but no usable GPU", "advice": "see nvidia-smi"}
        refused = {"name": "GPU backend", "status": "absent", "found": "built for other GPUs", "advice": ""}
        for doctor, reason in (({"gpus": [], "checks": [old]}, "NVIDIA driver, but no usable GPU: see nvidia-smi"),
                               ({**ONE_GPU, "checks": [refused]}, "built for other GPUs"),
                               ({"gpus": [], "checks": []}, "sextant doctor lists none")):
            for budget in ("540", "8"):
                with self.subTest(reason=reason, budget=budget):
                    done, found = self.call("--budget-s", budget, only="tests", doctor=doctor, skips={"Multiplies": "no GPU"})
                    self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
                    self.assertIn(f"no usable GPU: {reason}; nothing was checked", done.stderr)
                    self.assertEqual([s["step"] for s in found["steps"]], ["doctor", "nvidia-smi"])

    def test_a_doctor_that_fails_is_no_missing_gpu(self):
        done, found = self.call(doctor="broken")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(done.stderr, "sextant doctor failed: exit 1, no such library; nothing was checked\n")
        self.assertNotIn("no_gpu", found)

    def test_what_was_not_run_is_not_called_well(self):
        all_skipped = {"Adds": "no usable GPU: NCCL is here, the driver is not"}
        for name, options, arguments, expected in (
                ("a test", {"only": "tests", "skips": {"Multiplies": "cuDNN was not found"}}, (),
                 "4 steps not run: cuda_math_test (tests skipped: 1, cuDNN was not found)"),
                ("all tests", {"only": "tests", "skips": all_skipped}, (),
                 "4 steps not run: cuda_math_test (no test passed, no usable GPU: NCCL is here"),
                ("no time", {"only": "tests"}, ("--budget-s", "8"), "4 steps not run: cuda_math_test (out of time)"),
                ("bench", {"only": "bench", "BENCH": '{"skipped": "no driver"}'}, (), "1 step not run: cuda_bench (no driver)"),
                ("bench, no reason", {"only": "bench", "BENCH": '{"skipped": ""}'}, (), "1 step not run: cuda_bench (no reason"),
                ("no bench", {"only": "bench", "BENCH": ""}, (), "1 step not run: cuda_bench (Expecting value")):
            with self.subTest(name):
                done, _ = self.call(*arguments, **options)
                self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
                self.assertIn(expected, done.stdout)
                self.assertNotIn("all steps ended well", done.stdout)

    def test_tests_of_optional_libraries_may_be_skipped(self):
        done, found = self.call(only="tests", skips={
            "Nccl": "built without NCCL: install CUDA and nccl.h", "Trace": "libcupti.so.13: no such file",
            "Pairs": "this needs 2 GPUs"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("all steps ended well", done.stdout)
        self.assertEqual(found["steps"][-1]["passed_tests"], ["Gpu.Adds"])

    def test_the_sanitizer_has_to_run_each_pattern_of_its_filter(self):
        _, found = self.call(only="sanitizer")
        judged = found["verdicts"][-1]
        self.assertEqual((judged["verdict"], judged["why"]), ("not measured", "memcheck: 1 of 15 tests; racecheck: 1 of 10 tests"))
        self.assertIn("memcheck ran 1 in 16 of the cases", judged["note"])

    def test_gemms_stand_beside_those_of_pytorch(self):
        shape = {"m": 64, "n": 32, "k": 16, "form": "forward", "TFLOPs": 600}
        bench = json.dumps({"memory_bound": [], "gemm": [shape, {**shape, "form": "input"}]})
        theirs = "import json, sys\nassert json.loads(sys.argv[1]) == [[64, 32, 16]]\nprint(json.dumps({'gemm': [" \
            "{'m': 64, 'n': 32, 'k': 16, 'form': 'forward', 'TFLOPs': 400}]}))"
        done, _ = self.call(only="bench", BENCH=bench, programs={"torch_gemms.py": theirs})
        self.assertIn("GEMM 64x32x16 forward: 600 TFLOP/s, torch.matmul 400 (1.50 times)", done.stdout)
        self.assertNotIn("input: 600", done.stdout)  # theirs was not timed
        with open(os.path.join(SOURCE, "tools", "dev", "torch_gemms.py")) as file:
            own = file.read()
        done, found = self.call(only="bench", BENCH=bench, programs={"torch_gemms.py": own, "torch.py": "raise ImportError('none')"})
        self.assertEqual(found["torch_gemms"], {"gemm": [], "none": "none"})
        self.assertNotIn("torch.matmul 4", done.stdout)

    def test_a_later_call_goes_on(self):
        done, found = self.call("--seq-len", "2048", "--rounds", "1", only="ours",
                                then=["--only", "ours", "--only", "peers", "--seq-len", "2048"])
        self.assertEqual([len(row["rounds"]) for row in found["training"]], [2])
        names = [s["step"].split()[0] for s in found["steps"] if s["step"] not in ("doctor", "nvidia-smi")]
        self.assertEqual(names, ["plan", "profile", "simulate", "run", "record", "torch", "torch", "run"])
        self.assertEqual(found["asked"], {"parts": ["ours", "peers"], "rows": [["llama-3.2-1b", 2048]]})
        of = {v["target"]: v for v in found["verdicts"]}
        self.assertEqual(of["tokens/s over PyTorch compile"]["figure"], 2.0)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_parts_run_in_the_order_given(self):
        _, found = self.call("--only", "checks", only="bench", BENCH='{"memory_bound": []}')
        names = [s["step"] for s in found["steps"][2:]]
        self.assertEqual((names[0], names[-1]), ("cuda_bench", "cuda_trace_test"))
        self.assertEqual(set(names[1:-1]), {"memcheck", "racecheck", "cuda_math_test", "cuda_kernels_test", "cuda_training_test"})
        self.assertEqual([len(s["passed_tests"]) for s in found["steps"][3:]], [1] * 6)

    def test_what_cannot_end_is_not_begun(self):
        done, found = self.call("--seq-len", "2048", "--budget-s", "14", only="ours")
        self.assertIn("run llama-3.2-1b 2048 (out of time)", done.stdout)
        self.assertNotIn("timeout", [s.get("exit") for s in found["steps"]])

    def test_a_step_that_is_cut_off_leaves_nothing_running(self):
        with tempfile.TemporaryDirectory() as folder:
            pid = os.path.join(folder, "pid")
            child = f"#!/bin/bash\nsleep 90 & echo $! >{pid}\nwait\n"
            _, found = self.call("--budget-s", "14", only="tests", programs={"bin/cuda_math_test": child})
            self.assertEqual(found["steps"][2]["exit"], "timeout")
            with open(pid) as file:
                stat = f"/proc/{file.read().strip()}/stat"
            for _ in range(50):  # until whoever inherits it has taken note
                state = "gone"
                if os.path.exists(stat):
                    with open(stat) as file:
                        state = file.read().split(") ")[1][0]
                if state in ("gone", "Z"):
                    break
                time.sleep(0.1)
            self.assertIn(state, ("gone", "Z"))

    def test_pytorch_runs_with_its_own_libraries(self):
        _, found = self.call("--seq-len", "2048", LD_LIBRARY_PATH="/mine")
        for row in found["training"]:
            self.assertEqual({r[mode]["libraries"] for r in row["rounds"][1:] for mode in ("eager", "compile")}, {"/mine"})

    def test_files_that_cannot_be_results(self):
        with tempfile.TemporaryDirectory() as folder:
            bad = os.path.join(folder, "bad.json")
            for text, why in (("[]", "it has no steps"), ("{", "Expecting"), ('{"steps": []}', None)):
                with open(bad, "w") as file:
                    file.write(text)
                found = gpu_verdicts.unreadable(bad)
                self.assertEqual(found is None, why is None, found)
                self.assertIn(why or "", found or "")
                if why:
                    done, _ = self.call("--out", bad)
                    self.assertEqual((done.returncode, why in done.stderr), (2, True), done.stderr)
            done, _ = self.call("--out", os.path.join(folder, "no", "r.json"))
            self.assertEqual((done.returncode, "no folder that can be written to" in done.stderr), (2, True), done.stderr)

    def test_a_plan_that_takes_too_long_ends_the_edge_alone(self):
        done, found = self.call("--budget-s", "6", only="edge", SLOW="1")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("2 steps not run: edge, without offload (a plan was not made within", done.stdout)
        self.assertEqual([v["verdict"] for v in found["verdicts"]], ["not measured"])

    def test_outside_its_folder_it_names_the_script_that_makes_it(self):
        done, found = self.call(built=False)
        self.assertEqual((done.returncode, found), (2, None))
        self.assertIn("tools/dev/gpu_checks.sh", done.stderr)


def result_of(test):
    result = unittest.TestResult()
    test.run(result)
    return result


if __name__ == "__main__":
    # Some at once: each waits most of its time for steps that sleep or are cut off.
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(result_of, unittest.defaultTestLoader.loadTestsFromTestCase(Script)))
    failures = [failure for result in results for failure in result.failures + result.errors]
    for case, text in failures:
        print(f"{case}\n{text}", file=sys.stderr)
    print(f"{sum(result.testsRun for result in results)} tests, {len(failures)} failures")
    sys.exit(1 if failures or not results else 0)

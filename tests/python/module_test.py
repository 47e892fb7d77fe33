"""The Python module over the built program: python3 module_test.py PROGRAM SOURCE_FOLDER [--frames].

With the standard library alone; --frames asks for pandas and matplotlib too, and ends with status 77 where they are not installed.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

PROGRAM, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
FRAMES = "--frames" in sys.argv
sys.path.insert(0, str(SOURCE / "python"))
os.environ["SEXTANT_PROGRAM"] = PROGRAM
folders = os.environ["PATH"].split(os.pathsep)  # one that is installed would be asked first
os.environ["PATH"] = os.pathsep.join(folder for folder in folders if not pathlib.Path(folder, "sextant").exists())

import sextant  # noqa: E402
from sextant import _program  # noqa: E402

QUESTION = {"model": "llama-2-7b", "cluster": "1x8xa100-80gb", "seq_len": 4096, "global_batch": 64}


class Answers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.plan = sextant.plan(**QUESTION)

    def test_plan_says_what_the_program_says(self):
        answer = self.plan
        self.assertEqual(answer.recommended.key, answer.raw["recommended"]["key"])
        self.assertEqual(answer.gpus, 8)
        self.assertEqual(answer.parameters, 6738415616)
        self.assertGreater(len(answer.alternatives), 0)
        self.assertEqual(answer.layouts[0], answer.recommended)
        self.assertLess(answer.recommended.step_time_s_lower, answer.recommended.step_time_s)
        self.assertTrue(answer.recommended.fits)
        self.assertNotEqual(sextant.plan(**{**QUESTION, "cluster": "1x4xa100-80gb"}).gpus, 8)  # the control

    def test_options_are_those_of_the_command_line(self):
        fixed = sextant.plan(**QUESTION, fix={"tp": 2, "cp": 1}, limit=["mbs<=1"], set={"fabric.bandwidth_GBps": 25}, top=2)
        self.assertEqual((fixed.recommended.plan["tp"], fixed.recommended.plan["micro_batch"]), (2, 1))
        self.assertEqual(len(fixed.ranked), 2)
        self.assertEqual(
            _program.arguments(
                {"from_": "a.sh", "daring": True, "details": False, "price": None, "scale": [8, 16], "set": {"a": 1, "b": True}}
            ),
            ["--from=a.sh", "--daring", "--scale=8,16", "--set=a=1", "--set=b=true"],
        )

    def test_other_questions_have_other_answers(self):
        sizes = sextant.plan(**QUESTION, scale=[4, 8], fix={"cp": 1})
        self.assertEqual([x.kind for x in sizes.layouts], ["4 GPUs", "8 GPUs"])
        front = sextant.plan(**QUESTION, pareto=True, fix={"cp": 1})
        self.assertEqual(front.recommended, front.pareto[0])
        self.assertGreater(len(front.pareto), 1)

    def test_simulate_sums_to_its_step(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "plan.json")
            sextant.plan(**QUESTION, output=file)
            answers = [sextant.simulate(file), sextant.simulate(self.plan.recommended, **QUESTION)]
        for answer in answers:
            self.assertEqual(answer.prediction.key, self.plan.recommended.key)
            self.assertAlmostEqual(sum(answer.causes().values()), answer.prediction.step_time_s, places=9)
        too_large = sextant.simulate("tp1.pp1.dp1", "llama-2-70b", "1x1xa100-80gb")
        self.assertFalse(too_large.prediction.fits)

    def test_validate_predicts_each_run(self):
        with tempfile.TemporaryDirectory() as folder:
            runs = pathlib.Path(folder, "runs.csv")
            runs.write_bytes(subprocess.run([PROGRAM, "validate", "--example"], check=True, capture_output=True).stdout)
            answer = sextant.validate(runs)
        self.assertEqual([run["run_id"] for run in answer.runs], ["example-1"])
        self.assertGreater(answer.runs[0]["step_time_s"], 1)
        self.assertIn("<td>example</td>", answer._repr_html_())

    def test_notebooks_show_tables(self):
        html = self.plan._repr_html_()
        self.assertEqual(html.count("<tr>"), 2 + len(self.plan.alternatives))
        self.assertIn(f"<td>{self.plan.recommended.step_time_s:.3f}</td>", html)
        self.assertIn("&lt;b&gt;", sextant.Layouts([], "<b>")._repr_html_())  # names are text, never markup
        simulated = sextant.simulate(self.plan.recommended, **QUESTION)
        self.assertIn("<td>compute</td>", simulated._repr_html_())

    def test_nothing_of_others_is_imported_unasked(self):
        code = f"import sys; sys.path.insert(0, {str(SOURCE / 'python')!r}); import sextant; print('pandas' in sys.modules)"
        self.assertEqual(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout, "False\n")
        for missing, ask in (("pandas", self.plan.frame), ("matplotlib", self.plan.chart)):
            with mock.patch.dict(sys.modules, {missing: None, "matplotlib.figure": None}):
                with self.assertRaisesRegex(ImportError, f"pip install {missing}"):
                    ask()


class Errors(unittest.TestCase):
    def refused(self, *args, **options):
        with self.assertRaises(sextant.SextantError) as caught:
            sextant.plan(*args, **options)
        return caught.exception

    def test_the_program_s_message_and_exit_code(self):
        error = self.refused(**{**QUESTION, "model": "llama-9"})
        self.assertIn("llama-9", error.message)
        self.assertEqual((error.exit_code, error.answer), (2, None))
        self.assertIn("--bogus", self.refused(**QUESTION, bogus=1).message)
        self.assertEqual(self.refused(**{**QUESTION, "model": "-x"}).exit_code, 2)

    def test_nothing_fits(self):
        error = self.refused("llama-2-70b", "1x1xa100-80gb", budget_s=2)
        self.assertEqual(error.exit_code, 4)
        self.assertEqual(error.answer["ranked"], [])

    def test_no_program(self):
        with mock.patch.dict(os.environ, {"SEXTANT_PROGRAM": "/absent/sextant", "PATH": ""}):
            self.assertIn("/absent/sextant", self.refused(**QUESTION).message)
        with mock.patch.dict(os.environ, {"PATH": ""}):
            del os.environ["SEXTANT_PROGRAM"]
            self.assertEqual(self.refused(**QUESTION).exit_code, 127)

    def test_the_program_of_path_comes_first_and_a_script_of_pip_does_not_count(self):
        with tempfile.TemporaryDirectory() as scripts, tempfile.TemporaryDirectory() as programs:
            script = pathlib.Path(scripts, "sextant")
            script.write_text("#!/bin/sh\nexit 1\n")
            script.chmod(0o755)
            os.symlink(PROGRAM, pathlib.Path(programs, "sextant"))
            with mock.patch.dict(os.environ, {"PATH": f"{scripts}:{programs}"}):
                self.assertEqual(sextant.program(), f"{programs}/sextant")
            with mock.patch.dict(os.environ, {"PATH": scripts}):
                self.assertEqual(sextant.program(), PROGRAM)

    def test_a_program_that_prints_no_json(self):
        with mock.patch.object(_program, "program", lambda: "/bin/echo"):
            self.assertIn("printed no JSON", self.refused(**QUESTION).message)

    def test_ctrl_c_ends_the_program_too(self):
        threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        begun = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            sextant.plan("llama-2-70b", "125000x8xh100", global_batch=131072)
            time.sleep(60)  # a machine on which that takes no second
        self.assertLess(time.monotonic() - begun, 30)


class Frames(unittest.TestCase):
    def test_rows_and_columns(self):
        answer = sextant.plan(**QUESTION)
        frame = answer.frame()
        self.assertEqual(len(frame), 1 + len(answer.alternatives))
        self.assertEqual(frame["key"][0], answer.recommended.key)
        self.assertEqual(frame["step_time_s"].dtype, "float64")
        stages = sextant.simulate("tp1.pp2.dp4.z1.mbs1", **QUESTION).frame()
        self.assertEqual(list(stages["stage"]), [0, 1])
        self.assertGreater(stages["memory_GiB.reserved"].min(), 1)

    def test_charts(self):
        answer = sextant.plan(**QUESTION)
        chart = answer.chart()
        self.assertEqual(len(chart.axes.patches), 1 + len(answer.alternatives))
        self.assertAlmostEqual(chart.axes.patches[0].get_width(), answer.recommended.step_time_s)
        self.assertTrue(chart._repr_png_().startswith(b"\x89PNG"))
        from matplotlib.figure import Figure

        given = Figure().add_subplot()
        self.assertIs(answer.chart(given).axes, given)
        self.assertIsNone(answer.chart(given)._repr_png_())
        self.assertGreater(len(sextant.simulate(answer.recommended, **QUESTION).chart().axes.patches), 1)


if __name__ == "__main__":
    if FRAMES:
        try:
            import matplotlib
            import pandas
        except ImportError as error:
            print(f"SKIPPED: {error}")
            sys.exit(77)
        print(f"pandas {pandas.__version__}, matplotlib {matplotlib.__version__}")
    names = [Frames] if FRAMES else [Answers, Errors]
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in names)
    sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())

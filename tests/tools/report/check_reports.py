#!/usr/bin/env python3
"""Reports of several kinds in headless Chromium, at 1280 and 400 pixels, light and dark: no script errors, no empty charts, nothing
cut or scrolled sideways, nothing asked of the network. Keeps screenshots and PDFs. A report that was emptied must fail.

    check_reports.py SEXTANT FOLDER [--only NAME]      FOLDER/NAME-1280-light.png and the like
Status 77: no Chromium here.
"""
import pathlib
import re
import resource
import shutil
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[2] / "campaigns")]
import browser  # noqa: E402
from campaign import sanitized  # noqa: E402

CHECKS = (pathlib.Path(__file__).parent / "page_checks.js").read_text()
LARGEST_BYTES, LONGEST_S = 2_000_000, 2.0
ASKED = "--model llama-2-70b --cluster 16x8xh100-80gb --seq-len 4096 --global-batch 1024"
SMALL = "--model llama-2-7b --cluster 2x8xa100-80gb --seq-len 4096 --global-batch 128"
TINY = "--model stories-260k --cluster laptop --stack sextant --seq-len 64 --global-batch 8"
LAYOUT = "tp4.pp4.vp10.cp1.dp8.z1.mbs1.tpo"
# What makes the answers, each in a file of its own; then the answers of each report.
ANSWERS = {
    "plan.json": f"simulate {ASKED} --plan {LAYOUT} -o plan.json",
    "search.json": f"plan {SMALL} --json",
    "front.json": f"plan {SMALL} --pareto --json",
    "scale.json": f"plan {SMALL} --scale 4,8,16 --json",
    "small.json": f"plan {SMALL} -o small.json",
    "simulate.json": "simulate small.json --json",
    "explain.json": "explain small.json --why tp8.pp2 --why tp1.pp1.dp16.z0 --budget-s 5 --json",
    "tiny.json": f"plan {TINY} --fix pp=2 -o tiny.json",
    "run.json": "run tiny.json --steps 25 -o run --json",
    "compare.json": "compare tiny.json run --json",
    "profile.json": "profile --for tiny.json -o profile.json",
    "validate.json": "validate {golden}/nvidia_published.csv --json",
}
REPORTS = {
    "plan": ["plan.json"],
    "search": ["small.json", "search.json", "front.json", "scale.json", "simulate.json", "explain.json"],
    "run": ["run", "run.json", "compare.json", "profile.json"],
    "machine": ["{presets}/profiles/H200-SXM5-141GB.json"],
    "validate": ["validate.json"],
}
GOLDEN = pathlib.Path(__file__).parents[2] / "golden"
PRESETS = pathlib.Path(__file__).parents[3] / "tools/presets"


def sextant(program: str, folder: pathlib.Path, command: str, answer: str | None = None) -> None:
    words = command.format(golden=GOLDEN, presets=PRESETS).split()
    done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"sextant {command}\n  ended with {done.returncode}: {done.stderr.strip()}")
    if answer and "--json" in words:
        (folder / answer).write_text(done.stdout)


def cpu_seconds() -> float:
    """Of the commands so far: what a report takes is told from what a busy machine makes of it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def emptied(page: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
    """The same page with no data in its charts."""
    text = page.read_text()
    text, n = re.subn(r'"rows":\[.*?\](?=\})', '"rows":[]', text)
    text, m = re.subn(r'("values":|"points":|"blocks":)\[[^\]]*\]', r"\1[]", text)
    assert n + m > 0
    out.write_text(text)
    return out


def problems_of(tab: browser.Browser, page: pathlib.Path, width: int, scheme: str) -> list[str]:
    tab.open(page, width, scheme)
    return [*tab.problems, *tab.run(CHECKS)]


def timeline_problems(tab: browser.Browser) -> list[str]:
    """Zooming by button and by key shows another part of the step."""
    seen = [
        tab.run("document.querySelector('.zoom span').textContent"),
        tab.run("document.querySelector('.zoom button').click(); document.querySelector('.zoom span').textContent"),
        tab.run(
            "document.querySelector('.plot').dispatchEvent(new KeyboardEvent('keydown', {key: '+', bubbles: true}));"
            "document.querySelector('.zoom span').textContent"
        ),
    ]
    return [] if len(set(seen)) == 3 else [f"the timeline does not zoom: {seen}"]


def main() -> int:
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    only = sys.argv[4] if "--only" in sys.argv else ""
    chromium = browser.find()
    if not chromium:
        print("SKIPPED: no Chromium here (Debian: chromium); SEXTANT_CHROMIUM names one")
        return 77
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    program = str(pathlib.Path(program).resolve())
    wanted = {a for name, answers in REPORTS.items() if only in ("", name) for a in answers}
    for answer, command in ANSWERS.items():
        if only == "" or answer in wanted or answer in ("tiny.json", "small.json"):
            sextant(program, folder, command, answer)
    failures: list[str] = []
    tab = browser.Browser(chromium)
    try:
        for name, answers in REPORTS.items():
            if only not in ("", name):
                continue
            page = folder / f"{name}.html"
            begin = cpu_seconds()
            sextant(program, folder, f"report {' '.join(answers)} -o {page.name}")
            took = cpu_seconds() - begin
            if name == "plan" and (page.stat().st_size > LARGEST_BYTES or took > LONGEST_S * (10 if sanitized(program) else 1)):
                failures.append(f"plan: {page.stat().st_size} bytes in {took:.2f} s")
            found: list[str] = []
            for width in (1280, 400):
                for scheme in ("light", "dark"):
                    found += [f"{name} at {width}, {scheme}: {p}" for p in problems_of(tab, page, width, scheme)]
                    tab.screenshot(folder / f"{name}-{width}-{scheme}.png")
            if '"kind":"timeline"' in page.read_text():
                found += [f"{name}: {p}" for p in timeline_problems(tab)]
            tab.open(page, 1280)
            tab.pdf(folder / f"{name}.pdf")
            print(f"{name}: {page.stat().st_size / 1e3:.0f} kB in {took:.2f} s, {len(found)} problems")
            failures += found
            if not problems_of(tab, emptied(page, folder / f"{name}-emptied.html"), 1280, "light"):
                failures.append(f"{name}: a report without data is found to be whole")
    finally:
        tab.close()
    print(*failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

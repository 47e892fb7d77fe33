#!/usr/bin/env python3
"""Questions drawn at random, by every stack: is the answer what it says it is?

    tests/campaigns/questions.py SEXTANT [--count N] [--seed S] [--self-test]

Of each question: the recommendation and its alternatives are simulated anew and must give the same step and peak, byte for byte;
no plain layout drawn beside them may be faster than what is claimed as proved, and fit; a layout called safe keeps to its risk.
Prints what is not so, and ends with 1. `--self-test`: an answer that is spoiled has to be noticed.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys

MODELS = """llama-2-7b llama-2-13b llama-2-70b llama-3.1-8b llama-3.1-70b llama-3.1-405b llama-3.2-1b llama-33b qwen2.5-0.5b qwen2.5-7b
qwen2.5-72b qwen3-8b mistral-7b-v0.1 baichuan2-13b olmo2-7b phi3-mini gpt3-175b bloom-176b internlm2-20b yi-34b stories-42m""".split()
DEVICES = "a100 a100-40gb a800 a800-pcie b200 gb200 h100 h100-pcie h200 h20 h800 v100 v100-16gb v100-dgx2".split()
LAYOUTS = 10  # drawn beside each answer
SAFE = 0.0501


class Campaign:
    def __init__(self, sextant, stacks, rng):
        self.sextant, self.stacks, self.rng = sextant, stacks, rng
        self.questions = self.simulated = self.impossible = self.failed = 0

    def ask(self, verb, question, *more):
        done = subprocess.run([self.sextant, verb, *question, *more, "--json"], capture_output=True, text=True, timeout=600)
        return done.returncode, json.loads(done.stdout) if done.returncode == 0 else done.stderr

    def wrong(self, what, question):
        self.failed += 1
        print(f"{what}: {' '.join(question)}", flush=True)

    def draw(self):
        pick = self.rng.choice
        self.nodes, self.per_node = pick([1, 1, 1, 2, 3, 4, 4, 5, 8, 16]), pick([8, 8, 8, 8, 4, 2, 6])
        question = ["--model", pick(MODELS), "--cluster", f"{self.nodes}x{self.per_node}x{pick(DEVICES)}", "--stack", pick(self.stacks)]
        question += ["--seq-len", str(pick([512, 1024, 2048, 4096, 4096, 8192, 3000]))]
        return question + ["--global-batch", str(pick([1, 8, 24, 32, 60, 64, 128, 256, 512, 1000, 1024]))]

    def plain_layout(self):
        pick = self.rng.choice
        while True:
            tp, pp, cp = pick([1, 2, 4, 8]), pick([1, 1, 2, 4, 8]), pick([1, 1, 1, 2, 4])
            if self.nodes * self.per_node % (tp * pp * cp) == 0:
                break
        dp = self.nodes * self.per_node // (tp * pp * cp)
        key = f"tp{tp}.pp{pp}.vp{pick([1, 1, 2, 4]) if pp > 1 else 1}.cp{cp}.dp{dp}.z{pick([0, 1, 2, 3])}.mbs{pick([1, 2, 4, 8])}"
        return key + pick(["", "", ".sel", ".full"]) + pick(["", "", "", ".oo100"])

    def check(self, question, spoil=1.0):
        self.questions += 1
        code, answer = self.ask("plan", question)
        if code == 4:
            self.impossible += 1
        elif code not in (0, 2):
            self.wrong(f"plan ended with {code}", question)
        if code != 0:
            return
        recommended = answer["recommended"]
        recommended["step_time_s"] *= spoil
        if answer["risk"]["safe"] and recommended["chance_of_overflow"] > SAFE:
            self.wrong(f"{recommended['key']} is called safe", question)
        for said in {p["key"]: p for p in [recommended, *answer["ranked"][:2], *answer["alternatives"][:3]]}.values():
            code, found = self.ask("simulate", question, "--plan", said["key"])
            self.simulated += 1
            if code != 0:
                self.wrong(f"{said['key']} ends with {code}", question)
                continue
            for value in ("step_time_s", "peak_memory_GiB"):
                if abs(found["prediction"][value] / said[value] - 1) > 1e-9:
                    self.wrong(f"{said['key']}: {value} {said[value]} in the answer, {found['prediction'][value]} simulated", question)
        for _ in range(LAYOUTS if answer["exact"] else 0):
            key = self.plain_layout()
            code, found = self.ask("simulate", question, "--plan", key)
            self.simulated += 1
            if code not in (0, 2, 3, 4):
                self.wrong(f"{key} ends with {code}", question)
            if code == 0 and found["prediction"]["fits"] and found["prediction"]["step_time_s"] < answer["best_bound_s"] * spoil * (1 - 1e-6):
                self.wrong(f"{key} is faster than all: {found['prediction']['step_time_s']} s, {answer['best_bound_s']} proved", question)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sextant")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    presets = pathlib.Path(__file__).resolve().parents[2] / "tools/presets/stacks"
    campaign = Campaign(options.sextant, sorted(p.stem for p in presets.glob("*.json")), random.Random(options.seed))
    if options.self_test:
        campaign.nodes, campaign.per_node = 1, 8
        campaign.check("--model llama-2-7b --cluster 1x8xa100 --global-batch 64".split(), spoil=1.5)
        if campaign.failed == 0:
            sys.exit("a spoiled answer was not noticed")
        print(f"{campaign.failed} spoiled values were noticed")
        return
    for _ in range(options.count):
        campaign.check(campaign.draw())
    print(f"{campaign.questions} questions of seed {options.seed}, {campaign.impossible} without a layout; {campaign.simulated} layouts simulated, "
          f"{campaign.failed} not as they should be")
    sys.exit(campaign.failed > 0)


if __name__ == "__main__":
    main()

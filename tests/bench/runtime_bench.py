#!/usr/bin/env python3
"""What the runtime costs and how well it is predicted, on this machine, in one run:

  one-rank   seconds of a step beside PyTorch's on the same threads (fp32), rounds interleaved
  overhead   share of a step in which the rank runs no operation
  overlap    share of a gradient reduction, as long as the backward pass, that overlap hides; predicted steps
  scaling    predicted and measured steps of 1, 2, 4 and 8 ranks, each with a profile taken just before

Prints a table per question and, with --json FILE, all samples. Ratios are medians over rounds. The timings mean little
while other programs run.

  tests/bench/runtime_bench.py all --sextant build/release/bin/sextant
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

median = statistics.median


class Bench:
    def __init__(self, sextant, folder, threads):
        self.sextant, self.folder, self.threads = os.path.abspath(sextant), folder, threads

    def call(self, *words):
        done = subprocess.run([self.sextant, *map(str, words)], cwd=self.folder, text=True, capture_output=True)
        if done.returncode not in (0, 4):  # 4: the emulated device is too small; the machine is not
            sys.exit(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    def plan(self, file, key, model, ranks, seq_len, batch, *settings):
        dtypes = [f"training.{k}=fp32" for k in ("compute", "parameter", "gradient", "reduction")]
        words = [w for s in (*dtypes, *settings) for w in ("--set", s)]
        self.call("simulate", "--model", model, "--cluster", f"1x{ranks}xcpu", "--stack", "sextant", "--seq-len",
                  seq_len, "--global-batch", batch, "--plan", key, "-o", file, *words)
        return file

    def run(self, file, steps, *words):
        """The measured steps but the first, and the whole answer."""
        answer = json.loads(self.call("run", file, "--steps", steps, "--json", *words))
        return [s["step_time_s"] for s in answer["steps"][1:]], answer

    def profile(self, file, *words):
        self.call("profile", "--for", file, "-o", "profile.json", *words)
        return "profile.json"


def blas_in_use():
    """The file that gives PyTorch its matrix products: Debian's default, netlib's, is thirty times slower than OpenBLAS."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        found = {line.split()[-1] for line in maps if "blas" in line or "mkl_core" in line}
    return ", ".join(sorted(os.path.basename(os.path.realpath(f)) for f in found)) or "its own"


def torch_llama(threads, vocab, hidden, layers, heads, ffn, seq_len, batch):
    """One training step of the plain model in eager PyTorch: forward, backward, clip, AdamW."""
    import torch
    from torch import nn
    import torch.nn.functional as F

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    d = hidden // heads
    angle = torch.outer(torch.arange(seq_len).float(), 10000.0 ** (-torch.arange(0, d, 2).float() / d))
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
    mask = torch.full((seq_len, seq_len), float("-inf")).triu(1)

    def norm(x, w):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w

    def turn(x):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = (nn.Parameter(torch.ones(hidden)) for _ in range(2))
            self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
            self.o = nn.Linear(hidden, hidden, bias=False)
            self.gate_up = nn.Linear(hidden, 2 * ffn, bias=False)
            self.down = nn.Linear(ffn, hidden, bias=False)

        def forward(self, x):
            q, k, v = (t.view(batch, seq_len, heads, d).transpose(1, 2) for t in self.qkv(norm(x, self.n1)).chunk(3, -1))
            scores = turn(q) @ turn(k).transpose(-1, -2) * d**-0.5 + mask
            a = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, seq_len, hidden)
            x = x + self.o(a)
            g, u = self.gate_up(norm(x, self.n2)).chunk(2, -1)
            return x + self.down(F.silu(g) * u)

    embed, blocks = nn.Embedding(vocab, hidden), nn.ModuleList(Block() for _ in range(layers))
    last = nn.Parameter(torch.ones(hidden))  # the head shares the embedding's weights
    parameters = [*embed.parameters(), *blocks.parameters(), last]
    for p in parameters:
        if p.dim() > 1:
            nn.init.normal_(p, std=0.02)
    adam = torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=True)
    tokens = torch.randint(0, vocab, (batch, seq_len + 1))

    def step():
        start = time.perf_counter()
        x = embed(tokens[:, :-1])
        for b in blocks:
            x = b(x)
        loss = F.cross_entropy((norm(x, last) @ embed.weight.T).view(-1, vocab), tokens[:, 1:].reshape(-1))
        adam.zero_grad(set_to_none=False)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adam.step()
        return time.perf_counter() - start

    return step


SHAPE = {"stories-15m": (32000, 288, 6, 6, 768), "stories-110m": (32000, 768, 12, 12, 2048)}


def one_rank(bench, rounds, model="stories-110m", seq_len=512, batch=1):
    file = bench.plan("one.json", f"z0.mbs{batch}", model, 1, seq_len, batch)
    torch_step = torch_llama(bench.threads, *SHAPE[model], seq_len, batch)
    torch_step()
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(median(bench.run(file, 4, "--threads", bench.threads)[0]))
        torch_step()  # after the pause
        theirs.append(median(torch_step() for _ in range(3)))
    ratio = median(t / o for t, o in zip(theirs, ours))
    print(f"one rank, {model}, fp32, {batch} x {seq_len} tokens, {bench.threads} threads: sextant {median(ours):.3f} s, "
          f"PyTorch ({blas_in_use()}) {median(theirs):.3f} s a step; PyTorch / sextant {ratio:.2f}")
    return {"sextant_s": ours, "pytorch_s": theirs, "pytorch_over_sextant": ratio}


def overhead(bench, rounds, model="stories-110m", seq_len=512, batch=1):
    file = bench.plan("one.json", f"z0.mbs{batch}", model, 1, seq_len, batch)
    shares = []
    for _ in range(rounds):
        c = bench.run(file, 3, "--threads", bench.threads)[1]["comparison"]
        busy = sum(o["measured_s"] for o in c["operations"])
        shares.append(1 - busy / c["measured_step_s"])
    print(f"overhead outside operations, {model}, {batch} x {seq_len} tokens: {100 * median(shares):.3f} % of a step")
    return {"share": shares}


def measured_class(answer, word):
    return sum(o["measured_s"] for o in answer["comparison"]["operations"] if word in o["operations"])


def predicted_against(bench, file, steps, *words):
    """Ratio of measured to predicted step, with a profile taken just before."""
    profile = bench.profile(file, "--steps", steps, *words)
    seconds, answer = bench.run(file, steps, "--profile", profile, *words)
    return answer["comparison"]["predicted_step_s"], median(seconds)


def overlap(bench, rounds, model="stories-15m", seq_len=512, ranks=8):
    # Twelve equal layers and a small untied vocabulary: of a tied one nothing can be reduced before the pass ends. The
    # sequence is long enough that what the cores add up for the ranks is little beside what the links take.
    deep = ("model.n_layers=12", "model.vocab_size=2048", "model.tied_embeddings=false")
    key = f"dp{ranks}.z1.mbs1.b1M"
    words = ("--shaped", "--threads", 1)
    bandwidth = [1.0]

    def plans():
        links = (f"node.link_bandwidth_GBps={bandwidth[0]}", "node.link_latency_us=20")
        return (bench.plan("on.json", key, model, ranks, seq_len, ranks, *deep, *links),
                bench.plan("off.json", f"{key}.nogr", model, ranks, seq_len, ranks, *deep, *links))

    for _ in range(2):  # bandwidth at which the reduction alone takes as long as the backward pass
        _, answer = bench.run(plans()[1], 4, *words)
        bandwidth[0] *= measured_class(answer, "reduce") / measured_class(answer, "backward")
    on, off = plans()
    hidden, error = [], {"on": [], "off": []}
    for _ in range(rounds):
        seconds_off, answer = bench.run(off, 4, *words)
        seconds_on, _ = bench.run(on, 4, *words)
        hidden.append((median(seconds_off) - median(seconds_on)) / measured_class(answer, "reduce"))
        for name, file in (("on", on), ("off", off)):
            predicted, measured = predicted_against(bench, file, 4, *words)
            error[name].append(measured / predicted)
    print(f"overlap, {model} of 12 layers, {ranks} ranks, links of {bandwidth[0]:.3g} GB/s: {100 * median(hidden):.0f} % of the "
          f"reduction hidden; measured / predicted step {median(error['on']):.2f} with overlap, "
          f"{median(error['off']):.2f} without")
    return {"bandwidth_GBps": bandwidth[0], "hidden": hidden, "measured_over_predicted": error}


def scaling(bench, rounds, model="stories-15m", seq_len=256):
    answer = {}
    for ranks in (1, 2, 4, 8):
        file = bench.plan("scale.json", f"dp{ranks}.z1.mbs1", model, ranks, seq_len, 8)
        pairs = [predicted_against(bench, file, 4, "--threads", 1) for _ in range(rounds)]
        ratio = median(m / p for p, m in pairs)
        print(f"scaling, {model}, {ranks} ranks: predicted {median(p for p, _ in pairs):.3f} s, measured "
              f"{median(m for _, m in pairs):.3f} s, ratio {ratio:.2f}", flush=True)
        answer[ranks] = {"predicted_measured_s": pairs, "ratio": ratio}
    return answer


def main():
    questions = {"one-rank": one_rank, "overhead": overhead, "overlap": overlap, "scaling": scaling}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=[*questions, "all"])
    parser.add_argument("--sextant", default="build/release/bin/sextant")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options.sextant, folder, options.threads)
        asked = questions if options.question == "all" else {options.question: questions[options.question]}
        answers = {name: ask(bench, options.rounds) for name, ask in asked.items()}
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(answers, out, indent=2)


if __name__ == "__main__":
    main()

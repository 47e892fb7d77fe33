#!/usr/bin/env python3
"""torch.matmul in bf16 at the shapes that cuda_bench times, to stand beside it: torch_gemms.py '[[M, N, K], ...]'. Of each
a layer's three GEMMs: forward (x[M, K] w[N, K]^T), input (dy[M, N] w) and weight (dy^T x; into bf16, where ours adds to an
fp32 matrix, which is more work). Prints one JSON object; without PyTorch, or a GPU that it sees, one without rows."""
import json
import os
import sys

DEVICE = os.environ.get("TORCH_LLAMA_DEVICE", "cuda")  # another one for a rehearsal
LEAST_S = 0.03  # that the timed calls of a shape take together


def seconds(torch, call):
    """Of one call among many behind each other, by the GPU's clock."""
    if DEVICE != "cuda":
        import timeit
        return min(timeit.repeat(call, number=1, repeat=2))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    calls = 3
    while True:
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        taken = 1e-3 * begin.elapsed_time(end)
        if taken >= LEAST_S:
            return taken / calls
        calls = max(calls + 1, int(1.3 * calls * LEAST_S / max(taken, 1e-6)))


def main():
    try:
        import torch
        if DEVICE == "cuda" and not torch.cuda.is_available():
            raise ImportError("PyTorch sees no GPU")
    except ImportError as why:
        print(json.dumps({"gemm": [], "none": str(why)}))
        return
    rows = []
    for m, n, k in json.loads(sys.argv[1]):
        x, w, y = (torch.randn(*size, device=DEVICE, dtype=torch.bfloat16) for size in ((m, k), (n, k), (m, n)))
        for form, call in (("forward", lambda: torch.matmul(x, w.t())), ("input", lambda: torch.matmul(y, w)),
                           ("weight", lambda: torch.matmul(y.t(), x))):
            taken = seconds(torch, call)
            rows.append({"m": m, "n": n, "k": k, "form": form, "time_us": 1e6 * taken, "TFLOPs": 2e-12 * m * n * k / taken})
    print(json.dumps({"torch": torch.__version__, "gemm": rows}))


if __name__ == "__main__":
    main()

"""System: the norm's partial sums and AdamW as the CUDA compiler makes them. Expectation: in fp32 and bf16 no arithmetic in
fp64, whose units some GPUs have few of; only the update's scalars are rounded from it. Control: the kernels of fp64 have it.

  no_fp64.py NVCC SOURCE_FOLDER
"""
import collections
import os
import re
import subprocess
import sys
import tempfile

KERNELS = ("squares_kernelI", "5AdamwI")


def arithmetic(nvcc, source, architecture):
    """Instructions of fp64 arithmetic by kernel."""
    with tempfile.TemporaryDirectory() as folder:
        ptx = os.path.join(folder, "kernels.ptx")
        subprocess.run([nvcc, "-std=c++20", "-O3", "--fmad=false", "-ptx", "-arch=" + architecture, "-I" + source,
                        os.path.join(source, "kernels", "cuda", "elementwise.cu"), "-o", ptx], check=True, timeout=100)
        found, kernel = {}, None
        with open(ptx) as lines:
            for line in lines:
                if entry := re.search(r"\.entry (\w+)", line):
                    kernel = found[entry[1]] = collections.Counter()
                elif kernel is not None and (op := re.match(r"\s+(?:@!?%p\d+ )?((?:add|sub|mul|div|fma|sqrt|rcp)\.[\w.]*f64)\s", line)):
                    kernel[op[1]] += 1
        return found


def main():
    nvcc, source = sys.argv[1:]
    for architecture in ("sm_80", "sm_90"):
        found = arithmetic(nvcc, source, architecture)
        for part in KERNELS:
            for form, has in (("f", False), ("NS_8Bfloat16E", False), ("d", True)):
                mine = [counts for name, counts in found.items() if part + form in name and "finish" not in name]
                assert len(mine) == 1, f"{part}{form}: {len(mine)} kernels"
                assert bool(mine[0]) == has, f"{architecture}: {part}{form} has {dict(mine[0])}"
    print("none")


if __name__ == "__main__":
    main()

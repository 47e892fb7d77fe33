#!/usr/bin/env python3
"""Rewrites what only a CUDA compiler reads in a .cu file, line for line, so that a host's compiler reads it with
device_code.hpp before it:   host_syntax.py IN.cu OUT.cpp

  kernel<T><<<grid, block, shared, stream>>>(   ->   ::emulation::launch(kernel<T>, grid, block, shared, stream)(
  extern __shared__ __align__(16) X name[];     ->   X* const name = ::emulation::dynamic_shared<X>();
  __shared__ X a[m], b[n];                      ->   EMULATED_SHARED(a, X[m]) EMULATED_SHARED(b, X[n])
"""
import re
import sys


def start_of_kernel(text, end):
    """Where the expression that ends before `end` begins: a name, with template arguments if it has them."""
    at = end
    while text[at - 1].isspace():
        at -= 1
    if text[at - 1] == ">":
        depth = 0
        while True:
            at -= 1
            depth += (text[at] == ">") - (text[at] == "<")
            if depth == 0:
                break
    while re.match(r"[\w:]", text[at - 1]):
        at -= 1
    return at


def converted(text):
    out, done = [], 0
    for match in re.finditer(r"<<<", text):
        begin, end = start_of_kernel(text, match.start()), text.index(">>>", match.end())
        out += [text[done:begin], "::emulation::launch(", text[begin:match.start()], ", ", text[match.end():end], ")"]
        done = end + 3
    text = "".join(out) + text[done:]
    text = re.sub(r"extern __shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)\[\];",
                  r"\1* const \2 = ::emulation::dynamic_shared<\1>();", text)

    def shared(match):
        return "".join(f"EMULATED_SHARED({name}, {match.group(1)}{extents}) "
                       for name, extents in re.findall(r"(\w+)((?:\[[^\]]*\])+)", match.group(2)))

    return re.sub(r"__shared__ ([\w:]+(?:<[^;=]*?>)?) ([^;=]*);", shared, text)


def main():
    source, target = sys.argv[1:]
    with open(source) as file:
        text = file.read()
    with open(target, "w") as file:
        file.write(f'#line 1 "{source}"\n' + converted(text))


if __name__ == "__main__":
    main()

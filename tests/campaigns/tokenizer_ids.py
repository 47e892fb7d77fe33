#!/usr/bin/env python3
"""Random texts through the tokenizers library and through ours: the same ids, or what differs.

    tests/campaigns/tokenizer_ids.py ENCODE_TEXTS [--texts N] [--seed S] [TOKENIZER.json ...]

ENCODE_TEXTS is that program of the build. Without files: those of tests/golden/tokenizers/families. Real files may be named.
Exit code 77, which ctest takes for skipped, where Python has no tokenizers. Characters of Unicode 15 and later are not drawn:
the libraries know different versions (docs/data.md).
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import unicodedata

FAMILIES = pathlib.Path(__file__).resolve().parents[1] / "golden/tokenizers/families"
SOME = ["the ", "or", "ing", "er", ". ", ", ", "-", "(", "{}", "'s", "'LL", "\u017f", "1", "23", "456", "\u0663", "\u00bd", " ", "  ", "    ", "\n", "\n\n", "\r\n",
        "\t", "\u00a0", "\u2003", "\u3000", "\u2028", "\u200d", "\u200b", "\u0301", "\u0323", "\u0308", "\u3099", "e\u0301", "\u1e69", "\u212b",
        "\uac01", "\u1100\u1161\u11a8", "\u5929\u5730", "\u0939\u093f", "\u0e19\u0e49\u0e33", "\U0001f468\u200d\U0001f469", "\u2581", "\u2581\u2581", "/", "=", "#"]
def drawable():
    """Characters of Unicode 14 at the latest: those of PCRE2 in Debian 12."""
    known = unicodedata if int(unicodedata.unidata_version.split(".")[0]) <= 14 else unicodedata.ucd_3_2_0
    return [chr(c) for c in range(1, 0x110000) if not 0xd800 <= c < 0xe000 and known.category(chr(c)) != "Cn"]


def text_of(draw, characters, contents):
    kind = draw.random()
    if kind < 0.1:  # runs
        return draw.choice(SOME + contents or ["x"]) * draw.randrange(1, 60) + draw.choice(SOME)
    parts = []
    for _ in range(draw.randrange(1, 40)):
        which = draw.random()
        if which < 0.55:
            parts.append(draw.choice(SOME))
        elif which < 0.8:
            parts.append(draw.choice(characters))
        elif which < 0.9 and contents:
            token = draw.choice(contents)
            parts.append(token if draw.random() < 0.7 else token[:draw.randrange(len(token)) + 1])
        else:
            parts.append("".join(draw.choice("abcdeABCxyz_") for _ in range(draw.randrange(1, 8))))
    return "".join(parts)


def ours(program, file, texts):
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    run = subprocess.run([program, file], input=lines, capture_output=True, text=True)
    if run.returncode == 3:
        return run.stderr.strip()
    if run.returncode != 0:
        sys.exit(f"{program} {file}: exit code {run.returncode}\n{run.stderr}")
    return [json.loads(line) for line in run.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("files", nargs="*")
    parser.add_argument("--texts", type=int, default=3000, help="for each tokenizer")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    try:
        from tokenizers import Tokenizer
    except ImportError:
        print("Python has no tokenizers (pip install tokenizers): nothing is compared")
        sys.exit(77)
    files = given.files or sorted(str(f) for f in FAMILIES.glob("*.json") if f.name not in ("ids.json", "patterns.json"))
    characters, wrong, control = drawable(), 0, 0
    for file in files:
        draw = random.Random(given.seed)
        library = Tokenizer.from_file(file)
        library.encode_special_tokens = True
        contents = [token.content for token in library.get_added_tokens_decoder().values()]
        texts = [text_of(draw, characters, contents) for _ in range(given.texts)]
        theirs = [library.encode(text, add_special_tokens=False).ids for text in texts]
        mine = ours(given.program, file, texts)
        if isinstance(mine, str):
            print(f"{pathlib.Path(file).name}: refused: {mine}")
            wrong += not given.files
            continue
        unlike = [i for i in range(len(texts)) if mine[i] != theirs[i]]
        print(f"{pathlib.Path(file).name}: {len(texts) - len(unlike)} of {len(texts)} texts alike, {sum(map(len, theirs))} ids")
        for i in unlike[:3]:
            print(f"  {json.dumps(texts[i])}\n    library {theirs[i][:60]}\n    ours    {mine[i][:60]}")
        wrong += len(unlike)
        library.encode_special_tokens = False  # the control: special tokens in texts are text to us
        control += any(library.encode(texts[i], add_special_tokens=False).ids != mine[i] for i in range(len(texts)))
    if not given.files and control < len(files) / 2:
        sys.exit(f"special tokens changed the ids of {control} tokenizers alone: the texts try nothing")
    print(f"{wrong} differ")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes the tokenizer golden files of this folder with the libraries that define them.

    python3 -m venv venv && venv/bin/pip install tokenizers tiktoken sentencepiece
    venv/bin/python tests/golden/tokenizers/make_golden.py            # everything anew
    venv/bin/python tests/golden/tokenizers/make_golden.py unigram    # that model alone, and its ids

Written with tokenizers 0.23.3, tiktoken 0.14.0 and sentencepiece 0.2.3. Tiny tokenizers in the form of the real ones are
trained on this repository's own documents: byte-level BPE with Llama 3's split pattern (tokenizer.json, and the same
ranks as Meta's tokenizer.model), a sentencepiece BPE model with LLaMA 2's options, and a unigram model with the same.
golden.json has the ids that each library gives for awkward texts.
"""
import base64
import io
import json
import pathlib
import sys

import sentencepiece

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

FOREIGN = """
Der schnelle braune Fuchs springt über den faulen Hund. Żółw i źrebię. Ça va très bien, merci.
Быстрая коричневая лиса прыгает через ленивую собаку. Η γρήγορη καφέ αλεπού.
天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。いろはにほへと ちりぬるを。다람쥐 헌 쳇바퀴에 타고파.
I'm sure they've said it's what we'll do; he'd agree, they're here, don't you think? 3.14159, 2718, 1000000.
    def f(x):\n        return x + 1\n\n\t\tif a == b: print("hello world")\n
"""
CORPUS = [path.read_text() for path in (ROOT / "README.md", ROOT / "docs/models-and-limits.md")] + [FOREIGN] * 4

TEXTS = [
    "", " ", "  ", "\n", "\r\n", "\t", "a", " a", "a ", "  a  b  ", "Hello, world!", "hello hello hello",
    "I'm, you're, he'S, WE'LL, they'Ve, don't, 'twas, 'D, l'\u017f x", "''''s 's's", "rock'n'roll",
    "1", "12", "123", "1234", "12345678901234567890", "3.14159e-10", "a1b22c333d4444", "\u0661\u0662\u0663\u0664", "x\u00b2\u00b3\u00bd\u2163",
    "line one\nline two\r\nline three\r\rend\n\n\n", "  \n  \n  x", "a \n b", "a\n\n  b", "tail   ", "tail\n   ", "\n \n \n",
    "tabs\t\tand \t mixed   runs", "\u00a0no-break\u2003em\u3000ideographic\u2028line\u2029para\u0085nel", "\u180emongolian\u200bzero\ufeffbom",
    "\u00fcber na\u00efve fa\u00e7ade \u017c\u00f3\u0142w", "u\u0308ber e\u0301\u0301\u0301 combining", "\u5929\u5730\u7384\u9ec4\uff0c\u5b87\u5b99\u6d2a\u8352\u3002", "\u3044\u308d\u306f\u306b\u307b\u3078\u3068",
    "\ub2e4\ub78c\uc950 \ud5cc", "\u0411\u044b\u0441\u0442\u0440\u0430\u044f \u043b\u0438\u0441\u0430", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0645\u0646 \u0627\u0644\u064a\u0645\u064a\u0646", "\u0939\u093f\u0928\u094d\u0926\u0940", "\u0e44\u0e17\u0e22",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466\U0001f1e9\U0001f1ea\u2764\ufe0f", "\U0001d400\U0001d401 \U0001f9ee\U0001f9ee", "a\u0000b\u0001c\u007f",
    "def f(x):\n        return x + 1\n\n\n    # comment\n", "{\"key\": [1, 2, {\"a\": null}]}", "https://example.org/a?b=c&d=%20#e",
    "<s> </s> [INST] <unk>", "a" * 300, " " * 70 + "x", "ab" * 100 + "\n" * 40, "!?!?...---===>>>\n\n", "$%^&*()_+|~`",
    "The quick brown fox jumps over the lazy dog. " * 5, "\ufffd\ufffe\uffff\U0010ffff", "\u01c5\u02b0\u00aa\u00ba \u2160\u24d0",
]


def train_bpe(pattern):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, True, False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=700, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    return t


def unicode_to_byte():
    printable = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    table, extra = {chr(b): b for b in printable}, 0
    for b in range(256):
        if b not in printable:
            table[chr(256 + extra)] = b
            extra += 1
    return table


def train_sentencepiece(name, vocab_size, model_type):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter("\n".join(CORPUS).split("\n")), model_writer=model, vocab_size=vocab_size,
        model_type=model_type, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        split_digits=True, allow_whitespace_only_pieces=True, num_threads=1, minloglevel=2)
    (HERE / name).write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def add_unigram(golden):
    sp = train_sentencepiece("unigram.model", 500, "unigram")
    golden["bos_eos"]["unigram"] = [sp.bos_id(), sp.eos_id()]
    for row in golden["texts"]:
        row["unigram"] = sp.encode(row["text"])


def write(golden):
    lines = ",\n".join(json.dumps(row) for row in golden.pop("texts"))
    head = json.dumps(golden, indent=1)[:-2]
    (HERE / "golden.json").write_text(head + ',\n "texts": [\n' + lines + "\n]}\n")


def main():
    import tiktoken
    import tokenizers
    from tokenizers import Tokenizer
    golden = {"source": f"tokenizers {tokenizers.__version__}, tiktoken {tiktoken.__version__}, "
                        f"sentencepiece {sentencepiece.__version__}: make_golden.py"}
    bpe = train_bpe(LLAMA3)
    (HERE / "tokenizer.json").write_text(json.dumps(json.loads(bpe.to_str()), ensure_ascii=False) + "\n")

    # The same without ignore_merges, with GPT-2's pattern inside of ByteLevel.
    gpt2 = json.loads(bpe.to_str())
    gpt2["model"]["ignore_merges"] = False
    gpt2["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    gpt2["model"]["merges"] = [" ".join(pair) for pair in gpt2["model"]["merges"]]  # the older spelling
    (HERE / "gpt2.json").write_text(json.dumps(gpt2, ensure_ascii=False) + "\n")
    gpt2_tokenizer = Tokenizer.from_str(json.dumps(gpt2))

    # Ranks: the bytes first, then what the merges make, in their order.
    table = unicode_to_byte()
    merges = json.loads(bpe.to_str())["model"]["merges"]
    ranks = {bytes([b]): b for b in range(256)}
    for left, right in merges:
        ranks.setdefault(bytes(table[c] for c in left + right), len(ranks))
    (HERE / "ranks.model").write_text(
        "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))
    tik = tiktoken.Encoding("tiny", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens={})

    sp = train_sentencepiece("sentencepiece.model", 700, "bpe")

    golden["bos_eos"] = {"json": [bpe.token_to_id("<|begin_of_text|>"), bpe.token_to_id("<|end_of_text|>")],
                         "ranks": [len(ranks), len(ranks) + 1], "sentencepiece": [sp.bos_id(), sp.eos_id()]}
    golden["texts"] = [{"text": text, "json": bpe.encode(text, add_special_tokens=False).ids,
                        "gpt2": gpt2_tokenizer.encode(text, add_special_tokens=False).ids,
                        "ranks": tik.encode_ordinary(text), "sentencepiece": sp.encode(text)} for text in TEXTS]
    add_unigram(golden)
    write(golden)


if __name__ == "__main__":
    if sys.argv[1:] == ["unigram"]:
        known = json.loads((HERE / "golden.json").read_text())
        add_unigram(known)
        write(known)
    else:
        main()

#!/usr/bin/env python3
"""Makes families/ of this folder: small tokenizers with the steps of the families' real tokenizer.json, and what the
tokenizers library makes of awkward texts with them.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3
    venv/bin/python tests/golden/tokenizers/make_families.py [NAME...]

With names it writes these alone and leaves the others: training deals merges of equal counts differently from run to run.

Normalizer, pre-tokenizer, options of BPE, added tokens and post-processor are those of the published files; vocabularies are
trained on the few lines below. families/NAME.json is a tokenizer, families/ids.json has for each the ids of all texts, with
special tokens left as text ("encode_special_tokens"), as sextant reads them. families/patterns.json has what the library's
Split makes of texts with patterns that Oniguruma and PCRE2 might read differently.
"""
import json
import pathlib
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import __version__

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "families"

CORPUS = """
The quick brown fox jumps over the lazy dog, and the training of large models needs tensor, pipeline and data parallel groups.
I'm sure they've said it's what we'll do; he'd agree, they're here, don't you think? 3.14159, 2718, 1000000, 2024-11-27.
Parallelism over many GPUs: each rank holds a shard of the parameters, gradients and optimizer state (ZeRO 3).
Der schnelle braune Fuchs springt über den faulen Hund. Żółw i źrebię. Ça va très bien, merci. Où est l'été?
Быстрая коричневая лиса прыгает через ленивую собаку. Η γρήγορη καφέ αλεπού πηδά πάνω από τον τεμπέλη σκύλο.
天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。いろはにほへと ちりぬるを。다람쥐 헌 쳇바퀴에 타고파. 训练大模型需要并行。
العربية من اليمين إلى اليسار. עברית מימין לשמאל. हिन्दी में लिखा हुआ पाठ। ภาษาไทยไม่มีช่องว่าง
def f(x):\n        return x + 1\n\n\t\tif a == b: print("hello world")\n    for i in range(10):\n        total += i ** 2
{"key": [1, 2, {"a": null}], "url": "https://example.org/a?b=c&d=%20#e"}
""".strip().split("\n")

SCRIPTS = [
    "über naïve façade żółw", "u\u0308ber e\u0301\u0301\u0301 combining a\u0323\u0307 a\u0307\u0323", "\u1e69 s\u0323\u0307 s\u0307\u0323 \u1e9b\u0323",
    "\u00c5 \u212b A\u030a \u2126 \u03a9 \ufb01 \u00b2 \u2460 \uff21\uff42\uff43", "天地玄黄，宇宙洪荒。", "いろはにほへと ガ カ\u3099 ｶﾞ", "다람쥐 \u1103\u1161\u1105\u1161\u11b7 헌 가\u11a8",
    "Быстрая лиса й и\u0306 ё", "العربية من اليمين مُحَمَّد", "עברית שָׁלוֹם \u200f\u202eRTL\u202c", "हिन्दी क्षत्रिय क\u093c ड़", "ไทย ภาษา น้ำ", "မြန်မာ ខ្មែរ ཨོཾ་",
    "Tiếng Việt: ấ a\u0302\u0301 a\u0301\u0302 ệ", "ελληνικά ΐ ι\u0308\u0301 ᾳ\u0342", "ქართული Հայերեն አማርኛ ᚠᚢᚦ", "ﷺ ﷲ \ufdfa \u0132 \u01c4 \u1e9e İstanbul ıI", "\u0344 \u0958 \u2adc \U0001d15e \U0002f800",
]
SYMBOLS = [
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466\U0001f1e9\U0001f1ea\u2764\ufe0f \U0001f44d\U0001f3fd", "\U0001d400\U0001d401 \U0001f9ee\U0001f9ee", "a\u200bb\u200cc\u200dd\u2060e\ufefff",
    "a\u0001b\u0002c\u007f\u0080\u009f", "\u00a0no-break\u2003em\u3000ideographic\u2028line\u2029para\u0085nel\u202f\u205f\u1680x", "\u180emongolian", "\ufffd\ufffe\uffff\U0010ffff \ue000",
    "¿Qué? «guillemets» — “quotes” ‚low‘ … ‽ 、。！？ ۔ ، ।", "$%^&*()_+|~`<>=@#[]{}\\/\"';:,.?!-", "!?!?...---===>>>\n\n", "a/b//c\n/d", "snake_case camelCase PascalCase HTTPServer x1y2 v2.0",
    "©®™ € £ ¥ ₿ ° ± × ÷ ≠ ∞ ∑ ∫ √", "x² y³ ½ Ⅷ ㊿ ٣ ३ ๓ 一二三 𝟘𝟙", "ſ 'ſ ' s 'S 'ſt K k",
]
SPACES = [
    "", " ", "  ", "   ", "\n", "\n\n", "\n\n\n\n", "\r\n", "\r", "\t", "\t\t\t", "a", " a", "a ", "  a  b  ", "   a", "a\n", "\na", " \n ", "  \n  \n  x",
    "a \n b", "a\n\n  b", "tail   ", "tail\n   ", "line one\nline two\r\nline three\r\rend\n\n\n", "tabs\t\tand \t mixed   runs", "word\u00a0\u00a0word", "\v\f x",
    "                                        forty", "a" + " " * 33 + "b", "▁", "▁▁a", "a▁b ▁ c", " ▁ ",
]
WORDS = [
    "Hello, world!", "hello hello hello", "The quick brown fox jumps over the lazy dog. " * 3, "I'm, you're, he'S, WE'LL, they'Ve, don't, 'twas, 'D", "''''s 's's", "rock'n'roll o'clock",
    "1", "12", "123", "1234", "12345678901234567890", "3.14159e-10", "a1b22c333d4444", "١٢٣٤٥ ১২৩ 1٢3", "1,000,000.00", "2024-11-27T16:22:31Z", "0x1F 0b1010 1_000",
    "def f(x):\n        return x + 1\n\n\n    # comment\n\tx", "{\"key\": [1, 2, {\"a\": null}]}", "https://example.org/a?b=c&d=%20#e", "a" * 200, "ab" * 60 + "\n" * 20, "天" * 70, "é" * 50, "e\u0301" * 50, "=" * 80,
    "supercalifragilisticexpialidocious antidisestablishmentarianism", "ﬁnance ﬂow oﬃce ŉ ǰ", "QWERTY qwerty ÀÉÎ àéî ΑΒΓ αβγ ДЖЗ джз",
]
TOKENS = [
    "<s>", "</s> x", "a<s>b", "<s><s></s>", "<unk>", "x <unk> y", "<|endoftext|>", "text<|endoftext|>more", "<|im_start|>user\nhi<|im_end|>\n", "<tool_call>{}</tool_call>", "a<tool_call>b", " <tool_call> ", "<tool_call",
    "<<tool_call>>", "<think>\nhm\n</think>", "[INST] hi [/INST]", "<0x0A>", "<0x41>A", "<bos><eos><pad>", "<table><tr>x</tr></table>", "<mask>", "a <mask> b", "a<mask>", "  <mask>  ", "<word>", "a<word>", "a <word> b", "<word>b é<word> <word>é",
    "<left>", "a  <left>  b", "<right>  b", " <left><right> ", "<both> <both>", "a \n<both>\n b", "<NORM>x", "<norm>x <Norm>", "É<É>e\u0301 <E\u0301>", "<a> <a>a <ab> <abc", "<reserved_106>", "[UNUSED_TOKEN_1]", "<|assistant|>  hi", "\n\n<table>\n\n",
]
TEXTS = list(dict.fromkeys(SPACES + WORDS + SCRIPTS + SYMBOLS + TOKENS))

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
LETTERS = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (LETTERS + r"*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|" + LETTERS + r"+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (LETTERS + r"*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|" + LETTERS +
         r"+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
            r"\s*[\r\n]+|\s+(?!\S)|\s+")
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"

BYTES = [f"<0x{b:02X}>" for b in range(256)]
SENTENCE = ["<unk>", "<s>", "</s>"]


def special(text, **more):
    return AddedToken(text, special=True, normalized=more.pop("normalized", False), **more)


def plain(text, **more):
    return AddedToken(text, special=False, normalized=more.pop("normalized", False), **more)


def template(front):
    ids = {front: {"id": front, "ids": [1], "tokens": [front]}}
    return {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": front, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": ids}


def train(size, pre, normalizer=None, first=(), alphabet=(), lines=CORPUS, **options):
    t = Tokenizer(models.BPE(**options))
    t.pre_tokenizer = pre
    if normalizer:
        t.normalizer = normalizer
    more = {key: options[key] for key in ("continuing_subword_prefix", "end_of_word_suffix") if options.get(key)}
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=list(first),
                                                     initial_alphabet=list(alphabet), limit_alphabet=max(200, len(alphabet)), **more))
    return json.loads(t.to_str())


def finish(j, normalizer, pre, added, post=None):
    """The file with other steps than those it was trained with, and these added tokens alone."""
    j["added_tokens"] = []
    j["normalizer"], j["pre_tokenizer"], j["post_processor"] = normalizer, pre, post
    t = Tokenizer.from_str(json.dumps(j))
    for token in added:
        (t.add_special_tokens if token.special else t.add_tokens)([token])
    return json.loads(t.to_str())


def sequence(kind, *steps):
    return {"type": "Sequence", kind: list(steps)}


def replace(what, by, kind="String"):
    return {"type": "Replace", "pattern": {kind: what}, "content": by}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def byte_level(use_regex=False, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}


PREPEND = sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"))


def sentence_pieces(normalizer, pre, added, post=None, size=900, lines=CORPUS, first=(), whole=False, **options):
    """Characters with bytes to fall back to; `whole`: tokens reach over words."""
    trained = train(size, pre_tokenizers.Metaspace("▁", "always", not whole), first=SENTENCE + list(first) + BYTES, lines=lines,
                    unk_token="<unk>", fuse_unk=options.pop("fuse_unk", True), byte_fallback=True, **options)
    return finish(trained, normalizer, pre, added, post)


def bytes_of(pattern, added, post=None, size=700, normalizer=None, pre=None, ignore_merges=False, first=()):
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    trained = train(size, pre_tokenizers.Sequence(steps + [pre_tokenizers.ByteLevel(False, True, not pattern)]), first=first,
                    alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), ignore_merges=ignore_merges)
    pre = pre or sequence("pretokenizers", split(pattern), byte_level())
    return finish(trained, normalizer, pre, added, post)


# Longer than others: one table of families.
def families():
    sp = [special(t) for t in SENTENCE]
    yield "llama2", sentence_pieces(PREPEND, None, sp, template("<s>"))
    yield "llama1_legacy", sentence_pieces(PREPEND, None, [special(t, normalized=True) for t in SENTENCE])
    yield "mistral_v3", sentence_pieces(None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
                                        sp + [special("[INST]"), special("[/INST]")], template("<s>"))
    yield "mistral_nemo", bytes_of(TEKKEN, [special("<unk>"), special("<s>"), special("</s>"), special("[INST]")],
                                   template("<s>"), ignore_merges=True)
    chat = [special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>")]
    nfc = {"type": "NFC"}
    yield "qwen2", bytes_of(QWEN, chat, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
                            normalizer=nfc)
    yield "qwen3", bytes_of(QWEN, chat + [plain(t) for t in ("<tool_call>", "</tool_call>", "<think>", "</think>")],
                            normalizer=nfc)
    yield "internlm2", sentence_pieces(PREPEND, None, sp + [special("<|im_start|>"), plain("[UNUSED_TOKEN_1]")], template("<s>"),
                                       first=["[UNUSED_TOKEN_1]"])
    yield "internlm3", sentence_pieces(sequence("normalizers", replace(" ", "▁")), None, sp + [special("<|im_end|>")])
    yield "baichuan2", sentence_pieces(replace(" ", "▁"), None, sp + [plain("<reserved_106>", normalized=True)], fuse_unk=False,
                                       first=["<reserved_106>"])
    yield "phi3", sentence_pieces(PREPEND, None, [special("<unk>"), special("<s>"), plain("</s>", rstrip=True),
                                                  special("<|endoftext|>"), special("<|assistant|>", rstrip=True)], template("<s>"))
    yield "olmo2", bytes_of(CL100K, [special("<|endoftext|>"), special("<|im_start|>")], size=640,
                            pre=sequence("pretokenizers", split(CL100K, "Removed", True), byte_level()))
    blanks = [plain(" " * n, normalized=True) for n in range(24, 1, -1)]
    yield "olmo1_neox", bytes_of("", blanks + [special("<|endoftext|>")], normalizer=nfc, pre=byte_level(True))
    yield "llama3", bytes_of(LLAMA3, [special("<|begin_of_text|>"), special("<|end_of_text|>")], ignore_merges=True,
                             post=sequence("processors", byte_level(True, True), template("<|begin_of_text|>")))
    gemma = [special(t) for t in ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")] + [
        plain(t) for t in ("\n", "\n\n", "\n\n\n", "\t", "\t\t", "▁▁", "▁▁▁", "▁▁▁▁", "<table>", "</table>", "<tr>")]
    yield "gemma2", sentence_pieces(replace(" ", "▁"), split(" ", "MergedWithPrevious", kind="String"), gemma, template("<bos>"),
                                    first=["<pad>", "<eos>", "<bos>", "<mask>", "\n", "\n\n", "▁▁", "▁▁▁"])
    yield "yi", sentence_pieces(sequence("normalizers", replace(" ", "▁")), None,
                                sp + [special("<|endoftext|>"), plain("<|im_start|>", normalized=True)], whole=True)
    cjk = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
    yield "deepseek", bytes_of(DEEPSEEK, [special("<|endoftext|>"), plain("<think>", normalized=True)],
                               normalizer=sequence("normalizers"),
                               pre=sequence("pretokenizers", split(r"\p{N}{1,3}"), split(cjk), split(DEEPSEEK), byte_level()))
    yield "seed_oss", bytes_of(LLAMA3, [special("<bos>"), special("<eos>"), plain("<think>"), plain("</think>")],
                               pre=sequence("pretokenizers", split(r"\p{N}{1,3}"), split(LLAMA3), byte_level()))
    yield "bloom", bytes_of(BLOOM, [special("<unk>"), special("<s>"), special("</s>"), special("<pad>")])
    yield "gpt2", bytes_of("", [special("<|endoftext|>", normalized=True)], pre=byte_level(True))
    yield "roberta", bytes_of("", [special("<s>"), special("</s>"), special("<unk>"), plain("<mask>", lstrip=True)],
                              pre=byte_level(True, True))
    yield "falcon", bytes_of("", [plain(">>TITLE<<"), special("<|endoftext|>")],
                             pre=sequence("pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, byte_level(True),
                                          {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]")))
    yield "starcoder", bytes_of("", [special("<|endoftext|>")],
                                pre=sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level(True)))
    yield "o200k", bytes_of(O200K, [special("<|endoftext|>")])
    odd = [plain("<word>", single_word=True), plain("<left>", lstrip=True), plain("<right>", rstrip=True),
           plain("<both>", lstrip=True, rstrip=True), plain("<NORM>", normalized=True), plain("<É>", normalized=True),
           plain("<a>"), plain("<ab"), special("<abc"), plain("a<b"), plain("é<word> ", lstrip=True)]
    yield "added_tokens", bytes_of(QWEN, odd, normalizer=sequence("normalizers", {"type": "NFKC"}, {"type": "Lowercase"}))
    yield "added_tokens_metaspace", sentence_pieces(
        None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}, sp + odd, fuse_unk=False)
    yield "clip", finish(
        train(500, pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CLIP), "removed", True), pre_tokenizers.ByteLevel(False, True, False)]),
              normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]), alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
              first=["<|endoftext|>"], end_of_word_suffix="</w>", unk_token="<|endoftext|>"),
        sequence("normalizers", nfc, replace(r"\s+", " ", "Regex"), {"type": "Lowercase"}),
        sequence("pretokenizers", split(CLIP, "Removed", True), byte_level()), [special("<|endoftext|>")])
    yield "words", finish(
        train(400, pre_tokenizers.Whitespace(), first=["<unk>"], continuing_subword_prefix="##", unk_token="<unk>"),
        sequence("normalizers", {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "NFD"}, {"type": "StripAccents"}),
        sequence("pretokenizers", {"type": "Whitespace"}, {"type": "Punctuation", "behavior": "MergedWithPrevious"}), [special("<unk>")])
    for n, behavior in enumerate(("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")):
        steps = [{"type": "CharDelimiterSplit", "delimiter": "="}, split(r"[0-9]|(?=[A-Z])|,\s*", behavior, n % 2 == 1),
                 {"type": "Punctuation", "behavior": behavior}, split("a", behavior, n in (2, 4), "String"),
                 {"type": "WhitespaceSplit"} if n % 2 else byte_level(False, n == 2)]
        form = ("NFKD", "NFD", "NFKC", "NFC", "NFKD")[n]
        yield f"split_{behavior.lower()}", bytes_of(
            LLAMA3, [], normalizer=sequence("normalizers", {"type": form}, {"type": "Strip", "strip_left": n == 1, "strip_right": n == 2},
                                            {"type": "ByteLevel"}) if n % 2 else {"type": form},
            pre=sequence("pretokenizers", *steps))


# What Oniguruma and PCRE2 read differently, or might.
PATTERNS = [
    r"\s+", r"\S+", r"[\S]+", r"[^\S\n]+", r"\w+", r"\W+", r"[\w-]+", r"\b", r"\B", r"\bx|x\b", r"\h+", r"\H", r"\v", r"[\h\v]", r"\d+", r"\D+", r"[\d\-x]+", r"$", r"^", r"^.", r".$", r".+",
    r"(?m).+", r"(?m:.)+", r"(?-m:.)+", r"x{,2}", r"x{1,2}+", r"(?:ab){1,2}+c", r"x{2,}?", r"x{1,2}?", r"x{2}", r"x{", r"{x}", r"x{,}", r"x{a}", r"[a[bc]d]+", r"[^a[bc]]+", r"[^(\s|[.,!?])]+",
    r"[a\-c]+", r"[-a]+", r"[a-]+", r"[]a]+", r"[^]a]+", r"[\]a]+", r"[\^a]", r"[a^]", r"[\b]", r"[[:alpha:]]+", r"[[:digit:][:space:]]+", r"[[:upper:]]", r"[[:word:]]+", r"[[:xdigit:]]+",
    r"\p{L}+", r"\P{L}+", r"\p{^L}+", r"\P{^L}+", r"[\p{L}\p{M}]+", r"[^\p{L}\p{N}]+", r"\p{Letter}+", r"\p{Uppercase_Letter}", r"\p{Lu}", r"\p{lu}", r"\p{Nd}+", r"\p{Han}+", r"\p{Hiragana}+", r"\p{Greek}+", r"\p{Alpha}+",
    r"\p{Space}+", r"\p{Digit}+", r"\p{Upper}", r"\p{Lower}+", r"\p{P}", r"\p{S}", r"\p{Sm}", r"\p{C}", r"\p{Zs}", r"(?i)abc", r"(?i:abc)x", r"a(?i:b)c", r"(?i:'s|'ll)", r"(?i:\u017f|K)", r"\x41", r"\x{e9}", r"\u00e9", r"[\u3040-\u309f]+",
    r"[\x{4e00}-\x{9fa5}]+", r"\t|\n|\r|\f|\e|\a", r"\.", r"\ ", r"\/", r"\-", r"a*+b", r"a++", r"a?+b", r"a*?b", r"(?>a|ab)c", r"(?=b)", r"(?<=a)", r"(?!x)", r"(?<!a)b", r"(?#note)x", r"(a)\1", r"(a|b)+", r"|x", r"x|", r"\A.", r".\z", r".\Z", r"\R",
    r"x*", r"(?:)", r"é", r"é+", r"[é天]+", r"\é", r"[^\r\n]", r"[\r\n]+", r"\s+(?!\S)|\s+", r"(?<=\d)(?=(?:\d{3})+\b)", r"0|(?<![a-z])\d", LLAMA3, QWEN, CL100K, TEKKEN, O200K, DEEPSEEK, BLOOM, CLIP,
]
PATTERN_TEXTS = [
    "", "x", "\n", "a b\nc\n", "abcabc x{1} xx xxx xxxx -a]^[ \b", "ab abc ABC aBc KELVIN \u212a \u017f 's 'LL 'll \u0131\u0130", "1234567 12,345 \u0663\u0664 x\u00b2 \u2163",
    "\u00e9\u00e8 e\u0301 \u5929\u5730\u3042\u30a2 \u03b1\u03b2 \u00aa_x-y", "\u00a0\u2003\u3000\u2028\u0085\u180e\t\v\f\r\n  ", "\u0001\u0007\u001b\u007f\ufffd\U0001f600\u200d\u0301", "$+<=>^`|~ .,!? (x|y) \u3002\u060c", "aab aaab ab b", "/.- \\ {x} {,} {a}",
]


def write_patterns():
    cases = []
    for pattern in PATTERNS:
        try:
            cut = pre_tokenizers.Split(Regex(pattern), "isolated")
        except Exception as error:
            sys.exit(f"{pattern}: {error}")
        cases.append({"pattern": pattern, "pieces": [[piece for piece, _ in cut.pre_tokenize_str(text)] if text else [] for text in PATTERN_TEXTS]})
    rows = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    (OUT / "patterns.json").write_text('{"texts": %s,\n"patterns": [\n%s]}\n' % (json.dumps(PATTERN_TEXTS), rows))


def main():
    OUT.mkdir(exist_ok=True)
    only, before = set(sys.argv[1:]), {}
    if only:
        kept = json.loads((OUT / "ids.json").read_text())
        if kept["texts"] != TEXTS or kept["made_with"] != f"tokenizers {__version__}":
            sys.exit(f"ids.json has other texts, or is of {kept['made_with']}: without names all families are made anew")
        before = kept["families"]
    else:
        write_patterns()
    ids = {"made_with": f"tokenizers {__version__}", "texts": TEXTS, "families": {}}
    for name, made in families():
        if only and name not in only:
            if name in before:
                ids["families"][name] = before[name]
            continue
        if made["model"].get("vocab") and len(made["model"]["vocab"]) < 100:
            sys.exit(f"{name}: a vocabulary of {len(made['model']['vocab'])} tokens tests little")
        text = json.dumps(made, ensure_ascii=False, separators=(",", ":"))
        (OUT / f"{name}.json").write_text(text + "\n")
        t = Tokenizer.from_str(text)
        t.encode_special_tokens = True
        ids["families"][name] = [t.encode(x, add_special_tokens=False).ids for x in TEXTS]
    if unknown := only - set(ids["families"]):
        sys.exit(f"no case of families() is called {', '.join(sorted(unknown))}")
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(rows, separators=(',', ':'))}" for name, rows in ids["families"].items())
    (OUT / "ids.json").write_text('{"made_with": %s,\n"texts": %s,\n"families": {\n%s}}\n' % (
        json.dumps(ids["made_with"]), json.dumps(TEXTS), rows))
    size = sum(f.stat().st_size for f in OUT.iterdir())
    print(f"{len(ids['families'])} families, {len(TEXTS)} texts, {size} bytes")


if __name__ == "__main__":
    main()

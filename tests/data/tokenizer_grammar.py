"""Writes random tokenizer.json files and the results that the package `tokenizers` computes with them.

    tokenizer_grammar.py COUNT SEED

Each line of output is {"tokenizer": {...}, "texts": [...], "ids": [[...], ...], "decoded": [...]}. "ids" and "decoded"
are null if the package rejects the file or a text.
"""

import json
import os
import random
import sys

from tokenizers import Tokenizer

# bytes that byte-level BPE represents by the character with the same code
KEEP = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTE = {b: chr(b) for b in KEEP}
BYTE |= {b: chr(256 + n) for n, b in enumerate(b for b in range(256) if b not in BYTE)}
SPACE = "\u2581"
WORDS = [
    "the",
    " the",
    "ing",
    " a",
    "ab",
    "aab",
    "  ",
    "\n\n",
    "\t ",
    "é",
    " é",
    "12",
    "123",
    "don't",
    "'s",
    "It",
    "ß",
    "中文",
    "e\u0301",
    "\u00a0",
    "!!",
    "...",
    " x",
    "x ",
    "a b",
    "\r\n",
    "İ",
    "ſ",
    "K",
    "👍",
    "ﬁ",
    "ss",
    "SS",
]
PARTS = [
    *WORDS,
    " ",
    " ",
    "a",
    "b",
    "A",
    "Z",
    "s",
    "S",
    "1",
    "٣",
    "Ⅷ",
    "-",
    "_",
    "<",
    "|",
    ">",
    "<|x|>",
    "<|y|>",
    "[x]",
    SPACE,
    "Ж",
    "ж",
    "\u3000",
    "\u0301",
    "\u200b",
    "'",
    "'S",
    "'LL",
    "\u180e",
    "\u2028",
    "é",
    "ẞ",
    "q",
    "w",
    "^",
    "$",
]


ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"


def text(rng):
    return "".join(rng.choice(PARTS) for _ in range(rng.randrange(0, 14)))


def regex(rng, depth=0):
    """Returns a random regular expression in Oniguruma's syntax, the syntax of the package `tokenizers`. Some
    constructs have a different meaning in PCRE2, which `lazy` uses."""
    kind = rng.random()
    if depth > 2 or kind < 0.45:
        shared = [
            r"\p{L}",
            r"\p{N}",
            r"\p{Lu}",
            r"\p{Ll}",
            r"\p{M}",
            r"\p{P}",
            r"\P{L}",
            r"\s",
            r"\S",
            r"\d",
            r"\D",
            r"\r",
            r"\n",
            ".",
            "a",
            "b",
            "s",
            " ",
            "'",
            "é",
            "中",
            r"\.",
            r"\-",
            r"\u00e9",
            r"\x{e9}",
            "-",
            "]",
            r"\t",
            r"[a-c]",
            r"[^\s\p{L}\p{N}]",
            r"[^\r\n\p{L}\p{N}]",
            r"[\p{L}\p{M}]",
            r"[abc-]",
            r"[.,!?]",
            r"[a[bc]]",
            r"[^a[bc]\s]",
            r"[\p{Lu}\p{Lt}\p{Lo}]",
            r"[\n\r]",
            r"[a-zé]",
            r"[^\S]",
            r"['ſ]",
            "ab",
            "a b",
            "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
            "(?i:[sdmt]|ll|ve|re)",
            "(?i:ab)",
            "(?i:k)",
        ]
        differ = [
            r"(?i:ss)",
            r"\p{Han}",
            r"\p{Greek}",
            r"\w",
            r"\W",
            r"\h",
            r"\b",
            r"\B",
            "^",
            "$",
            r"\A",
            r"\z",
            r"\X",
            r"\R",
            r"\K",
            r"\pL",
            r"[[:alpha:]]",
            r"[\p{L}&&[^a]]",
            r"[a-z&&[^b]]",
            r"[[^a]b]",
            r"[\w]",
            r"\x41",
            r"\101",
            "(?<n>a)",
            "(?>a+)",
            "(a)\\1",
            r"\v",
            r"\e",
            r"[]a]",
            r"\p{^L}",
            r"\p{Letter}",
            r"\p{Alpha}",
            r"\p{Cn}",
            r"\p{Zs}",
            r"(?m:.)",
            r"(?x: a b )",
            r"\Q.\E",
        ]
        return rng.choice(differ if rng.random() < 0.05 else shared)
    if kind < 0.7:
        usual = ["+", "+", "+", "*", "?", "{2}", "{1,3}", "{2,}", "+?", "++", "?+", "*+", "{1,2}?"]
        quantifier = rng.choice(["{,2}", "*?", "??", "{1,2}+", "{2}?", "{0,2}", "{0}"] if rng.random() < 0.1 else usual)
        atom = regex(rng, depth + 1)
        return (atom if len(atom) < 3 or rng.random() < 0.3 else f"(?:{atom})") + quantifier
    if kind < 0.85:
        return "".join(regex(rng, depth + 1) for _ in range(rng.randrange(1, 4)))
    if kind < 0.93:
        return "(?:" + "|".join(regex(rng, depth + 1) for _ in range(rng.randrange(1, 4))) + ")"
    return rng.choice(["(?=", "(?!", "(?<=", "(?<!", "("]) + regex(rng, depth + 1) + ")"


def pattern(rng):
    if rng.random() < 0.15:
        return {"String": rng.choice([" ", "a", ".", "ab", "-", "é", "", "[", "\n"])}
    if rng.random() < 0.5:
        return {
            "Regex": rng.choice(
                [
                    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*" + SPACES,
                    ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES,
                    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
                    + ENDINGS
                    + r"?|\s+",
                    r" ?[^(\s|[.,!?…。，、।۔،])]+",
                    r"\p{N}{1,3}",
                    r"\p{N}",
                    r" ?\p{L}+| ?\p{N}+|\s+",
                    r"\p{N}{1,3}+|.",
                    r"ab$|.",
                    r"^ab|.",
                    r"[\p{L}&&[^\p{Han}]]+|.",
                ]
            )
        }
    return {"Regex": "|".join(regex(rng) for _ in range(rng.randrange(1, 4)))}


def split(rng):
    behavior = rng.choice(["Isolated"] * 30 + ["Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"])
    return {"type": "Split", "pattern": pattern(rng), "behavior": behavior, "invert": rng.random() < 0.15}


def byte_level(rng):
    out = {
        "type": "ByteLevel",
        "add_prefix_space": rng.random() < 0.2,
        "trim_offsets": rng.random() < 0.5,
        "use_regex": rng.random() < 0.4,
    }
    if rng.random() < 0.1:
        del out["use_regex"]
    return out


def byte_pre_tokenizer(rng):
    steps = []
    for _ in range(rng.choice([0, 0, 1, 1, 1, 2])):
        steps.append(
            rng.choice(
                [
                    split,
                    split,
                    split,
                    split,
                    split,
                    split,
                    lambda r: {"type": "Digits", "individual_digits": r.random() < 0.5},
                    lambda r: {"type": r.choice(["Whitespace", "WhitespaceSplit", "BertPreTokenizer"])},
                    lambda r: {"type": "Punctuation", "behavior": "Isolated"},
                ]
            )(rng)
        )
    steps.append(byte_level(rng))
    if rng.random() < 0.05:
        steps.append(split(rng))
    if rng.random() < 0.03:
        return None
    return steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}


def normalizer(rng):
    kind = rng.random()
    if kind < 0.65:
        return None
    if kind < 0.9:
        return {"type": "NFC"}
    if kind < 0.95:
        return {
            "type": "Sequence",
            "normalizers": [normalizer(rng) or {"type": "NFC"} for _ in range(rng.randrange(1, 3))],
        }
    return rng.choice(
        [
            {"type": "NFD"},
            {"type": "NFKC"},
            {"type": "Lowercase"},
            {"type": "Prepend", "prepend": "x"},
            {"type": "Strip", "strip_left": True, "strip_right": False},
            {"type": "Replace", "pattern": {"String": "a"}, "content": "b"},
        ]
    )


def added_tokens(rng, vocab, pieces):
    out, taken = [], set(vocab.values())
    contents = [
        "<|x|>",
        "<|y|>",
        "[x]",
        "ab",
        " x",
        "é",
        "e\u0301",
        "the",
        "  ",
        "<s>",
        "</s>",
        "Ab",
        SPACE + "x",
        "ſ",
        "it",
    ]
    for content in rng.sample(contents, rng.choice([0, 1, 2, 2, 3])):
        known = vocab.get(content)
        if known is None:
            known = max(taken, default=-1) + 1
        elif rng.random() < 0.05:
            known += 1
        taken.add(known)
        special = rng.random() < 0.7
        out.append(
            {
                "id": known,
                "content": content,
                "single_word": rng.random() < 0.03,
                "lstrip": rng.random() < 0.15,
                "rstrip": rng.random() < 0.15,
                "special": special,
                "normalized": rng.random() < (0.1 if pieces else 0.5) and not (special and rng.random() < 0.7),
            }
        )
    return sorted(out, key=lambda token: token["id"])


def merges_of(rng, words, spell, vocab):
    merges = []
    for word in words:
        parts = spell(word)
        while len(parts) > 1:
            i = rng.randrange(len(parts) - 1)
            whole = parts[i] + parts[i + 1]
            if [parts[i], parts[i + 1]] not in merges:
                merges.append([parts[i], parts[i + 1]])
            vocab.setdefault(whole, len(vocab))
            parts[i : i + 2] = [whole]
    if merges and rng.random() < 0.03:
        merges.append(rng.choice(merges))
    return merges if rng.random() < 0.5 else [" ".join(m) for m in merges]


def model_options(rng, model):
    if rng.random() < 0.15:
        model["dropout"] = rng.choice([None, None, 0.0, 0.0, 0.3])
    if rng.random() < 0.15:
        model["unk_token"] = rng.choice([None, "<unk>", "a"])
    if rng.random() < 0.1:
        model["fuse_unk"] = rng.random() < 0.5
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if rng.random() < 0.1:
            model[key] = rng.choice([None, "", "", "", "##", "</w>"])
    if rng.random() < 0.2:
        model["ignore_merges"] = rng.random() < 0.6
    return model


def byte_model(rng):
    vocab = {BYTE[b]: n for n, b in enumerate(range(256))}
    if rng.random() < 0.2:
        for b in rng.sample(range(256), rng.randrange(1, 60)):
            del vocab[BYTE[b]]
        vocab = {token: n for n, token in enumerate(vocab)}
    spell = lambda word: [BYTE[b] for b in word.encode()]
    words = [w for w in rng.sample(WORDS, 12) if all(c in vocab for c in spell(w))]
    merges = merges_of(rng, words, spell, vocab)
    if rng.random() < 0.2:
        for raw in rng.sample(["é", " ", "the", "日本", "\n", "<s>", "</s>", "<unk>", "ab", " x", "q w"], 3):
            vocab.setdefault(raw, len(vocab))
    if rng.random() < 0.1:
        vocab.setdefault("".join(spell("zzz")), len(vocab))
    return model_options(rng, {"type": "BPE", "vocab": vocab, "merges": merges})


def piece_model(rng):
    vocab = {p: n for n, p in enumerate(["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))])}
    if rng.random() < 0.04:
        del vocab["<0x41>"]
        vocab = {token: n for n, token in enumerate(vocab)}
    spell = lambda word: list(word.replace(" ", SPACE))
    words = [w for w in rng.sample(WORDS, 10)]
    if rng.random() < 0.5:  # allow a space only at the beginning of a word
        words = [w for w in words if " " not in w[1:]]
    for char in {c for w in words for c in spell(w)} | ({SPACE} if rng.random() < 0.98 else set()):
        vocab.setdefault(char, len(vocab))
    merges = merges_of(rng, words, spell, vocab)
    model = {
        "type": "BPE",
        "unk_token": "<unk>",
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": vocab,
        "merges": merges,
    }
    return model_options(rng, model) if rng.random() < 0.3 else model


def piece_steps(rng):
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = {"type": "Prepend", "prepend": SPACE}
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": rng.choice(["always", "first", "never"])}
    if rng.random() < 0.7:
        metaspace["split"] = rng.random() < 0.5
    if rng.random() < 0.1:
        metaspace["replacement"] = "_"
    normal = rng.choice(
        [
            None,
            replace,
            {"type": "Sequence", "normalizers": [prepend, replace]},
            {"type": "Sequence", "normalizers": [prepend, replace]},
            replace,
            {"type": "Sequence", "normalizers": [replace, prepend]},
            prepend,
            {"type": "NFC"},
            {"type": "Sequence", "normalizers": [prepend, prepend, replace]},
        ]
    )
    # Half of the cases use one of the two combinations of normalizer and pre-tokenizer that published tokenizers have.
    if rng.random() < 0.5:
        return rng.choice([(normal if normal and normal["type"] == "Sequence" else replace, None), (None, metaspace)])
    pre = rng.choice(
        [
            None,
            metaspace,
            metaspace,
            {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        ]
    )
    return normal, pre


def piece_decoder(rng):
    steps = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if rng.random() < 0.5:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    if rng.random() < 0.1:
        return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    return {"type": "Sequence", "decoders": steps}


def tokenizer(rng):
    kind = rng.random()
    out = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
    }
    if kind < 0.6:
        out["model"] = byte_model(rng)
        out["normalizer"], out["pre_tokenizer"] = normalizer(rng), byte_pre_tokenizer(rng)
        out["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    elif kind < 0.95:
        out["model"] = piece_model(rng)
        out["normalizer"], out["pre_tokenizer"] = piece_steps(rng)
        out["decoder"] = piece_decoder(rng)
    else:
        words = {w: n for n, w in enumerate(["[UNK]", *WORDS])}
        out["model"] = rng.choice(
            [
                {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"},
                {
                    "type": "WordPiece",
                    "vocab": words,
                    "unk_token": "[UNK]",
                    "continuing_subword_prefix": "##",
                    "max_input_chars_per_word": 100,
                },
                {
                    "type": "Unigram",
                    "unk_id": 0,
                    "vocab": [[w, -float(n)] for w, n in words.items()],
                    "byte_fallback": False,
                },
            ]
        )
        out["pre_tokenizer"] = {"type": "Whitespace"}
    vocab = out["model"]["vocab"]
    if isinstance(vocab, dict):
        out["added_tokens"] = added_tokens(rng, vocab, kind >= 0.6)
    if rng.random() < 0.03:
        out[rng.choice(["model", "pre_tokenizer"])] and out["model"].update(some_new_key=1)
    return out


def run(case):
    """Adds the results of the package `tokenizers` to a case. A separate process computes them, because some tokenizer
    files abort the process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            loaded = Tokenizer.from_str(json.dumps(case["tokenizer"]))
            ids = [loaded.encode(t, add_special_tokens=False).ids for t in case["texts"]]
            answer = {"ids": ids, "decoded": [loaded.decode(i, skip_special_tokens=False) for i in ids]}
        except BaseException as error:  # a panic of the package's Rust code is a BaseException
            answer = {"error": str(error)[:200]}
        with os.fdopen(write, "w") as out:
            json.dump(answer, out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    case.update(json.loads(answer) if answer else {"error": "the package ended the process"})


def main():
    count, rng = int(sys.argv[1]), random.Random(int(sys.argv[2]))
    for _ in range(count):
        case = {"tokenizer": tokenizer(rng), "texts": [text(rng) for _ in range(12)], "ids": None, "decoded": None}
        run(case)
        print(json.dumps(case))


main()

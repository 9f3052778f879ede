#!/usr/bin/env python3
"""Finds wording that is hard to understand in comments, messages, help texts and documentation.

    python scripts/lint_prose.py [PATH ...]          every finding, with the advice
    python scripts/lint_prose.py --summary           findings per directory
    python scripts/lint_prose.py --check             fails if a directory has more than prose_findings.json allows
    python scripts/lint_prose.py --update            writes prose_findings.json (after findings were fixed)
    python scripts/lint_prose.py --sample 60 --kind comments --seed 1     random texts with their context, for a reader

A text is a comment, a string literal of several words (messages and help), or a Markdown paragraph outside of code
blocks. The script searches each text for the patterns in PATTERNS. CONTRIBUTING.md explains how to write.
"""

import argparse
import collections
import io
import json
import random
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "scripts/prose_findings.json"
KINDS = ("comments", "messages", "docs")
NATIVE = {".cc", ".h", ".cu", ".cuh", ".cpp"}
UNITS = (
    "bytes bits tokens ids ms us seconds milliseconds times once digits numbers sequences texts documents steps "
    "samples rows keys queries values weights floats lines words files entries nats GiB MiB GB MB gradients heads "
    "micro-batches one two three four number product products pass passes"
).split()
SHARES = (
    "token row layer head step second sequence text prompt task query key rank GPU page line file sample block warp "
    "thread tile word document position group batch request"
).split()
# Pairs of a pattern and its advice. The patterns are matched case-insensitively.
PATTERNS = [
    (
        r"(?:^|[.:;,(]\s+|\b(?:of|for|by|than|and|or)\s+)who\s+(?!(?:is|are)\s+who\b)[a-z]+(?![^.]*\?)",
        "name the subject",
    ),
    (r"\bbeside\b", "compared with, in addition to, next to"),
    (r"\bbehind\b|\bin front of\b", "after, before"),
    (r"\b(?:stands?|stood|lies|lay|sits?)\b(?!\s+for\b)", "is, is stored in"),
    (r"\brooms?\b", "memory, capacity; module"),
    (rf"\b(?:{'|'.join(UNITS)})\s+an?\s+(?:{'|'.join(SHARES)})\b", "per ..."),
    (r"(?<!lazy )\bserves\b", "supports, handles, implements"),
    (r"\bturn(?:ed|s)\b(?!\s+(?:on|off|out|into)\b)", "rotated, applies RoPE"),
    (r"\bmade of\b", "computed from, consists of"),
    (r"\b(?:at most|at least)(?=\s*(?:[.;:)]|$))", "put the limit before the number: at most 64 tokens"),
    (r"\bk(?:Most|Fewest|Least)[A-Z]\w*|\bmost_[a-z]+", "kMaxX, kMinX, max_x"),
    (r"\bfew rows\b|\bby themselves\b", "small batch, skinny GEMM"),
    (r"\bis another one\b|\bare others\b", "differs"),
    (r"\bas good as\b|\b(?:is|are) no\s+[a-z]+", "is treated as; is not a"),
    (r"\basked for\b", "requested, loaded, prefetched"),
    (r"\bonce each\b|\bone by one\b|\bof (?:its|their) own\b", "say what is shared or separate"),
    (r"\b(?:that|those) of\b", "repeat the noun"),
]
COMPILED = [(re.compile(pattern, re.IGNORECASE | re.MULTILINE), advice) for pattern, advice in PATTERNS]
STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
Text = collections.namedtuple("Text", "path line kind text")


def native_texts(path, source):
    """Yields comments and string literals of several words. Adjacent comment lines and literals are joined."""
    comment, start = [], 0
    literal, literal_start = [], 0
    lines = source.split("\n")
    for number, line in enumerate([*lines, ""], 1):
        bare = STRING.sub(lambda m: '"' + " " * len(m[1]) + '"', line)
        at = bare.find("//")
        if at >= 0 and not line[at:].startswith("///"):
            alone = not bare[:at].strip()
            if comment and not alone:
                yield Text(path, start, "comments", " ".join(comment))
                comment = []
            start = start if comment else number
            comment.append(line[at + 2 :].strip())
        if (at < 0 or bare[:at].strip()) and comment:
            yield Text(path, start, "comments", " ".join(comment))
            comment = []
        code = line if at < 0 else line[:at]
        found = [] if code.lstrip().startswith("#") else [m[1] for m in STRING.finditer(code)]
        if found:
            literal_start = literal_start if literal else number
            literal += found
        if literal and (not found or not re.search(r'"\s*$', code)):
            yield Text(path, literal_start, "messages", "".join(literal))
            literal = []


def python_texts(path, source):
    comment, start, last = [], 0, -1
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return
    previous = tokenize.NEWLINE
    for token in tokens:
        if token.type == tokenize.COMMENT:
            if comment and token.start[0] != last + 1:
                yield Text(path, start, "comments", " ".join(comment))
                comment = []
            start = start if comment else token.start[0]
            comment.append(token.string.lstrip("#").strip())
            last = token.start[0]
        elif token.type == tokenize.STRING:
            text = re.sub(r"^[a-zA-Z]*(\"\"\"|'''|\"|')|(\"\"\"|'''|\"|')$", "", token.string)
            docstring = previous in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.NL)
            yield Text(path, token.start[0], "comments" if docstring else "messages", text)
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            previous = token.type
    if comment:
        yield Text(path, start, "comments", " ".join(comment))


def markdown_texts(path, source):
    paragraph, start, code = [], 0, False
    for number, line in enumerate([*source.split("\n"), ""], 1):
        fence = line.lstrip().startswith("```")
        begins = fence or not line.strip() or re.match(r"\s*(?:[-*+]\s|[#|]|\d+\.\s)", line)
        if begins and paragraph:
            yield Text(path, start, "docs", " ".join(paragraph))
            paragraph = []
        if fence:
            code = not code
        elif line.strip() and not code:
            start = start if paragraph else number
            paragraph.append(line.strip())


def texts_of(path):
    source = (ROOT / path).read_text(encoding="utf-8", errors="replace")
    suffix = Path(path).suffix
    reader = native_texts if suffix in NATIVE else python_texts if suffix == ".py" else markdown_texts
    for text in reader(path, source):
        words = re.findall(r"[A-Za-z]{2,}", text.text)
        if len(words) >= (4 if text.kind == "messages" else 3):
            yield text


def files(paths):
    listed = subprocess.run(["git", "ls-files", *paths], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in listed.split("\n"):
        skipped = path.startswith(("docs/results/", "CHANGELOG")) or path == "scripts/lint_prose.py"
        if Path(path).suffix in NATIVE | {".py", ".md"} and not skipped:
            yield path


def findings(paths):
    for path in files(paths):
        for text in texts_of(path):
            prose = re.sub(r"`[^`]*`", "`x`", text.text) if text.kind == "docs" else text.text
            for pattern, advice in COMPILED:
                for match in pattern.finditer(prose):
                    yield text, match[0], advice


def directory(path):
    parts = Path(path).parts
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0] if len(parts) > 1 else "."


def summary(paths):
    return dict(sorted(collections.Counter(directory(text.path) for text, _, _ in findings(paths)).items()))


def check():
    allowed, found = json.loads(ALLOWED.read_text()), summary([])
    more = {name: count for name, count in found.items() if count > allowed.get(name, 0)}
    for name, count in more.items():
        print(f"lint_prose: {name}: {count} findings, at most {allowed.get(name, 0)} allowed: lint_prose.py {name}")
    return 1 if more else 0


def sample(paths, kind, count, seed):
    """Prints random texts with five lines before and after their beginning. The strings of the tests are data and names
    of tests, not messages to a user."""
    texts = [
        text
        for path in files(paths)
        if kind != "messages" or not path.startswith("tests/")
        for text in texts_of(path)
        if text.kind == kind
    ]
    for text in random.Random(seed).sample(texts, min(count, len(texts))):
        lines = (ROOT / text.path).read_text(encoding="utf-8", errors="replace").split("\n")
        print(f"--- {text.path}:{text.line}: {text.text}")
        print("\n".join(lines[max(0, text.line - 6) : text.line + 5]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=[])
    for name in ("summary", "check", "update"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--sample", type=int, metavar="N")
    parser.add_argument("--kind", choices=KINDS, default="comments")
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    if a.sample:
        return sample(a.paths, a.kind, a.sample, a.seed)
    if a.check:
        return check()
    if a.update:
        return ALLOWED.write_text(json.dumps(summary([]), indent=1) + "\n") and 0
    if a.summary:
        counts = summary(a.paths)
        print("\n".join(f"{count:6} {name}" for name, count in counts.items()) + f"\n{sum(counts.values()):6} in all")
        return 0
    for text, found, advice in findings(a.paths):
        print(f"{text.path}:{text.line}: '{' '.join(found.split())}': {advice}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

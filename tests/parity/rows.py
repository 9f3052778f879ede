"""Benchmark rows as `lazy eval --data DIR` reads them, turned into the columns of the Hub's data sets, so that
lm-evaluation-harness's own task definitions run on them without a network."""

import json
import re
from pathlib import Path

# Task of lm-evaluation-harness: (the data set it asks the Hub for, its configuration, split, names below DIR)
SETS = {
    "wikitext": (
        "EleutherAI/wikitext_document_level",
        "wikitext-2-raw-v1",
        "test",
        ["wikitext-2-raw-test.txt", "wikitext-2-raw/wiki.test.raw", "wiki.test.raw"],
    ),
    "lambada_openai": ("EleutherAI/lambada_openai", "default", "test", ["lambada_openai.jsonl"]),
    "piqa": ("baber/piqa", None, "validation", ["piqa.jsonl"]),
    "hellaswag": ("Rowan/hellaswag", None, "validation", ["hellaswag.jsonl"]),
    "winogrande": ("allenai/winogrande", "winogrande_xl", "validation", ["winogrande.jsonl"]),
    "arc_easy": ("allenai/ai2_arc", "ARC-Easy", "test", ["arc_easy.jsonl"]),
    "arc_challenge": ("allenai/ai2_arc", "ARC-Challenge", "test", ["arc_challenge.jsonl"]),
    "social_iqa": ("lighteval/siqa", None, "validation", ["social_iqa.jsonl"]),
    "boolq": ("aps/super_glue", "boolq", "validation", ["boolq.jsonl"]),
}
TASKS = list(SETS)


def find(task, data, train=False):
    """The task's file below DIR or DIR/eval; None where there is no TASK-train.jsonl."""
    for folder in (Path(data), Path(data) / "eval"):
        for name in [f"{task}-train.jsonl"] if train else SETS[task][3]:
            if (folder / name).exists():
                return folder / name
    if train:
        return None
    raise FileNotFoundError(f"{data}: task {task}: expected {SETS[task][3][0]} there, found none")


def pages(raw):
    """The pages of a raw WikiText file: a page begins at a heading with one equals sign on each side."""
    result, page = [], []
    for line in raw.split("\n"):
        heading = line.replace("= = =", "===").replace("= =", "==").strip()
        if heading.startswith("= ") and heading.endswith(" ="):
            result.append("\n".join(page))
            page = []
        page.append(line)
    result.append("\n".join(page))
    return [page for page in result if page.strip()]


def _hellaswag(row):
    # Rows past the context rule: split anywhere at ": ", the harness joins the parts to the same text and cleans it.
    # (It joins ctx_a and ctx_b by a space, which its cleaning strips again where ctx_b is empty.)
    if "query" not in row:
        return row
    label, _, context = row["query"].partition(": ")
    return {
        "activity_label": label,
        "ctx_a": context,
        "ctx_b": "",
        "endings": row["choices"],
        "label": str(row["gold"]),
    }


def _boolq(row):
    if "answer" not in row:
        return row
    return {"question": row["question"], "passage": row["passage"], "label": int(row["answer"])}


def rows(task, data, train=False):
    """A list of dictionaries with the Hub's columns."""
    file = find(task, data, train)
    text = file.read_text(encoding="utf-8") if file else ""
    if task == "wikitext":
        return [{"page": page} for page in pages(text)]
    # Not str.splitlines(), which also parts lines at U+2028 and the like inside a string.
    loaded = [json.loads(line) for line in re.split(r"\r?\n", text) if line.strip()]
    convert = {"hellaswag": _hellaswag, "boolq": _boolq}.get(task, lambda row: row)
    return [convert(row) for row in loaded]

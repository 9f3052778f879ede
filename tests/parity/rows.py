"""Reads the benchmark rows of `lazy eval --data DIR` and converts them to the columns of the Hub's data sets, so that
the task definitions of lm-evaluation-harness can use them without a network."""

import json
import re
from pathlib import Path

# Task of lm-evaluation-harness -> (data set on the Hub, its configuration, split, file names in DIR)
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
    """Returns the task's file in DIR or DIR/eval. With `train`, returns TASK-train.jsonl or None."""
    for folder in (Path(data), Path(data) / "eval"):
        for name in [f"{task}-train.jsonl"] if train else SETS[task][3]:
            if (folder / name).exists():
                return folder / name
    if train:
        return None
    raise FileNotFoundError(f"{data}: task {task}: expected a file {SETS[task][3][0]}, found none")


def pages(raw):
    """Splits a raw WikiText file into pages. A page begins at a heading with one equals sign on each side."""
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
    # A row of a local file may have the whole text in one column, `query`. The harness joins the columns
    # activity_label and context by ": ", so the text can be split at any ": ". The harness also joins ctx_a and ctx_b
    # by a space, and removes this space if ctx_b is empty.
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
    """Returns a list of dictionaries with the columns of the data set on the Hub."""
    file = find(task, data, train)
    text = file.read_text(encoding="utf-8") if file else ""
    if task == "wikitext":
        return [{"page": page} for page in pages(text)]
    # str.splitlines() would also split at characters such as U+2028, which can occur inside a JSON string.
    loaded = [json.loads(line) for line in re.split(r"\r?\n", text) if line.strip()]
    convert = {"hellaswag": _hellaswag, "boolq": _boolq}.get(task, lambda row: row)
    return [convert(row) for row in loaded]

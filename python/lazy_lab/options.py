"""Checks the arguments of `lazy uptrain`, and compares them with the arguments of earlier calls on the same folder."""

import hashlib
import importlib.util
import json
import math
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

from .errors import UserError
from .steps import read_object, write_atomic

MAX_PASSES = 4  # maximum number of epochs over the training text; further epochs hardly improve a model
GROUPS = ("train", "eval", "speed", "report")
# Options that must be the same for all trainings in one output folder. A later call may change the other options, for
# example add seeds or tasks.
PREPARATION = ("window", "validation")  # options that affect the converted model or the corpus
TRAINING = ("tokens", "to", "anneal", "seq_len", "batch_tokens", "lr", "weight_decay", "dtype")


class Options(SimpleNamespace):
    """The checked arguments. The attributes are the keys of the JSON object that apps/lazy/uptrain.cc passes, which
    also describes them. The size 0 of a measurement (heldout_tokens, limit) stands for all tokens or documents."""

    @property
    def steps(self):
        return max(1, round(self.tokens / self.batch_tokens))

    @property
    def warmup_steps(self):
        return max(1, round(0.03 * self.steps))

    @property
    def all_seeds(self):
        return self.seed or list(range(1, self.seeds + 1))

    @property
    def corpus_folder(self):
        return self.corpus or self.output / "corpus"


def expect(condition, message):
    if not condition:
        raise UserError(message)


def parse_count(text, name, base=1000):
    """Parses a number such as 30M, 1.5b, 500k or 1000. `base` is the value of k: 1024 for context lengths."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgb]?)", text.strip().lower())
    number = float(match[1]) * base ** {"": 0, "k": 1, "m": 2}.get(match[2], 3) if match else 0.0
    # is_integer() also rejects infinity.
    expect(number >= 1 and number.is_integer(), f"{name}: expected a number such as 30M or 500k, found '{text}'")
    return int(number)


def parse(arguments):
    """Converts the JSON object of the program to Options. Raises UserError for the first wrong argument."""
    a = Options(**arguments)
    for name in ("model", "output", "corpus", "data"):
        setattr(a, name, Path(arguments[name]) if arguments[name] else None)
    a.text = [Path(path) for path in a.text]
    expect(a.model, "expected a model folder, found no argument")
    expect(a.output, "--output: expected a folder for the results, found none")
    expect(a.tokens, "--tokens: expected the number of tokens per training run, such as 30M, found none")
    both = "both" if a.text else "neither"
    expect(bool(a.text) != bool(a.corpus), f"expected --text FILES or --corpus DIR, found {both}")
    expect(
        not a.corpus or (a.corpus / "corpus.json").is_file(),
        f"--corpus {a.corpus}: expected a folder of `lazy data prepare`, found no corpus.json in it",
    )
    tasks = ",".join(a.tasks)
    expect(a.data or not tasks, f"--tasks {tasks}: expected --data with the benchmarks' files, found none")
    if a.data and not a.data.is_dir():
        raise UserError(f"--data {a.data}: expected a folder, found {'a file' if a.data.exists() else 'none'}")
    sequences, rest = divmod(a.batch_tokens, a.seq_len)
    expect(not rest, f"--batch-tokens: expected a multiple of --seq-len ({a.seq_len}), found {a.batch_tokens}")
    expect(
        sequences % (a.gpus * max(1, a.batch_size)) == 0,
        f"--batch-size: expected a divisor of the {sequences} sequences of a step (on each of {a.gpus} ranks), "
        f"found {a.batch_size or 1}",
    )
    for name in ("to", "lr", "weight_decay"):
        number = getattr(a, name)  # infinity and NaN are null in JSON
        finite = number is not None and math.isfinite(number)
        expect(finite, f"--{name.replace('_', '-')}: expected a finite number, found infinity or NaN")
    seeds = ",".join(map(str, a.seed))
    expect(len(set(a.seed)) == len(a.seed), f"--seed: expected different seeds, found {seeds}")
    expect(
        a.gpus == 1 or importlib.util.find_spec("torch"),
        f"--gpus {a.gpus}: expected PyTorch in {sys.executable}, whose torchrun starts the ranks",
    )
    launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
    expect(not launched, "expected no launcher, found WORLD_SIZE > 1; --gpus N starts torchrun for each training")
    a.tokens = parse_count(a.tokens, "--tokens")
    expect(
        a.tokens >= a.batch_tokens,
        f"--tokens: expected at least one step of --batch-tokens ({a.batch_tokens}), found {a.tokens} (1k is 1000)",
    )
    if a.text_bytes:  # 0: unknown
        passes_over(a.text_bytes, f"--text, which has at most {a.text_bytes} tokens (one per byte)", a)
    a.lengths = [parse_count(length, "--lengths", base=1024) for length in a.lengths]
    if a.heldout_tokens:
        a.heldout_tokens = parse_count(a.heldout_tokens, "--heldout-tokens")
        expect(
            a.heldout_tokens >= a.seq_len,
            f"--heldout-tokens: expected at least one sequence of --seq-len ({a.seq_len}), found {a.heldout_tokens}",
        )
    return a


def passes_over(tokens, text, options):
    """Returns the number of epochs over a text of `tokens` tokens that --tokens requires. Raises UserError if there are
    too many; `text` describes the text in the message."""
    passes = options.steps * options.batch_tokens / tokens
    expect(
        passes <= MAX_PASSES,
        f"--tokens {options.tokens}: expected at most {MAX_PASSES} passes over {text}, found {passes:.1f}; "
        "add text or lower --tokens",
    )
    return passes


def check_corpus(options):
    """Checks that the corpus is large enough. Returns the number of epochs over the training text that `--tokens`
    requires, and the numbers of tokens of the splits."""
    path = options.corpus_folder / "corpus.json"
    splits = read_object(path, "splits", "tokenizer")["splits"]
    tokens = {split: splits.get(split, {}).get("tokens", 0) for split in ("train", "validation")}
    for split, found in tokens.items():
        expect(
            found >= options.seq_len,
            f"{path}: expected a split '{split}' of at least --seq-len ({options.seq_len}) tokens, found {found}; "
            "lower --seq-len, add text or raise --validation",
        )
    text = f"the {tokens['train']} tokens of {options.corpus_folder}"
    return passes_over(tokens["train"], text, options), tokens


def set_measurement_sizes(options, gpu):
    """Sets the sizes of the measurements that were not given. On a CPU they are small, so that the measurements do not
    take longer than a short training."""
    heldout = 0 if gpu else max(4096, options.seq_len, options.tokens // 10)
    options.heldout_tokens = options.heldout_tokens or heldout
    options.lengths = options.lengths or ([1024, 8192, 32768] if gpu else [256, 1024])
    options.limit = options.limit or (0 if gpu else 100)
    options.samples = options.samples or (64 if gpu else 8)


def digest(*parts):
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(part if isinstance(part, bytes) else str(part).encode())
        hasher.update(b"\0")
    return hasher.hexdigest()[:16]


def text_files(paths):
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    return [file for file in files if file.is_file()]


def names_and_sizes(files):
    return [f"{file.name} {file.stat().st_size}" for file in files]


def fixed_arguments(options):
    """Returns the arguments that all trainings of an output folder share. Digests of contents, names and sizes of files
    represent the model and the text, so that a copy on another machine is accepted."""
    model = sorted(file for file in options.model.iterdir() if file.is_file())
    fixed = {"model": digest((options.model / "config.json").read_bytes(), *names_and_sizes(model))}
    fixed |= {name: getattr(options, name) for name in (*PREPARATION, *TRAINING)}
    if not options.corpus:
        return fixed | {"text": digest(*names_and_sizes(text_files(options.text)))}
    del fixed["validation"]  # only affects --text
    return fixed | {"corpus": digest((options.corpus / "corpus.json").read_bytes())}


def check_folder(options, corpus_checked):
    """Compares the arguments that all trainings of the output folder share with uptrain.json, where earlier calls have
    written them, and raises UserError if they differ. Adds arguments that are not in the file. The settings of the
    trainings are only added when the corpus is known to be large enough for them."""
    folder, record, current = options.output, options.output / "uptrain.json", fixed_arguments(options)
    if not record.exists():
        expect(folder.is_dir() or not folder.exists(), f"--output {folder}: expected a folder, found a file")
        folder.mkdir(parents=True, exist_ok=True)
        others = [path.name for path in folder.iterdir() if not path.name.startswith(record.name)]
        if others and not record.exists():  # another process may have just created it
            raise UserError(
                f"--output {folder}: expected a new folder or a folder that `lazy uptrain` has written, but it "
                f"contains {others[0]}"
            )
    begun = read_object(record, "model") if record.exists() else {}
    for name in sorted(begun):
        option = "--" + name.replace("_", "-") if name != "model" else "model"
        found = current.get(name, "none")
        expect(
            begun[name] == found,
            f"{folder} was created with other arguments: {option}: expected {begun[name]}, found {found}; "
            "choose another --output",
        )
    known = {name: value for name, value in current.items() if corpus_checked or name in begun or name not in TRAINING}
    if known != begun:
        write_atomic(record, json.dumps(known, indent=2) + "\n")

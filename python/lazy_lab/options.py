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


def expect(condition, argument, expected, found):
    if not condition:
        raise UserError(f"{argument}: expected {expected}, found {found}")


def parse_count(text, name, base=1000):
    """Parses a number such as 30M, 1.5b, 500k or 1000. `base` is the value of k: 1024 for context lengths."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgb]?)", text.strip().lower())
    number = float(match[1]) * base ** {"": 0, "k": 1, "m": 2}.get(match[2], 3) if match else 0.0
    # is_integer() also rejects infinity.
    expect(number >= 1 and number.is_integer(), name, "a number such as 30M or 500k", f"'{text}'")
    return int(number)


def parse(arguments):
    """Converts the JSON object of the program to Options. Raises UserError for the first wrong argument."""
    a = Options(**arguments)
    for name in ("model", "output", "corpus", "data"):
        setattr(a, name, Path(arguments[name]) if arguments[name] else None)
    a.text = [Path(path) for path in a.text]
    expect(a.model, "model", "a model folder", "none")
    expect(a.output, "--output", "a folder for the results", "none")
    expect(a.tokens, "--tokens", "the number of tokens per training run, such as 30M", "none")
    expect(bool(a.text) != bool(a.corpus), "--text, --corpus", "one of the two", "both" if a.text else "neither")
    prepared = not a.corpus or (a.corpus / "corpus.json").is_file()
    expect(prepared, f"--corpus {a.corpus}", "a folder of `lazy data prepare`", "no corpus.json in it")
    expect(a.data or not a.tasks, f"--tasks {','.join(a.tasks)}", "--data with the benchmarks' files", "none")
    if a.data:
        expect(a.data.is_dir(), f"--data {a.data}", "a folder", "a file" if a.data.exists() else "none")
    sequences, rest = divmod(a.batch_tokens, a.seq_len)
    expect(not rest, "--batch-tokens", f"a multiple of --seq-len ({a.seq_len})", a.batch_tokens)
    divides = sequences % (a.gpus * max(1, a.batch_size)) == 0
    divisor = f"a divisor of the {sequences} sequences of a step (on each of {a.gpus} ranks)"
    expect(divides, "--batch-size", divisor, a.batch_size or 1)
    for name in ("to", "lr", "weight_decay"):
        number = getattr(a, name)  # infinity and NaN are null in JSON
        finite = number is not None and math.isfinite(number)
        expect(finite, f"--{name.replace('_', '-')}", "a finite number", "infinity or NaN")
    expect(len(set(a.seed)) == len(a.seed), "--seed", "different seeds", ",".join(map(str, a.seed)))
    torchrun = a.gpus == 1 or importlib.util.find_spec("torch")
    expect(torchrun, f"--gpus {a.gpus}", f"PyTorch in {sys.executable}, whose torchrun starts the ranks", "none")
    ranks = os.environ.get("WORLD_SIZE", "1")
    expect(int(ranks) <= 1, "WORLD_SIZE", "no launcher (--gpus N starts torchrun for each training)", ranks)
    a.tokens = parse_count(a.tokens, "--tokens")
    one_step = f"at least one step of --batch-tokens ({a.batch_tokens})"
    expect(a.tokens >= a.batch_tokens, "--tokens", one_step, f"{a.tokens} (1k is 1000)")
    if a.text_bytes:  # 0 means that the size of the text is unknown
        passes_over(a.text_bytes, f"--text, which has at most {a.text_bytes} tokens (one per byte)", a)
    a.lengths = [parse_count(length, "--lengths", base=1024) for length in a.lengths]
    a.heldout_tokens = parse_count(a.heldout_tokens, "--heldout-tokens") if a.heldout_tokens else 0
    one_sequence = f"at least one sequence of --seq-len ({a.seq_len})"
    expect(not 0 < a.heldout_tokens < a.seq_len, "--heldout-tokens", one_sequence, a.heldout_tokens)
    return a


def passes_over(tokens, text, options):
    """Returns the number of epochs over a text of `tokens` tokens that --tokens requires. Raises UserError if there are
    too many; `text` describes the text in the message."""
    passes = options.steps * options.batch_tokens / tokens
    few = f"at most {MAX_PASSES} passes over {text}"
    expect(passes <= MAX_PASSES, f"--tokens {options.tokens}", few, f"{passes:.1f}; add text or lower --tokens")
    return passes


def check_corpus(options):
    """Checks that the corpus is large enough. Returns the number of epochs over the training text that `--tokens`
    requires, and the numbers of tokens of the splits."""
    path = options.corpus_folder / "corpus.json"
    splits = read_object(path, "splits", "tokenizer")["splits"]
    tokens = {split: splits.get(split, {}).get("tokens", 0) for split in ("train", "validation")}
    for split, found in tokens.items():
        sequence = f"a split '{split}' of at least --seq-len ({options.seq_len}) tokens"
        mend = "lower --seq-len, add text or raise --validation"
        expect(found >= options.seq_len, path, sequence, f"{found}; {mend}")
    text = f"the {tokens['train']} tokens of {options.corpus_folder}"
    return passes_over(tokens["train"], text, options), tokens


def set_defaults(options, gpu, config):
    """Sets the arguments that were not given and depend on the device, and the attributes `gpu` and `max_positions`.
    `config` is the configuration of the model. On a CPU, the measurements are small, so that they do not take longer
    than a short training."""
    options.gpu = gpu
    options.max_positions = config.get("max_position_embeddings") or config.get("n_positions") or options.seq_len
    if options.dtype == "auto":
        options.dtype = "bf16" if gpu else "fp32"
    heldout = 0 if gpu else max(4096, options.seq_len, options.tokens // 10)
    options.heldout_tokens = options.heldout_tokens or heldout
    options.lengths = options.lengths or ([1024, 8192, 32768] if gpu else [256, 1024])
    options.limit = options.limit or (0 if gpu else 100)
    options.samples = options.samples or (64 if gpu else 8)


def text_files(paths):
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    return [file for file in files if file.is_file()]


def digest(files, *contents):
    """Returns a digest of the contents of some files, and of the names and sizes of other files."""
    parts = [file.read_bytes() for file in contents] + [f"{file.name} {file.stat().st_size}".encode() for file in files]
    return hashlib.sha256(b"".join(part + b"\0" for part in parts)).hexdigest()[:16]


def fixed_arguments(options):
    """Returns the arguments that all trainings of an output folder share. Digests represent the model and the text, so
    that a copy on another machine is accepted."""
    model = sorted(file for file in options.model.iterdir() if file.is_file())
    fixed = {"model": digest(model, options.model / "config.json")}
    fixed |= {name: getattr(options, name) for name in (*PREPARATION, *TRAINING)}
    if options.text:
        return fixed | {"text": digest(text_files(options.text))}
    del fixed["validation"]  # only affects --text
    return fixed | {"corpus": digest([], options.corpus / "corpus.json")}


def check_folder(options, corpus_checked):
    """Compares the arguments that all trainings of the output folder share with uptrain.json, where earlier calls have
    written them, and raises UserError if they differ. Adds arguments that are not in the file. The settings of the
    trainings are only added when the corpus is known to be large enough for them."""
    folder, record, current = options.output, options.output / "uptrain.json", fixed_arguments(options)
    if not record.exists():
        expect(folder.is_dir() or not folder.exists(), f"--output {folder}", "a folder", "a file")
        folder.mkdir(parents=True, exist_ok=True)
        others = [path.name for path in folder.iterdir() if not path.name.startswith(record.name)]
        new = record.exists() or not others  # another process may have just created it
        wanted = "a new folder or a folder that `lazy uptrain` has written"
        expect(new, f"--output {folder}", wanted, f"{''.join(others[:1])} in it")
    begun = read_object(record, "model") if record.exists() else {}
    for name in sorted(begun):
        option = "--" + name.replace("_", "-") if name != "model" else "model"
        found = current.get(name, "none")
        other = f"{folder} was created with other arguments: {option}"
        expect(begun[name] == found, other, begun[name], f"{found}; choose another --output")
    known = {name: value for name, value in current.items() if corpus_checked or name in begun or name not in TRAINING}
    if known != begun:
        write_atomic(record, json.dumps(known, indent=2) + "\n")

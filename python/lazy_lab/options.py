"""Checks the arguments of `lazy uptrain`, and compares them with the arguments of earlier calls on the same folder."""

import hashlib
import importlib.util
import json
import math
import os
import re
import sys
from dataclasses import dataclass, fields
from pathlib import Path

from .errors import UserError
from .steps import read_object, write_atomic

MAX_PASSES = 4  # maximum number of epochs over the training text; further epochs hardly improve a model
SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
GROUPS = ("train", "eval", "speed", "report")
# Options that must be the same for all trainings in one output folder. A later call may change the other options, for
# example add seeds or tasks.
FIXED = ("tokens", "window", "to", "anneal", "seq_len", "batch_tokens", "lr", "weight_decay", "dtype", "validation")
PREPARATION = ("window", "validation")  # options that affect the converted model or the corpus


def parse_count(text, name, powers_of_two=False):
    """Parses a number such as 30M, 1.5b, 500k or 1000. With `powers_of_two`, used for context lengths, 8k is 8192."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgb]?)", text.strip().lower())
    factor = SUFFIXES[match[2]] if match else 1
    if match and powers_of_two and match[2]:
        factor = 1024 ** {"k": 1, "m": 2}.get(match[2], 3)
    number = float(match[1]) * factor if match else 0.0
    if number < 1 or not number.is_integer():  # also rejects infinity
        raise UserError(f"{name}: expected a number such as 30M or 500k, found '{text}'")
    return int(number)


@dataclass
class Options:
    """The checked arguments. The fields have the names of the keys in the JSON object that apps/lazy/uptrain.cc passes.
    apps/lazy/uptrain.cc has already resolved the model folder."""

    program: str
    line: str
    threads: int
    model: Path
    text: list[Path]
    corpus: Path | None
    max_document: int  # maximum size of a document in bytes; 0: documents are not split
    validation: float
    tokens: int
    output: Path
    control: bool
    seeds: int
    seed: list[int]
    window: int
    to: float
    anneal: float
    seq_len: int
    batch_tokens: int
    batch_size: int
    lr: float
    weight_decay: float
    tasks: list[str]
    data: Path | None
    lengths: list[int]
    heldout_tokens: int  # maximum number of tokens per measurement of the loss; 0: the whole split
    limit: int  # maximum number of documents per benchmark; 0: all documents
    samples: int  # number of texts on which the attention weights are measured
    device: str
    dtype: str
    gpus: int
    only: list[str]
    dry_run: bool

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


def set_measurement_sizes(options, gpu):
    """Sets the sizes of the measurements that were not given. On a CPU they are small, so that the measurements do not
    take longer than a short training."""
    options.lengths = options.lengths or ([1024, 8192, 32768] if gpu else [256, 1024])
    if not options.heldout_tokens:
        options.heldout_tokens = 0 if gpu else max(4096, options.seq_len, options.tokens // 10)
    options.limit = options.limit or (0 if gpu else 100)
    options.samples = options.samples or (64 if gpu else 8)


def parse(arguments):
    """Converts the JSON object of the program to Options. Raises UserError for the first wrong argument."""
    a = dict(arguments)
    if not a["model"]:
        raise UserError("expected a model folder, found no argument")
    if not a["output"]:
        raise UserError("--output: expected a folder for the results, found none")
    if not a["tokens"]:
        raise UserError("--tokens: expected the number of tokens per training run, such as 30M, found none")
    if bool(a["text"]) == bool(a["corpus"]):
        raise UserError(f"expected --text FILES or --corpus DIR, found {'both' if a['text'] else 'neither'}")
    for text in a["text"]:
        if not Path(text).exists():
            raise UserError(f"--text {text}: expected a file or a folder, but the path does not exist")
    if a["corpus"] and not (Path(a["corpus"]) / "corpus.json").is_file():
        raise UserError(f"--corpus {a['corpus']}: expected a folder of `lazy data prepare`, found no corpus.json in it")
    if a["tasks"] and not a["data"]:
        raise UserError(f"--tasks {','.join(a['tasks'])}: expected --data with the benchmarks' files, found none")
    if a["data"] and not Path(a["data"]).is_dir():
        raise UserError(
            f"--data {a['data']}: expected a folder, found {'a file' if Path(a['data']).exists() else 'none'}"
        )
    if a["batch_tokens"] % a["seq_len"]:
        raise UserError(f"--batch-tokens: expected a multiple of --seq-len ({a['seq_len']}), found {a['batch_tokens']}")
    sequences = a["batch_tokens"] // a["seq_len"]
    if sequences % (a["gpus"] * max(1, a["batch_size"])):
        raise UserError(
            f"--batch-size: expected a divisor of the {sequences} sequences of a step "
            f"(on each of {a['gpus']} ranks), found {a['batch_size'] or 1}"
        )
    for name in ("to", "lr", "weight_decay"):  # infinity and NaN are null in JSON
        if a[name] is None or not math.isfinite(a[name]):
            raise UserError(f"--{name.replace('_', '-')}: expected a finite number, found infinity or NaN")
    if len(set(a["seed"])) < len(a["seed"]):
        raise UserError(f"--seed: expected different seeds, found {','.join(map(str, a['seed']))}")
    if a["gpus"] > 1 and importlib.util.find_spec("torch") is None:
        raise UserError(f"--gpus {a['gpus']}: expected PyTorch in {sys.executable}, whose torchrun starts the ranks")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("expected no launcher, found WORLD_SIZE > 1; --gpus N starts torchrun for each training")
    tokens = parse_count(a["tokens"], "--tokens")
    if tokens < a["batch_tokens"]:
        raise UserError(
            f"--tokens: expected at least one step of --batch-tokens ({a['batch_tokens']}), found {tokens} (1k is 1000)"
        )
    steps = max(1, round(tokens / a["batch_tokens"]))
    if a["text_bytes"] and steps * a["batch_tokens"] > MAX_PASSES * a["text_bytes"]:  # a token has at least one byte
        passes = steps * a["batch_tokens"] / a["text_bytes"]
        raise UserError(
            f"--tokens {tokens}: expected at most {MAX_PASSES} passes over the text, found {passes:.1f} or more: "
            f"{a['text_bytes']} bytes of --text have at most as many tokens; add text or lower --tokens"
        )
    a |= {
        "model": Path(a["model"]),
        "tokens": tokens,
        "lengths": [parse_count(length, "--lengths", powers_of_two=True) for length in a["lengths"]],
        "heldout_tokens": parse_count(a["heldout_tokens"], "--heldout-tokens") if a["heldout_tokens"] else 0,
        "text": [Path(text) for text in a["text"]],
        "output": Path(a["output"]),
    }
    if 0 < a["heldout_tokens"] < a["seq_len"]:
        raise UserError(
            f"--heldout-tokens: expected at least one sequence of --seq-len ({a['seq_len']}), "
            f"found {a['heldout_tokens']}"
        )
    for name in ("corpus", "data"):
        a[name] = Path(a[name]) if a[name] else None
    return Options(**{field.name: a[field.name] for field in fields(Options)})


def digest(*parts):
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(part if isinstance(part, bytes) else str(part).encode())
        hasher.update(b"\0")
    return hasher.hexdigest()[:16]


def model_identity(folder):
    """Returns a digest of config.json and of the names and sizes of all files in the folder. A copy of the model on
    another machine has the same digest."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return digest((folder / "config.json").read_bytes(), *(f"{path.name} {path.stat().st_size}" for path in files))


def text_files(paths):
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    return [file for file in files if file.is_file()]


def text_identity(paths):
    return digest(*(f"{file.name} {file.stat().st_size}" for file in text_files(paths)))


def check_folder(options):
    """Writes the options that all trainings of the output folder share to uptrain.json. If an earlier call has written
    the file, compares the options with it and raises UserError if they differ."""
    record = options.output / "uptrain.json"
    corpus = options.corpus
    current = {"model": model_identity(options.model)}
    current["corpus" if corpus else "text"] = (
        digest((corpus / "corpus.json").read_bytes()) if corpus else text_identity(options.text)
    )
    current |= {name: getattr(options, name) for name in FIXED if not (corpus and name == "validation")}
    if not record.exists():
        if options.output.exists() and not options.output.is_dir():
            raise UserError(f"--output {options.output}: expected a folder, found a file")
        options.output.mkdir(parents=True, exist_ok=True)
        others = [path.name for path in options.output.iterdir() if not path.name.startswith(record.name)]
        if others and not record.exists():  # the record exists if another process has just created it
            raise UserError(
                f"--output {options.output}: expected a new folder or a folder that `lazy uptrain` has written, but it "
                f"contains {others[0]}"
            )
        if not record.exists():
            write_atomic(record, json.dumps(current, indent=2) + "\n")
    begun = read_object(record)
    undecided = set() if "tokens" in begun else set(FIXED) - set(PREPARATION)
    for name in sorted((current.keys() | begun.keys()) - undecided):
        if begun.get(name) != current.get(name):
            option = "--" + name.replace("_", "-") if name != "model" else "model"
            raise UserError(
                f"{options.output} was created with other arguments: {option}: expected {begun.get(name, 'none')}, "
                f"found {current.get(name, 'none')}; choose another --output"
            )
    if undecided:
        write_atomic(record, json.dumps(current, indent=2) + "\n")


def forget_training_settings(options):
    """Removes the training settings from uptrain.json if no training has started, so that the next call can change
    them."""
    record = options.output / "uptrain.json"
    if not (options.output / "runs").exists():
        begun = json.loads(record.read_text(encoding="utf-8"))
        kept = {name: value for name, value in begun.items() if name not in FIXED or name in PREPARATION}
        write_atomic(record, json.dumps(kept, indent=2) + "\n")


def check_corpus(options):
    """Checks that the corpus is large enough. Returns the number of epochs over the training text that `--tokens`
    requires, and the splits of the corpus."""
    path = options.corpus_folder / "corpus.json"
    splits = read_object(path, "splits", "tokenizer")["splits"]
    for split in ("train", "validation"):
        tokens = splits.get(split, {}).get("tokens", 0)
        if tokens < options.seq_len:
            raise UserError(
                f"{path}: expected a split '{split}' of at least --seq-len ({options.seq_len}) tokens, found {tokens}; "
                f"lower --seq-len, add text or raise --validation"
            )
    passes = options.steps * options.batch_tokens / splits["train"]["tokens"]
    if passes > MAX_PASSES:
        raise UserError(
            f"--tokens {options.tokens}: expected at most {MAX_PASSES} passes over the {splits['train']['tokens']} "
            f"tokens of {options.corpus_folder}, found {passes:.1f}; add text or lower --tokens"
        )
    return passes, splits

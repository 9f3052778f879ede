"""Defines the steps of `lazy uptrain`: the `lazy` commands that compute the files of the output folder.

OUTPUT/
  converted/                  the Lazy model before training, which computes the same outputs as the given model
  corpus/                     the corpus prepared from --text
  runs/lazy-seed1/, runs/softmax-seed1/     run folders of `lazy train`
  measured/before/, measured/lazy-seed1/, ...     JSON output of `lazy eval`, `lazy sinks` and `lazy generate`
  steps/                      records and logs of the steps
"""

import bisect
import functools
import json
import struct
import sys
from pathlib import Path

from .options import text_files
from .steps import Step, read_object

DECODE_SAMPLES = 4
DECODED_TOKENS = 64
# Constants of the time estimates, in units of forward passes. A backward pass takes twice as long as a forward pass, so
# training takes three. `lazy sinks` also measures 100 texts of 64 tokens. Decoding one token is bound by memory
# bandwidth and takes as long as a forward pass over several tokens.
TRAINING_PASSES = 3
SINK_TOKENS = 6400
DECODING_PASSES = 8
DOCUMENT_TOKENS = 250  # number of tokens of one benchmark document with all its answers
BENCHMARK_DOCUMENTS = 2000  # number of documents of a benchmark without --limit
BYTES_PER_TOKEN = 4
MAX_POSITIONS = 8192


def micro_batch(options):
    """Returns the number of sequences per micro-batch: --batch-size if given, otherwise the largest divisor of the
    sequences per rank and step for which a micro-batch has at most 32768 tokens on a GPU, or 4096 on a CPU."""
    if options.batch_size:
        return options.batch_size
    sequences = options.batch_tokens // options.seq_len // options.gpus
    limit = max(1, (32768 if options.gpu else 4096) // options.seq_len)
    return max(size for size in range(1, sequences + 1) if sequences % size == 0 and size <= limit)


def toml_value(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + " }"
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)


def toml(sections):
    """Formats a configuration {section: {key: value}} as TOML."""
    return "\n".join(
        f"[{section}]\n" + "".join(f"{key} = {toml_value(value)}\n" for key, value in keys.items())
        for section, keys in sections.items()
    )


def training(options, kind, seed, bos, tokenizer):
    """Returns the configuration of one training. The configurations of the softmax control and of the Lazy model only
    differ in the section [model] and in the output folder. The kind `untrained` is the Lazy model after a single step
    with learning rate 0, which shifts the offset to its final value. It shows the effect of the offset without any
    training."""
    model = {"from": options.model}
    if kind != "softmax":
        schedule = {"from": 0.0, "to": options.to, "steps": options.anneal}
        model = {"from": options.output / "converted", "offset_schedule": schedule}
    data = {"corpus": options.corpus_folder}
    if bos:
        data["bos_per_sequence"] = True
    has_bos, has_eos = (tokenizer.get(name, -1) >= 0 for name in ("bos_id", "eos_id"))
    if not has_bos:
        data |= {"bos_per_document": False, "eos_per_document": has_eos}
    batch = micro_batch(options)
    # The number of validation batches is chosen so that the ten validations of a run together process about 5 % as many
    # tokens as the training.
    batches = max(1, min(16, round(0.005 * options.tokens / (batch * options.seq_len))))
    sections = {
        "model": model,
        "data": data,
        "training": {
            "steps": options.steps,
            "seq_len": options.seq_len,
            "batch_size": batch,
            "global_batch_tokens": options.batch_tokens,
            "seed": seed,
            "device": options.device,
            "dtype": options.dtype,
            "output": options.output / "runs" / (kind if kind == "untrained" else f"{kind}-seed{seed}"),
        },
        "optimizer": {"lr": options.lr, "weight_decay": options.weight_decay},
        "lr_scheduler": {"warmup_steps": options.warmup_steps, "decay_type": "cosine", "min_lr_factor": 0.1},
        "validation": {"every": max(1, options.steps // 10), "batches": batches},
        "checkpoint": {"every": max(1, min(500, options.steps // 5)), "keep_last": 1},
        "metrics": {"log_every": max(1, options.steps // 200)},
    }
    if kind == "untrained":
        sections["model"]["offset_schedule"] |= {"from": options.to, "steps": 1}
        sections["training"] |= {"steps": 1, "batch_size": 1, "global_batch_tokens": options.seq_len}
        sections["optimizer"] = {"lr": 0.0, "weight_decay": 0.0}
        sections |= {"lr_scheduler": {"warmup_steps": 0}, "validation": {"every": 0}}
    return sections


def shard_headers(corpus, split):
    """Yields for every shard of a split: its open file, the bytes per token id, the numbers of tokens and documents,
    and the offsets of the ids and of the document starts. docs/guides/data.md describes the file format."""
    for name in read_object(corpus / "corpus.json", "splits")["splits"][split]["shards"]:
        with open(corpus / name, "rb") as file:
            yield file, *struct.unpack("<16x I 4x QQ 32x QQ 40x", file.read(128))


def documents_with(corpus, split, tokens):
    """Returns how many documents from the beginning of a split are needed to have at least `tokens` tokens together. If
    the whole split has fewer tokens, returns the number of all its documents."""
    before = 0
    for file, _, shard_tokens, documents, _, starts_offset in shard_headers(corpus, split):
        if shard_tokens >= tokens:
            file.seek(starts_offset)
            starts = struct.unpack(f"<{documents}Q", file.read(8 * documents))
            return before + bisect.bisect_left(starts, tokens)
        tokens, before = tokens - shard_tokens, before + documents
    return before


def shard_ids(corpus, split, count):
    """Returns the first `count` token ids of a split. A shorter split is repeated."""
    ids = []
    for file, width, tokens, _, ids_offset, _ in shard_headers(corpus, split):
        number = min(tokens, count - len(ids))
        file.seek(ids_offset)
        ids += struct.unpack(f"<{number}{'H' if width == 2 else 'I'}", file.read(width * number))
    return (ids * -(-count // len(ids)))[:count]


def prompt_ids(corpus, count):
    """Returns the first token ids of the held-out split as input of `lazy tokenize --decode`."""
    return " ".join(map(str, shard_ids(corpus, "validation", count))).encode()


def option_words(values):
    return [word for name, value in values.items() for word in (f"--{name}", value)]


class Plan:
    """All steps. Before the steps of the group `prepare` have run, the other steps have their names, groups and
    estimates, but they cannot run."""

    def __init__(self, options):
        self.options = options
        self.records = options.output / "steps"
        self.bos_ids = self.records / "bos-ids.json"
        self.text_bytes = sum(file.stat().st_size for file in text_files(options.text))
        corpus, self.tokenizer = options.corpus_folder / "corpus.json", {}
        heldout = max(options.seq_len, round(options.validation * self.text_bytes / BYTES_PER_TOKEN))  # an estimate
        if corpus.is_file():
            found = read_object(corpus, "splits", "tokenizer")
            self.tokenizer = found["tokenizer"]
            heldout = found["splits"].get("validation", {}).get("tokens", 0)
        ids = read_object(self.bos_ids, "ids")["ids"] if self.bos_ids.is_file() else []
        self.bos = bool(ids) and ids[0] == self.tokenizer.get("bos_id")  # the tokenizer inserts BOS before a text
        self.measured = min(heldout, options.heldout_tokens or heldout)  # tokens per measurement of the loss
        self.limited = self.measured < heldout and corpus.is_file()
        longest = max(1, min(MAX_POSITIONS, max(options.max_positions, options.seq_len), self.measured))
        self.positions = 1 << (longest.bit_length() - 1)  # sequence length for the loss by position: a power of two
        # Time to start a command and to load the model.
        self.load = 2 + sum(file.stat().st_size for file in options.model.glob("*.safetensors")) / 2e8

    def steps(self):
        """Returns the steps ordered by seed, so that an interrupted command leaves complete pairs of a control and a
        Lazy model. The training of `untrained` (a single step without learning) precedes the other trainings, because
        every error that would stop them, such as a corpus with a different tokenizer, already occurs in it."""
        options = self.options
        steps = [*self.prepare(), self.train("untrained")]
        steps += [*self.measurements("before"), *self.measurements("untrained")]
        kinds = ["softmax", "lazy"] if options.control else ["lazy"]
        for seed in options.all_seeds:
            steps += [self.train(kind, seed) for kind in kinds]
            steps += [step for kind in kinds for step in self.measurements(f"{kind}-seed{seed}")]
        return [*steps, *self.speeds()]

    def prepare(self):
        """Yields the steps that prepare the corpus, convert the model, and find out whether the tokenizer inserts BOS
        before a text."""
        options, converted, text = self.options, self.options.output / "converted", self.records / "bos-text.txt"
        if not options.corpus:
            corpus = options.corpus_folder
            command = ["data", "prepare", *options.text, "--output", corpus, "--tokenizer", options.model]
            command += ["--max-document", options.max_document] if options.max_document else []
            command += ["--validation", options.validation, "--force"]
            inputs, seconds = {"validation": options.validation}, 1 + self.text_bytes / 5e6
            yield Step("corpus", "prepare the text", "prepare", inputs, [corpus], command, fixed_seconds=seconds)
        yield Step(
            "convert",
            "convert the model to Lazy Attention",
            "prepare",
            {"window": options.window},
            [converted],
            ["convert", options.model, "--to", "lazy", "--output", converted, "--window", options.window],
            fixed_seconds=3 * self.load,
        )
        read = {"text": text, "length": 1, "read": "embedding", "device": "cpu", "json": self.bos_ids}
        command = ["probe", options.model, *option_words(read)]
        yield Step(
            "bos",
            "read the tokenizer",
            "prepare",
            {},
            [self.bos_ids],
            command,
            files={text: "a"},
            fixed_seconds=self.load,
        )

    def train(self, kind, seed=1):
        """Returns the step of a training: `untrained`, or the Lazy model or the softmax control with a seed."""
        options, sections = self.options, training(self.options, kind, seed, self.bos, self.tokenizer)
        settings, validation = sections["training"], sections["validation"]
        config = self.records / f"train-{settings['output'].name}.toml"
        title, inputs = "shift the offset of the Lazy model without training", {"to": options.to}
        launcher, estimate = [], {}
        if kind != "untrained":
            title = f"train the {'Lazy model' if kind == 'lazy' else 'softmax control'}, seed {seed}"
            title += f": {options.steps} steps of {options.batch_tokens} tokens"
            inputs = {key: settings[key] for key in ("steps", "seq_len", "seed")} | sections["optimizer"]
            inputs["schedule"] = sections["model"].get("offset_schedule")
            validated = 10 * validation["batches"] * settings["batch_size"] * options.seq_len
            work = TRAINING_PASSES * options.steps * options.batch_tokens / options.gpus + validated
            estimate = {"kind": "train", "work": work}
            if options.gpus > 1:
                torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python"]
                launcher = [*torchrun, "--nproc-per-node", options.gpus]
        return Step(
            config.stem,
            title,
            "train",
            inputs,
            [settings["output"] / "model"],
            ["train", config, "--resume"],
            [] if kind == "softmax" else ["convert"],
            launcher,
            files={config: toml(sections)},
            continues=True,
            fixed_seconds=4 * self.load,
            **estimate,
        )

    def measurement(self, name, what, title, command, inputs, work, group="eval", needs=()):
        """Returns a step that measures the model `name`: `before` or the name of a training."""
        options, given = self.options, name == "before"
        model = options.model if given else options.output / "runs" / name / "model"
        file = options.output / "measured" / name / f"{what}.json"
        generates = command[0] == "generate"
        inputs = inputs | {"dtype": options.dtype} | ({"device": options.device} if generates else {"bos": self.bos})
        common = ["--device", options.device, "--dtype", options.dtype, *(["--bos"] if inputs.get("bos") else [])]
        return Step(
            f"{what}-{name}",
            f"{title}: {name}",
            group,
            inputs,
            [file],
            [command[0], model, *command[1:], *common, "--output" if command[0] == "eval" else "--json", file],
            [*needs, *([] if given else [f"train-{name}"])],
            kind=what,
            work=work,
            fixed_seconds=self.load,
        )

    def measurements(self, name):
        """Returns the steps that measure the held-out loss, the attention weights, the loss by position and the
        benchmarks of a model."""
        options, length, positions = self.options, self.options.seq_len, self.positions
        corpus = ["--corpus", options.corpus_folder]
        heldout = ["eval", "--tasks", "heldout", *corpus]
        sequences, documents = {}, {}  # limits of the two measurements of the loss
        if self.limited:
            sequences = {"limit": max(1, self.measured // length)}
            documents = {"limit": documents_with(options.corpus_folder, "validation", self.measured)}
        sizes = {"length": length, "samples": options.samples}
        loss = [*heldout, "--max-length", length, *option_words(sequences)]
        sinks = ["sinks", *corpus, *option_words(sizes), "--maps", "none"]
        by_position = [*heldout, "--lengths", positions, *option_words(documents)]
        rows = [
            ("heldout", "held-out loss", loss, {"length": length} | sequences, self.measured),
            ("sinks", "attention weights", sinks, sizes, options.samples * length + SINK_TOKENS),
            ("positions", "loss by position", by_position, {"length": positions} | documents, self.measured),
        ]
        if options.tasks:
            limit = {"limit": options.limit} if options.limit else {}
            tasks = ["eval", "--tasks", ",".join(options.tasks), "--data", options.data, *option_words(limit)]
            work = len(options.tasks) * (options.limit or BENCHMARK_DOCUMENTS) * DOCUMENT_TOKENS
            rows.append(("tasks", "benchmarks", tasks, {"tasks": options.tasks} | limit, work))
        return [self.measurement(name, *row) for row in rows]

    def speeds(self):
        """Yields the steps that measure decoding after a prompt of held-out text, for the given model and for the Lazy
        model of the first seed: the time per token, and the bytes of K and V that a decode step needs."""
        options, corpus = self.options, self.options.corpus_folder
        for length in options.lengths:
            prompt, inputs, after = self.records / f"prompt-{length}.txt", {"length": length}, f"after {length} tokens"
            yield Step(
                f"prompt-{length}",
                f"write a prompt of {length} tokens",
                "speed",
                inputs,
                [prompt],
                ["tokenize", "--decode", "--tokenizer", options.model],
                stdin=functools.partial(prompt_ids, corpus, length),
                stdout=prompt,
            )
            generate = ["generate", "--prompt-file", prompt, "--ignore-eos", "--max-tokens", DECODED_TOKENS]
            work = length + DECODING_PASSES * DECODED_TOKENS
            speed = (f"speed-{length}", f"time of decoding {after}", generate, inputs, work)
            sizes = inputs | {"samples": DECODE_SAMPLES}
            sinks = ["sinks", "--corpus", corpus, *option_words(sizes), "--maps", "none", "--measures", "decode"]
            title = f"bytes of K and V that decoding {after} needs"
            memory = (f"decode-{length}", title, sinks, sizes, DECODE_SAMPLES * length)
            for name in ("before", f"lazy-seed{options.all_seeds[0]}"):
                yield self.measurement(name, *speed, "speed", [f"prompt-{length}"])
                yield self.measurement(name, *memory, "speed")

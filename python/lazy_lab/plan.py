"""Defines the steps of `lazy uptrain`: the `lazy` commands that compute the files of the output folder.

OUTPUT/
  converted/                  the Lazy model before training, which computes the same outputs as the given model
  corpus/                     the corpus prepared from --text
  runs/lazy-seed1/, runs/softmax-seed1/     run folders of `lazy train`
  measured/before/, measured/lazy-seed1/, ...     JSON output of `lazy eval`, `lazy sinks` and `lazy generate`
  steps/                      records and logs of the steps
"""

import array
import bisect
import json
import struct
import sys
from pathlib import Path

from .options import text_files
from .steps import Step, read_object, write_atomic

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
GROUP_TITLES = {"softmax": "softmax control", "lazy": "Lazy model"}


def micro_batch(options, gpu):
    """Returns the number of sequences per micro-batch: --batch-size if given, otherwise the largest divisor of the
    sequences per rank and step for which a micro-batch has at most 32768 tokens on a GPU, or 4096 on a CPU."""
    if options.batch_size:
        return options.batch_size
    sequences = options.batch_tokens // options.seq_len // options.gpus
    limit = max(1, (32768 if gpu else 4096) // options.seq_len)
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


def training(options, kind, seed, gpu, bos, tokenizer):
    """Returns the configuration of one training. The configurations of the softmax control and of the Lazy model only
    differ in the section [model] and in the output folder."""
    model = {"from": options.model}
    if kind == "lazy":
        schedule = {"from": 0.0, "to": options.to, "steps": options.anneal}
        model = {"from": options.output / "converted", "offset_schedule": schedule}
    data = {"corpus": options.corpus_folder}
    if bos:
        data["bos_per_sequence"] = True
    has_bos, has_eos = (tokenizer.get(name, -1) >= 0 for name in ("bos_id", "eos_id"))
    if not has_bos:
        data |= {"bos_per_document": False, "eos_per_document": has_eos}
    batch = micro_batch(options, gpu)
    # The number of validation batches is chosen so that the ten validations of a run together process about 5 % as many
    # tokens as the training.
    batches = max(1, min(16, round(0.005 * options.tokens / (batch * options.seq_len))))
    return {
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
            "output": options.output / "runs" / f"{kind}-seed{seed}",
        },
        "optimizer": {"lr": options.lr, "weight_decay": options.weight_decay},
        "lr_scheduler": {"warmup_steps": options.warmup_steps, "decay_type": "cosine", "min_lr_factor": 0.1},
        "validation": {"every": max(1, options.steps // 10), "batches": batches},
        "checkpoint": {"every": max(1, min(500, options.steps // 5)), "keep_last": 1},
        "metrics": {"log_every": max(1, options.steps // 200)},
    }


def without_training(options, gpu, bos, tokenizer):
    """Returns the configuration of a single training step with learning rate 0, after which the offset has its final
    value. The resulting model shows the effect of the offset without any training."""
    sections = training(options, "lazy", 1, gpu, bos, tokenizer)
    sections["model"]["offset_schedule"] |= {"from": options.to, "steps": 1}
    output = options.output / "runs" / "untrained"
    sections["training"] |= {"steps": 1, "batch_size": 1, "global_batch_tokens": options.seq_len, "output": output}
    sections["optimizer"] = {"lr": 0.0, "weight_decay": 0.0}
    sections["lr_scheduler"] = {"warmup_steps": 0}
    sections["validation"] = {"every": 0}
    return sections


def shard_headers(corpus, split):
    """Yields the path and the header of every shard of a split. docs/guides/data.md describes the file format."""
    for name in read_object(corpus / "corpus.json", "splits")["splits"][split]["shards"]:
        with open(corpus / name, "rb") as file:
            yield corpus / name, file.read(128)


def documents_with(corpus, split, tokens):
    """Returns how many documents from the beginning of a split are needed to have at least `tokens` tokens together. If
    the whole split has fewer tokens, returns the number of all its documents."""
    documents = 0
    for shard, header in shard_headers(corpus, split):
        own_tokens, own_documents = struct.unpack_from("<QQ", header, 24)
        if own_tokens < tokens:
            tokens, documents = tokens - own_tokens, documents + own_documents
            continue
        with open(shard, "rb") as file:
            file.seek(struct.unpack_from("<Q", header, 80)[0])
            starts = struct.unpack(f"<{own_documents}Q", file.read(8 * own_documents))
        return documents + bisect.bisect_left(starts, tokens)
    return documents


def shard_ids(corpus, split, count):
    """Returns the first `count` token ids of a split. A shorter split is repeated."""
    ids = array.array("I")
    for shard, header in shard_headers(corpus, split):
        with open(shard, "rb") as file:
            (width,) = struct.unpack_from("<I", header, 16)
            (tokens,) = struct.unpack_from("<Q", header, 24)
            (offset,) = struct.unpack_from("<Q", header, 72)
            file.seek(offset)
            part = array.array("H" if width == 2 else "I")
            part.frombytes(file.read(width * min(tokens, count - len(ids))))
            if sys.byteorder == "big":
                part.byteswap()
            ids.extend(iter(part))
        if len(ids) >= count:
            break
    return (ids * -(-count // len(ids)))[:count].tolist()


def load_seconds(options):
    """Returns an estimate of the time to start a command and to load the model."""
    return 2 + sum(file.stat().st_size for file in options.model.glob("*.safetensors")) / 2e8


def prepare_folder(options):
    """Creates the folder of the steps and the input of the step `bos`."""
    folder = options.output / "steps"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "bos-text.txt", "a")


def first_steps(options):
    """Returns the steps that all other steps depend on: they prepare the corpus, which shows whether --tokens is
    possible, convert the model, and find out whether the tokenizer inserts BOS before a text."""
    converted, folder = options.output / "converted", options.output / "steps"
    text, probe, load = folder / "bos-text.txt", folder / "bos-ids.json", load_seconds(options)
    convert = ["convert", str(options.model), "--to", "lazy", "--output", str(converted)]
    read = ["probe", str(options.model), "--text", str(text), "--length", "1", "--read", "embedding", "--device", "cpu"]
    steps = []
    if not options.corpus:
        paths = [str(path) for path in options.text]
        prepare = ["data", "prepare", *paths, "--output", str(options.corpus_folder), "--tokenizer", str(options.model)]
        cut = ["--max-document", str(options.max_document)] if options.max_document else []
        steps.append(
            Step(
                "corpus",
                "prepare the text",
                "prepare",
                {"validation": options.validation},
                [options.corpus_folder],
                [*prepare, *cut, "--validation", str(options.validation), "--force"],
                fixed_seconds=1 + sum(file.stat().st_size for file in text_files(options.text)) / 5e6,
            )
        )
    steps += [
        Step(
            "convert",
            "convert the model to Lazy Attention",
            "prepare",
            {"window": options.window},
            [converted],
            [*convert, "--window", str(options.window)],
            fixed_seconds=3 * load,
        ),
        Step(
            "bos",
            "read the tokenizer",
            "prepare",
            {},
            [probe],
            [*read, "--json", str(probe)],
            fixed_seconds=load,
        ),
    ]
    return steps


def begins_with_bos(options):
    """Returns whether the tokenizer inserts BOS before a text, according to the result of the step `bos`."""
    ids = read_object(options.output / "steps" / "bos-ids.json", "ids")["ids"]
    tokenizer = read_object(options.corpus_folder / "corpus.json", "tokenizer")["tokenizer"]
    return bool(ids) and ids[0] == tokenizer.get("bos_id")


def positions_length(options, limit, tokens):
    """Returns the sequence length for the measurement of loss by position. It is the largest power of two that is at
    most MAX_POSITIONS, at most max(`limit`, --seq-len), and at most the number of measured tokens `tokens`."""
    return 1 << (max(1, min(MAX_POSITIONS, max(limit, options.seq_len), tokens)).bit_length() - 1)


def heldout_tokens(options, splits):
    """Returns the number of tokens in the held-out split. Without `splits`, it is estimated from the size of --text."""
    if splits:  # check_corpus() rejects a corpus without held-out tokens
        return splits.get("validation", {}).get("tokens", 0)
    size = sum(file.stat().st_size for file in text_files(options.text))
    return max(options.seq_len, round(options.validation * size / BYTES_PER_TOKEN))


class Plan:
    """All steps after first_steps(). `limit` is the model's max_position_embeddings. Without `splits`, or before the
    step `bos`, the steps have their names, groups and estimates, but they cannot run. `writes`: whether to write the
    configuration files of the trainings."""

    def __init__(self, options, gpu, limit, splits=None, writes=True):
        self.options, self.gpu, self.writes = options, gpu, writes
        self.prepared = splits is not None and (options.output / "steps" / "bos-ids.json").is_file()
        self.bos = begins_with_bos(options) if self.prepared else False
        self.tokenizer = {}
        if self.prepared:
            self.tokenizer = read_object(options.corpus_folder / "corpus.json", "tokenizer")["tokenizer"]
        self.place = ["--device", options.device, "--dtype", options.dtype]
        heldout = heldout_tokens(options, splits)
        self.measured = min(heldout, options.heldout_tokens or heldout)  # tokens per measurement of the loss
        self.limited = self.measured < heldout
        self.positions = positions_length(options, limit, self.measured)
        self.load = load_seconds(options)

    def kinds(self):
        return ["softmax", "lazy"] if self.options.control else ["lazy"]

    def steps(self):
        """Returns the steps ordered by seed, so that an interrupted command leaves complete pairs of a control and a
        Lazy model. The step `train-untrained` (a single training step without learning) is first, because every error
        that would stop the long trainings, such as a corpus with a different tokenizer, already occurs in it."""
        runs = self.options.output / "runs"
        steps = [self.untrained(), *self.measurements("before", self.options.model, [])]
        steps += self.measurements("untrained", runs / "untrained" / "model", ["train-untrained"])
        for seed in self.options.all_seeds:
            steps += [self.train(kind, seed) for kind in self.kinds()]
            for kind in self.kinds():
                name = f"{kind}-seed{seed}"
                steps += self.measurements(name, runs / name / "model", [f"train-{name}"])
        return steps + self.speeds()

    def write(self, config, sections):
        if self.writes:
            write_atomic(config, toml(sections))

    def untrained(self):
        config = self.options.output / "steps" / "train-untrained.toml"
        self.write(config, without_training(self.options, self.gpu, self.bos, self.tokenizer))
        return Step(
            "train-untrained",
            "shift the offset of the Lazy model without training",
            "train",
            {"to": self.options.to},
            [self.options.output / "runs" / "untrained" / "model"],
            ["train", str(config), "--resume"],
            needs=["convert"],
            continues=True,
            fixed_seconds=4 * self.load,
        )

    def train(self, kind, seed):
        options = self.options
        name = f"{kind}-seed{seed}"
        config = options.output / "steps" / f"train-{name}.toml"
        sections = training(options, kind, seed, self.gpu, self.bos, self.tokenizer)
        self.write(config, sections)
        launcher = []
        if options.gpus > 1:
            launcher = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node"]
            launcher.append(str(options.gpus))
        validated = 10 * sections["validation"]["batches"] * sections["training"]["batch_size"] * options.seq_len
        fixed = {key: value for key, value in sections["training"].items() if key in ("steps", "seq_len", "seed")}
        return Step(
            f"train-{name}",
            f"train the {GROUP_TITLES[kind]}, seed {seed}: {options.steps} steps of {options.batch_tokens} tokens",
            "train",
            fixed | sections["optimizer"] | {"schedule": sections["model"].get("offset_schedule")},
            [options.output / "runs" / name / "model"],
            ["train", str(config), "--resume"],
            needs=["convert"] if kind == "lazy" else [],
            launcher=launcher,
            continues=True,
            kind="train",
            work=TRAINING_PASSES * options.steps * options.batch_tokens / options.gpus + validated,
            fixed_seconds=4 * self.load,
        )

    def measurements(self, name, model, needs):
        """Yields the steps that measure the held-out loss, the attention weights, the loss by position and the
        benchmarks of one model."""
        options, folder = self.options, self.options.output / "measured" / name
        corpus = ["--corpus", str(options.corpus_folder)]
        bos = ["--bos"] if self.bos else []

        def step(what, title, inputs, arguments, work):
            file = folder / f"{what}.json"
            output = "--json" if arguments[0] == "sinks" else "--output"
            command = [arguments[0], str(model), *arguments[1:], *self.place, output, str(file)]
            inputs = inputs | {"dtype": options.dtype, "bos": self.bos}
            estimate = {"kind": what, "work": work, "fixed_seconds": self.load}
            return Step(f"{what}-{name}", f"{title}: {name}", "eval", inputs, [file], command, needs, **estimate)

        def limited(option, number, applies):
            """Returns ({option: number}, ["--option", "number"]): an entry for the step's inputs and the command-line
            arguments that limit a measurement. Both are empty if the limit does not apply."""
            return ({option: number}, [f"--{option}", str(number)]) if applies else ({}, [])

        length = options.seq_len
        inputs, limit = limited("limit", max(1, self.measured // length), self.limited)
        heldout = ["eval", "--tasks", "heldout", *corpus, "--max-length", str(length), *limit, *bos]
        yield step("heldout", "held-out loss", {"length": length} | inputs, heldout, self.measured)
        samples = options.samples
        sinks = ["sinks", *corpus, "--length", str(length), "--samples", str(samples), "--maps", "none", *bos]
        work = samples * length + SINK_TOKENS
        yield step("sinks", "attention weights", {"length": length, "samples": samples}, sinks, work)
        documents = 0
        if self.limited and self.prepared:
            documents = documents_with(options.corpus_folder, "validation", self.measured)
        inputs, limit = limited("limit", documents, self.limited)
        positions = ["eval", "--tasks", "heldout", *corpus, "--lengths", str(self.positions), *limit, *bos]
        yield step("positions", "loss by position", {"length": self.positions} | inputs, positions, self.measured)
        if options.tasks:
            inputs, limit = limited("limit", options.limit, options.limit > 0)
            tasks = ["eval", "--tasks", ",".join(options.tasks), "--data", str(options.data), *limit, *bos]
            work = len(options.tasks) * (options.limit or BENCHMARK_DOCUMENTS) * DOCUMENT_TOKENS
            yield step("tasks", "benchmarks", {"tasks": options.tasks} | inputs, tasks, work)

    def speeds(self):
        """Returns the steps that measure decoding after a prompt of held-out text, for the given model and for the Lazy
        model of the first seed: the time per token, and the bytes of K and V that a decode step needs."""
        options, steps = self.options, []
        lazy = f"lazy-seed{options.all_seeds[0]}"
        models = [("before", options.model, []), (lazy, options.output / "runs" / lazy / "model", [f"train-{lazy}"])]
        for length in options.lengths:
            prompt = options.output / "steps" / f"prompt-{length}.txt"
            tokenizer = ["tokenize", "--decode", "--tokenizer", str(options.model)]
            steps.append(
                Step(
                    f"prompt-{length}",
                    f"write a prompt of {length} tokens",
                    "speed",
                    {"length": length},
                    [prompt],
                    tokenizer,
                    stdin=lambda length=length: " ".join(
                        map(str, shard_ids(options.corpus_folder, "validation", length))
                    ).encode(),
                    stdout=prompt,
                )
            )
            for name, model, needs in models:
                file = options.output / "measured" / name / f"speed-{length}.json"
                generate = ["generate", str(model), "--prompt-file", str(prompt), "--ignore-eos", *self.place]
                steps.append(
                    Step(
                        f"speed-{length}-{name}",
                        f"time of decoding after {length} tokens: {name}",
                        "speed",
                        {"length": length, "dtype": options.dtype, "device": options.device},
                        [file],
                        [*generate, "--max-tokens", str(DECODED_TOKENS), "--json", str(file)],
                        [f"prompt-{length}", *needs],
                        kind=f"speed-{length}",
                        work=length + DECODING_PASSES * DECODED_TOKENS,
                        fixed_seconds=self.load,
                    )
                )
                file = options.output / "measured" / name / f"decode-{length}.json"
                sinks = ["sinks", str(model), "--corpus", str(options.corpus_folder), "--length", str(length)]
                sinks += ["--samples", str(DECODE_SAMPLES), "--maps", "none", "--measures", "decode", *self.place]
                steps.append(
                    Step(
                        f"decode-{length}-{name}",
                        f"bytes of K and V that decoding after {length} tokens needs: {name}",
                        "speed",
                        {"length": length, "samples": DECODE_SAMPLES, "dtype": options.dtype, "bos": self.bos},
                        [file],
                        [*sinks, *(["--bos"] if self.bos else []), "--json", str(file)],
                        needs,
                        kind=f"decode-{length}",
                        work=DECODE_SAMPLES * length,
                        fixed_seconds=self.load,
                    )
                )
        return steps

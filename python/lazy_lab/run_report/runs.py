"""The data of one run: everything that a run stores according to docs/reference/run-directory.md."""

import fcntl
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UserError
from . import results
from .fields import Field
from .text import seconds_text, series_name
from .weights import learned_parameters

PACE_LINES = 50  # number of last lines of the log from which the remaining time is estimated


@dataclass
class Run:
    folder: Path
    name: str
    index: int = 0  # position on the page, which determines the color
    kind: str = ""  # "lazy", "softmax", another normalizer, or "" if unknown
    facts: dict = field(default_factory=dict)  # run.json, flattened
    settings: dict = field(default_factory=dict)  # config.toml, flattened
    config_text: str = ""
    curves: dict = field(default_factory=dict)  # key of log.jsonl -> [(tokens, value)]; non-finite values are NaN
    # Keys of `values`: loss (nats per token), bits_per_byte, perplexity, word_perplexity, the sink measures
    # (fractions), tokens, speed (tokens per second), seconds. All values are finite; unknown measures are absent.
    values: dict = field(default_factory=dict)
    status: str = ""  # text with the current step; "" for finished runs
    loss_source: str = "last validation"
    scores: dict = field(default_factory=dict)  # accuracies from eval.json, see results.read_eval
    loss_by_length: dict = field(default_factory=dict)  # tokens -> nats per token
    sinks: dict | None = None  # see results.read_sinks
    learned: dict = field(default_factory=dict)  # see weights.learned_parameters
    samples: list = field(default_factory=list)  # (prompt, text)
    missing: list = field(default_factory=list)  # one line for each missing part

    @property
    def label(self):
        return series_name(self.index, self.name)

    def curve(self, key):
        """Returns the finite points of a curve."""
        return [point for point in self.curves.get(key, ()) if math.isfinite(point[1])]


def flatten(value, prefix=""):
    """Returns {"section.key": value as text} of nested objects. null is omitted."""
    if not isinstance(value, dict):
        value = f"{value:.6g}" if isinstance(value, float) else value
        return {prefix: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)}
    flat = {}
    for key, inner in value.items():
        if inner is not None:
            flat |= flatten(inner, f"{prefix}.{key}" if prefix else key)
    return flat


def read_log(path, run):
    """Reads log.jsonl, one step per line. A last line without a newline is still being written and is skipped."""
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1], 1):
        if line.strip():
            entry = Field.parse(line, f"{path}:{number}")
            tokens = entry["tokens"].number()
            for key in entry.keys():
                run.curves.setdefault(key, []).append((tokens, entry[key].number()))
    # The reported speed is the maximum over all logged intervals, because the fastest interval is least affected by
    # other processes.
    for name, key in (("tokens", "tokens"), ("seconds", "time"), ("speed", "throughput(tps)")):
        if largest := max((value for _, value in run.curve(key)), default=0):
            run.values[name] = largest


def read_config(path, run):
    import tomllib  # needs Python 3.11 or later

    run.config_text = path.read_text(encoding="utf-8", errors="replace")
    try:
        run.settings = flatten(tomllib.loads(run.config_text))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: expected TOML, found {error}") from None


def read_facts(content, run):
    run.facts, run.name = flatten(content.keys()), content["name"].text(run.name)


def read_samples(content, run):
    run.samples = [(sample["prompt"].text(), sample["text"].text()) for sample in content]


PARTS = {
    "run.json": (read_facts, "counts and versions"),
    "config.toml": (read_config, "the configuration"),
    "log.jsonl": (read_log, "learning curves"),
    "eval.json": (results.read_eval, "results of lazy eval"),
    "sinks.json": (results.read_sinks, "sink measures and attention maps"),
    "samples.json": (read_samples, "text samples"),
    "lengths.json": (results.read_lengths, ""),  # "": not listed as missing, because most runs do not have this file
}


def kind_of(run):
    normalizers = (
        run.sinks and run.sinks["normalizer"],
        run.settings.get("model.normalizer") or run.settings.get("model.kind"),
        run.facts.get("model.normalizer") or run.facts.get("kind"),
    )
    found = next(filter(None, normalizers), "")
    return {"elastic": "lazy", "transformer": "softmax"}.get(found, found)


def is_locked(folder):
    """Returns whether the training process is running. It holds a lock on a file of the folder, which the operating
    system releases when the process ends."""
    try:
        with open(folder / ".lock") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def status(run):
    """Returns a text with the current step and the remaining time of a run that has not finished, or "" for other runs.
    The remaining time is estimated from the last logged steps, including the time of validations and checkpoints."""
    # A resumed run rewrites config.toml but not run.json.
    total = int(run.settings.get("training.steps") or run.facts.get("steps") or 0)
    steps, times = ([value for _, value in run.curves.get(key, ())][-PACE_LINES:] for key in ("step", "time"))
    step = max(steps, default=0)
    if is_locked(run.folder):
        if not steps:
            return f"running, no step of {total} logged yet"
        left = ""
        if len(steps) == len(times) and steps[-1] > steps[0]:
            seconds = (total - steps[-1]) * (times[-1] - times[0]) / (steps[-1] - steps[0])
            left = f", {seconds_text(seconds)} left"
        return f"running, step {step} of {total}{left}"
    is_finished = (run.folder / "model").exists() or 0 < total <= step
    if is_finished or not (run.folder / ".lock").exists():
        return ""
    return f"stopped at step {step} of {total}; lazy train {run.folder / 'config.toml'} --resume continues it"


def complete(run):
    """Sets the fields that are computed from several files: the kind, the status, the learned parameters, and, if
    `lazy eval` has not measured a loss, the loss of the last validation."""
    if "loss" not in run.values:
        run.loss_source = "last validation"
        for name in ("loss", "bits_per_byte"):
            if curve := run.curve(f"validation_metrics/{name}"):
                run.values.setdefault(name, curve[-1][1])
    if "loss" in run.values:
        run.values.setdefault("perplexity", math.exp(min(run.values["loss"], 700)))
    run.kind, run.status, run.learned = kind_of(run), status(run), learned_parameters(run.folder)
    return run


def load_run(folder):
    """Reads the folder of a run. A missing file is listed in `missing`; a damaged file raises a UserError."""
    run = Run(folder, folder.resolve().name)
    if not any((folder / name).exists() for name in PARTS):
        raise UserError(f"{folder}: expected the folder of a run with {', '.join(PARTS)}, found none of these files")
    for name, (read, shows) in PARTS.items():
        path = folder / name
        if path.exists():
            read(Field.read(path) if path.suffix == ".json" else path, run)
        elif shows:
            run.missing.append(f"no {name}: {shows} omitted")
    if not complete(run).learned:
        run.missing.append("neither model/ nor a checkpoint was found: learned offsets and distance biases omitted")
    return run


def load_result(content, path):
    """Returns the run of one result file. `content` is the Field of the file's JSON, which `lazy sinks` or `lazy eval`
    wrote."""
    run = Run(path.parent, path.stem)
    if "per_head" in content:
        folder = run.folder = Path(content["model"]["path"].text())
        run.name = (folder.resolve().parent if folder.name == "model" else folder.resolve()).name
        results.read_sinks(content, run)
    elif "results" in content:
        results.read_eval(content, run)
    else:
        content.wrong("the folder of a run, or the JSON of lazy sinks or lazy eval")
    return complete(run)

"""Reads values per seed from docs/results/records. Defines the models and measures that several pages show.

A model is named "BLOCK.CELL" if it is a training of the protocol (configs/evidence.toml), and "NAME@TOKENS" if it is a
training of a recipe, for example "gated@200" for 200M tokens. A measure is a path of keys in the record. In records of
recipes, the path begins with the name of the step, for example "cache/values/full/1024/share". If the value at the path
is a list, such as one value per text or per head, its mean is used.
"""

import functools
import json
import re
import statistics as stdlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .. import records
from ..statistics import detectable, paired_difference, student_interval

STEP = re.compile(r"(?P<model>[^.]+(?:\.\d)?)(?P<trial>\.trial\d)?(?:\.seed(?P<seed>\d+))?(?:\.(?P<step>.+))?")
STEPS_TO_TOKENS = {"training.steps=763": 100, "training.steps=77": 10}  # override -> M tokens; default: 200M tokens

# The models of 200M tokens that differ in the normalizer only: without and with distance bias, RoPE base 1e4 and 1.5e5.
SOFTMAX = ("B.softmax", "B.softmax-bias", "B.softmax-base150k", "B.softmax-bias-base150k")
ELASTIC = ("B.elastic", "B.elastic-bias", "B.elastic-base150k", "B.lazy")
THRESHOLDED = tuple(f"thresholded {model}" for model in SOFTMAX)  # weights p become ReLU(p - 1 / i)
LAZY = ("B.lazy", "B.softmax")  # 200M tokens, three seeds
LONG = ("E.lazy", "E.softmax")  # 600M tokens, two seeds
COMPARED = {  # model trained on 200M tokens -> (title, role of its color in charts.COLORS)
    "B.softmax": ("softmax", "s1"),
    "B.lazy": ("Lazy Attention", "s0"),
    "B.elastic": ("Elastic-Softmax, tau from -1", "s2"),
    "F1.elastic-from-minus-05": ("Elastic-Softmax, tau from -0.5", "s2"),
    "D.elastic-constant": ("Elastic-Softmax, constant offset", "s2"),
    "F1.softmax-alibi-trained": ("softmax, ALiBi with trained slopes", "s1"),
    "gated@200": ("gated attention", "s3"),
    "softpick@200": ("Softpick", "s4"),
    "off-by-one@200": ("off-by-one softmax", "s5"),
    "learned-sink@200": ("softmax with a learned sink", "s6"),
}
SINK = "measures/sinks/512/bos"
LENGTHS = "measures/lengths/bos_every_window"
RECIPES = {"B.softmax": "softmax@200", "B.elastic": "elastic@200", "B.lazy": "lazy@200"}  # with equal configurations
STEP_PATHS = {  # path in a record of the protocol -> path of the same measure in the records of a recipe's steps
    "measures/heldout/loss": "heldout/loss",
    f"{SINK}/excess_at_offsets": "sinks/excess",
    f"{SINK}/sink_ratio": "sinks/sink_ratio",
    f"{SINK}/sink_1": "sinks/sink_1",
    f"{SINK}/alive_fraction": "sinks/alive_fraction",
    f"{LENGTHS}/2048/loss": "lengths/heldout/2048",
}


@functools.cache
def trainings():
    """Returns {model: {seed: record}} for the trainings of the protocol (configs/evidence.toml)."""
    found = {}
    for record in records.read("evidence"):
        found.setdefault(f"{record['block']}.{record['cell']}", {})[record["seed"]] = record
    return {model: dict(sorted(seeds.items())) for model, seeds in found.items()}


@functools.cache
def steps():
    """Returns {model: {step: {seed: values}}} from the records of the recipes' steps. A training is the step
    "train"."""
    found = {}
    for record in records.read("steps"):
        name = STEP.fullmatch(record["step"])
        if name["trial"]:
            continue
        overrides = [line for run in record["inputs"]["trainings"] for line in run["overrides"]]
        tokens = next((count for line, count in STEPS_TO_TOKENS.items() if line in overrides), 200)
        kinds = found.setdefault(f"{name['model']}@{tokens}", {})
        kinds.setdefault(name["step"] or "train", {})[int(name["seed"] or 1)] = record["values"]
    return found


def at(record, path):
    """Returns the number or list at a path with slashes, for example "sinks/512/bos/excess"."""
    for key in path.split("/"):
        record = record[int(key) if isinstance(record, list) else key]
    return record


def values(model, path):
    """Returns {seed: value at the path} of a model, or {} if the model has no record of the step at the start of the
    path."""
    if model.startswith("thresholded "):
        return values(model.removeprefix("thresholded "), path.replace("measures/", "measures/post_hoc/"))
    if "@" not in model and path.startswith(("measures/", "training/")):
        return {seed: float(np.mean(at(record, path))) for seed, record in trainings()[model].items()}
    step, _, rest = STEP_PATHS.get(path, path).partition("/")
    found = steps().get(RECIPES.get(model, model), {}).get(step, {})
    return {seed: float(np.mean(at(found[seed], rest))) for seed in sorted(found)}


def combine(function, *columns):
    """Applies `function` to the values that the columns have for the same seed. A column is {seed: value}. Returns
    {seed: result} for the seeds that occur in all columns."""
    seeds = sorted(set.intersection(*(set(column) for column in columns)))
    return {seed: function(*(column[seed] for column in columns)) for seed in seeds}


def minus(column, base, factor=1):
    """Returns {seed: column[seed] - factor * base[seed]}."""
    return combine(lambda a, b: a - factor * b, column, base)


def ratio(column, base):
    return combine(lambda a, b: a / b, column, base)


class Measure(NamedTuple):
    """A measured quantity, shown as a column or row of a table. `read` is a path (see above) or a function from the
    name of a model to {seed: value}. The table shows values times `scale`, with `digits` digits after the point."""

    title: str
    read: str | Callable
    digits: int = 3
    scale: float = 1.0

    def of(self, models):
        """Returns {seed: value} for a model. For a tuple of models, the value is the mean over these models."""
        names = (models,) if isinstance(models, str) else models
        found = [values(name, self.read) if isinstance(self.read, str) else self.read(name) for name in names]
        return combine(lambda *all_models: stdlib.fmean(all_models), *found)

    def level(self, models):
        """Returns the mean over seeds with its confidence interval, or None without any value."""
        found = self.of(models)
        return student_interval(found.values()) if found else None

    def effect(self, models, baselines):
        """Returns the mean difference models - baselines with its confidence interval, paired by seed. Returns None if
        the two have no common seed."""
        return paired_difference(self.of(baselines), self.of(models))

    def detectable(self, models=ELASTIC, baselines=SOFTMAX):
        """Returns the smallest true difference models - baselines that a paired t test would find with a power of 80 %,
        given the number of seeds and the observed standard deviation of the difference."""
        found = self.effect(models, baselines)
        return detectable(found.deviation, found.count)


def layers(models, path):
    """Returns {seed: array with one value per layer}. The list that the path has for each layer, such as one value per
    head, is averaged, and the result is averaged over the models."""

    def one(model, seed):
        return [np.mean(layer) for layer in at(trainings()[model][seed], path)]

    return {seed: np.mean([one(model, seed) for model in models], axis=0) for seed in trainings()[models[0]]}


def time_ratio(model, what, length=512):
    """Returns {seed: time of the model divided by the time of the softmax model}. Both were timed alternately on one
    GPU."""
    return ratio(*(values(model, f"speed/{name}/{length}/{what}/median") for name in ("as trained", "softmax")))


def percent(title, path, digits=1):
    return Measure(title, path, digits, 100)


LOSS = Measure("held-out loss", "measures/heldout/loss")
MINUS_SOFTMAX = Measure(
    "loss - loss of softmax", lambda model: minus(LOSS.of(model), LOSS.of("B.softmax")) if model != "B.softmax" else {}
)
LAMBADA = percent("LAMBADA, last word correct, %", "measures/lambada/bos_every_window/last_word_accuracy")
EXCESS = percent("excess sink, %", f"{SINK}/excess_at_offsets")
RATIO = percent("sink ratio, %", f"{SINK}/sink_ratio")
DENSITY = percent("density, %", f"{SINK}/density")
ALIVE = percent("nonzero pairs, %", f"{SINK}/alive_fraction")
ROWS_OF_V = percent("rows of V read, %", "cache/values/full/1024/share")
TRAIN_TIME = Measure("training step, of softmax's time", functools.partial(time_ratio, what="train_ms"), 2)

OTHER_TEXT = (
    LOSS._replace(title="held-out text, loss"),
    Measure("WikiText, loss", "measures/wikitext/bos_every_window/loss_per_token"),
    Measure("WikiText without BOS, loss", "measures/wikitext/no_bos/loss_per_token"),
    Measure("LAMBADA, loss", "measures/lambada/bos_every_window/loss_per_token"),
    Measure("LAMBADA without BOS, loss", "measures/lambada/no_bos/loss_per_token"),
    LAMBADA,
    percent("LAMBADA without BOS, last word correct, %", "measures/lambada/no_bos/last_word_accuracy"),
)


def uptraining(folder):
    """Returns the contents of results.json in a folder of docs/results/uptraining, written by `lazy uptrain`."""
    return json.loads((records.FOLDER.parent / "uptraining" / folder / "results.json").read_text(encoding="utf-8"))

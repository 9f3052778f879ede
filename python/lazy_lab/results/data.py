"""Reads values per seed from docs/results. Defines the models and measures that several pages show.

| name of a model | meaning |
|---|---|
| B.lazy | training of the protocol configs/evidence.toml: BLOCK.CELL |
| thresholded B.softmax | the same model, whose weights p are replaced by ReLU(p - 1 / i) after the training |
| gated@200 | training of a recipe on 200M tokens: NAME@TOKENS |
| smollm2-135m/lazy | pretrained model after `lazy uptrain`: folder in docs/results/uptraining, and kind of model |

A measure is a path of keys in the record of a model. In a model of a recipe, the first key is the name of the step, for
example "cache/values/full/1024/share". If the value at the path is a list, such as one value per text or per head, its
mean is used. A *column* is a pandas Series with one value per seed; arithmetic on columns pairs values by seed.
"""

import functools
import json
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

from .. import records, statistics

STEP = re.compile(r"([^.]+(?:\.\d)?)(?:\.seed(\d+))?(?:\.(.+))?")  # NAME, NAME.STEP, NAME.seedK or NAME.seedK.STEP

# The models of 200M tokens that differ in the normalizer only: without and with distance bias, RoPE base 1e4 and 1.5e5.
SOFTMAX = ("B.softmax", "B.softmax-bias", "B.softmax-base150k", "B.softmax-bias-base150k")
ELASTIC = ("B.elastic", "B.elastic-bias", "B.elastic-base150k", "B.lazy")
THRESHOLDED = tuple(f"thresholded {model}" for model in SOFTMAX)
# Differences [models, baselines], see combine().
NORMALIZER = [ELASTIC, SOFTMAX]
LAZY = ["B.lazy", "B.softmax"]  # 200M tokens, three seeds
LONG = ["E.lazy", "E.softmax"]  # 600M tokens, two seeds
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
STEP_PATHS = {  # path in a record of the protocol -> path of the same measure in the steps of a recipe
    "measures/heldout/loss": "heldout/loss",
    f"{SINK}/excess_at_offsets": "sinks/excess",
    f"{SINK}/sink_ratio": "sinks/sink_ratio",
    f"{SINK}/sink_1": "sinks/sink_1",
    f"{SINK}/alive_fraction": "sinks/alive_fraction",
    f"{LENGTHS}/2048/loss": "lengths/heldout/2048",
}


@functools.cache
def trainings():
    """Returns {model: {seed: record}}. The record of a model of a recipe is {step: values}, where "train" is the
    training step. The record of a model of the protocol also has the steps of the equal recipe model in RECIPES."""
    found = {}
    for record in records.read("steps"):
        if ".trial" not in record["step"]:
            name, seed, step = STEP.fullmatch(record["step"]).groups()
            short = any("training.steps=763" in run["overrides"] for run in record["inputs"]["trainings"])
            seeds = found.setdefault(f"{name}@{100 if short else 200}", {})
            seeds.setdefault(int(seed or 1), {})[step or "train"] = record["values"]
    for record in records.read("evidence"):
        model, seed = f"{record['block']}.{record['cell']}", record["seed"]
        found.setdefault(model, {})[seed] = record | found.get(RECIPES.get(model), {}).get(seed, {})
        post_hoc = {"measures": record["measures"].get("post_hoc")}
        found.setdefault(f"thresholded {model}", {})[seed] = post_hoc
    for path in (records.FOLDER.parent / "uptraining").glob("*/results.json"):
        for record in json.loads(path.read_text(encoding="utf-8"))["models"]:
            found.setdefault(f"{path.parent.name}/{record['model']}", {})[record["seed"]] = record
    return {model: dict(sorted(seeds.items())) for model, seeds in found.items()}


def at(record, path):
    """Returns the number or list at a path with slashes, for example "sinks/512/bos/excess"."""
    for key in path.split("/"):
        record = record[int(key) if isinstance(record, list) else key]
    return record


def arrays(model, path):
    """Returns {seed: array at the path}, without the seeds whose record does not have the first key of the path."""
    path = STEP_PATHS.get(path, path) if "@" in model else path
    first = path.split("/")[0]
    return {seed: np.array(at(record, path)) for seed, record in trainings()[model].items() if first in record}


def values(model, path):
    """Returns the column of the means of the values at the path."""
    return pd.Series({seed: float(np.mean(found)) for seed, found in arrays(model, path).items()}, dtype=float)


def combine(choice, read):
    """Returns a column. `choice` is a name, for which the column is read(name), or a tuple of choices, for the mean of
    their columns, or a list of two choices, for the difference of their columns."""
    if isinstance(choice, str):
        return read(choice)
    columns = pd.concat([combine(item, read) for item in choice], axis=1, join="inner")
    return columns.mean(axis=1) if isinstance(choice, tuple) else columns[0] - columns[1]


class Measure(NamedTuple):
    """A measured quantity, shown as a column or row of a table. `read` is a path or a combination of paths, see
    combine(), or a function from the name of a model to a column. Values are multiplied by `scale`; tables show
    `digits` digits after the point."""

    title: str
    read: str | tuple | list | Callable
    digits: int = 3
    scale: float = 1.0

    def of(self, models):
        """Returns the column of a model, the mean of a tuple of models, or the difference [models, baselines]."""
        read = self.read if callable(self.read) else lambda model: combine(self.read, lambda path: values(model, path))
        return self.scale * combine(models, read).dropna()

    def interval(self, models):
        """Returns the mean over seeds with its confidence interval, or None without any value."""
        return statistics.student_interval(self.of(models))


def percent(title, read, digits=1):
    return Measure(title, read, digits, 100)


def by_layer(path):
    """Returns {layer: Measure in %} for a path whose list has one item per layer. Layers are counted from 1."""
    return {layer: percent("", f"{path}/{layer - 1}") for layer in range(1, 13)}


def validation_losses(model):
    """Returns {training tokens in millions: Measure of the validation loss at this point of the training}."""
    tokens = at(trainings()[model][1], "training/validation/tokens")
    return {count / 1e6: Measure("", f"training/validation/loss/{place}") for place, count in enumerate(tokens)}


def timed(title, what, length=512):
    """Returns the Measure of the time of a model divided by the time of the softmax model. Both were timed alternately
    on one GPU."""
    names = ("as trained", "softmax")
    times = lambda model: [values(model, f"speed/{name}/{length}/{what}/median") for name in names]
    return Measure(title, lambda model: np.divide(*times(model)), 2)


LOSS = Measure("held-out loss", "measures/heldout/loss")
MINUS_SOFTMAX = Measure(
    "loss - loss of softmax",
    lambda model: LOSS.of([model, "B.softmax"]) if model != "B.softmax" else pd.Series(dtype=float),
)
LAMBADA = percent("LAMBADA, last word correct, %", "measures/lambada/bos_every_window/last_word_accuracy")
EXCESS = percent("excess sink, %", f"{SINK}/excess_at_offsets")
RATIO = percent("sink ratio, %", f"{SINK}/sink_ratio")
DENSITY = percent("density, %", f"{SINK}/density")
ALIVE = percent("nonzero pairs, %", f"{SINK}/alive_fraction")
ROWS_OF_V = percent("rows of V read, %", "cache/values/full/1024/share")
TRAIN_TIME = timed("training step, of softmax's time", "train_ms")

OTHER_TEXT = (
    LOSS._replace(title="held-out text, loss"),
    Measure("WikiText, loss", "measures/wikitext/bos_every_window/loss_per_token"),
    Measure("WikiText without BOS, loss", "measures/wikitext/no_bos/loss_per_token"),
    Measure("LAMBADA, loss", "measures/lambada/bos_every_window/loss_per_token"),
    Measure("LAMBADA without BOS, loss", "measures/lambada/no_bos/loss_per_token"),
    LAMBADA,
    percent("LAMBADA without BOS, last word correct, %", "measures/lambada/no_bos/last_word_accuracy"),
)

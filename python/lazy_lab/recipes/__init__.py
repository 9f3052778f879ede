"""Recipes of `lazy lab`: which models are trained, what is measured on them, and which numbers are on the page.

A recipe is a Recipe object in one of the modules MODULES. Its page has a table with one row per model: the mean over
seeds of each quantity, its 95 % interval, and the published value if the paper has one. A second table has the
differences between models, paired by seed.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .. import charts
from ..errors import UserError

MODULES = ("tables", "figures", "rivals", "studies", "evidence")


@dataclass(frozen=True)
class Scale:
    """The size of models and training data. `files` are configuration files in configs/. `overrides` are configuration
    overrides for every model, and `attention` are overrides for models with attention layers. `settings` are the
    settings of `lazy measure model`."""

    name: str
    means: str
    files: tuple
    overrides: dict
    attention: dict
    context: int  # training length in tokens
    window: int  # number of distances with a learned bias
    settings: dict

    @property
    def small(self):
        return self.name == "small"


def measure_settings(context, lengths, heldout, sinks, blocks, bos):
    """Returns the settings of `lazy measure model`. bos: if true, sequences begin with BOS and documents are separated
    by EOS; otherwise each document begins with BOS. context: sequence length in tokens. heldout and sinks: numbers of
    sequences for the held-out loss and for the sink measures. lengths: sequence lengths of the loss by length, as
    multiples of `context`; `blocks` becomes the setting length_blocks of this measurement."""
    settings = {"bos_per_sequence": bos, "bos_per_document": not bos, "eos_per_document": bos}
    settings |= {"heldout_tokens": heldout * context, "sink_lengths": [64, context], "sink_tokens": sinks * context}
    return settings | {"lengths": [factor * context for factor in lengths], "length_blocks": blocks}


TINY = "4 layers of width 128, context 256, 0.5M tokens per model: minutes on two CPU cores"
SMALL = "55M parameters, context 512, 200M tokens per model: minutes on one GPU"
PAPER = "340M parameters, 10B tokens at context 512; models of Table 1: 15B tokens at context 4096"
HEADS = {"model.num_heads": 8, "model.distance_bias_init_apart": True}
PAPER_FILES = ("models/{kind}-340m.toml", "recipes/10b-512.toml")
SCALES = {
    scale.name: scale
    for scale in (
        Scale("tiny", TINY, ("repro-tiny.toml",), {}, {"model.num_heads": 4}, 256, 256,
              measure_settings(256, (1, 2, 4), 192, 64, 32, True) | {"probe_samples": 8, "collapse_samples": 4}),
        Scale("small", SMALL, ("sink-55m.toml",), {"optimizer.lr": 3e-3}, HEADS, 512, 128,
              measure_settings(512, (1, 2, 4, 8), 16384, 512, 256, True)),
        Scale("paper", PAPER, PAPER_FILES, {}, {}, 512, 512, measure_settings(512, (1, 2, 4), 2048, 256, 128, False)),
    )
}  # fmt: skip


@dataclass
class Model:
    """A model of a recipe. `overrides` maps configuration keys to values. `files`, if given, replaces the configuration
    files of the scale. `kind` is the name of the architecture in configs/models. `rates`: learning rates that are
    compared by short trainings with the additional overrides `trial`; the model is trained with the rate that gives the
    lowest held-out loss."""

    name: str
    overrides: dict = field(default_factory=dict)
    kind: str = "transformer"
    files: tuple = ()
    rates: tuple = ()
    trial: dict = field(default_factory=dict)

    @property
    def attends(self):
        return self.kind == "transformer"

    def configuration(self, scale, seed):
        """Returns (configuration files, overrides) for the training with the given seed."""
        files = self.files or tuple(file.format(kind=self.kind) for file in scale.files)
        overrides = {"model.kind": self.kind.replace("-", "_")} | ({} if self.files else scale.overrides)
        if self.attends and not self.files:
            overrides |= scale.attention
        return files, overrides | self.overrides | {"training.seed": 41 + seed}


@dataclass
class Measurement:
    """A measurement of every model, or only of the models in `models`. `kind` is a kind of `lazy measure`, or "tasks"
    for `lazy eval --tasks`. `given`: measure the models that the user passes by --model instead of trained models.
    `baselines`: models whose time is measured alternately with the time of each model. `needs_data`: the measurement is
    skipped without --data."""

    kind: str
    settings: dict = field(default_factory=dict)
    models: tuple = ()
    baselines: tuple = ()
    given: bool = False
    needs_data: bool = False
    reads: str = "corpus"  # input: "" (none), "corpus" (only --corpus), or "text" (--text or --corpus)

    def selects(self, model):
        return not self.models or model.name in self.models


@dataclass
class Column:
    """One measured quantity, a column of the page's table. `value` is a function that receives the measurements of one
    model as {kind: values} and returns a number, or a path of keys such as "model heldout loss", whose numbers are
    averaged. If a key is missing, the quantity was not measured. `paper` maps names of models to published values."""

    title: str
    value: Callable | str
    factor: float = 1.0
    digits: int = 3
    paper: dict = field(default_factory=dict)

    def __call__(self, measured):
        found = self.value(measured) if callable(self.value) else mean_at(measured, self.value)
        return self.factor * found


def mean_at(measured, path):
    """Returns the mean of all numbers at a path, for example "model heldout loss": keys separated by spaces."""
    for key in path.split():
        measured = measured[key]
    return float(np.mean(measured))


def line_chart(series, x, y, lengths=False):
    """Returns a figure with one line for each (label, x values, y values) of `series`, or None if `series` has no data.
    lengths: whether the x axis is logarithmic and shows lengths in tokens."""
    series = [item for item in series if len(item[1])]
    if not series:
        return None
    figure, axes = charts.figure()
    for index, (label, xs, ys) in enumerate(series):
        color = charts.color(charts.series_role(index))
        axes.plot(xs, ys, color=color, marker=charts.marker(index), label=label)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if lengths:
        charts.length_axis(axes, series[0][1])
    axes.legend(ncols=2)
    return figure


@dataclass
class Difference:
    """A question: the difference of a column between two models, `over` minus `under`, paired by seed. The p values of
    all primary differences are corrected together by Holm's method. Other differences are shown without a p value."""

    question: str
    column: str
    over: str
    under: str
    primary: bool = False


@dataclass
class Recipe:
    """`models`, `measurements` and `columns` are functions that receive the Scale and return the recipe's models, their
    measurements and the columns of the page's table. `draw` receives the results and returns the picture as a
    matplotlib figure, or None if measurements for the picture are missing."""

    name: str
    title: str
    source: str
    models: Callable = lambda scale: []
    measurements: Callable = lambda scale: []
    columns: Callable = lambda scale: []
    differences: tuple = ()
    notes: tuple = ()
    draw: Callable | None = None


def model_measurement(scale, *parts):
    """Returns the measurement `lazy measure model`, restricted to `parts`, such as "heldout" and "sinks"."""
    return Measurement("model", scale.settings | {"parts": list(parts)})


# Models that several recipes use. Lazy has Elastic-Softmax with the initial offset tau = -1, a distance bias, and RoPE
# with base 1.5e5.
SOFTMAX = Model("softmax")
SOFTMAX_BASE = Model("softmax-base150k", {"model.rope_theta": 150000})
ELASTIC = Model("elastic", {"model.normalizer": "elastic"})


def lazy_model(scale, name="lazy", **more):
    bias = {"model.normalizer": "elastic", "model.distance_bias_window": scale.window, "model.rope_theta": 150000}
    return Model(name, bias | {key.replace("__", "."): value for key, value in more.items()})


def sinks_of(key):
    """Returns a function that reads the sink measure `key` at the training length from the measurements of a model. The
    sequences begin with BOS if they did so in training."""

    def value(measured):
        by_length = measured["model"]["sinks"]
        found = by_length[max(by_length, key=int)]
        return (found.get("bos") or found["no_bos"])[key]

    return value


def loss_column(**options):
    return Column("held-out loss", "model heldout loss", **options)


def sink_columns(density=None, sink=None):
    return [
        Column("density, %", sinks_of("density"), 100, 1, density or {}),
        Column("sink ratio, %", sinks_of("sink_ratio"), 100, 2, sink or {}),
        Column("excess sink, points", sinks_of("excess_at_offsets"), 100, 2),
    ]


def recipes():
    """Returns all recipes by name, in the order of MODULES."""
    found = [recipe for name in MODULES for recipe in importlib.import_module(f"{__name__}.{name}").RECIPES]
    return {recipe.name: recipe for recipe in found}


def find_recipe(name):
    import difflib

    known = recipes()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise UserError(f"expected a recipe that `lazy lab list` names, found '{name}'{hint}")
    return known[name]

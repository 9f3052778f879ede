"""Recipes of `lazy lab`: which models are trained, what is measured on them, and which numbers are on the page.

Each module of MODULES has a function recipes(scale) that returns a list of Recipe objects. The page of a recipe has a
table with one row per model: the mean over seeds of each quantity, its 95 % interval, and the published value if the
paper has one. A second table has the differences between models, paired by seed.
"""

import difflib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from .. import charts
from ..errors import UserError
from ..published import TABLE2

MODULES = ("tables", "figures", "checks", "evidence")


@dataclass
class Model:
    """A model of a recipe. `overrides` maps configuration keys to values. `files`, if given, replaces the configuration
    files of the scale. `kind` is the name of the architecture in configs/models."""

    name: str
    overrides: dict = field(default_factory=dict)
    kind: str = "transformer"
    files: tuple = ()

    @property
    def attends(self):
        return self.kind == "transformer"

    def configuration(self, scale, seed):
        """Returns (configuration files, overrides) for the training with the given seed."""
        files = self.files or tuple(file.format(kind=self.kind) for file in scale.files)
        overrides = {"model.kind": self.kind.replace("-", "_")}
        if not self.files:
            overrides |= scale.overrides | (scale.attention if self.attends else {})
        return files, overrides | self.overrides | {"training.seed": 41 + seed}


@dataclass
class Measurement:
    """A measurement of every model, or only of the models in `models`. `kind` is a kind of `lazy measure`, "tasks" for
    the benchmarks of `lazy eval`, or "domains" for loss and attention sink on the text folders of --domain. `given`:
    measure the models that the user passes by --model instead of trained models. `baselines`: models whose time is
    measured alternately with the time of each model. `needs_data`: the measurement is skipped without --data."""

    kind: str
    settings: dict = field(default_factory=dict)
    models: tuple = ()
    baselines: tuple = ()
    given: bool = False
    needs_data: bool = False
    reads: str = "corpus"  # input: "" (none), "corpus" (only --corpus), or "text" (--text or --corpus)


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

    def lazy(self, name="lazy", overrides=()):
        """Returns a Lazy model: Elastic-Softmax with the initial offset tau = -1, a distance bias, and RoPE with base
        1.5e5. `overrides` are changes of this configuration."""
        own = {"model.normalizer": "elastic", "model.distance_bias_window": self.window, "model.rope_theta": 150000}
        return Model(name, own | dict(overrides))

    def measure(self, *parts, **options):
        """Returns the measurement `lazy measure model`, restricted to `parts`, such as "heldout" and "sinks"."""
        return Measurement("model", self.settings | {"parts": list(parts)}, **options)

    def measure_lengths(self, *factors):
        """Returns the measurement of the loss and of the collapse of hidden states at multiples of the context."""
        lengths = [factor * self.context for factor in factors]
        parts = ["heldout", "lengths", "collapse_by_length"]
        return Measurement("model", self.settings | {"lengths": lengths, "parts": parts})


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
class Column:
    """One measured quantity, a column of the page's table. `path` leads to a value in the measurements of a model (see
    at), and `reduce` computes a number from this value. `minus` is the path of a number that is subtracted, and `over`
    the path of a number by which the result is divided. If a key is missing, the quantity was not measured. `paper`
    maps names of models to published values."""

    title: str
    path: str
    factor: float = 1.0
    digits: int = 3
    reduce: Callable = np.mean
    minus: str = ""
    over: str = ""
    paper: dict = field(default_factory=dict)

    def __call__(self, measured):
        found = self.reduce(at(measured, self.path))
        found -= np.mean(at(measured, self.minus)) if self.minus else 0
        return float(self.factor * found / (np.mean(at(measured, self.over)) if self.over else 1))


def at(values, path):
    """Returns the value at a path in {kind of measurement: values}: keys separated by slashes, such as
    "model/heldout/loss". The key * stands for all keys, whose values are returned as a list."""
    key, _, rest = path.partition("/")
    if not key:
        return values
    return [at(value, rest) for value in values.values()] if key == "*" else at(values[key], rest)


def at_largest_length(key):
    """Returns a function that reads `key` at the largest length of {length: measures}. Sink measures are read for
    sequences that begin with BOS if they did so in training."""

    def read(by_length):
        found = by_length[max(by_length, key=int)]
        return (found.get("bos") or found.get("no_bos") or found)[key]

    return read


LOSS = Column("held-out loss", "model/heldout/loss")
EXCESS = Column("excess sink, points", "model/sinks", 100, 2, at_largest_length("excess_at_offsets"))
LOSS_AND_SINKS = [
    LOSS,
    Column("density, %", "model/sinks", 100, 1, at_largest_length("density")),
    Column("sink ratio, %", "model/sinks", 100, 2, at_largest_length("sink_ratio")),
    EXCESS,
]


def published(columns, table):
    """Returns the columns with published values. table: {model: values in the order of the columns}."""
    return [
        replace(column, paper={name: values[index] for name, values in table.items()})
        for index, column in enumerate(columns)
    ]


TABLE2_COLUMNS = [*published(LOSS_AND_SINKS[:3], TABLE2), EXCESS]


@dataclass
class Difference:
    """A question: the difference of a column between two models, `over` minus `under`, paired by seed. The p values of
    all primary differences are corrected together by Holm's method. Other differences are shown without a p value."""

    question: str
    column: Column
    over: str
    under: str
    primary: bool = False


@dataclass
class Recipe:
    """The models, measurements, columns and differences of one page. `draw` receives the results (lab_page.Results) and
    returns the picture as a matplotlib figure, or None if measurements for the picture are missing."""

    name: str
    title: str
    source: str
    models: Sequence[Model] = ()
    measurements: Sequence[Measurement] = ()
    columns: Sequence[Column] = ()
    differences: Sequence[Difference] = ()
    notes: Sequence[str] = ()
    draw: Callable | None = None


# Models that several recipes use.
SOFTMAX = Model("softmax")
SOFTMAX_BASE = Model("softmax-base150k", {"model.rope_theta": 150000})
ELASTIC = Model("elastic", {"model.normalizer": "elastic"})


def line_chart(series, x, y, lengths=False, line="-"):
    """Returns a figure with one line for each (label, x values, y values) of `series`, or None if `series` has no data.
    lengths: whether the x axis is logarithmic and shows lengths in tokens. line: line style; "" draws only markers."""
    if not any(len(xs) for _, xs, _ in series):
        return None
    figure, axes = charts.figure()
    for index, (label, xs, ys) in enumerate(series):
        if len(xs):
            color = charts.color(charts.series_role(index))
            axes.plot(xs, ys, color=color, marker=charts.marker(index), ls=line, label=label)
    axes.set(xlabel=x, ylabel=y)
    if lengths:
        charts.length_axis(axes, series[0][1])
    axes.legend(ncols=2)
    return figure


def configurations():
    """Returns the folder of the configurations: in a source tree, in an installation (share/lazy), or in a wheel."""
    package = Path(__file__).resolve().parents[1]
    candidates = (package.parents[1] / "configs", package.parent / "lazy_attention_cli" / "configs")
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise UserError(f"configurations: expected the folder {' or '.join(map(str, candidates))}, found none")


def recipes(scale):
    """Returns all recipes by name, in the order of MODULES."""
    modules = [importlib.import_module(f"{__name__}.{name}") for name in MODULES]
    return {recipe.name: recipe for module in modules for recipe in module.recipes(scale)}


def find_recipe(name, scale):
    known = recipes(scale)
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise UserError(f"expected a recipe that `lazy lab list` names, found '{name}'{hint}")
    return known[name]

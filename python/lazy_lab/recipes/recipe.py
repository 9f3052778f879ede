"""The parts of a recipe."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np


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
    """Returns a function that reads `key` at the largest length of {length: measures}. Sink measures exist for
    sequences with and without BOS; the value for sequences with BOS is preferred."""

    def read(by_length):
        found = by_length[max(by_length, key=int)]
        return (found.get("bos") or found.get("no_bos") or found)[key]

    return read


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

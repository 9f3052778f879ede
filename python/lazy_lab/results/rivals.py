"""The page rivals.md: models with other normalizers, with gates, and with other offsets of Elastic-Softmax. All were
trained on 200M tokens."""

import pandas as pd

from .. import charts
from ..published import TABLE2
from . import data, pictures, text
from .data import EXCESS, LOSS, Measure, percent

RIVALS = {
    model: shown
    for model, shown in data.COMPARED.items()
    if model in ("B.softmax", "B.elastic", "B.lazy") or "@" in model
}
MODELS = {title: model for model, (title, _) in RIVALS.items()}
OFFSETS = {  # title -> model; other offsets and initial values of tau; the last two models have a single seed
    "softmax": "B.softmax",
    "ReLU(softmax + tau), tau from 0": "D.elastic-constant",
    "ReLU(softmax + tau / i), tau from 0": "D.elastic-from-0",
    "tau from -0.5": "F1.elastic-from-minus-05",
    "tau from -1": "B.elastic",
    "tau from -1.5": "F1.elastic-from-minus-15",
    "tau from -2": "F1.elastic-from-minus-20",
    "ReLU(softmax - 1 / i), tau fixed": "D.elastic-fixed",
    "entmax-1.5": "D.entmax15",
    "sparsemax": "D.sparsemax",
}
STARTS = dict(zip((0, -0.5, -1, -1.5, -2), list(OFFSETS.values())[2:7]))


def added_by(title, name):
    """Returns the Measure of how much a low-bit format increases the loss, relative to bf16."""
    return Measure(f"{title}, loss added", [f"quantization/formats/{name}", "quantization/full"], 4)


KURTOSIS = Measure("kurtosis", "outliers/places/residual/kurtosis", 0)
W4A4, KV4 = added_by("W4A4", "w4a4"), added_by("KV4", "kv4")
OF_SOFTMAX = Measure("of softmax's", lambda model: EXCESS.of(model) / EXCESS.of("B.softmax"), 2)


def offsets():
    """Returns the table of the models in OFFSETS, with the numbers from the paper's Table 2 in small type."""
    measures = (LOSS, data.DENSITY, data.RATIO, data.MINUS_SOFTMAX, data.ALIVE, data.LAMBADA)

    def cell(measure, model):
        cited = dict(zip(measures, TABLE2.get(model.split(".")[-1], ()))).get(measure)
        return text.level(measure, model) + (f"<br><sub>{text.number(cited, 2)}</sub>" if cited else "")

    return text.models_by_measures("normalizer", OFFSETS, measures, cell)


@pictures.picture("rivals-quantization", "Kurtosis, and loss added by low-bit formats", 330, ncols=3, sharey=True)
def draw_properties(figure, axes):
    pictures.compare_models(axes, RIVALS, (KURTOSIS, W4A4, KV4))


@pictures.picture("rivals-caches", "Loss with small caches, and rows of V that decoding reads", 360, legend=3, ncols=2)
def draw_caches(figure, axes):
    kept = {size: Measure("", f"cache/caches/streaming:0+{size}/loss") for size in (64, 128, 256)}
    read = {length: percent("", f"cache/values/full/{length}/share") for length in (64, 128, 256, 512, 1024)}
    for place, (model, (title, role)) in enumerate(RIVALS.items()):
        style = {"marker": charts.marker(place), "color": charts.color(role), "label": title.split(",")[0]}
        for axis, measures in zip(axes, (kept, read)):
            axis.plot(pictures.points(measures, model).mean(), **style)
    for axis, measures in zip(axes, (kept, read)):
        charts.length_axis(axis, list(measures))
    axes[0].set(xlabel="last keys in the cache", ylabel="loss, nats per token")
    axes[1].set(xlabel="context, tokens", ylabel="rows of V read, %", ylim=(0, 105))


@pictures.picture("rivals-offsets", "Loss and excess sink by the start of tau", 300, legend=3, ncols=2)
def draw_starts(figure, axes):
    for axis, measure in zip(axes, (LOSS, EXCESS)):
        points = pd.DataFrame({start: measure.of(model) for start, model in STARTS.items()})
        pictures.curves(axis, points, "Elastic-Softmax, tau / i", "s0", marker="o")
        for model, title, role in (("B.softmax", "softmax", "s1"), ("D.elastic-constant", "constant offset", "s2")):
            style = {"color": charts.color(role), "linestyle": "--"}
            axis.axhline(measure.of(model).mean(), label=title, **style)
        axis.set(xlabel="tau at the start", ylabel=measure.title, xticks=list(STARTS))
        axis.invert_xaxis()

"""The page rivals.md: models with other normalizers, with gates, and with other offsets of Elastic-Softmax. All were
trained on 200M tokens."""

import functools

from .. import charts
from ..published import TABLE2
from . import data, pictures, text

RIVALS = {
    model: shown
    for model, shown in data.COMPARED.items()
    if model in ("B.softmax", "B.elastic", "B.lazy") or "@" in model
}
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
BASELINE = "B.softmax"


def added_by(title, name):
    """Returns the Measure of how much a low-bit format increases the loss, relative to bf16."""

    def read(model):
        return data.minus(*(data.values(model, f"quantization/{part}") for part in (f"formats/{name}", "full")))

    return data.Measure(f"{title}, loss added", read, 4)


def timed(title, what, length):
    return data.Measure(title, functools.partial(data.time_ratio, what=what, length=length), 2)


KURTOSIS = data.Measure("kurtosis", "outliers/places/residual/kurtosis", 0)
W4A4, KV4 = added_by("W4A4", "w4a4"), added_by("KV4", "kv4")
OF_SOFTMAX = data.Measure("of softmax's", lambda model: data.ratio(data.EXCESS.of(model), data.EXCESS.of(BASELINE)), 2)


def offsets():
    """Returns the table of the models in OFFSETS, with the numbers from the paper's Table 2 in small type."""
    measures = (data.LOSS, data.DENSITY, data.RATIO, data.MINUS_SOFTMAX, data.ALIVE, data.LAMBADA)

    def cell(measure, model):
        cited = dict(zip(measures, TABLE2.get(model.split(".")[-1], ()))).get(measure)
        return text.level(measure, model) + (f"<br><sub>{text.number(cited, 2)}</sub>" if cited else "")

    return text.models_by_measures("normalizer", OFFSETS, measures, cell)


def draw_properties(folder):
    """Draws the kurtosis of the activations, and by how much two low-bit formats increase the loss."""
    figure, axes = charts.figure(720, 330, ncols=3, sharey=True)
    pictures.compare_models(axes, RIVALS, (KURTOSIS, W4A4, KV4))
    charts.save_svg(figure, folder / "rivals-quantization.svg", "Kurtosis, and loss added by low-bit formats")


def draw_caches(folder):
    """Draws the loss by the number of keys that the KV cache keeps, and how many rows of V a decode step reads."""
    figure, axes = charts.figure(720, 360, ncols=2)
    kept = {size: data.Measure("", f"cache/caches/streaming:0+{size}/loss") for size in (64, 128, 256)}
    read = {length: data.percent("", f"cache/values/full/{length}/share") for length in (64, 128, 256, 512, 1024)}
    for place, (model, (title, role)) in enumerate(RIVALS.items()):
        style = {"marker": charts.marker(place), "color": charts.color(role), "label": title.split(",")[0]}
        for axis, measures in zip(axes, (kept, read)):
            axis.plot(list(measures), [m.scale * m.level(model).mean for m in measures.values()], **style)
    charts.length_axis(axes[0], list(kept))
    axes[0].set(xlabel="last keys in the cache", ylabel="loss, nats per token")
    charts.length_axis(axes[1], list(read))
    axes[1].set(xlabel="context, tokens", ylabel="rows of V read, %", ylim=(0, 105))
    pictures.legend_above(figure, axes[0], 3)
    charts.save_svg(figure, folder / "rivals-caches.svg", "Loss with small caches, and rows of V that decoding reads")


def draw_starts(folder):
    """Draws the loss and the excess sink by the initial value of tau."""
    figure, axes = charts.figure(720, 300, ncols=2)
    for axis, measure in zip(axes, (data.LOSS, data.EXCESS)):
        lists = pictures.by_seed([measure.of(model) for model in STARTS.values()])
        scaled = [[measure.scale * value for value in seed] for seed in lists]
        pictures.curves(axis, list(STARTS), scaled, "Elastic-Softmax, tau / i", "s0", marker="o")
        for model, title, role in ((BASELINE, "softmax", "s1"), ("D.elastic-constant", "constant offset", "s2")):
            style = {"color": charts.color(role), "linestyle": "--"}
            axis.axhline(measure.scale * measure.level(model).mean, label=title, **style)
        axis.set(xlabel="tau at the start", ylabel=measure.title, xticks=list(STARTS))
        axis.invert_xaxis()
    pictures.legend_above(figure, axes[0], 3)
    charts.save_svg(figure, folder / "rivals-offsets.svg", "Loss and excess sink by the start of tau")


def write(folder):
    for draw in (draw_properties, draw_caches, draw_starts):
        draw(folder)
    models = {title: model for model, (title, _) in RIVALS.items()}
    text.write_page(folder, "rivals", **globals() | {"models": models})

"""The page figures.md: Figures 4 to 10 of the paper with the models of 55M parameters."""

import numpy as np
from matplotlib.colors import ListedColormap, LogNorm

from .. import charts
from ..measures import inhibition_share
from ..statistics import student_interval
from . import pictures, text
from .data import Measure, arrays, at, trainings

LAYERS = range(1, 13)
TEXTS = {"heldout": "held-out text", "wikitext": "WikiText", "lambada_openai": "LAMBADA"}
WINDOWS = (512, 1024, 2048)
LENGTH_MODELS = {  # model trained on 100M tokens -> (title, role of its color in charts.COLORS)
    "lazy@100": ("Lazy", "s0"),
    "softmax@100": ("softmax", "s1"),
    "no-positional@100": ("Lazy without bias, base 1e4", "s2"),
    "no-elastic@100": ("Lazy with softmax", "s3"),
}
TAU, BIAS = "measures/learned/tau", "measures/learned/distance_bias/bias"


def loss(name, window):
    return f"lengths-{window}/{name}/{window}"


RISES = [Measure(title, [loss(name, 2048), loss(name, 512)]) for name, title in TEXTS.items()]
PAIRS = {f"Lazy - {title}": ["lazy@100", model] for model, (title, _) in LENGTH_MODELS.items() if model != "lazy@100"}


def ranges():
    """Returns the ranges of distances over which the recorded distance bias is averaged, as pairs [first, last]."""
    return at(trainings()["B.lazy"][1], "measures/learned/distance_bias/distances")


# Functions of a distance bias (layers, heads, range of distances) or of offsets (layers, heads). measures.py defines
# the paper's "inhibition of return": a bias that prefers near keys, suppresses keys at distance 2 to 10 and fades.
FUNCTIONS = {
    "bias of the previous token": lambda bias: bias[:, :, 1].mean(),
    "bias of the last range": lambda bias: bias[:, :, -1].mean(),
    "size": lambda parameter: np.abs(parameter).mean(),
    "inhibition of return, share of heads": lambda bias: inhibition_share(bias, ranges()),
    "mirrored inhibition, share of heads": lambda bias: inhibition_share(-bias, ranges()),
    "mean": np.mean,
    "deviation over heads": lambda tau: np.std(tau, axis=1).mean(),
}


def learned(path, function, first, last, digits=3, scale=1.0):
    """Formats the mean over seeds of one of FUNCTIONS, applied to a parameter of the Lazy models in the layers `first`
    to `last`, counted from 1."""
    found = (FUNCTIONS[function](array[first - 1 : last]) for array in arrays("B.lazy", path).values())
    return text.estimate(student_interval(found), digits, scale)


def distance_axis(axis):
    axis.set_xscale("log", base=2)
    axis.set_xticks([2, 11, 101], ["1", "10", "100"])  # x is the distance + 1


def common_labels(figure, x, y):
    for write, label in ((figure.supxlabel, x), (figure.supylabel, y)):
        write(label, color=charts.color("soft"), fontsize=14)


@pictures.picture("figure-4", "Learned distance biases by layer", 560, nrows=3, ncols=4, sharex=True, sharey=True)
def draw_biases(figure, axes):
    centers, biases = np.mean(ranges(), axis=1) + 1, arrays("B.lazy", BIAS)
    means = np.mean(list(biases.values()), axis=(0, 2))
    for layer, axis in zip(LAYERS, axes.flat):
        axis.plot(centers, biases[1][layer - 1].T, color=charts.color("s0"), linewidth=0.7, alpha=0.5)
        axis.plot(centers, means[layer - 1], color=charts.color("ink"))
        axis.axhline(0, **pictures.ZERO_LINE)
        axis.set_title(f"layer {layer}", fontsize=12)
        distance_axis(axis)
    common_labels(figure, "distance between query and key, tokens", "learned bias")


@pictures.picture("figure-5", "Offset tau of every head by layer", 320, legend=4)
def draw_offsets(figure, axes):
    taus = arrays("B.lazy", TAU)
    for place, (seed, tau) in enumerate(taus.items()):
        x = np.repeat(np.array(LAYERS) + 0.18 * (place - 1), tau.shape[1])
        style = {"color": charts.color(f"s{place}"), "markersize": 4, "alpha": 0.7}
        axes.plot(x, tau.ravel(), charts.marker(place), label=f"seed {seed}", **style)
    axes.plot(LAYERS, np.mean(list(taus.values()), axis=(0, 2)), color=charts.color("ink"), label="mean")
    axes.axhline(-1, **pictures.ZERO_LINE)
    axes.set(xlabel="layer", ylabel="tau of a head", xticks=LAYERS)


@pictures.picture("figure-6", "Loss by context length on three texts", 320, legend=4, ncols=3)
def draw_lengths(figure, axes):
    for axis, (name, title) in zip(axes, TEXTS.items()):
        losses = {window: Measure("", loss(name, window)) for window in WINDOWS}
        for model, (label, role) in LENGTH_MODELS.items():
            pictures.curves(axis, pictures.points(losses, model), label, role)
        charts.length_axis(axis, WINDOWS)
        axis.set_title(title)
    axes[0].set_ylabel("loss, nats per token")
    common_labels(figure, "context, tokens", None)


@pictures.picture("figure-7", "Attention maps of softmax and Lazy", 500, nrows=2, ncols=3)
def draw_maps(figure, axes):
    shades = ListedColormap(charts.ramp(dark=False))
    for row, (model, title) in zip(axes, (("softmax-rope150k@200", "softmax"), ("lazy@200", "Lazy"))):
        for axis, found in zip(row, at(trainings()[model][1], "repetition/natural_bos/map")):
            weights = np.array(found["weights"])
            image = axis.imshow(np.where(weights > 0, weights, np.nan), cmap=shades, norm=LogNorm(0.003, 1))
            axis.set_title(f"{title}, layer {found['layer']}", fontsize=12)
            axis.grid(False)
    common_labels(figure, "key", "query")
    figure.colorbar(image, ax=axes, label="weight, mean over heads", shrink=0.8)


def slopes():
    """Returns the trained ALiBi slopes divided by the initial slopes, an array (layers, heads) from one training."""
    return np.divide(*(arrays(f"alibi-{name}@200", "learned/alibi_slopes")[1] for name in ("trained", "bias")))


def slope_quantiles():
    return np.quantile(slopes(), (0.5, 0, 1))


@pictures.picture("figure-8-9", "Distance biases with other positional encodings", 560, legend=3, nrows=2, ncols=2)
def draw_positions(figure, axes):
    titles = {"bias-alone": "bias alone", "rope-bias": "RoPE and bias", "alibi-bias": "ALiBi and bias"}
    for axis, (model, title) in zip(axes.flat, titles.items()):
        bias = arrays(f"{model}@200", "learned/distance_bias")[1].mean(axis=1)
        for place, layer in enumerate((1, 6, 12)):
            style = {"color": charts.color(f"s{place}"), "linewidth": 1.5}
            axis.plot(np.arange(bias.shape[1]) + 1, bias[layer - 1], label=f"layer {layer}", **style)
        axis.axhline(0, **pictures.ZERO_LINE)
        distance_axis(axis)
        axis.set(title=title, xlabel="distance, tokens", ylabel="mean bias of the heads")
    trained = axes[1, 1]
    trained.plot(LAYERS, slopes(), color=charts.color("s4"), linewidth=1)
    trained.axhline(1, **pictures.ZERO_LINE)
    trained.set(title="trained ALiBi", xlabel="layer", ylabel="slope / initial slope", yscale="log", xticks=LAYERS)

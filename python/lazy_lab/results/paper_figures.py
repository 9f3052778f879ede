"""The page figures.md: Figures 4 to 10 of the paper with the models of 55M parameters."""

import numpy as np
from matplotlib.colors import ListedColormap, LogNorm

from .. import charts, measures
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


def ranges():
    """Returns the ranges of distances over which the recorded distance bias is averaged, as pairs [first, last]."""
    return at(trainings()["B.lazy"][1], "measures/learned/distance_bias/distances")


def learned(path, function, *layers, digits=3, scale=1.0):
    """Returns one text of estimate() per pair [first, last] of `layers`, counted from 1: the mean over seeds of
    `function`, applied to these layers of a parameter of the Lazy models."""
    found = arrays("B.lazy", path).values()
    means = [student_interval(function(array[first - 1 : last]) for array in found) for first, last in layers]
    return [text.estimate(mean, digits, scale) for mean in means]


def learned_values():
    """Returns the properties of distance bias and offset that the page shows."""
    inhibition = lambda bias: measures.inhibition_share(bias, ranges())[0]
    control = lambda bias: measures.inhibition_share(bias, ranges())[1]
    return {
        "near": learned(BIAS, lambda bias: bias[:, :, 1].mean(), (1, 1), (6, 12)),
        "far": learned(BIAS, lambda bias: bias[:, :, -1].mean(), (1, 1), (6, 12)),
        "size": learned(BIAS, lambda bias: np.abs(bias).mean(), (1, 1), (2, 5)),
        "inhibition": [learned(BIAS, share, (6, 12), digits=0, scale=100)[0] for share in (inhibition, control)],
        "tau": learned(TAU, np.mean, (1, 1), (2, 8), (9, 12), digits=2),
        "deviation": learned(TAU, lambda tau: np.std(tau, axis=1).mean(), (2, 8), (9, 12), digits=2),
    }


def loss(name, window):
    return f"lengths-{window}/{name}/{window}"


def distance_axis(axis):
    axis.set_xscale("log", base=2)
    axis.set_xticks([2, 11, 101], ["1", "10", "100"])  # x is the distance + 1


def common_labels(figure, x, y):
    for write, label in ((figure.supxlabel, x), (figure.supylabel, y)):
        write(label, color=charts.color("soft"), fontsize=14)


@pictures.picture("figure-4", "Learned distance biases by layer", 560, nrows=3, ncols=4, sharex=True, sharey=True)
def draw_biases(figure, axes):
    """Draws Figure 4: the distance bias of every head of the first seed, and the mean over heads and seeds, with one
    panel per layer."""
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
    """Draws Figures 5 and 10: the offset tau of all heads by layer."""
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
    """Draws Figure 6: the loss on three text collections by context length, from one to four times the training
    length."""
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
    """Draws Figure 7: attention maps of one Lazy model and one softmax model on natural text that begins with BOS."""
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


@pictures.picture("figure-8-9", "Distance biases with other positional encodings", 560, legend=3, nrows=2, ncols=2)
def draw_positions(figure, axes):
    """Draws Figures 8 and 9: the mean distance bias of three layers in models without other positional encoding, with
    RoPE and with ALiBi, and the change of the ALiBi slopes in training."""
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


def write(folder):
    for draw in (draw_biases, draw_offsets, draw_lengths, draw_maps, draw_positions):
        draw(folder)
    lazy, *others = LENGTH_MODELS
    text.write_page(
        folder,
        "figures",
        **learned_values(),
        rises=[Measure(title, [loss(name, 2048), loss(name, 512)]) for name, title in TEXTS.items()],
        pairs={f"Lazy - {LENGTH_MODELS[model][0]}": [lazy, model] for model in others},
        first_key=Measure("", "repetition/natural_bos/sink"),
        slopes=[function(slopes()) for function in (np.median, np.min, np.max)],
    )

"""The page figures.md: Figures 4 to 10 of the paper with the models of 55M parameters."""

import numpy as np
from matplotlib.colors import ListedColormap, LogNorm

from .. import charts, measures
from . import pictures, text
from .data import Measure, at, minus, steps, trainings, values

LAYERS = 12
TEXTS = {"heldout": "held-out text", "wikitext": "WikiText", "lambada_openai": "LAMBADA"}
WINDOWS = (512, 1024, 2048)
LENGTH_MODELS = {  # model trained on 100M tokens -> (title, role of its color in charts.COLORS)
    "lazy@100": ("Lazy", "s0"),
    "softmax@100": ("softmax", "s1"),
    "no-positional@100": ("Lazy without bias, base 1e4", "s2"),
    "no-elastic@100": ("Lazy with softmax", "s3"),
}


def learned(name):
    """Returns {seed: array (layers, heads, ...)} of a learned parameter of the Lazy models trained on 200M tokens."""
    return {seed: np.array(at(record, f"measures/learned/{name}")) for seed, record in trainings()["B.lazy"].items()}


def ranges():
    """Returns the ranges of distances over which the recorded distance bias is averaged, as pairs [first, last]."""
    return at(trainings()["B.lazy"][1], "measures/learned/distance_bias/distances")


def of_layers(name, function, first, last, **style):
    """Returns the Measure of `function`, applied to the learned parameter `name` in the layers `first` to `last`,
    counted from 1."""
    return Measure("", lambda _: {k: float(function(x[first - 1 : last])) for k, x in learned(name).items()}, **style)


def bias_measures():
    functions = {
        "near": lambda bias: bias[:, :, 1].mean(),
        "far": lambda bias: bias[:, :, -1].mean(),
        "size": lambda bias: np.abs(bias).mean(),
    }
    name, layers = "distance_bias/bias", {"near": ((1, 1), (6, 12)), "far": ((1, 1), (6, 12)), "size": ((1, 1), (2, 5))}
    found = {key: [of_layers(name, functions[key], *pair) for pair in pairs] for key, pairs in layers.items()}
    shares = [lambda bias, i=i: measures.inhibition_share(bias, ranges())[i] for i in (0, 1)]  # [share, control]
    return found | {"inhibition": [of_layers(name, share, 6, 12, digits=0, scale=100) for share in shares]}


def offset_measures():
    deviation = lambda tau: np.std(tau, axis=1).mean()
    return {
        "tau": [of_layers("tau", np.mean, *layers, digits=2) for layers in ((1, 1), (2, 8), (9, 12))],
        "deviation": [of_layers("tau", deviation, *layers, digits=2) for layers in ((2, 8), (9, 12))],
    }


def distance_axis(axis):
    axis.set_xscale("log", base=2)
    axis.set_xticks([2, 11, 101], ["1", "10", "100"])  # x is the distance + 1


def draw_biases(folder):
    """Draws Figure 4: the distance bias of every head of the first seed, and the mean over heads and seeds, with one
    panel per layer."""
    centers, biases = np.mean(ranges(), axis=1) + 1, learned("distance_bias/bias")
    figure, axes = charts.figure(720, 560, nrows=3, ncols=4, sharex=True, sharey=True)
    for layer, axis in enumerate(axes.flat):
        axis.plot(centers, biases[1][layer].T, color=charts.color("s0"), linewidth=0.7, alpha=0.5)
        axis.plot(centers, np.mean([bias[layer] for bias in biases.values()], axis=(0, 1)), color=charts.color("ink"))
        pictures.zero_line(axis, vertical=False)
        axis.set_title(f"layer {layer + 1}", fontsize=12)
        distance_axis(axis)
    figure.supxlabel("distance between query and key, tokens", color=charts.color("soft"), fontsize=14)
    figure.supylabel("learned bias", color=charts.color("soft"), fontsize=14)
    charts.save_svg(figure, folder / "figure-4.svg", "Learned distance biases by layer")


def draw_offsets(folder):
    """Draws Figures 5 and 10: the offset tau of all heads by layer."""
    figure, axes = charts.figure(720, 320)
    layers, taus = np.arange(1, LAYERS + 1), learned("tau")
    for place, (seed, tau) in enumerate(taus.items()):
        x = np.repeat(layers + 0.18 * (place - 1), tau.shape[1])
        style = {"color": charts.color(f"s{place}"), "markersize": 4, "alpha": 0.7}
        axes.plot(x, tau.ravel(), charts.marker(place), label=f"seed {seed}", **style)
    axes.plot(layers, np.mean(list(taus.values()), axis=(0, 2)), color=charts.color("ink"), label="mean")
    pictures.zero_line(axes, vertical=False, at=-1)
    axes.set(xlabel="layer", ylabel="tau of a head", xticks=layers)
    pictures.legend_above(figure, axes, 4)
    charts.save_svg(figure, folder / "figure-5.svg", "Offset tau of every head by layer")


def draw_lengths(folder):
    """Draws Figure 6: the loss on three text collections by context length, from one to four times the training
    length."""
    figure, axes = charts.figure(720, 320, ncols=3)
    for axis, (name, title) in zip(axes, TEXTS.items()):
        for model, (label, role) in LENGTH_MODELS.items():
            columns = [values(model, f"lengths-{window}/{name}/{window}") for window in WINDOWS]
            pictures.curves(axis, WINDOWS, pictures.by_seed(columns), label, role)
        charts.length_axis(axis, WINDOWS)
        axis.set_title(title)
    axes[0].set_ylabel("loss, nats per token")
    figure.supxlabel("context, tokens", color=charts.color("soft"), fontsize=14)
    pictures.legend_above(figure, axes[0], 4)
    charts.save_svg(figure, folder / "figure-6.svg", "Loss by context length on three texts")


def draw_maps(folder):
    """Draws Figure 7: attention maps of one Lazy model and one softmax model on natural text that begins with BOS."""
    figure, axes = charts.figure(720, 500, nrows=2, ncols=3)
    shades = ListedColormap(charts.ramp(dark=False))
    for row, (model, title) in zip(axes, (("softmax-rope150k@200", "softmax"), ("lazy@200", "Lazy"))):
        for axis, found in zip(row, steps()[model]["repetition"][1]["natural_bos"]["map"]):
            weights = np.array(found["weights"])
            image = axis.imshow(np.where(weights > 0, weights, np.nan), cmap=shades, norm=LogNorm(0.003, 1))
            axis.set_title(f"{title}, layer {found['layer']}", fontsize=12)
            axis.grid(False)
    figure.supxlabel("key", color=charts.color("soft"), fontsize=14)
    figure.supylabel("query", color=charts.color("soft"), fontsize=14)
    figure.colorbar(image, ax=axes, label="weight, mean over heads", shrink=0.8)
    charts.save_svg(figure, folder / "figure-7.svg", "Attention maps of softmax and Lazy")


def slopes():
    """Returns the trained ALiBi slopes divided by the initial slopes, an array (layers, heads) from one training."""
    trained, initial = (
        np.array(steps()[f"alibi-{name}@200"]["learned"][1]["alibi_slopes"]) for name in ("trained", "bias")
    )
    return trained / initial


def draw_positions(folder):
    """Draws Figures 8 and 9: the mean distance bias of three layers in models without other positional encoding, with
    RoPE and with ALiBi, and the change of the ALiBi slopes in training."""
    figure, axes = charts.figure(720, 560, nrows=2, ncols=2)
    titles = {"bias-alone": "bias alone", "rope-bias": "RoPE and bias", "alibi-bias": "ALiBi and bias"}
    for axis, (model, title) in zip(axes.flat, titles.items()):
        bias = np.array(steps()[f"{model}@200"]["learned"][1]["distance_bias"]).mean(axis=1)
        for place, layer in enumerate((1, 6, 12)):
            style = {"color": charts.color(f"s{place}"), "linewidth": 1.5}
            axis.plot(np.arange(bias.shape[1]) + 1, bias[layer - 1], label=f"layer {layer}", **style)
        pictures.zero_line(axis, vertical=False)
        distance_axis(axis)
        axis.set(title=title, xlabel="distance, tokens", ylabel="mean bias of the heads")
    layers = range(1, LAYERS + 1)
    axes[1, 1].plot(layers, slopes(), color=charts.color("s4"), linewidth=1)
    pictures.zero_line(axes[1, 1], vertical=False, at=1)
    axes[1, 1].set(title="trained ALiBi", xlabel="layer", ylabel="slope / initial slope", yscale="log", xticks=layers)
    pictures.legend_above(figure, axes[0, 0], 3)
    charts.save_svg(figure, folder / "figure-8-9.svg", "Distance biases with other positional encodings")


def rises():
    """Returns the table of how much the loss rises from 512 to 2048 tokens of context. It shows the rise of Lazy minus
    the rise of each other model."""

    def rise(name, title):
        losses = lambda model: [values(model, f"lengths-{window}/{name}/{window}") for window in (2048, 512)]
        return Measure(title, lambda model: minus(*losses(model)))

    lazy, *others = LENGTH_MODELS
    columns = {f"Lazy - {LENGTH_MODELS[model][0]}": [lazy, model] for model in others}
    return text.measures_by_columns("rise from 512 to 2048 tokens", [rise(*item) for item in TEXTS.items()], columns)


def write(folder):
    for draw in (draw_biases, draw_offsets, draw_lengths, draw_maps, draw_positions):
        draw(folder)
    text.write_page(
        folder,
        "figures",
        **bias_measures(),
        **offset_measures(),
        rises=rises(),
        first_key=Measure("", "repetition/natural_bos/sink"),
        slopes=[function(slopes()) for function in (np.median, np.min, np.max)],
    )

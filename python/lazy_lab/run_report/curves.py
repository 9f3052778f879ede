"""The curves of the run report. Each function returns the HTML of a picture, or None if the runs do not have the data.

A curve is a list of (training tokens, value). A value that is not finite is a gap. The color of series i is "C{i}".
"""

import math
import re

import numpy
from markupsafe import Markup

from .. import charts
from .text import fixed, share

# CSS class -> width of a drawing in pixels. Every picture is drawn in all widths, and the page shows the drawing that
# fits, so that text is never smaller than 14 pixels.
WIDTHS = {"at-wide": 1040, "at-middle": 640, "at-narrow": 300}
FLAT = 5e-5  # curves whose values differ by less are equal in the printed digits
MAX_LAYERS = 12  # maximum number of layers whose distance biases are shown; deeper models show evenly spaced layers
LAYER_MEASURES = {
    "tau_mean": "Offset τ, mean over heads",
    "sink_ratio": "Sink ratio",
    "density": "Density",
    "released_mass": "Released mass",
    "alive_fraction": "Alive fraction",
}


def new_axes(x, y, width=300, height=230):
    """Returns the axes of a new figure. The names of both axes are horizontal, because a rotated name would reduce the
    width of the plot on a phone."""
    _, axes = charts.figure(width, height)
    axes.set_xlabel(x, loc="right")
    axes.set_title(y, loc="left", color=charts.color("soft"))
    return axes


def picture(label, axes, css="small"):
    return Markup(f'<div class="{css}">{charts.svg(axes.get_figure(), label)}</div>')


def responsive(label, draw, x, y, height=360):
    """Returns a picture in all WIDTHS. The function draw(axes) draws the curves."""
    pictures = []
    for css, width in WIDTHS.items():
        axes = new_axes(x, y, width, height if width > 300 else 260)
        draw(axes)
        pictures.append(picture(label, axes, css))
    return Markup("").join(pictures)


def series(axes, index, curve):
    marker, every = charts.marker(index), max(1, len(curve) // 40)
    axes.plot(*zip(*curve), color=f"C{index}", marker=marker, mfc=charts.color("page"), markevery=every)


def reference(axes, value, name=""):
    """Draws a horizontal line at a value, with its name above the right end."""
    axes.axhline(value, color=charts.color("axis"), lw=1, ls=(0, (3, 4)))
    place = axes.get_yaxis_transform()
    axes.text(1, value, name, transform=place, ha="right", va="bottom", color=charts.color("soft"))


def smooth(curve):
    """Returns the exponential moving average of a curve with bias correction, reduced to about 400 points. The window
    of the average grows with the length of the run."""
    keep = 1 - 1 / max(1, len(curve) / 25)
    total = weight = 0
    averages = []
    for tokens, value in curve:
        total, weight = keep * total + (1 - keep) * value, keep * weight + (1 - keep)
        averages.append((tokens, total / weight))
    return charts.thin(averages)


def evenly_spaced(items, most):
    items, count = list(items), min(len(items), most)
    return [items[k * (len(items) - 1) // max(1, count - 1)] for k in range(count)]


def learning_curves(runs):
    """Draws the smoothed training loss and the validation loss. The y axis covers only the losses after the first 8 %
    of the run, because the high losses at the start would flatten the curves."""
    training = [smooth(run.curve("loss_metrics/global_avg_loss")) for run in runs]
    validation = [charts.thin(run.curves.get("validation_metrics/loss", ())) for run in runs]
    points = [point for curve in training + validation for point in curve if math.isfinite(point[1])]
    if not points:
        return None
    end = max(tokens for tokens, _ in points)
    low, high = min(loss for _, loss in points), max(loss for tokens, loss in points if tokens >= 0.08 * end)
    margin = max(0.04 * (high - low), 1e-3)

    def draw(axes):
        for run in runs:
            axes.plot(*zip(*training[run.index]), color=f"C{run.index}", lw=1.2, alpha=0.5, zorder=1.5)
            series(axes, run.index, validation[run.index])
        axes.set_ylim(low - margin, high + margin)
        axes.set_xlim(0, end * 1.01)
        charts.count_axis(axes.xaxis)

    ends = [f"; {run.name} ends at {fixed(curve[-1][1], 3)}" for run, curve in zip(runs, validation) if curve]
    label = "Loss against training tokens" + "".join(ends)
    return responsive(label, draw, "training tokens", "loss, nats per token")


def loss_differences(runs):
    """Returns (picture, name of the first softmax run). The picture shows the validation loss of every other run minus
    the validation loss of this softmax run at the same number of training tokens."""
    twin = next((run for run in runs if run.kind == "softmax"), None)
    if not twin:
        return None
    losses = dict(twin.curve("validation_metrics/loss"))
    curves = {}
    for run in runs:
        curve = run.curve("validation_metrics/loss") if run is not twin else ()
        common = [(tokens, loss - losses[tokens]) for tokens, loss in curve if tokens in losses]
        if len(common) > 1:
            curves[run.index] = charts.thin(common)
    if not curves:
        return None

    def draw(axes):
        for index, curve in curves.items():
            series(axes, index, curve)
        reference(axes, 0, twin.name)
        axes.margins(y=0.12)
        axes.set_xlim(left=0)
        charts.count_axis(axes.xaxis)

    label = f"Validation loss minus the loss of {twin.name}, against training tokens"
    return responsive(label, draw, "training tokens", "loss difference, nats per token", 250), twin.name


def layer_curves(run):
    """Returns {"panels": [(title, picture)], "layers": [layers that are drawn], "count": number of all layers,
    "constant": {title: value}} for the attention measures that the training logged. A measure that has the same value
    in all layers is not drawn but listed in "constant"."""
    found = {"panels": [], "layers": [], "count": 0, "constant": {}}
    for measure, title in LAYER_MEASURES.items():
        names = {key: re.fullmatch(rf"attention/layer_(\d+)/{measure}", key) for key in run.curves}
        layers = dict(sorted((int(match[1]), run.curves[key]) for key, match in names.items() if match))
        values = [value for curve in layers.values() for _, value in curve]
        if not values:
            continue
        if max(values) - min(values) < FLAT:
            found["constant"][title] = fixed(values[0], 2) if measure == "tau_mean" else share(values[0])
            continue
        axes = new_axes("training tokens", "")
        found |= {"layers": evenly_spaced(layers, charts.SERIES_COLORS), "count": len(layers)}
        for layer in found["layers"]:
            axes.plot(*zip(*charts.thin(layers[layer])))
        charts.count_axis(axes.xaxis)
        label = f"{title} of {run.name} against training tokens, one line per layer"
        found["panels"].append((title, picture(label, axes)))
    return found if found["panels"] else None


def offsets(run):
    """Draws the learned offset tau of each head, and the mean over heads, by layer."""
    tau = run.learned.get("tau")
    if not tau:
        return None
    means = {layer: numpy.mean(heads) for layer, heads in tau.items()}

    def draw(axes):
        for layer, heads in tau.items():
            axes.plot([layer] * len(heads), heads, "o", color=f"C{run.index}", alpha=0.5, mew=0)
        axes.plot(means.keys(), means.values(), color=f"C{run.index}")
        reference(axes, run.learned["initial"], "initial")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.margins(y=0.12)

    summary = ", ".join(f"layer {layer}: {mean:.2f}" for layer, mean in means.items())
    return responsive(f"Learned offsets of {run.name} by layer; means: {summary}", draw, "layer", "offset τ", 300)


def distance_biases(run):
    """Returns {"panels": [(title, picture)], "count": number of all layers}. All pictures have the same y axis."""
    biases = run.learned.get("distance_bias")
    if not biases:
        return None
    low, high = min(map(numpy.nanmin, biases.values())), max(map(numpy.nanmax, biases.values()))
    margin = max(0.08 * (high - low), 1e-3)
    panels = []
    for layer in evenly_spaced(biases, MAX_LAYERS):
        bias, axes = biases[layer], new_axes("distance, tokens", "bias")
        distances = numpy.unique(numpy.geomspace(1, bias.shape[1], 91).round().astype(int)) - 1
        values = bias[:, distances]
        axes.plot(distances, values.T, color=f"C{run.index}", lw=1.2, alpha=0.55)
        axes.plot(distances, values.mean(axis=0), color=f"C{run.index}")
        reference(axes, 0)
        axes.set_xscale("symlog", linthresh=1, base=4)
        axes.set_xticks([0, *(4**k for k in range(8) if 4**k < distances[-1])])
        axes.xaxis.set_major_formatter(lambda value, _: charts.length_text(value))
        axes.set_xticks([], minor=True)
        axes.set_xlim(left=0)
        axes.set_ylim(low - margin, high + margin)
        label = f"Distance bias of {run.name}, layer {layer}, one line for each of {len(bias)} heads"
        panels.append((f"Layer {layer}", picture(label, axes)))
    return {"panels": panels, "count": len(biases)}


def further_panels(run):
    """Returns [(title, picture)] of the curves of `lazy sinks --measures`, or None without any such measure. The y axis
    is logarithmic if the values are positive and span more than a factor of 20."""
    if not (run.sinks and run.sinks["further"]):
        return None
    panels = []
    for title, rows, x, first in run.sinks["further"]["lines"]:
        values = [value for row in rows for value in row if math.isfinite(value)]
        if not values:
            continue
        axes = new_axes(x, "")
        for row in rows:
            axes.plot(range(first, first + len(row)), row, lw=1.2)
        if min(values) > 0 and max(values) > 20 * min(values):
            axes.set_yscale("log")
        else:
            axes.set_ylim(min(0, *values), max(1e-9, 1.05 * max(values)))
        axes.xaxis.get_major_locator().set_params(integer=True)
        panels.append((title, picture(f"{title}, {run.name}", axes)))
    return panels

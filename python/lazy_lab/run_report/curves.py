"""The curves of the run report. Each function returns the HTML of a picture, or None if the runs do not have the data.

A curve is a list of (training tokens, value). A value that is not finite is a gap."""

import math

import numpy
from markupsafe import Markup
from matplotlib.ticker import FuncFormatter, NullLocator

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


def picture(label, draw, width=300, height=230, css="small"):
    """Creates a figure, calls draw(axes), and returns the picture as HTML."""
    figure, axes = charts.figure(width, height)
    draw(axes)
    return Markup(f'<div class="{css}">{charts.svg(figure, label)}</div>')


def responsive(label, draw, height=360):
    return Markup("").join(
        picture(label, draw, width, height if width > 300 else 260, css) for css, width in WIDTHS.items()
    )


def name_axes(axes, x, y):
    """Writes the names of both axes horizontally, because a rotated name would reduce the width of the plot on a
    phone."""
    axes.set_xlabel(x, loc="right")
    axes.set_title(y, loc="left", color=charts.color("soft"))


def series(axes, index, curve, **style):
    x, y = zip(*curve)
    axes.plot(
        x,
        y,
        color=charts.color(charts.series_role(index)),
        marker=charts.marker(index),
        markerfacecolor=charts.color("page"),
        markevery=max(1, len(x) // 40),
        **style,
    )


def reference(axes, value, name=""):
    """Draws a horizontal line at a value, with its name above the right end."""
    axes.axhline(value, color=charts.color("axis"), lw=1, ls=(0, (3, 4)))
    if name:
        place = axes.get_yaxis_transform()
        axes.text(1, value, name, transform=place, ha="right", va="bottom", color=charts.color("soft"))


def smooth(curve):
    """Returns the exponential moving average of a curve with bias correction, reduced to about 400 points. The window
    of the average grows with the length of the run. Values that are not finite are skipped."""
    keep = 1 - 1 / max(1, len(curve) / 25)
    total = weight = 0
    averages = []
    for tokens, value in curve:
        if math.isfinite(value):
            total, weight = keep * total + (1 - keep) * value, keep * weight + (1 - keep)
            averages.append((tokens, total / weight))
    return charts.thin(averages)


def evenly_spaced(items, most):
    items = list(items)
    if len(items) <= most:
        return items
    return [items[k * (len(items) - 1) // (most - 1)] for k in range(most)]


def learning_curves(runs):
    """Draws the smoothed training loss and the validation loss. The y axis covers only the losses after the first 8 %
    of the run, because the high losses at the start would flatten the curves."""
    curves = []
    for i, run in enumerate(runs):
        validation = charts.thin(run.curves.get("validation_metrics/loss", ()))
        curves.append((i, smooth(run.curves.get("loss_metrics/global_avg_loss", ())), validation))
    points = [point for _, *both in curves for curve in both for point in curve if math.isfinite(point[1])]
    if not points:
        return None
    end = max(tokens for tokens, _ in points)
    low, high = min(loss for _, loss in points), max(loss for tokens, loss in points if tokens >= 0.08 * end)
    margin = max(0.04 * (high - low), 1e-3)

    def draw(axes):
        for i, train, validation in curves:
            if train:
                axes.plot(*zip(*train), color=charts.color(charts.series_role(i)), lw=1.2, alpha=0.5, zorder=1.5)
            if validation:
                series(axes, i, validation)
        axes.set_ylim(low - margin, high + margin)
        axes.set_xlim(0, end * 1.01)
        charts.count_axis(axes.xaxis)
        name_axes(axes, "training tokens", "loss, nats per token")

    ends = [f"; {runs[i].name} ends at {validation[-1][1]:.3f}" for i, _, validation in curves if validation]
    return responsive("Loss against training tokens" + "".join(ends), draw)


def loss_differences(runs):
    """Returns (picture, name of the first softmax run). The picture shows the validation loss of every other run minus
    the validation loss of this softmax run at the same number of training tokens."""
    twin = next((run for run in runs if run.kind == "softmax"), None)
    if not twin:
        return None
    losses = dict(twin.curves.get("validation_metrics/loss", ()))
    curves = {}
    for i, run in enumerate(runs):
        found = run.curves.get("validation_metrics/loss", ()) if run is not twin else ()
        curve = [(tokens, loss - losses[tokens]) for tokens, loss in found if tokens in losses]
        curve = [point for point in curve if math.isfinite(point[1])]
        if len(curve) > 1:
            curves[i] = charts.thin(curve)
    if not curves:
        return None

    def draw(axes):
        for i, curve in curves.items():
            series(axes, i, curve)
        reference(axes, 0, twin.name)
        axes.margins(y=0.12)
        axes.set_xlim(left=0)
        charts.count_axis(axes.xaxis)
        name_axes(axes, "training tokens", "loss difference, nats per token")

    return responsive(f"Validation loss minus the loss of {twin.name}, against training tokens", draw, 250), twin.name


def layer_curves(run, _):
    """Returns {"panels": [(title, picture)], "layers": [layers that are drawn], "count": number of all layers,
    "constant": {title: value}} for the attention measures that the training logged. A measure that has the same value
    in all layers is not drawn but listed in "constant"."""
    found = {"panels": [], "layers": [], "count": 0, "constant": {}}
    for measure, title in LAYER_MEASURES.items():
        layers = run.by_layer(measure)
        values = [value for curve in layers.values() for _, value in curve]
        if not values:
            continue
        if max(values) - min(values) < FLAT:
            text = fixed(values[0], 2) if measure == "tau_mean" else share(values[0])
            found["constant"][title] = text
            continue
        shown = evenly_spaced(layers, charts.SERIES_COLORS)

        def draw(axes, layers=layers, shown=shown):
            for k, layer in enumerate(shown):
                axes.plot(*zip(*charts.thin(layers[layer])), color=charts.color(charts.series_role(k)))
            charts.count_axis(axes.xaxis)
            name_axes(axes, "training tokens", "")

        label = f"{title} of {run.name} against training tokens, one line per layer"
        found["panels"].append((title, picture(label, draw)))
        found |= {"layers": shown, "count": len(layers)}
    return found if found["panels"] else None


def offsets(run, index):
    """Draws the learned offset tau of each head, and the mean over heads, by layer."""
    tau = run.learned.get("tau")
    if not tau:
        return None
    means = {layer: float(numpy.mean(heads)) for layer, heads in tau.items()}

    def draw(axes):
        color = charts.color(charts.series_role(index))
        for layer, heads in tau.items():
            axes.plot([layer] * len(heads), heads, ls="", marker="o", color=color, alpha=0.5, mew=0)
        axes.plot(means.keys(), means.values(), color=color)
        reference(axes, run.learned["initial"], "initial")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.margins(y=0.12)
        name_axes(axes, "layer", "offset τ")

    summary = ", ".join(f"layer {layer}: {mean:.2f}" for layer, mean in means.items())
    return responsive(f"Learned offsets of {run.name} by layer; means: {summary}", draw, 300)


def distance_biases(run, index):
    """Returns {"panels": [(layer, picture)], "count": number of all layers}. All pictures have the same y axis."""
    biases = run.learned.get("distance_bias")
    if not biases:
        return None
    low, high = (
        bound(float(bound_of(bias)) for bias in biases.values())
        for bound, bound_of in ((min, numpy.nanmin), (max, numpy.nanmax))
    )
    margin = max(0.08 * (high - low), 1e-3)
    panels = []
    for layer in evenly_spaced(biases, MAX_LAYERS):
        bias = biases[layer]
        distances = numpy.unique(numpy.rint(numpy.expm1(numpy.linspace(0, numpy.log1p(bias.shape[1] - 1), 91))))
        values = bias[:, distances.astype(int)]

        def draw(axes, distances=distances, values=values):
            color = charts.color(charts.series_role(index))
            axes.plot(distances, values.T, color=color, lw=1.2, alpha=0.55)
            axes.plot(distances, values.mean(axis=0), color=color)
            reference(axes, 0)
            axes.set_xscale("symlog", linthresh=1, base=4)
            axes.set_xticks([0, *(4**k for k in range(8) if 4**k < distances[-1])])
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: charts.length_text(value)))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_xlim(left=0)
            axes.set_ylim(low - margin, high + margin)
            name_axes(axes, "distance, tokens", "bias")

        label = f"Distance bias of {run.name}, layer {layer}, one line for each of {len(bias)} heads"
        panels.append((layer, picture(label, draw)))
    return {"panels": panels, "count": len(biases)}


def rows_by_place(label, rows, x, first=1):
    """Draws one line per list in `rows`. The first value of a list has the x coordinate `first`. The y axis is
    logarithmic if the values are positive and span more than a factor of 20."""
    values = [value for row in rows for value in row if math.isfinite(value)]
    if not values:
        return None

    def draw(axes):
        for i, row in enumerate(rows):
            axes.plot(range(first, first + len(row)), row, color=charts.color(charts.series_role(i)), lw=1.2)
        if min(values) > 0 and max(values) > 20 * min(values):
            axes.set_yscale("log")
        else:
            axes.set_ylim(min(0, *values), max(1e-9, 1.05 * max(values)))
        axes.xaxis.get_major_locator().set_params(integer=True)
        name_axes(axes, x, "")

    return picture(label, draw)


def further_panels(run, _):
    """Returns [(title, picture)] of the curves of `lazy sinks --measures`, or None without any such measure."""
    if not (run.sinks and run.sinks["further"]):
        return None
    further, lines = run.sinks["further"], {}
    if "sink_k" in further:
        lines["Sink_k, % of heads"] = [[100 * value for value in further["sink_k"]]], "k", 1
    for place, values in further.get("vectors", {}).items():
        lines |= {f"{place}: {key}": (rows, "position", 1) for key, rows in values.items()}
    for key, title in (("cosine", "Pairwise cosine"), ("effective_rank", "Effective rank")):
        if key in further:
            lines[f"{title} of hidden states"] = [further[key]], "place", 0
    pictures = {title: rows_by_place(f"{title}, {run.name}", *line) for title, line in lines.items()}
    return [(title, found) for title, found in pictures.items() if found]

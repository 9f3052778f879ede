"""Draws the five figures of the `lazy uptrain` report from results.json."""

import numpy as np
from matplotlib.ticker import MaxNLocator

from . import charts

STYLE = {  # kind of model -> (label, color, line style)
    "before": ("before", charts.color("s6"), "--"),
    "softmax": ("softmax, continued", charts.color("s1"), "-"),
    "lazy": ("Lazy", charts.color("s0"), "-"),
}
FIGURES = []  # (title, function that maps results.json to an SVG image, or to None if it lacks the data)


def by_kind(results, *keys, kinds=STYLE):
    """Returns {kind of model: [models whose results contain a value at the keys]}, without kinds that have no model."""

    def measured(model):
        for key in keys:
            model = model.get(key) or {}
        return bool(model)

    found = {kind: [m for m in results["models"] if m["model"] == kind and measured(m)] for kind in kinds}
    return {kind: models for kind, models in found.items() if models}


def figure(title, x, y, *keys, **options):
    """Decorates a function draw(axes, results, models) and adds it to FIGURES. `models` is the result of by_kind() for
    `keys` and `options`; if it is empty, the figure is omitted."""

    def decorate(draw):
        def image(results):
            models = by_kind(results, *keys, **options)
            if not models:
                return None
            drawn, axes = charts.figure(720, 380)
            axes.set(xlabel=x, ylabel=y)
            draw(axes, results, models)
            return charts.svg(drawn, title)

        FIGURES.append((title, image))
        return image

    return decorate


def draw_curve(axes, kind, x, y):
    label, color, line = STYLE[kind]
    axes.plot(x, y, line, color=color, marker="o", ms=3, label=label)


def integer_ticks(*axes):
    for axis in axes:
        axis.set_major_locator(MaxNLocator(integer=True))


def smoothed(losses, width):
    """Returns the moving average over the last `width` losses."""
    return [np.mean(losses[max(0, end - width) : end]) for end in range(1, len(losses) + 1)]


@figure("Loss during training", "step", "loss, nats per token", "training", "loss")
def loss_by_step(axes, results, found):
    for kind, models in found.items():
        label, color, _ = STYLE[kind]
        for seed, model in enumerate(models):
            steps, losses = zip(*model["training"]["loss"])
            smooth = smoothed(losses, max(1, len(losses) // 40))
            axes.plot(steps, smooth, color=color, lw=1, label=None if seed else label)
            if heldout := model["training"]["validation"]:
                label_heldout = None if seed else f"{label}, held-out"
                axes.plot(*zip(*heldout), color=color, ls="", marker="o", ms=3, label=label_heldout)
    if before := by_kind(results, "heldout").get("before"):
        axes.axhline(before[0]["heldout"]["loss"], color=STYLE["before"][1], ls="--", lw=1, label="before, held-out")
    anneal = results["arguments"]["anneal"] * results["steps"]
    axes.axvspan(0, anneal, color=charts.color("s0"), alpha=0.06, lw=0, label="offset is shifted")
    axes.legend(ncol=2)


@figure("Alive pairs by layer and head", "layer", "head", "attention", kinds=("lazy",))
def alive_by_head(axes, results, found):
    alive = np.mean([model["attention"]["per_head"]["alive_fraction"] for model in found["lazy"]], axis=0)
    axes.figure.set_figheight((120 + 16 * alive.shape[1]) / charts.PIXELS)
    image = axes.imshow(100 * alive.T, aspect="auto", origin="lower", cmap="viridis", vmin=0)
    axes.grid(False)
    integer_ticks(axes.xaxis, axes.yaxis)
    axes.figure.colorbar(image, ax=axes, label="alive pairs, %")


@figure("Weight on the first key by layer", "layer", "weight on the first key, %", "attention")
def sink_by_layer(axes, results, found):
    for kind, models in found.items():
        ratios = np.mean([model["attention"]["per_layer"]["sink_ratio"] for model in models], axis=0)
        draw_curve(axes, kind, range(len(ratios)), 100 * ratios)
    axes.set_ylim(bottom=0)
    integer_ticks(axes.xaxis)
    axes.legend()


@figure("Loss by position", "tokens that the model sees", "loss, nats per token", "positions")
def loss_by_position(axes, results, found):
    ends = {kind: [position["to"] for position in models[0]["positions"]] for kind, models in found.items()}
    for kind, models in found.items():
        losses = np.mean([[position["loss"] for position in model["positions"]] for model in models], axis=0)
        draw_curve(axes, kind, ends[kind], losses)
    trained = results["arguments"]["seq_len"]
    axes.axvline(trained, color=charts.color("axis"), ls=":", lw=1, label="length of the training")
    charts.length_axis(axes, sum(ends.values(), []))
    axes.legend()


@figure("Time per token by context length", "context, tokens", "time per token, ms", "speed")
def time_by_length(axes, results, found):
    lengths = []
    for kind, models in found.items():
        points = [point for point in models[0]["speed"] if point["seconds_per_token"]]
        lengths += [point["prompt_tokens"] for point in points]
        times = [1000 * point["seconds_per_token"] for point in points]
        draw_curve(axes, kind, [point["prompt_tokens"] for point in points], times)
    if lengths:
        charts.length_axis(axes, lengths)
    axes.set_ylim(bottom=0)
    axes.legend()

"""Draws the five figures of the `lazy uptrain` report from results.json. Every figure is a string with an SVG image."""

from matplotlib.ticker import MaxNLocator

from . import charts

STYLE = {
    "before": ("before", charts.color("s6"), "--"),
    "softmax": ("softmax, continued", charts.color("s1"), "-"),
    "lazy": ("Lazy", charts.color("s0"), "-"),
}


def axes(x, y, width=720, height=380):
    figure, ax = charts.figure(width, height)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    return figure, ax


def by_kind(results, part):
    """Returns {kind of model: [models whose results contain `part`]} in the order of STYLE. Kinds without such a model
    are omitted."""
    return {
        kind: found
        for kind in STYLE
        if (found := [model for model in results["models"] if model["model"] == kind and model.get(part)])
    }


def mean_of(models, values):
    """Returns the elementwise mean over the models of the lists values(model), which all have the same length."""
    lists = [values(model) for model in models]
    return [sum(column) / len(lists) for column in zip(*lists)]


def smoothed(losses, width):
    """Returns the moving average over the last `width` losses."""
    return [
        sum(losses[max(0, i + 1 - width) : i + 1]) / len(losses[max(0, i + 1 - width) : i + 1])
        for i in range(len(losses))
    ]


def loss_by_step(results):
    found = by_kind(results, "training")
    if not any(model["training"]["loss"] for models in found.values() for model in models):
        return None
    figure, ax = axes("step", "loss, nats per token")
    for kind, models in found.items():
        label, color, _ = STYLE[kind]
        for model in models:
            steps, losses = zip(*model["training"]["loss"])
            ax.plot(steps, smoothed(losses, max(1, len(losses) // 40)), color=color, lw=1, label=label)
            if model["training"]["validation"]:
                ax.plot(
                    *zip(*model["training"]["validation"]),
                    color=color,
                    ls="",
                    marker="o",
                    ms=3,
                    label=label and f"{label}, held-out",
                )
            label = None
    before = by_kind(results, "heldout").get("before")
    if before:
        ax.axhline(before[0]["heldout"]["loss"], color=STYLE["before"][1], ls="--", lw=1, label="before, held-out")
    anneal = results["arguments"]["anneal"] * results["steps"]
    ax.axvspan(0, anneal, color=charts.color("s0"), alpha=0.06, lw=0, label="offset is shifted")
    ax.legend(ncol=2)
    return charts.svg(figure, "Loss during training")


def alive_by_head(results):
    models = by_kind(results, "attention").get("lazy")
    if not models:
        return None
    layers = [
        mean_of(models, lambda model, layer=layer: model["attention"]["per_head"]["alive_fraction"][layer])
        for layer in range(len(models[0]["attention"]["per_head"]["alive_fraction"]))
    ]
    percent = [[100 * value for value in heads] for heads in layers]
    figure, ax = axes("layer", "head", height=120 + 16 * len(percent[0]))
    image = ax.imshow(list(zip(*percent)), aspect="auto", origin="lower", cmap="viridis", vmin=0)
    ax.grid(False)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, ax=ax, label="alive pairs, %")
    return charts.svg(figure, "Alive pairs by layer and head")


def draw_curve(ax, kind, x, y):
    """Draws the curve of one kind of model in the color and line style of STYLE."""
    label, color, line = STYLE[kind]
    ax.plot(x, y, line, color=color, marker="o", ms=3, label=label)


def sink_by_layer(results):
    found = by_kind(results, "attention")
    if not found:
        return None
    figure, ax = axes("layer", "weight on the first key, %")
    for kind, models in found.items():
        values = mean_of(models, lambda model: model["attention"]["per_layer"]["sink_ratio"])
        draw_curve(ax, kind, range(len(values)), [100 * value for value in values])
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend()
    return charts.svg(figure, "Weight on the first key by layer")


def loss_by_position(results):
    found = by_kind(results, "positions")
    if not found:
        return None
    figure, ax = axes("tokens that the model sees", "loss, nats per token")
    for kind, models in found.items():
        losses = mean_of(models, lambda model: [position["loss"] for position in model["positions"]])
        draw_curve(ax, kind, [position["to"] for position in models[0]["positions"]], losses)
    ax.axvline(
        results["arguments"]["seq_len"], color=charts.color("axis"), ls=":", lw=1, label="length of the training"
    )
    charts.length_axis(ax, [position["to"] for models in found.values() for position in models[0]["positions"]])
    ax.legend()
    return charts.svg(figure, "Loss by position")


def time_by_length(results):
    found = by_kind(results, "speed")
    if not found:
        return None
    figure, ax = axes("context, tokens", "time per token, ms")
    lengths = []
    for kind, models in found.items():
        points = [s for s in models[0]["speed"] if s["seconds_per_token"]]
        lengths += [point["prompt_tokens"] for point in points]
        times = [1000 * point["seconds_per_token"] for point in points]
        draw_curve(ax, kind, [point["prompt_tokens"] for point in points], times)
    if lengths:
        charts.length_axis(ax, lengths)
    ax.set_ylim(bottom=0)
    ax.legend()
    return charts.svg(figure, "Time per token by context length")


FIGURES = [
    ("Loss during training", loss_by_step),
    ("Alive pairs by layer and head", alive_by_head),
    ("Weight on the first key by layer", sink_by_layer),
    ("Loss by position", loss_by_position),
    ("Time per token by context length", time_by_length),
]

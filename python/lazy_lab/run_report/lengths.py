"""The page of `lazy eval --lengths` (docs/guides/length.md): perplexity by length, loss by position, retrieval."""

import math

from .. import charts
from .curves import name_axes, reference, responsive, series
from .page import environment
from .text import fixed, lined, series_name

SCHEMA = "lazy.length/1"
TITLES = {
    "wikitext": "WikiText",
    "lambada_openai": "LAMBADA in streams",
    "passkey": "Passkey retrieval",
    "recall": "Associative recall",
}
EXACT = {
    "passkey": "Share of contexts in which greedy decoding reproduces the pass key without an error. "
    "Depth 0 %: the key is at the beginning.",
    "recall": "Share of values that are the most likely token after their key. "
    "Depth 0 %: the pairs are at the beginning.",
}


def value_text(value):
    if not math.isfinite(value):
        return "not finite"
    size = abs(value)
    return charts.count_text(value) if size >= 1e5 else fixed(value, 3 if size < 10 else 2 if size < 1000 else 0)


def point(row, key, interval=None):
    """Returns (value, low, high) of a row. The bounds low and high are None if the row has no confidence interval."""
    interval = interval or f"{key}_interval"
    bounds = row[interval].numbers() if interval in row else [None, None]
    return row[key].number(), *(bounds if len(bounds) == 2 else row[interval].wrong("two numbers"))


def cell(found):
    value, low, high = found
    return lined(value_text(value), f"{value_text(low)} to {value_text(high)}" if low is not None else "")


def draw_points(label, curves, x, y, may_be_log=False, zero=""):
    """Draws one curve per model with error bars. curves: for each model, a list of (length, (value, low, high)). `zero`
    is the name of a reference line at zero. Returns the picture and whether its y axis is logarithmic."""
    values = [value for curve in curves for _, point in curve for value in point if value is not None]
    low, high = (bound(filter(math.isfinite, values), default=0) for bound in (min, max))
    is_log = may_be_log and low > 0 and high > 4 * low

    def draw(axes):
        for i, curve in enumerate(curves):
            series(axes, i, [(length, value) for length, (value, *_) in curve])
            bars = [(length, *bounds) for length, (_, *bounds) in curve if bounds[0] is not None]
            if bars:
                axes.vlines(*zip(*bars), color=charts.color(charts.series_role(i)), lw=1.2, alpha=0.55)
        if zero and low <= 0 <= high:
            reference(axes, 0, zero)
        if is_log:
            axes.set_yscale("log")
        most = 9 if axes.get_figure().get_figwidth() * charts.PIXELS > 400 else 5
        charts.length_axis(axes, [length for curve in curves for length, _ in curve], most)
        name_axes(axes, x, y)

    return responsive(label, draw), is_log


def perplexity_by_length(labels, models, key):
    curves = [[(row["length"].number(), point(row, key)) for row in model["lengths"]] for model in models]
    ends = lambda curve: ", ".join(f"{value_text(value[0])} at {length:.0f}" for length, value in (curve[0], curve[-1]))
    found = "; ".join(f"{label}: {ends(curve)}" for label, curve in zip(labels, curves))
    unit = f"perplexity per {'word' if key == 'word_perplexity' else 'token'}"
    label = f"Perplexity by tokens in the window; {found}"
    picture, is_log = draw_points(label, curves, "tokens in the window", unit, may_be_log=True)
    note = "; the axis is logarithmic." if is_log else "."
    caption = f"Every length is evaluated on the same tokens. Bars are 95 % confidence intervals. Lower is better{note}"
    return {"picture": picture, "caption": caption}


def loss_by_position(models):
    last = [list(model["lengths"])[-1] for model in models]
    if not all("positions" in row for row in last):
        return {}
    curves = [[(place["to"].number(), point(place, "loss")) for place in row["positions"]] for row in last]
    label = "Loss by the number of tokens that the model sees"
    longest = max(row["length"].number() for row in last)
    return {
        "title": "By position in the window",
        "picture": draw_points(label, curves, "tokens before the predicted token", "loss, nats per token")[0],
        "caption": f"Windows of {longest:.0f} tokens. A mark is the mean loss of the tokens whose number of preceding "
        "tokens is at most the mark's position and above the position of the previous mark. Bars: 95 % intervals.",
    }


def length_table(names, models, key, what, title=""):
    """Returns a table with one row per length and one column per model."""
    found = [{row["length"].number(): cell(point(row, key)) for row in model["lengths"]} for model in models]
    rows = [(f"{n:.0f}", [cells.get(n, "–") for cells in found]) for n in sorted(set().union(*found))]
    return {"title": title, "columns": [what, *names], "rows": rows}


def change_table(names, labels, changes):
    rows = []
    for change in changes:
        for row in change["lengths"]:
            cells = [f"{row['length'].number():.0f}", cell(point(row, "difference", "interval"))]
            rows.append((names[int(change["model"].number())], cells))
    note = (
        f"The change of the loss from the shortest window, minus the same change of {labels[0]}, in nats per token, on "
        "the same documents. Above zero, the loss of the model increases more. If the 95 % interval contains zero, the "
        "difference is not significant."
    )
    columns = ["model", "window", "difference"]
    title = "Which model loses more with length"
    return {"title": title, "note": note, "columns": columns, "rows": rows} if rows else {}


def lambada_tables(names, models):
    keys = {"word_accuracy": "Accuracy", "word_perplexity": "Perplexity"}
    rows = []
    for name, model in zip(names, models):
        standard = model["standard"]
        cells = [cell(point(standard, key)) for key in keys]
        rows.append((name, [f"{standard['max_length'].number():.0f}", *cells]))
    title = "Standard score, with each item in a separate context"
    what = "of the last words of the items in the streams"
    return [
        *(length_table(names, models, key, "stream", f"{name} {what}") for key, name in keys.items()),
        {"title": title, "columns": ["model", "max_length", "accuracy", "perplexity"], "rows": rows},
    ]


def retrieval(task, models):
    """Returns the blocks of a retrieval task: heat maps with the share of exact answers by depth and length, and a plot
    of the log-likelihood of the answer. If the contexts were also scored without the planted fact, the plot shows how
    much the fact increases the log-likelihood, because absolute log-likelihoods differ between models."""
    gain = "log_likelihood_absent" in models[0]["lengths"][0]["depths"][0]
    maps, curves = [], []
    for model in models:
        lengths = [row["length"].number() for row in model["lengths"]]
        depths = [f"{100 * place['depth'].number():g} %" for place in model["lengths"][0]["depths"]]
        exact, logs = [], []
        for row in model["lengths"]:
            places = list(row["depths"])
            if len(places) != len(depths):
                row["depths"].wrong(f"{len(depths)} depths, as at the first length")
            exact.append([place["exact"].number() for place in places])
            if wrong := [place["exact"] for place in places if not 0 <= place["exact"].number() <= 1]:
                wrong[0].wrong("a fraction from 0 to 1")
            keys = {"log_likelihood": 1} | ({"log_likelihood_absent": -1} if gain else {})
            logs.append(sum(sign * place[key].number() for place in places for key, sign in keys.items()) / len(depths))
        maps.append((list(zip(*exact)), depths, [charts.length_text(length) for length in lengths]))
        curves.append([(length, (value, None, None)) for length, value in zip(lengths, logs)])
    y = "log-likelihood gained, nats" if gain else "log-likelihood of the answer, nats"
    label = f"{y}, by length, mean over depths, {task}"
    picture, _ = draw_points(label, curves, "tokens in the context", y, zero="not planted" if gain else "")
    what = "Log-likelihood of the answer minus its log-likelihood after the same context without the key, mean"
    caption = f"{what if gain else 'Mean'} over the depths; higher is better."
    return [{"maps": maps, "caption": EXACT[task]}, {"picture": picture, "caption": caption}]


def section(task, result, labels, names):
    """Returns the parts of the page section of a task. The section consists of blocks: pictures, heat maps or
    tables."""
    models, lead = list(result["models"]), ""
    if len(models) != len(labels):
        result["models"].wrong(f"{len(labels)} entries, one per model")
    for model in models:
        if not list(model["lengths"]):
            model["lengths"].wrong("at least one length")
    if task in EXACT:
        blocks = retrieval(task, models)
    else:
        unit = models[0]["unit"].text()
        lead = f"Intervals over {models[0]['units'].number():.0f} {unit}s of {result['source'].text()}."
        is_lambada, first = task == "lambada_openai", models[0]["lengths"][0]
        key = "word_perplexity" if "word_perplexity" in first and "words" in first else "perplexity"
        blocks = [
            perplexity_by_length(labels, models, key),
            length_table(names, models, key, "stream" if is_lambada else "window"),
            {} if is_lambada else loss_by_position(models),
            change_table(names, labels, result["change_against_first"] if "change_against_first" in result else ()),
            *(lambada_tables(names, models) if is_lambada else ()),
        ]
    skipped = [
        f"{label}: length {row['length'].number():.0f} skipped: {row['why'].text()}."
        for label, model in zip(labels, models)
        for row in model["skipped"]
    ]
    title = TITLES.get(task, "Held-out text")
    return {"id": task, "title": title, "lead": lead, "blocks": list(filter(None, blocks)), "skipped": skipped}


def render(content, command, date, version):
    if content["schema"].text() != SCHEMA:
        content["schema"].wrong(f'"{SCHEMA}"')
    labels = [model["label"].text() for model in content["models"]] or content["models"].wrong("at least one model")
    names = [series_name(i, label) for i, label in enumerate(labels)]
    lengths = content["config"]["lengths"].numbers()
    rows = []
    for name, model in zip(names, content["models"]):
        numbers = [f"{model[key].number():.6g}" for key in ("training_length", "rope_base")]
        rows.append((name, [model["kind"].text(), *numbers, model["path"].text()], False))
    count = f"{len(rows)} model{'' if len(rows) == 1 else 's and variants'}"
    template = environment().get_template("length_report.html")
    return template.render(
        title="Model quality by context length",
        detail=f"{count} at context lengths from {lengths[0]:.0f} to {lengths[-1]:.0f} tokens.",
        date=date,
        version=version,
        command=command,
        names=names,
        labels=labels,
        rows=rows,
        sections=[section(task, content["results"][task], labels, names) for task in content["results"].keys()],
    )

"""The page of `lazy eval --lengths` (docs/guides/length.md): perplexity by length, loss by position, retrieval.

A curve is a list of (length, value, low, high). The bounds of the confidence interval are None if it is not known.
"""

import math
from statistics import fmean

from .. import charts
from .curves import reference, responsive, series
from .page import environment
from .text import fixed, lined, series_name

SCHEMA = "lazy.length/1"
PROBES = ("passkey", "recall")


def value_text(value):
    if not math.isfinite(value):
        return "not finite"
    size = abs(value)
    return charts.count_text(value) if size >= 1e5 else fixed(value, 3 if size < 10 else 2 if size < 1000 else 0)


def cell(_, value, low, high):
    return lined(value_text(value), f"{value_text(low)} to {value_text(high)}" if low is not None else "")


def point(row, key, x="length", interval=""):
    """Returns the point (row[x], row[key], low, high) of a curve. `interval` is the key of the bounds low and high, by
    default "KEY_interval". They are None if the row has no interval."""
    interval = interval or f"{key}_interval"
    bounds = row[interval].numbers() if interval in row else [None, None]
    if len(bounds) != 2:
        row[interval].wrong("two numbers")
    return row[x].number(), row[key].number(), *bounds


def draw_curves(title, labels, curves, x, y, may_be_log=False, zero=""):
    """Draws one curve with error bars per model. `zero` is the name of a reference line at zero, which is drawn if the
    values are on both sides of it."""
    ends = "".join(f"; {label} ends at {value_text(curve[-1][1])}" for label, curve in zip(labels, curves))
    values = [value for curve in curves for _, *values in curve for value in values if value is not None]
    values = list(filter(math.isfinite, values)) or [0]
    low, high = min(values), max(values)
    is_log = may_be_log and low > 0 and high > 4 * low

    def draw(axes):
        for i, curve in enumerate(curves):
            series(axes, i, [(length, value) for length, value, *_ in curve])
            for length, _, *bounds in curve:
                if bounds[0] is not None:
                    axes.vlines(length, *bounds, color=f"C{i}", lw=1.2, alpha=0.55)
        if zero and low <= 0 <= high:
            reference(axes, 0, zero)
        if is_log:
            axes.set_yscale("log")
        most = 9 if axes.get_figure().get_figwidth() * charts.PIXELS > 400 else 5
        charts.length_axis(axes, [length for curve in curves for length, *_ in curve], most)

    return responsive(f"{title}: {y}, by {x}{ends}", draw, x, f"{y}, log scale" if is_log else y)


def table_by_length(curves):
    """Returns [(length, [cell per curve])]."""
    found = [{point[0]: cell(*point) for point in curve} for curve in curves]
    return [(f"{x:.0f}", [cells.get(x, "–") for cells in found]) for x in sorted(set().union(*found))]


def text_results(result, models, names):
    """Returns the results of a task that measures the perplexity of texts. The keys `positions`, `changes` and
    `standard` (only of LAMBADA) are empty if they were not measured."""
    first, last = models[0]["lengths"][0], [list(model["lengths"])[-1] for model in models]
    measures = [key for key in ("perplexity", "word_perplexity", "word_accuracy") if key in first]
    found = {
        "lead": f"Intervals over {models[0]['units'].number():.0f} {models[0]['unit'].text()}s of "
        f"{result['source'].text()}.",
        "unit": "word" if "word_perplexity" in first and "words" in first else "token",
        "curves": {key: [[point(row, key) for row in model["lengths"]] for model in models] for key in measures},
        "longest": max(row["length"].number() for row in last),
        "positions": [],
        "changes": [],
        "standard": [],
    }
    if all("positions" in row for row in last):
        found["positions"] = [[point(place, "loss", x="to") for place in row["positions"]] for row in last]
    for change in result["change_against_first"] if "change_against_first" in result else ():
        points = [point(row, "difference", interval="interval") for row in change["lengths"]]
        name = names[int(change["model"].number())]
        found["changes"] += [(name, [f"{point[0]:.0f}", cell(*point)]) for point in points]
    for name, model in zip(names, models) if "word_accuracy" in first else ():
        standard = [point(model["standard"], key, x="max_length") for key in ("word_accuracy", "word_perplexity")]
        found["standard"].append((name, [f"{standard[0][0]:.0f}", *(cell(*point) for point in standard)]))
    return found


def probe_results(models):
    """Returns the results of a retrieval task: for each model, a heat map with the share of exact answers by depth and
    length, and a curve of the log-likelihood of the answer. If the contexts were also scored without the planted fact,
    the curve shows how much the fact increases the log-likelihood, because absolute log-likelihoods differ between
    models."""
    has_absent = "log_likelihood_absent" in models[0]["lengths"][0]["depths"][0]
    maps, curves = [], []
    for model in models:
        depths = [place["depth"].number() for place in model["lengths"][0]["depths"]]
        exact, curve = [], []
        for row in model["lengths"]:
            places = row["depths"].some("depth")
            if len(places) != len(depths):
                row["depths"].wrong(f"{len(depths)} depths, as at the first length")
            for place in places:
                if not 0 <= place["exact"].number() <= 1:
                    place["exact"].wrong("a fraction from 0 to 1")
            exact.append([place["exact"].number() for place in places])
            value = fmean(place["log_likelihood"].number() for place in places)
            if has_absent:
                value -= fmean(place["log_likelihood_absent"].number() for place in places)
            curve.append((row["length"].number(), value, None, None))
        maps.append((list(zip(*exact)), [f"{100 * d:g} %" for d in depths], [charts.length_text(x) for x, *_ in curve]))
        curves.append(curve)
    return {"maps": maps, "curves": curves, "has_absent": has_absent}


def section(task, result, labels, names):
    """Returns the results of a task."""
    models = list(result["models"])
    if len(models) != len(labels):
        result["models"].wrong(f"{len(labels)} entries, one per model")
    for model in models:
        model["lengths"].some("length")
    skipped = [
        f"{label}: length {row['length'].number():.0f} skipped: {row['why'].text()}."
        for label, model in zip(labels, models)
        for row in model["skipped"]
    ]
    found = probe_results(models) if task in PROBES else text_results(result, models, names)
    return {"task": task, "skipped": skipped} | found


def render(content, command, date, version):
    if content["schema"].text() != SCHEMA:
        content["schema"].wrong(f'"{SCHEMA}"')
    models = content["models"].some("model")
    labels = [model["label"].text() for model in models]
    names = [series_name(i, label) for i, label in enumerate(labels)]
    rows = []
    for name, model in zip(names, models):
        numbers = [f"{model[key].number():.6g}" for key in ("training_length", "rope_base")]
        rows.append((name, [model["kind"].text(), *numbers, model["path"].text()], False))
    return (
        environment()
        .get_template("length_report.html")
        .render(
            title="Model quality by context length",
            lengths=[length.number() for length in content["config"]["lengths"].some("length")],
            date=date,
            version=version,
            command=command,
            names=names,
            labels=labels,
            rows=rows,
            sections=[section(task, content["results"][task], labels, names) for task in content["results"].keys()],
            draw_curves=draw_curves,
            table_by_length=table_by_length,
        )
    )

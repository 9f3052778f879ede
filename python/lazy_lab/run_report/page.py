"""Renders the run report: the tables, the heat maps and the template. Every part without data is omitted."""

import math
import sys
from functools import partial
from itertools import groupby
from statistics import fmean

import jinja2
from markupsafe import Markup

from .. import charts
from . import curves
from .headline import headline
from .results import LOSSES
from .text import fixed, grouped, lined, percent, seconds_text, share, token_text

MAX_RUN_COLUMNS = 6  # with more runs, the table has one row per run instead of one column per run
MAX_MAPS = 8  # if a run has more attention maps, the page shows one map at a time
MEASURES = {  # key in Run.values -> (name, explanation, function that formats the value)
    "loss": ("Held-out loss", "nats per token", partial(fixed, digits=4)),
    "bits_per_byte": ("Bits per byte", "compares across tokenizers", partial(fixed, digits=3)),
    "perplexity": ("Perplexity", "per token", partial(fixed, digits=2)),
    "word_perplexity": ("WikiText perplexity", "per word", partial(fixed, digits=1)),
    "density": ("Density", "weight on all keys except the first", share),
    "sink_ratio": ("Sink ratio", "weight on the first key", share),
    "released_mass": ("Released mass", "weight given to no key", share),
    "alive_fraction": ("Alive fraction", "visible pairs with weight above zero", share),
    "sink_1_0.3": ("Sink\u2081 (0.3)", "heads with more than 0.3 of the weight on the first key", share),
    "tokens": ("Training tokens", "", charts.count_text),
    "speed": ("Training speed", "tokens per second, fastest interval", charts.count_text),
    "seconds": ("Training time", "h:mm:ss or m:ss", seconds_text),
}
TILES = ("bits_per_byte", "sink_ratio", "released_mass", "alive_fraction")
HEATS = ("sink_ratio", "density", "alive_fraction")
HEAT_ENDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


def level(share):
    """Returns the index of a fraction from 0 to 1 on the color ramp."""
    last = charts.RAMP_LEVELS - 1
    return min(last, int(max(0, share) * last + 0.5)) if math.isfinite(share) else 0


def palette_css(dark):
    """Returns the CSS classes q0 to q63 of the color ramp, each with the text color that has the stronger contrast."""
    rules = []
    for i, background in enumerate(charts.ramp(dark)):
        red, green, blue = charts.to_rgb(background)
        luminance = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2  # WCAG 2.1, approximately
        rules.append(f".q{i}{{background:{background};color:{'#15181b' if luminance > 0.18 else '#fff'}}}")
    return "".join(rules)


def map_levels(weights, merged):
    """Returns the cells of an attention map. Each query has a list of (number of columns, color level); the level is
    None for a weight of zero. With `merged`, adjacent cells of equal level are merged, which keeps pages with hundreds
    of maps small."""
    rows = [[level(math.sqrt(weight)) if weight > 0 else None for weight in row] for row in weights]
    if merged:
        return [[(len(list(cells)), found) for found, cells in groupby(row)] for row in rows]
    return [[(1, found) for found in row] for row in rows]


def received(weights):
    """Returns the mean weight that each token receives from the queries that see it."""
    return [max(0, fmean(row[key] for row in weights[key:])) for key in range(len(weights))]


def map_summary(weights):
    first, released = fmean(row[0] for row in weights), fmean(1 - sum(row) for row in weights)
    return f"sink {share(first)}" + (f", released {share(released)}" if abs(released) > 5e-4 else "")


def result_table(runs):
    """Returns (columns, rows) of the result table, which shows MEASURES for all runs. The best losses are bold."""
    titles, table = [], []
    for key, (name, explanation, show) in MEASURES.items():
        values = [run.values[key] for run in runs if key in run.values]
        if values:
            texts = [show(run.values[key]) if key in run.values else "–" for run in runs]
            best = show(min(values)) if key in LOSSES and len(runs) > 1 else None
            table.append([Markup("<b>{}</b>").format(text) if text == best else text for text in texts])
            titles.append(lined(name, explanation))
    names = [run.label for run in runs]
    if len(runs) > MAX_RUN_COLUMNS:
        return ["Run", *titles], list(zip(names, zip(*table)))
    return ["Measure", *names], list(zip(titles, table))


def accuracy(value, error=None):
    return lined(fixed(100 * value, 1), f"±{fixed(100 * error, 1)}" if error else "") if value is not None else "–"


def benchmarks(runs):
    """Returns (columns, rows) of the table of benchmark accuracies, with one row for random guessing."""
    tasks, rows = {}, []
    for run in reversed(runs):
        tasks |= run.scores  # the metric of the first run is shown
    columns = sorted(tasks, key=lambda task: task == "mean")  # the mean is the last column
    for run in runs:
        # Different metrics must not share one column.
        own = {task: found for task, found in run.scores.items() if found["metric"] == tasks[task]["metric"]}
        if own:
            cells = [accuracy(own[task]["value"], own[task]["error"]) if task in own else "–" for task in columns]
            rows.append((run.label, cells))
    if any(score["chance"] is not None for score in tasks.values()):
        rows.append(("guessing", [accuracy(tasks[task]["chance"]) for task in columns]))
    return ["Run", *(lined(task, tasks[task]["metric"]) for task in columns)], rows


def lengths(runs):
    found = sorted({length for run in runs for length in run.loss_by_length})
    cells = lambda losses: [fixed(losses[n], 3) if n in losses else "–" for n in found]
    rows = [(run.label, cells(run.loss_by_length)) for run in runs if run.loss_by_length]
    return ["Run", *(lined(grouped(length), "tokens") for length in found)], rows


def heat_end(runs, key):
    """Returns the value with the strongest color of the heat maps of a measure. All runs share it."""
    largest = max(value for run in runs for row in run.sinks["per_head"][key] for value in row)
    return next((end for end in HEAT_ENDS if end >= largest), 1)


def setting_rows(settings):
    """Returns [(key, [value per run], whether the values differ)]. settings: one flattened dictionary per run."""
    keys = dict.fromkeys(key for found in settings for key in found)
    rows = [(key, [found.get(key, "–") for found in settings]) for key in keys]
    return [(key, values, len(set(values)) > 1) for key, values in rows]


def environment():
    """Returns the Jinja2 environment of all pages of this package. The templates call functions of this module."""
    loader = jinja2.PackageLoader("lazy_lab", "templates")
    found = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found.filters |= {"percent": percent, "fixed": fixed, "level": level, "token": token_text, "sqrt": math.sqrt}
    found.tests["in_model"] = lambda key: key.startswith("model.")
    found.globals |= {"charts": charts, "curves": curves, "page": sys.modules[__name__]}
    return found


def render(runs, command, date, version):
    """Returns the HTML text of the page."""
    names = [run.name for run in runs]
    runs = sorted(runs, key=lambda run: {"lazy": 0, "softmax": 1}.get(run.kind, 2))
    for i, run in enumerate(runs):
        run.index, run.name = i, str(run.folder) if names.count(run.name) > 1 else run.name
    title, detail = headline(runs)
    return (
        environment()
        .get_template("run_report.html")
        .render(
            title=title,
            detail=detail,
            date=date,
            version=version,
            command=command,
            runs=runs,
            sinks=[run for run in runs if run.sinks],
            by_run=lambda draw: [(run, found) for run in runs if (found := draw(run))],
        )
    )

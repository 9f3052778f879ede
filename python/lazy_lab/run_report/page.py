"""Renders the run report: the tables, the heat maps and the template. Every part without data is omitted."""

import math

import jinja2
from markupsafe import Markup

from .. import charts
from . import curves
from .headline import headline
from .text import fixed, grouped, lined, percent, seconds_text, series_name, share, token_text

RAMP_LEVELS = 64
MAX_RUN_COLUMNS = 6  # with more runs, the table has one row per run instead of one column per run
MAX_MAPS = 8  # if a run has more attention maps, the page shows one map at a time
# Tuples (key in Run.values, name, explanation, number format).
MEASURES = (
    ("loss", "Held-out loss", "nats per token", lambda value: fixed(value, 4)),
    ("bits_per_byte", "Bits per byte", "compares across tokenizers", lambda value: fixed(value, 3)),
    ("perplexity", "Perplexity", "per token", lambda value: fixed(value, 2)),
    ("word_perplexity", "WikiText perplexity", "per word", lambda value: fixed(value, 1)),
    ("density", "Density", "weight on all keys except the first", share),
    ("sink_ratio", "Sink ratio", "weight on the first key", share),
    ("released_mass", "Released mass", "weight given to no key", share),
    ("alive_fraction", "Alive fraction", "visible pairs with weight above zero", share),
    ("sink_1_0.3", "Sink\u2081 (0.3)", "heads with more than 0.3 of the weight on the first key", share),
    ("tokens", "Training tokens", "", charts.count_text),
    ("speed", "Training speed", "tokens per second, fastest interval", charts.count_text),
    ("seconds", "Training time", "h:mm:ss or m:ss", seconds_text),
)
LOSSES = ("loss", "bits_per_byte", "perplexity", "word_perplexity")  # measures for which lower is better
TILES = ("bits_per_byte", "sink_ratio", "released_mass", "alive_fraction")
HEATS = ("sink_ratio", "density", "alive_fraction")


def level(share):
    """Returns the index of a fraction from 0 to 1 on the color ramp."""
    return min(RAMP_LEVELS - 1, int(max(0, share) * (RAMP_LEVELS - 1) + 0.5)) if math.isfinite(share) else 0


def palette_css(dark):
    """Returns the CSS classes q0 to q63 of the color ramp, each with the text color that has the stronger contrast."""
    rules = []
    for i, background in enumerate(charts.ramp(dark, RAMP_LEVELS)):
        red, green, blue = (int(background[k : k + 2], 16) / 255 for k in (1, 3, 5))
        luminance = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2  # WCAG 2.1, approximately
        rules.append(f".q{i}{{background:{background};color:{'#15181b' if luminance > 0.18 else '#fff'}}}")
    return "".join(rules)


def map_rows(weights, merged):
    """Returns the cells of an attention map. Each query has a list of (number of columns, color level, weight); the
    level is None for a weight of zero. With `merged`, adjacent cells of equal level are merged, which keeps pages with
    hundreds of maps small."""
    rows = []
    for row in weights:
        cells = []
        for weight in row:
            found = level(math.sqrt(weight)) if weight > 0 else None
            if merged and cells and cells[-1][1] == found:
                cells[-1] = (cells[-1][0] + 1, found, weight)
            else:
                cells.append((1, found, weight))
        rows.append(cells)
    return rows


def received(weights):
    """Returns the mean weight that each token receives from the queries that see it."""
    count = len(weights)
    return [max(0, sum(weights[i][j] for i in range(j, count))) / (count - j) for j in range(count)]


def map_summary(weights):
    first, released = (sum(column) / len(weights) for column in zip(*((row[0], 1 - sum(row)) for row in weights)))
    return f"sink {share(first)}" + (f", released {share(released)}" if abs(released) > 5e-4 else "")


def is_finite(value):
    return value is not None and math.isfinite(value)


def result_table(runs):
    """Returns (columns, rows) of the result table, which shows MEASURES for all runs. The best losses are bold."""
    names, titles, table = [series_name(i, run.name) for i, run in enumerate(runs)], [], []
    for key, name, explanation, show in MEASURES:
        values = [run.values.get(key) for run in runs]
        if any(value is not None for value in values):
            texts = ["–" if v is None else show(v) if math.isfinite(v) else "not a number" for v in values]
            best = show(min(filter(is_finite, values), default=0)) if key in LOSSES and len(runs) > 1 else None
            table.append([Markup("<b>{}</b>").format(text) if text == best else text for text in texts])
            titles.append(lined(name, explanation))
    if len(runs) > MAX_RUN_COLUMNS:
        return ["Run", *titles], list(zip(names, map(list, zip(*table)))) if table else []
    return ["Measure", *names], list(zip(titles, table))


def tiles(runs):
    """Returns the data of the tiles at the top of the page, one per measure in TILES: [(name, explanation, [(color,
    run, value as text, width of the bar in percent)])]."""
    found = {}
    for key, name, explanation, show in MEASURES:
        values = [(charts.series_role(i), run.name, run.values.get(key)) for i, run in enumerate(runs)]
        known = [value for *_, value in values if is_finite(value)]
        if key in TILES and known:
            high = max(known) if key in LOSSES else max(1, *known)
            bars = [(*who, show(v), max(0, 100 * v / high)) if is_finite(v) else (*who, "–", 0) for *who, v in values]
            found[key] = name, explanation, bars
    return [found[key] for key in TILES if key in found]


def accuracy(value, error=None):
    return lined(fixed(100 * value, 1), f"±{fixed(100 * error, 1)}" if error else "") if value is not None else "–"


def benchmarks(runs):
    """Returns (columns, rows) of the table of benchmark accuracies, with one row for random guessing."""
    tasks, rows = {}, []
    for score in (score for run in runs for score in run.scores):
        tasks.setdefault(score["task"], score)
    mean = any(run.mean_score is not None for run in runs)
    for i, run in enumerate(runs):
        # Different metrics must not share one column.
        own = {s["task"]: s for s in run.scores if s["metric"] == tasks[s["task"]]["metric"]}
        cells = [accuracy(own[task]["value"], own[task]["error"]) if task in own else "–" for task in tasks]
        if own:
            rows.append((series_name(i, run.name), cells + ([accuracy(run.mean_score)] if mean else [])))
    if any(score["chance"] is not None for score in tasks.values()):
        rows.append(("guessing", [accuracy(score["chance"]) for score in tasks.values()] + ([""] if mean else [])))
    return ["Run", *(lined(task, s["metric"]) for task, s in tasks.items()), *(["mean"] if mean else [])], rows


def lengths(runs):
    found = sorted({length for run in runs for length in run.loss_by_length})
    losses = [(series_name(i, run.name), run.loss_by_length) for i, run in enumerate(runs) if run.loss_by_length]
    rows = [(name, [fixed(by[n], 3) if n in by else "–" for n in found]) for name, by in losses]
    return ["Run", *(lined(grouped(length), "tokens") for length in found)], rows


def split_bars(runs):
    """Returns the stacked bars of sink ratio, density and released mass, as [(run, [(color level, name, share)])]. Runs
    with a negative released mass are omitted: there, a positive offset adds weight, and the shares do not add up."""
    parts = (("sink_ratio", "sink ratio", 62), ("density", "density", 35), ("released_mass", "released mass", 6))
    return [
        (i, [(shade, name, run.values[key]) for key, name, shade in parts if run.values[key] > 5e-5])
        for i, run in enumerate(runs)
        if run.sinks and run.values["released_mass"] >= -1e-4
    ]


def heat_maps(runs):
    """Returns the heat maps of the per-head measures: [(title, explanation, high, [(index of the run, values
    [layer][head])])]. All runs share one color scale from 0 to `high`, which is 1, 2 or 5 times a power of ten."""
    found = []
    for key in HEATS:
        maps = [(i, run.sinks["per_head"][key]) for i, run in enumerate(runs) if run.sinks]
        if maps:
            largest = max(value for _, values in maps for row in values for value in row)
            power = 10 ** math.floor(math.log10(largest)) if largest > 0 else 0.1
            high = next((factor * power for factor in (1, 2, 5) if factor * power >= largest), 10 * power)
            words = next(words for measure, *words, _ in MEASURES if measure == key)
            found.append((*words, min(1, high), maps))
    return found


def setting_rows(settings):
    """Returns [(key, [value per run], whether the values differ)]. settings: one flattened dictionary per run."""
    rows = [
        (key, [found.get(key, "–") for found in settings]) for key in dict.fromkeys(key for s in settings for key in s)
    ]
    return [(key, values, len(set(values)) > 1) for key, values in rows]


def environment():
    """Returns the Jinja2 environment of all pages of this package."""
    loader = jinja2.PackageLoader("lazy_lab", "templates")
    found = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found.tests["in_model"] = lambda key: key.startswith("model.")
    found.filters |= {"percent": percent, "fixed": fixed, "level": level, "token": token_text}
    found.globals |= {"series_name": series_name, "charts": charts, "palette_css": palette_css, "sqrt": math.sqrt}
    found.globals |= {"map_rows": map_rows, "received": received, "map_summary": map_summary}
    return found


def render(runs, command, date, version):
    """Returns the HTML text of the page. The template calls functions of this module for the content of its
    sections."""
    names = [run.name for run in runs]
    for run in runs:
        run.name = str(run.folder) if names.count(run.name) > 1 else run.name
    runs = sorted(runs, key=lambda run: {"lazy": 0, "softmax": 1}.get(run.kind, 2))
    title, detail = headline(runs)
    by_run = lambda draw: [(i, found) for i, run in enumerate(runs) if (found := draw(run, i))]
    functions = (tiles, result_table, benchmarks, lengths, split_bars, heat_maps, setting_rows)
    context = {function.__name__: function for function in functions}
    context |= {"title": title, "detail": detail, "date": date, "version": version, "command": command, "runs": runs}
    context |= {"sinks": [(i, run) for i, run in enumerate(runs) if run.sinks], "curves": curves, "by_run": by_run}
    context |= {"max_maps": MAX_MAPS, "wide": len(runs) > MAX_RUN_COLUMNS}
    return environment().get_template("run_report.html").render(context)

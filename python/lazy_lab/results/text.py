"""Numbers, tables and paragraphs of the pages as Markdown."""

import re
import textwrap

import jinja2

from .. import statistics
from . import data

COLUMNS = 120  # maximum width of a line outside of tables and code


def number(value, digits=3, scale=1.0, signed=False):
    """Returns a number with fixed digits after the point."""
    rounded = round(float(scale * value), digits) + 0.0  # a negative zero becomes zero
    return f"{rounded:{'+' if signed else ''}.{digits}f}"


def estimate(interval, digits=3, scale=1.0, signed=False):
    """Formats an Interval as "mean [low, high]". The value of a single training is marked by "(1)". Returns "" for
    None."""
    if interval is None:
        return ""
    mean = number(interval.mean, digits, scale, signed)
    if interval.low is None:
        return f"{mean} (1)"
    return f"{mean} [{', '.join(number(bound, digits, scale, signed) for bound in (interval.low, interval.high))}]"


def level(measure, models, digits=None):
    """Formats a Measure of one model, the mean over a tuple of models, or the paired difference [models, baselines],
    which has explicit signs."""
    digits = measure.digits if digits is None else digits
    return estimate(measure.interval(models), digits, signed=isinstance(models, list))


def mean(measure, models, digits=None):
    """Formats like level(), but without the interval of a model or of a mean over models."""
    if isinstance(models, list):
        return level(measure, models, digits)
    column = measure.of(models)
    return number(column.mean(), measure.digits if digits is None else digits) if len(column) else ""


def effect(measure, models, baselines, digits=None):
    return level(measure, [models, baselines], digits)


def power(measure, *difference):
    """Formats the smallest true difference [models, baselines] that a paired t test would find with a power of 80 %."""
    found = measure.interval(list(difference or data.NORMALIZER))
    return number(statistics.detectable(found), measure.digits)


def table(header, rows):
    """Returns a Markdown table. The first column is left-aligned, the others are right-aligned."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def models_by_measures(corner, models, measures, cell=level):
    """Returns a table with one row per model and one column per Measure. models: {title: model or models, see
    level()}. `corner` is the title of the first column."""
    rows = [[title, *(cell(measure, model) for measure in measures)] for title, model in models.items()]
    return table([corner, *(measure.title for measure in measures)], rows)


def measures_by_columns(corner, measures, columns):
    """Returns a table with one row per Measure. columns: {title: model or models, see mean()}."""
    rows = [[measure.title, *(mean(measure, column) for column in columns.values())] for measure in measures]
    return table([corner, *columns], rows)


def wrapped(page):
    """Breaks paragraphs and list items at COLUMNS. Tables, headings, pictures, HTML and code are unchanged."""
    blocks = []
    for block in re.split(r"\n\n+", page.strip()):
        if not re.match(r"[|#!<`]|    ", block):
            items = [(re.match(r"- |\d+\. |", item)[0], item) for item in re.split(r"\n(?=- |\d+\. )", block)]
            style = {"width": COLUMNS, "break_long_words": False, "break_on_hyphens": False}
            block = "\n".join(
                textwrap.fill(" ".join(item.split()), subsequent_indent=" " * len(mark), **style)
                for mark, item in items
            )
        blocks.append(block)
    return "\n\n".join(blocks) + "\n"


def write_page(folder, name, **values):
    """Writes NAME.md from templates/results/NAME.md.j2. It can use the names of this module and of data.py."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lazy_lab", "templates/results"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= vars(data) | globals()
    page = environment.get_template(f"{name}.md.j2").render(values)
    (folder / f"{name}.md").write_text(wrapped(page), encoding="utf-8")

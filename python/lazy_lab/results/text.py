"""Numbers, tables and paragraphs of the pages as Markdown."""

import re
import textwrap

import jinja2

from . import data

COLUMNS = 120  # maximum width of a line outside of tables and code


def number(value, digits=3, scale=1.0, signed=False):
    """Returns a number with fixed digits after the point."""
    rounded = round(scale * value, digits) + 0.0  # a negative zero becomes zero
    return f"{rounded:{'+' if signed else ''}.{digits}f}"


def estimate(interval, digits=3, scale=1.0, signed=False):
    """Formats an Interval as "mean [low, high]". The value of a single training is marked by "(1)". Returns "" for
    None."""
    if interval is None:
        return ""
    shown = [number(value, digits, scale, signed) for value in (interval.mean, interval.low or 0, interval.high or 0)]
    return f"{shown[0]} (1)" if interval.low is None else f"{shown[0]} [{shown[1]}, {shown[2]}]"


def level(measure, models, digits=None):
    """Returns the text of estimate() for a Measure of one model, or of the mean over a tuple of models."""
    return estimate(measure.level(models), measure.digits if digits is None else digits, measure.scale)


def mean(measure, models, digits=None):
    """Returns the mean over seeds of a Measure as text, without its interval."""
    interval = measure.level(models)
    return number(interval.mean, measure.digits if digits is None else digits, measure.scale) if interval else ""


def effect(measure, models, baselines, digits=None):
    """Returns the text of estimate() for the paired difference models - baselines, with explicit signs. Returns "" if
    `models` and `baselines` are the same."""
    if models == baselines:
        return ""
    digits = measure.digits if digits is None else digits
    return estimate(measure.effect(models, baselines), digits, measure.scale, signed=True)


def power(measure, models=data.ELASTIC, baselines=data.SOFTMAX):
    return number(measure.detectable(models, baselines), measure.digits, measure.scale)


def table(header, rows):
    """Returns a Markdown table. The first column is left-aligned, the others are right-aligned."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def grid(corner, rows, columns, cell):
    """Returns a Markdown table whose cells are cell(row, column). rows and columns: {title: argument of cell}. `corner`
    is the title of the first column."""
    return table(
        [corner, *columns],
        [[title, *(cell(row, column) for column in columns.values())] for title, row in rows.items()],
    )


def level_or_effect(measure, models, level=level):
    """Formats a Measure. If `models` is a list [models, baselines], returns the difference; if it is a model or a tuple
    of models, returns the mean."""
    return effect(measure, *models) if isinstance(models, list) else level(measure, models)


def models_by_measures(corner, models, measures, cell=level):
    """Returns a table with one row per model and one column per Measure. models: {title: model or tuple of models}."""
    return grid(corner, models, {measure.title: measure for measure in measures}, lambda row, column: cell(column, row))


def measures_by_columns(corner, measures, columns):
    """Returns a table with one row per Measure. columns: {title: model or tuple of models}, for which the mean without
    interval is shown, or {title: [models, baselines]}, for which the paired difference is shown."""
    cell = lambda measure, column: level_or_effect(measure, column, mean)
    return grid(corner, {measure.title: measure for measure in measures}, columns, cell)


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

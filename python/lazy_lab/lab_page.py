"""Writes the page of a recipe: a table with the mean and interval over seeds for each model, a table of the differences
between models, and the picture."""

import pandas as pd

from . import charts, records
from .statistics import holm, p_value, paired_difference, student_interval
from .steps import write_atomic


class Results:
    """The measurements of a recipe. `models` are the names of the models in the order of the rows on the page."""

    def __init__(self, models, measured):
        self.models, self.measured = models, measured

    def values(self, model):
        return [found for (name, _), found in sorted(self.measured.items()) if name == model]

    def by_seed(self, model, column):
        """Returns {seed: value of the column for the model}. Seeds without this measurement are omitted."""
        out = {}
        for (name, seed), measured in self.measured.items():
            if name == model:
                try:
                    out[seed] = column(measured)
                except KeyError:
                    continue
        return out


def number(value, digits):
    return f"{value:.{digits}f}"


def with_interval(interval, digits):
    if interval is None:
        return "–"
    text = number(interval.mean, digits)
    return text if interval.low is None else f"{text} [{number(interval.low, digits)}, {number(interval.high, digits)}]"


def markdown(frame):
    """Formats a table of strings as Markdown."""
    rows = [frame.columns, ["---"] * len(frame.columns), *frame.itertuples(index=False)]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows) + "\n"


def table(columns, results):
    """Returns the table with one row per model. A column for which the paper publishes values is followed by a column
    with the published values."""
    rows = []
    for model in results.models:
        row = {"model": model}
        for column in columns:
            values = results.by_seed(model, column)
            row[column.title] = with_interval(student_interval(values.values()) if values else None, column.digits)
            if column.paper:
                row[f"{column.title} (paper)"] = column.paper.get(model, "")
        rows.append(row)
    frame = pd.DataFrame(rows)
    measured = [title for title in frame.columns if any(frame[title] != "–")]
    return frame[measured]


def differences(recipe, columns, results):
    """Returns the table with one row per question of the recipe: the difference between two models, paired by seed. The
    p values of all primary questions that can be tested are corrected together by Holm's method."""
    by_title = {column.title: column for column in columns}
    rows, p_values = [], {}
    for number_of_row, question in enumerate(recipe.differences):
        column = by_title[question.column]
        over, under = (results.by_seed(name, column) for name in (question.over, question.under))
        found = paired_difference(under, over)
        pairs = [over[seed] - under[seed] for seed in sorted(over.keys() & under.keys())]
        if question.primary and len(set(pairs)) > 1:
            p_values[number_of_row] = p_value(pairs)
        rows.append(
            {
                "question": question.question,
                "difference": f"{question.over} - {question.under}",
                "of": question.column,
                "mean and 95 % interval": with_interval(found, max(3, column.digits)),
                "seeds": len(pairs),
                "p": "",
            }
        )
    for row, corrected in zip(p_values, holm(list(p_values.values())) if p_values else []):
        rows[row]["p"] = f"{corrected:.2g}"
    return pd.DataFrame([row for row in rows if row["seeds"]])


def write_page(plan, command):
    """Writes NAME.md, NAME.json, NAME.jsonl.zst and the picture NAME.svg. Returns the path of the page."""
    recipe, scale, folder = plan.recipe, plan.scale, plan.folder
    results = Results(plan.names(), plan.results())
    if recipe.name == "table3":
        results = Results(["data"], {("data", 1): {"datasets": plan.dataset_sizes()}})
    columns = recipe.columns(scale)
    frame, questions = table(columns, results), differences(recipe, columns, results)
    seeds = len({seed for _, seed in results.measured})
    text = f"# {recipe.title[0].upper()}{recipe.title[1:]}\n\n"
    text += f"Source: {recipe.source}. Scale {scale.name}: {scale.means}. Number of seeds: {seeds}. "
    text += "Values are means over the seeds, with 95 % intervals (Student t) if there are at least two seeds.\n\n"
    text += markdown(frame)
    folder.mkdir(parents=True, exist_ok=True)
    picture = recipe.draw(results) if recipe.draw and results.measured else None
    if picture:
        charts.save_svg(picture, folder / f"{recipe.name}.svg", recipe.title)
        text += f"\n![{recipe.title}]({recipe.name}.svg)\n"
    if len(questions):
        text += "\n" + markdown(questions)
        text += "\np: two-sided, of the primary questions, with one Holm correction.\n"
    for note in recipe.notes:
        text += f"\n{note}\n"
    for step, reason in plan.skipped:
        text += f"\nNot measured: {step}, because {reason}.\n"
    text += f"\n`{command}`\n"
    path = folder / f"{recipe.name}.md"
    write_atomic(path, text)
    rows = [
        {"file": f"{model}.seed{seed}", "model": model, "seed": seed} | measured
        for (model, seed), measured in sorted(results.measured.items())
    ]
    records.write(folder / f"{recipe.name}.jsonl.zst", rows, digits=6)
    summary = {"recipe": recipe.name, "scale": scale.name, "seeds": seeds}
    return path, summary | {"rows": frame.to_dict("records"), "differences": questions.to_dict("records")}

"""Writes the page of a recipe: a table with the mean and interval over seeds for each model, a table of the differences
between models, and the picture."""

import pandas as pd

from . import charts, records
from .recipes.recipe import at
from .recipes.tables import dataset_sizes
from .statistics import holm, p_value, student_interval
from .steps import write_atomic


class Results:
    """The measurements of a recipe. `models` are the names of the models in the order of the rows on the page.
    `measured` is the result of Plan.results()."""

    def __init__(self, models, measured):
        self.models, self.measured = models, measured

    def by_seed(self, model, value):
        """Returns {seed: value(measurements of the model)}. Seeds without this measurement are omitted."""
        out = {}
        for (name, seed), measured in sorted(self.measured.items()):
            if name == model:
                try:
                    out[seed] = value(measured)
                except KeyError:
                    continue
        return out

    def read(self, model, path, convert=lambda found: found):
        """Returns the values at a path (see recipes.at) of all seeds, converted by convert()."""
        return list(self.by_seed(model, lambda measured: convert(at(measured, path))).values())


def with_interval(interval, digits):
    numbers = [f"{value:.{digits}f}" for value in (interval.mean, interval.low, interval.high) if value is not None]
    return numbers[0] if len(numbers) == 1 else "{} [{}, {}]".format(*numbers)


def markdown(frame):
    """Formats a table of strings as Markdown."""
    rows = [frame.columns, ["---"] * len(frame.columns), *frame.itertuples(index=False)]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows) + "\n"


def table(columns, results):
    """Returns the table with one row per model. A column for which the paper publishes values is followed by a column
    with the published values. Columns without any measured value are omitted."""
    frame = pd.DataFrame({"model": results.models})
    for column in columns:
        found = [list(results.by_seed(model, column).values()) for model in results.models]
        if any(found):
            frame[column.title] = [
                with_interval(student_interval(values), column.digits) if values else "–" for values in found
            ]
        if column.paper:
            frame[f"{column.title} (paper)"] = [column.paper.get(model, "") for model in results.models]
    return frame


def differences(recipe, results):
    """Returns the table with one row per question of the recipe: the difference between two models, paired by seed. The
    p values of all primary questions that can be tested are corrected together by Holm's method."""
    rows, tested = [], []
    for question in recipe.differences:
        column = question.column
        over, under = (results.by_seed(name, column) for name in (question.over, question.under))
        pairs = [over[seed] - under[seed] for seed in sorted(over.keys() & under.keys())]
        if pairs:
            rows.append(
                {
                    "question": question.question,
                    "difference": f"{question.over} - {question.under}",
                    "of": column.title,
                    "mean and 95 % interval": with_interval(student_interval(pairs), max(3, column.digits)),
                    "seeds": len(pairs),
                    "p": "",
                }
            )
            p = p_value(pairs) if question.primary else None
            if p is not None:
                tested.append((rows[-1], p))
    for (row, _), corrected in zip(tested, holm([p for _, p in tested]) if tested else []):
        row["p"] = f"{corrected:.2g}"
    return pd.DataFrame(rows)


def write_page(plan, command):
    """Writes NAME.md, NAME.json, NAME.jsonl.zst and the picture NAME.svg. Returns the path of the page and its tables
    as a JSON object."""
    recipe, scale, folder = plan.recipe, plan.scale, plan.folder
    results = Results(plan.models, plan.results())
    if recipe.name == "table3":
        results = Results(["data"], {("data", 1): {"datasets": dataset_sizes(plan.options.data)}})
    frame, questions = table(recipe.columns, results), differences(recipe, results)
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
        for (model, seed), measured in results.measured.items()
    ]
    records.write(folder / f"{recipe.name}.jsonl.zst", rows, digits=6)
    summary = {"recipe": recipe.name, "scale": scale.name, "seeds": seeds}
    return path, summary | {"rows": frame.to_dict("records"), "differences": questions.to_dict("records")}

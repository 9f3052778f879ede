"""Writes the page of the toy models and its pictures from their records."""

import numpy as np

from .. import charts, records
from ..results.text import estimate, number, table, write_page
from ..statistics import paired_difference, student_interval
from .study import draw_map
from .toys import BATCH, HEADS, SEEDS, STEPS, TRIGGER_STEPS, VARIANTS, VOCABULARY

HALF, FREQUENT = VOCABULARY // 2, 10  # tokens of rank < HALF count as frequent; the first FREQUENT ranks are compared
UNIFORM = {"unigram": "bos", "trigger": "softmax"}  # study -> variant whose record has the uniform weight on BOS


def draw_maps(record, path):
    """Draws the attention maps of seed 0: one row per sequence, one column per recorded training step."""
    maps = record["maps"]
    figure, grid = charts.figure(640, 130 * len(record["sequences"]), nrows=len(record["sequences"]), ncols=len(maps))
    for column, step in enumerate(maps):
        for row, weights in enumerate(maps[step]):
            draw_map(grid[row, column], weights, f"step {step}" if row == 0 else None)
    for row in range(len(record["sequences"])):
        grid[row, 0].set_ylabel(f"sequence {row + 1}")
    charts.save_svg(figure, path, f"Attention maps by training step, {record['study']}, variant {record['variant']}")


def draw_embeddings(found, path):
    """Draws the two-dimensional token embeddings, one panel per seed, with different marks for frequent tokens,
    infrequent tokens and BOS."""
    figure, grid = charts.figure(720, 720, nrows=2, ncols=2)
    for record, axes in zip(found, grid.flat):
        points = np.array(record["embedding"])
        axes.plot(*points[:HALF].T, "o", ms=4, color=charts.color("s1"), label=f"ranks 1 to {HALF}")
        axes.plot(*points[HALF:VOCABULARY].T, "s", ms=4, color=charts.color("s0"), label=f"ranks above {HALF}")
        axes.plot(*points[VOCABULARY], "D", ms=9, color=charts.color("ink"), label="BOS")
        axes.set_title(f"seed {record['seed']}")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    charts.save_svg(figure, path, "Token embeddings of the unigram model with BOS, by seed")


def draw_ranks(panels, path):
    """Draws values by the frequency rank of the token. panels: {title of a panel: [list of values by rank, one list per
    seed]}."""
    figure, grid = charts.figure(720, 300, ncols=len(panels))
    for axes, (title, curves) in zip(grid, panels.items()):
        for index, values in enumerate(curves):
            axes.plot(np.array(values[:VOCABULARY], dtype=float), lw=1.2, color=charts.color(charts.series_role(index)))
        axes.set_title(title)
        axes.set_xlabel("token rank")
        axes.set_ylim(bottom=0)
    charts.save_svg(figure, path, "Attention received and distance to BOS by token rank")


def draw_heads(found, path):
    """Draws the attention maps of the six kinds of heads in the trigger task, for one held-out sequence and seed 0."""
    figure, grid = charts.figure(720, 500, nrows=2, ncols=3)
    for head, axes in zip(HEADS, grid.flat):
        record = found["trigger", head][0]
        draw_map(axes, record["map"], head)
        axes.set_yticks([0, record["trigger"]], ["BOS", "trigger"])
    charts.save_svg(figure, path, "Attention weights of six heads on the trigger task")


def relative(values, first, last):
    """Returns the mean of the values of ranks first to last - 1, divided by the mean over all tokens of the
    vocabulary. Tokens that did not occur (None) are left out."""
    values = np.array(values[:VOCABULARY], dtype=float)
    return float(np.nanmean(values[first:last]) / np.nanmean(values))


def contrast(found, key, first, second):
    """Returns one difference per seed: the relative value (see relative()) of the range of ranks `first` minus the
    relative value of the range of ranks `second`."""
    return [relative(r[key], *first) - relative(r[key], *second) for r in found]


def answer(interval, bound=0.0):
    """Returns whether a value is above the bound: "yes" or "no" if its whole confidence interval is on one side of the
    bound, otherwise "undecided"."""
    return "yes" if interval.low > bound else "no" if interval.high < bound else "undecided"


def questions(found):
    """Returns a table that compares the statements of the source (Ziming Liu, 2026) about the unigram and the bigram
    study with our records."""
    unigram, plain, bigram = found["unigram", "bos"], found["unigram", "plain"], found["bigram", "bos"]
    frequent, rare = (0, HALF), (HALF, VOCABULARY)

    def above_uniform(runs):
        return [r["to_bos"] - r["uniform_share"] for r in runs]

    rows = []
    for question, source, values, bound in (
        ("unigram: weight on BOS minus a uniform weight", "heavily attended to", above_uniform(unigram), 0),
        (
            "unigram: distance to BOS, frequent minus infrequent",
            "infrequent tokens are closer",
            contrast(unigram, "distance", frequent, rare),
            0,
        ),
        (
            "unigram: weight received, infrequent minus frequent",
            "infrequent tokens receive more",
            contrast(unigram, "received", rare, frequent),
            0,
        ),
        (
            f"unigram without BOS: weight received, the {FREQUENT} most frequent minus all others",
            "sinks are frequent tokens",
            contrast(plain, "received", (0, FREQUENT), (FREQUENT, VOCABULARY)),
            0,
        ),
        (
            "bigram: weight on the query's own token is above one half",
            "nearly diagonal",
            [r["own_token"] for r in bigram],
            0.5,
        ),
        ("bigram: weight on BOS minus a uniform weight", "some tokens attend to BOS", above_uniform(bigram), 0),
    ):
        interval, by_seed = student_interval(values), ", ".join(number(value, 2) for value in values)
        holds = "yes" if interval.low > bound else "no" if interval.high < bound else "undecided"
        rows.append([question, source, estimate(interval), by_seed, holds])
    return table(["question", "the source", "measured", "by seed", "as in the source"], rows)


def variants(found):
    """Returns the table of all variants of the unigram and the bigram study."""
    rows = []
    for study, names in VARIANTS.items():
        for name in names:
            runs = found[study, name]
            columns = [student_interval(r["loss"] - r["floor"] for r in runs), None, None]
            if "to_bos" in runs[0]:
                columns[1] = student_interval(r["to_bos"] - r["uniform_share"] for r in runs)
            columns[2] = student_interval(r["own_token"] for r in runs)
            rows.append([f"{study}, {name}", *map(estimate, columns)])
    header = ["variant", "loss above the entropy, nats", "weight on BOS above uniform", "weight on the own token"]
    return table(header, rows)


def heads(found):
    """Returns the table of the heads of the trigger task."""
    softmax = {r["seed"]: r["to_bos"] for r in found["trigger", "softmax"]}
    rows = []
    for head in HEADS:
        runs = found["trigger", head]
        difference = paired_difference(softmax, {r["seed"]: r["to_bos"] for r in runs}) if head != "softmax" else None
        weights, errors = (", ".join(f"{r[key]:.2g}" for r in runs) for key in ("to_bos", "error"))
        rows.append([head, weights, estimate(difference, signed=True), errors])
    return table(["head", "weight on BOS, by seed", "difference from softmax", "error, by seed"], rows)


def write(path, folder):
    """Writes toys.md and its pictures from a file of records."""
    found = {}
    for record in records.read(path):
        found.setdefault((record["study"], record["variant"]), []).append(record)
    for study in VARIANTS:
        for variant in ("bos", "plain"):
            draw_maps(found[study, variant][0], folder / f"toy-{study}-{variant}-maps.svg")
    unigram, plain = found["unigram", "bos"], found["unigram", "plain"]
    draw_embeddings(unigram, folder / "toy-embeddings.svg")
    curves = {
        "weight received": [r["received"] for r in unigram],
        "without BOS": [r["received"] for r in plain],
        "distance to BOS": [r["distance"] for r in unigram],
    }
    draw_ranks(curves, folder / "toy-unigram.svg")
    draw_heads(found, folder / "toy-trigger.svg")
    values = {
        "questions": questions(found),
        "variants": variants(found),
        "heads": heads(found),
        "seeds": SEEDS,
        "steps": STEPS,
        "batch": BATCH,
        "trigger_steps": TRIGGER_STEPS,
        "uniform": {study: number(found[study, name][0]["uniform_share"]) for study, name in UNIFORM.items()},
        "floors": {study: number(found[study, "bos"][0]["floor"]) for study in VARIANTS},
        "sequences": unigram[0]["sequences"],
    }
    write_page(folder, "toys", **values)

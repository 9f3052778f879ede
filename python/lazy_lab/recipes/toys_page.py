"""Writes the page of the toy models and its pictures from their records."""

from collections import defaultdict

import numpy as np

from .. import charts, records
from ..results.text import estimate, number, table, write_page
from ..statistics import paired_difference, student_interval
from . import toys
from .study import draw_map
from .toys import HEADS, VARIANTS, VOCABULARY

HALF, TOP = VOCABULARY // 2, 10
FREQUENT, RARE = slice(0, HALF), slice(HALF, VOCABULARY)  # ranges of token ranks


def draw_maps(record, path):
    """Draws the attention maps of seed 0: one row per sequence, one column per recorded training step."""
    maps, rows = record["maps"], len(record["sequences"])
    figure, grid = charts.figure(640, 130 * rows, nrows=rows, ncols=len(maps))
    for column, (step, by_sequence) in enumerate(maps.items()):
        for row, weights in enumerate(by_sequence):
            draw_map(grid[row, column], weights, f"step {step}" if row == 0 else None)
    for row in range(rows):
        grid[row, 0].set_ylabel(f"sequence {row + 1}")
    charts.save_svg(figure, path, f"Attention maps by training step, {record['study']}, variant {record['variant']}")


def draw_embeddings(runs, path):
    """Draws the two-dimensional token embeddings, one panel per seed, with different marks for frequent tokens,
    infrequent tokens and BOS."""
    figure, grid = charts.figure(720, 720, nrows=2, ncols=2)
    for record, axes in zip(runs, grid.flat):
        points = np.array(record["embedding"])
        axes.plot(*points[FREQUENT].T, "o", ms=4, color=charts.color("s1"), label=f"ranks 1 to {HALF}")
        axes.plot(*points[RARE].T, "s", ms=4, color=charts.color("s0"), label=f"ranks above {HALF}")
        axes.plot(*points[VOCABULARY], "D", ms=9, color=charts.color("ink"), label="BOS")
        axes.set_title(f"seed {record['seed']}")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    charts.save_svg(figure, path, "Token embeddings of the unigram model with BOS, by seed")


def by_rank(runs, key):
    """Returns the values by token rank, (seeds, VOCABULARY), without BOS. Tokens that did not occur are NaN."""
    return np.array([record[key][:VOCABULARY] for record in runs], dtype=float)


def draw_ranks(panels, path):
    """Draws values by token rank, one curve per seed. panels: {title: by_rank(...)}."""
    figure, grid = charts.figure(720, 300, ncols=len(panels))
    for axes, (title, curves) in zip(grid, panels.items()):
        axes.plot(curves.T, lw=1.2)
        axes.set(title=title, xlabel="token rank")
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


def contrast(runs, key, first, second):
    """Returns one difference per seed: the mean over the ranks `first` minus the mean over the ranks `second`, divided
    by the mean over all ranks."""
    values = by_rank(runs, key)
    difference = np.nanmean(values[:, first], axis=1) - np.nanmean(values[:, second], axis=1)
    return difference / np.nanmean(values, axis=1)


def above_uniform(runs):
    """Returns the weight on BOS minus a uniform weight, by seed."""
    return [record["to_bos"] - record["uniform_share"] for record in runs]


def answer(values, bound=0):
    """Returns three cells of a table about the statement that a value is above the bound: the value, the values by seed
    and the answer. The answer is "undecided" if the confidence interval contains the bound."""
    interval = student_interval(values)
    holds = "yes" if interval.low > bound else "no" if interval.high < bound else "undecided"
    return " | ".join([estimate(interval), ", ".join(number(value, 2) for value in values), holds])


def answers(found):
    """Returns the answers to the questions of the page, which are statements of Ziming Liu (2026) about the unigram and
    the bigram study."""
    unigram, plain, bigram = found["unigram", "bos"], found["unigram", "plain"], found["bigram", "bos"]
    return {
        "unigram_bos": answer(above_uniform(unigram)),
        "unigram_distance": answer(contrast(unigram, "distance", FREQUENT, RARE)),
        "unigram_received": answer(contrast(unigram, "received", RARE, FREQUENT)),
        "plain_received": answer(contrast(plain, "received", slice(0, TOP), slice(TOP, VOCABULARY))),
        "bigram_own_token": answer([record["own_token"] for record in bigram], bound=0.5),
        "bigram_bos": answer(above_uniform(bigram)),
    }


def variants(found):
    """Returns the table of all variants of the unigram and the bigram study."""
    rows = []
    for study, names in VARIANTS.items():
        for name in names:
            runs = found[study, name]
            loss = student_interval(record["loss"] - record["floor"] for record in runs)
            to_bos = student_interval(above_uniform(runs)) if "to_bos" in runs[0] else None
            own_token = student_interval(record["own_token"] for record in runs)
            rows.append([f"{study}, {name}", *map(estimate, (loss, to_bos, own_token))])
    header = ["variant", "loss above the entropy, nats", "weight on BOS above uniform", "weight on the own token"]
    return table(header, rows)


def heads(found):
    """Returns the table of the heads of the trigger task."""
    to_bos = {head: {record["seed"]: record["to_bos"] for record in found["trigger", head]} for head in HEADS}
    rows = []
    for head in HEADS:
        difference = paired_difference(to_bos["softmax"], to_bos[head]) if head != "softmax" else None
        weights, errors = (", ".join(f"{r[key]:.2g}" for r in found["trigger", head]) for key in ("to_bos", "error"))
        rows.append([head, weights, estimate(difference, signed=True), errors])
    return table(["head", "weight on BOS, by seed", "difference from softmax", "error, by seed"], rows)


def write(path, folder):
    """Writes toys.md and its pictures from a file of records."""
    found = defaultdict(list)
    for record in records.read(path):
        found[record["study"], record["variant"]].append(record)
    for study in VARIANTS:
        for variant in ("bos", "plain"):
            draw_maps(found[study, variant][0], folder / f"toy-{study}-{variant}-maps.svg")
    unigram, plain = found["unigram", "bos"], found["unigram", "plain"]
    draw_embeddings(unigram, folder / "toy-embeddings.svg")
    curves = {
        "weight received": by_rank(unigram, "received"),
        "without BOS": by_rank(plain, "received"),
        "distance to BOS": by_rank(unigram, "distance"),
    }
    draw_ranks(curves, folder / "toy-unigram.svg")
    draw_heads(found, folder / "toy-trigger.svg")
    write_page(
        folder,
        "toys",
        toys=toys,
        top=TOP,
        answers=answers(found),
        variants=variants(found),
        heads=heads(found),
        unigram=unigram[0],
        bigram=found["bigram", "bos"][0],
        trigger=found["trigger", "softmax"][0],
    )

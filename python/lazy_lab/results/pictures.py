"""Drawing functions that several pages share. charts.py has the style and the colors."""

import numpy as np

from .. import charts


def curves(axes, x, lists, label, role, **style):
    """Draws one thin curve per seed and a thick curve for the mean over seeds. lists: one list of y values per seed."""
    color = charts.color(role)
    for y in lists if len(lists) > 1 else ():
        axes.plot(x, y, color=color, linewidth=0.8, alpha=0.5)
    axes.plot(x, np.mean(lists, axis=0), color=color, label=label, **style)


def by_seed(columns):
    """Transposes the points of a curve. columns: for each point of the curve, {seed: value}. Returns one list of values
    per seed."""
    return [[column[seed] for column in columns] for seed in columns[0]]


def intervals(axes, rows, label, scale=1.0):
    """Draws one horizontal confidence interval per row, from top to bottom. rows: (title, Interval, color role). An
    open circle marks a value from a single training, which has no interval."""
    for place, (_, interval, role) in enumerate(rows):
        color, single = charts.color(role), interval.low is None
        if not single:
            axes.plot([scale * interval.low, scale * interval.high], [place, place], color=color, linewidth=2.5)
        axes.plot(scale * interval.mean, place, "o", color=color, markerfacecolor="none" if single else color)
    axes.set_yticks(range(len(rows)), [title for title, _, _ in rows])
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=label)
    axes.grid(axis="y", visible=False)


def compare_models(axes, models, measures):
    """Draws the confidence intervals of several models, with one panel per measure. models: {model: (title, color
    role)}."""
    for axis, measure in zip(axes, measures):
        rows = [(title, measure.level(model), role) for model, (title, role) in models.items()]
        intervals(axis, rows, measure.title, measure.scale)


def zero_line(axes, vertical=True, at=0):
    draw = axes.axvline if vertical else axes.axhline
    draw(at, color=charts.color("axis"), linewidth=1, zorder=1)


def legend_above(figure, axes, columns):
    """Puts one legend above the figure, so that it covers no curve."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=columns)

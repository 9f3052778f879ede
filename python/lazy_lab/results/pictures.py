"""Drawing functions that several pages share. charts.py has the style and the colors."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from .. import charts

ZERO_LINE = {"color": charts.color("axis"), "linewidth": 1, "zorder": 1}


@dataclass
class Picture:
    """A picture of a page: NAME.svg."""

    name: str
    title: str  # text for screen readers
    height: int
    legend: int  # number of columns of the legend above the figure; 0: no legend
    panels: dict  # arguments of pyplot.subplots
    draw: Callable  # function that draws on (figure, axes)

    def write(self, folder):
        figure, axes = charts.figure(720, self.height, **self.panels)
        self.draw(figure, axes)
        if self.legend:
            entries = (axis.get_legend_handles_labels() for axis in figure.axes)
            figure.legend(*next(filter(any, entries)), loc="outside upper left", ncols=self.legend)
        charts.save_svg(figure, folder / f"{self.name}.svg", self.title)


def picture(name, title, height, legend=0, **panels):
    """Decorates a function that draws on (figure, axes): it becomes a Picture, which __main__.py finds in the module of
    the page."""
    return lambda draw: Picture(name, title, height, legend, panels, draw)


def points(measures, models):
    """Returns the points of a curve: a DataFrame with one row per seed and one column per x. measures: {x: Measure}.
    models: see Measure.of()."""
    return pd.DataFrame({x: measure.of(models) for x, measure in measures.items()})


def curves(axes, found, label, role, **style):
    """Draws one thin curve per seed and a thick curve for the mean over seeds. found: see points()."""
    if len(found) > 1:
        axes.plot(found.T, color=charts.color(role), linewidth=0.8, alpha=0.5)
    axes.plot(found.mean(), color=charts.color(role), label=label, **style)


def intervals(axes, rows, label):
    """Draws one horizontal confidence interval per row, from top to bottom. rows: (title, Interval, color role). An
    open circle marks a value from a single training, which has no interval."""
    for place, (_, interval, role) in enumerate(rows):
        color, single = charts.color(role), interval.low is None
        if not single:
            axes.plot([interval.low, interval.high], [place, place], color=color, linewidth=2.5)
        axes.plot(interval.mean, place, "o", color=color, markerfacecolor="none" if single else color)
    rows_axis(axes, [title for title, _, _ in rows])
    axes.set(xlabel=label)


def rows_axis(axes, titles):
    """Labels the rows 0, 1, ... of a chart from top to bottom."""
    axes.set_yticks(range(len(titles)), titles)
    axes.set(ylim=(len(titles) - 0.5, -0.5))
    axes.grid(axis="y", visible=False)


def compare_models(axes, models, measures):
    """Draws the confidence intervals of several models, with one panel per measure. models: {model: (title, color
    role)}."""
    for axis, measure in zip(axes, measures):
        rows = [(title, measure.interval(model), role) for model, (title, role) in models.items()]
        intervals(axis, rows, measure.title)

"""Models, columns and charts that several recipes use."""

from dataclasses import replace

from .. import charts
from ..published import TABLE2
from .recipe import Column, Model, at_largest_length

SOFTMAX = Model("softmax")
SOFTMAX_BASE = Model("softmax-base150k", {"model.rope_theta": 150000})
ELASTIC = Model("elastic", {"model.normalizer": "elastic"})

LOSS = Column("held-out loss", "model/heldout/loss")
EXCESS = Column("excess sink, points", "model/sinks", 100, 2, at_largest_length("excess_at_offsets"))
LOSS_AND_SINKS = [
    LOSS,
    Column("density, %", "model/sinks", 100, 1, at_largest_length("density")),
    Column("sink ratio, %", "model/sinks", 100, 2, at_largest_length("sink_ratio")),
    EXCESS,
]


def published(columns, table):
    """Returns the columns with published values. table: {model: values in the order of the columns}."""
    return [
        replace(column, paper={name: values[index] for name, values in table.items()})
        for index, column in enumerate(columns)
    ]


TABLE2_COLUMNS = [*published(LOSS_AND_SINKS[:3], TABLE2), EXCESS]


def line_chart(series, x, y, lengths=False, line="-"):
    """Returns a figure with one line for each (label, x values, y values) of `series`, or None if `series` has no data.
    lengths: whether the x axis is logarithmic and shows lengths in tokens. line: line style; "" draws only markers."""
    if not any(len(xs) for _, xs, _ in series):
        return None
    figure, axes = charts.figure()
    for index, (label, xs, ys) in enumerate(series):
        if len(xs):
            color = charts.color(charts.series_role(index))
            axes.plot(xs, ys, color=color, marker=charts.marker(index), ls=line, label=label)
    axes.set(xlabel=x, ylabel=y)
    if lengths:
        charts.length_axis(axes, [x for _, xs, _ in series for x in xs])
    axes.legend(ncols=2)
    return figure

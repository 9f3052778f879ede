"""Tests of the style of pictures: SVG images whose colors are variables for light and dark pages."""

import re

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from lazy_lab import charts  # noqa: E402


def test_saved_files_are_deterministic_and_have_both_color_schemes(tmp_path):
    for name in ("a.svg", "b.svg"):
        figure, axes = charts.figure(300, 200)
        axes.plot([1, 2], [0.123456, 2], marker=charts.marker(0))
        axes.set_xlabel("0.123456 <b>")
        charts.save_svg(figure, tmp_path / name, 'loss "<" length')
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert text.startswith('<svg viewBox="0 0 300 200"') and 'aria-label="loss &quot;&lt;&quot; length"' in text
    assert "prefers-color-scheme:dark" in text and "http://www.w3.org/2000/svg" in text
    assert "stroke: var(--s0)" in text and charts.color("s0") not in text.split("</style>")[1]
    assert ">0.123456 &lt;b&gt;</text>" in text  # numbers in labels are not rounded, only coordinates are


def test_drawings_of_one_figure_for_two_widths_share_no_identifiers():
    ids = []
    for width in (300, 640):
        figure, axes = charts.figure(width, 200)
        axes.plot([1, 2], [1, 2], marker="o")
        ids.append(set(re.findall(r' id="(\w+)"', charts.svg(figure, "loss"))))
    assert ids[0] and ids[1] and not ids[0] & ids[1]


@pytest.mark.parametrize("dark", [False, True])
def test_color_ramps_start_at_the_background(dark):
    luminance = lambda color: np.dot((0.2126, 0.7152, 0.0722), charts.to_rgb(color))
    values = [luminance(color) for color in charts.ramp(dark)]
    assert values == sorted(values, reverse=not dark)
    assert abs(values[0] - luminance(charts.COLORS["page"][dark])) < 0.12
    assert abs(values[-1] - values[0]) > 0.7


def test_counts_and_lengths_are_short():
    assert [charts.count_text(n) for n in (0, 999, 1500, 2e6, 15e9)] == ["0", "999", "1.5k", "2M", "15B"]
    assert [charts.length_text(n) for n in (512, 1536, 8192)] == ["512", "1.5k", "8k"]
    assert charts.thin(list(range(1000)), 100) == [*range(0, 999, 10), 999]
    assert charts.thin([1, 2], 100) == [1, 2]


def test_ticks_of_length_axes_are_powers_of_two():
    def ticks(low, high, most):
        _, axes = charts.figure()
        charts.length_axis(axes, [low, high], most)
        return [label.get_text() for label in axes.get_xticklabels()]

    assert ticks(512, 8192, 9) == ["512", "1k", "2k", "4k", "8k"]
    assert ticks(1, 4096, 5) == ["1", "8", "64", "512", "4k"]
    assert ticks(600, 5000, 9) == ["1k", "2k", "4k"]
    charts.plt.close("all")

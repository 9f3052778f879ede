"""The style of all pictures: matplotlib figures that become SVG text with colors for light and dark pages.

Figures are drawn with the colors of light pages. The SVG text contains a CSS variable in place of each color of
COLORS, and color_css() defines the variables for light and dark pages. Equal figures give equal bytes.
"""

import io
import math
import re
from html import escape

import matplotlib
import numpy as np

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex, to_rgb

from .steps import write_atomic

# Role -> (color on light pages, color on dark pages). The roles s0 to s7 are the colors of data series: the palette of
# Okabe and Ito (2008), which color-blind readers can distinguish, with the lightness adapted to the page. All light
# colors must differ, because svg() replaces a color by the CSS variable of its role.
COLORS = {
    "page": ("#fdfcf9", "#15181b"),
    "ink": ("#22272b", "#e6e3dc"),
    "soft": ("#5c656c", "#a4abb0"),
    "axis": ("#8b9297", "#7c858b"),
    "grid": ("#e9e6dd", "#2a2f33"),
    "s0": ("#c44e0a", "#f28e4b"),
    "s1": ("#1f66a8", "#6cb2f0"),
    "s2": ("#0b7f64", "#46c4a2"),
    "s3": ("#9c4f86", "#dc98c8"),
    "s4": ("#8a6d00", "#d9bd4a"),
    "s5": ("#3b8fb8", "#8fd3f0"),
    "s6": ("#555555", "#b8b8b8"),
    "s7": ("#7a3b1d", "#c98a6a"),
}
SERIES_COLORS = 8
RAMP_LEVELS = 64
MARKERS = "os^D"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
PIXELS = 72  # resolution in pixels per inch; at 72, one point of a font size is one pixel


def color(role):
    """Returns the color in which figures draw a role of COLORS: the color of light pages."""
    return COLORS[role][0]


def series_role(index):
    """Returns the color role of data series number `index`, counted from 0. Lazy is series 0 and softmax is series 1.
    The colors repeat after eight series."""
    return f"s{index % SERIES_COLORS}"


def marker(index):
    """Returns the marker of a series. Color and marker together distinguish 32 series."""
    return MARKERS[(index + index // SERIES_COLORS) % len(MARKERS)]


plt.rcParams.update(
    {
        "figure.dpi": PIXELS,
        "svg.fonttype": "none",  # write text as SVG text elements, not as outlines
        "font.size": 14,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "axes.edgecolor": color("axis"),
        "axes.labelcolor": color("soft"),
        "axes.titlesize": 14,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": color("grid"),
        "grid.linewidth": 1,
        "text.color": color("ink"),
        "xtick.color": color("axis"),
        "ytick.color": color("axis"),
        "xtick.labelcolor": color("soft"),
        "ytick.labelcolor": color("soft"),
        "lines.linewidth": 2,
        "lines.markersize": 6,
        "lines.solid_capstyle": "round",
        "legend.frameon": False,
        "axes.prop_cycle": matplotlib.cycler(color=[color(series_role(i)) for i in range(SERIES_COLORS)]),
    }
)


def figure(width=720, height=360, **options):
    """Returns (figure, axes) like pyplot.subplots. width and height are in pixels; the font size is 14 pixels."""
    return plt.subplots(figsize=(width / PIXELS, height / PIXELS), layout="constrained", **options)


def color_css():
    """Returns the CSS that defines the variables of the colors for light pages, dark screens and paper."""
    light, dark = ("".join(f"--{role}:{pair[i]};" for role, pair in COLORS.items()) for i in (0, 1))
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def ramp(dark):
    """Returns RAMP_LEVELS colors of a heat map, from close to the page's background to its strongest contrast."""
    share = np.linspace(0, 1, RAMP_LEVELS)
    if not dark:
        return [to_hex(shade) for shade in plt.get_cmap("YlGnBu")(share)]
    page, shades = to_rgb(COLORS["page"][1]), plt.get_cmap("YlGnBu_r")(share)[:, :3]
    return [to_hex(shade) for shade in page + np.minimum(1, 0.3 + 1.4 * share)[:, None] * (shades - page)]


def svg(figure, label):
    """Closes the figure and returns it as an <svg> element for an HTML page that contains color_css(). `label` is the
    text for screen readers. Two figures on one page need different labels or sizes, because identifiers are derived
    from both."""
    out = io.StringIO()
    width, height = (round(PIXELS * inches) for inches in figure.get_size_inches())
    with plt.rc_context({"svg.hashsalt": f"{label} {width}"}):
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    plt.close(figure)
    text = out.getvalue()
    body = text[text.index(">", text.index("<svg")) + 1 :]
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, count=1, flags=re.DOTALL)
    body = re.sub(r' id="[\w.]+_\d+"', "", body)  # remove group ids, which are equal in all figures
    body = re.sub(r' transform="rotate\(-0 [^"]*"|font-family: [^;"]+;? ?', "", body.replace("xlink:href", "href"))
    body = re.sub(r"<[^>]+>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), body)  # shorten numbers in tags only
    body = re.sub(r"\s*\n\s*", " ", body)
    for role, (light, _) in COLORS.items():
        body = body.replace(light, f"var(--{role})")
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    style = "stroke-linejoin:round;font-family:var(--font, sans-serif)"
    return f'<svg {size} role="img" aria-label="{escape(label)}" style="{style}">{body.strip()}\n'


def save_svg(figure, path, label):
    """Writes the figure to a file that any page can include as an image, and that is readable in light and dark
    mode."""
    start, rest = svg(figure, label).split(">", 1)
    style = f"<style>{color_css()}:root{{--font:{FONT}}}</style>"
    write_atomic(path, f'{start} xmlns="http://www.w3.org/2000/svg">{style}{rest}')


def count_text(value):
    """Returns a count as short text: 1500 is "1.5k", 2000000 is "2M"."""
    for factor, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{suffix}"
    return f"{value:.3g}"


def length_text(value):
    """Returns a context length as short text, in powers of two: 1536 is "1.5k"."""
    return f"{value / 1024:.4g}k" if value >= 1024 else f"{value:.4g}"


def count_axis(axis):
    """Labels a linear axis with counts such as "500k"."""
    axis.set_major_formatter(lambda value, _: count_text(value))


def length_axis(axes, lengths, most=9):
    """Makes the x axis logarithmic, with powers of two between the smallest and the largest length as ticks. `most` is
    the maximum number of ticks."""
    axes.set_xscale("log", base=2)
    low, high = math.ceil(math.log2(min(lengths))), math.floor(math.log2(max(lengths)))
    step = math.ceil((high - low + 1) / most) or 1
    ticks = [2**power for power in range(low, high + 1, step)] or sorted(lengths)
    axes.set_xticks(ticks, [length_text(tick) for tick in ticks])
    axes.set_xticks([], minor=True)


def thin(points, most=400):
    """Returns at most `most` + 1 evenly spaced points of a curve. The last point of the curve is always included."""
    step = max(1, math.ceil(len(points) / most))
    return [*points[:-1:step], *points[-1:]]

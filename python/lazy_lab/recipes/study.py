"""Parts that the study of the toy models and the study of GPT-2 share."""

import math
import sys

import numpy as np
from matplotlib.colors import ListedColormap, to_rgb

from .. import charts
from ..errors import UserError


def rounded(tensor, digits=6):
    """Converts a tensor to nested lists of numbers, or to one number if it has no dimensions. Numbers are rounded to
    `digits` significant digits. NaN becomes None."""
    if tensor.dim():
        return [rounded(part, digits) for part in tensor]
    value = tensor.item()
    return None if math.isnan(value) else float(f"{value:.{digits}g}")


def draw_map(axes, weights, title=None):
    """Draws attention weights (queries, keys) on a square-root scale, so that small weights remain visible. The map has
    one color whose opacity grows with the weight, so that it suits light and dark pages."""
    colors = ListedColormap([(*to_rgb(charts.color("s1")), opacity) for opacity in np.linspace(0, 1, 64)])
    axes.imshow(np.sqrt(weights), cmap=colors, vmin=0, vmax=1, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.set_title(title)
    axes.grid(False)


def run_command(main):
    """Calls main(). Wrong user input ends the program with one line and exit code 2."""
    try:
        main()
    except UserError as error:
        print(f"lazy_lab: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from error

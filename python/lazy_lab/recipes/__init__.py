"""Recipes of `lazy lab`: which models are trained, what is measured on them, and which numbers are on the page.

The function recipes(scale) of each module returns a list of Recipe objects. The page of a recipe has a table with one
row per model: the mean over seeds of each quantity, its 95 % interval, and the published value if the paper has one. A
second table has the differences between models, paired by seed.
"""

import difflib

from ..errors import UserError
from . import checks, evidence, figures, tables


def recipes(scale):
    """Returns all recipes by name."""
    return {recipe.name: recipe for module in (tables, figures, checks, evidence) for recipe in module.recipes(scale)}


def find_recipe(name, scale):
    known = recipes(scale)
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise UserError(f"expected a recipe that `lazy lab list` names, found '{name}'{hint}")
    return known[name]

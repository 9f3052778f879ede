"""Finds and loads liblazy_ops.so, which registers torch.ops.lazy.*.

Searched in this order: beside this file (an installed package), the path in the environment variable
LAZY_OPS_LIBRARY, the build folder of the source tree that this file lies in.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

NAME = "liblazy_ops.so"


def find() -> Path:
    """The library's path. FileNotFoundError lists every place that was searched."""
    here = Path(__file__).resolve().parent
    places = [here / NAME]
    named = os.environ.get("LAZY_OPS_LIBRARY")
    if named:
        places.append(Path(named))
    tree = here.parent.parent  # python/lazy_attention/ -> the source tree
    if (tree / "src" / "ops").is_dir():
        places.append(tree / "build" / NAME)
    for place in places:
        if place.is_file():
            return place
    searched = ", ".join(str(place) for place in places)
    raise FileNotFoundError(
        f"lazy_attention: expected {NAME}, found none of: {searched}. "
        "Run `pip install .` or `make` in the source tree, or set LAZY_OPS_LIBRARY"
    )


def load() -> Path:
    """Registers the operators in this process; does nothing when they are registered already."""
    path = find()
    if hasattr(torch.ops.lazy, "attention"):  # another copy came first: a second registration would abort
        return path
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        built = "an unknown PyTorch"
        stamp = path.with_name("built_with.txt")
        if stamp.is_file():
            built = f"PyTorch {stamp.read_text().strip()}"
        raise ImportError(
            f"lazy_attention: {path} does not load into PyTorch {torch.__version__}; it was built with {built}. "
            f"Build it again with this interpreter. The loader says: {error.__cause__ or error}"
        ) from error
    return path


LIBRARY = load()

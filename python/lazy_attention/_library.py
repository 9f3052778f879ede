"""Finds and loads liblazy_ops.so and liblazy_ops_cuda.so, which register torch.ops.lazy.*.

If the environment variable LAZY_OPS_LIBRARY is set, only its path is tried. Otherwise, the following locations are
searched in this order: the directory of this file (an installed package), and the build folder of the source tree that
contains this file.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path


def source_tree() -> Path | None:
    """Returns the root of the source tree that contains this file, or None for an installed package."""
    tree = Path(__file__).resolve().parents[2]
    return tree if (tree / "src" / "ops").is_dir() else None


def explain_missing_torch(error: Exception) -> ImportError:
    """Returns the error to raise if PyTorch cannot be imported. One cause is a PyTorch that `make` has installed for
    the C++ program `lazy`: it lacks the Python packages that `import torch` needs."""
    remedy = "install PyTorch 2.11 or later"
    if tree := source_tree():
        remedy = f"run `make python` in {tree}, which completes .venv, and use {tree / '.venv/bin/python'}"
    return ImportError(f"lazy_attention: {sys.executable} cannot import PyTorch ({error}): {remedy}")


try:
    import torch
except (ImportError, OSError, ValueError) as error:  # PyTorch raises ValueError if it finds no CUDA library
    raise explain_missing_torch(error) from None

from . import _registration

NAME = "liblazy_ops.so"
CUDA_NAME = "liblazy_ops_cuda.so"
OLDEST = (2, 11)  # minimum PyTorch version; must match TORCH_TARGET_VERSION in python/CMakeLists.txt


def find() -> Path:
    """Returns the path of the operator library. Raises FileNotFoundError, which lists every path that was searched."""
    if named := os.environ.get("LAZY_OPS_LIBRARY"):
        if not Path(named).is_file():
            raise FileNotFoundError(
                f"lazy_attention: LAZY_OPS_LIBRARY: expected the path of {NAME}, found no file {named}. Without this "
                "variable, the library of the package is loaded"
            )
        return Path(named)
    places = [Path(__file__).resolve().parent / NAME]
    if tree := source_tree():
        places.append(tree / "build" / "python" / NAME)
    for place in places:
        if place.is_file():
            return place
    searched = ", ".join(str(place) for place in places)
    raise FileNotFoundError(
        f"lazy_attention: expected {NAME}, found none of: {searched}. "
        "Run `make python` or `pip install .` in the source tree, or set LAZY_OPS_LIBRARY"
    )


def check_version(version: str) -> None:
    """Raises ImportError if this version of PyTorch is older than OLDEST, whose stable ABI the libraries use."""
    if tuple(int(number) for number in version.split(".")[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(f"lazy_attention: expected PyTorch {oldest} or later, found {version}")


def load_cuda(path: Path) -> str:
    """Loads the CUDA kernels. Returns an empty string on success, otherwise the reason for the failure. The failure is
    not an error, because the CPU kernels work without the CUDA library."""
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} was built without CUDA"
    if not path.is_file():
        return f"this build has no CUDA kernels ({path} does not exist)"
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        return f"{path} does not load: {error.__cause__ or error}"
    return ""


def load() -> Path:
    """Registers the operators in this process, unless they are already registered. Returns the library's path."""
    check_version(torch.__version__)
    path = find()
    if hasattr(torch.ops.lazy, "attention"):  # registered already; registering twice would abort
        return path
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(
            f"lazy_attention: {path} does not load into PyTorch {torch.__version__}: {error.__cause__ or error}"
        ) from error
    _registration.register(ctypes.CDLL(str(path)), load_cuda(path.with_name(CUDA_NAME)))
    return path


LIBRARY = load()

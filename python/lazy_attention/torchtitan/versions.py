"""The versions of torchtitan and PyTorch that are tested together."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

# torchtitan's version: (first, last) supported minor version of PyTorch 2.
PAIRS = {"0.2.2": (11, 15)}


def check_versions() -> None:
    """Raises ImportError with one line if torchtitan is missing or is not in the table of tested pairs."""
    torch_version = version("torch")
    try:
        titan = version("torchtitan")
    except PackageNotFoundError:
        titan = None
    major, minor = (int(part) for part in torch_version.split(".")[:2])
    pairs = "; ".join(f"torchtitan {name} with torch 2.{a} to 2.{b}" for name, (a, b) in PAIRS.items())
    first, last = PAIRS.get(titan, (1, 0))
    if major != 2 or not first <= minor <= last:
        found = "no torchtitan" if titan is None else f"torchtitan {titan}"
        raise ImportError(f"lazy_attention.torchtitan: expected {pairs}, found {found} with torch {torch_version}")

"""Starts the program `lazy` of this folder on the PyTorch that is installed beside it."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def torch_folder() -> Path | None:
    """The folder of the installed PyTorch, found without importing it, which would take seconds."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec and spec.origin else None


def refusal(folder: Path | None) -> str | None:
    """Why the program cannot start on this PyTorch, in one line, or None. A minor version is one C++ interface."""
    wanted = ".".join((HERE / "built_with.txt").read_text().split(".")[:2])
    mend = f"`{sys.executable} -m pip install 'torch=={wanted}.*'`"
    if folder is None:
        return f"lazy: expected PyTorch {wanted}, found none for {sys.executable}: {mend}"
    found = re.search(r"^__version__ = '([^']+)'", (folder / "version.py").read_text(), re.M)
    version = found[1] if found else "of an unknown version"
    if version.split(".")[:2] != wanted.split("."):
        return f"lazy: expected PyTorch {wanted}, found {version} in {folder}: {mend}"
    return None


def main() -> None:
    folder = torch_folder()
    if why := refusal(folder):
        sys.exit(why)
    environment = os.environ | {"LAZY_PYTHON": os.environ.get("LAZY_PYTHON") or sys.executable}
    if folder.parent != HERE.parent:  # the run path names PyTorch in the same site-packages
        paths = [str(folder / "lib"), os.environ.get("LD_LIBRARY_PATH")]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
    os.execve(HERE / "lazy", ["lazy", *sys.argv[1:]], environment)

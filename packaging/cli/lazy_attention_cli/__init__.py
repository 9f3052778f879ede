"""Starts the program `lazy` in this folder with the PyTorch that is installed in the same environment."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def torch_folder() -> Path | None:
    """Returns the folder of the installed PyTorch. Does not import PyTorch, because the import takes seconds."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec and spec.origin else None


def refusal(folder: Path | None) -> str | None:
    """Returns None, or one line with the reason why the program cannot start with this PyTorch.

    The C++ interface of PyTorch is fixed within a minor version, so major and minor version must match.
    """
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
    if folder.parent != HERE.parent:  # the program's built-in library path only covers this site-packages
        paths = [str(folder / "lib"), os.environ.get("LD_LIBRARY_PATH")]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
    os.execve(HERE / "lazy", ["lazy", *sys.argv[1:]], environment)

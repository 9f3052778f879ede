"""Finds the folder configs/ of the source tree or of the installation, and writes configurations of trainings."""

import json
from pathlib import Path

from .errors import UserError
from .plan import toml

PACKAGE = Path(__file__).resolve().parent


def folder():
    """Returns the folder of the configurations: in a source tree, in an installation (share/lazy), or in a wheel."""
    candidates = (PACKAGE.parents[1] / "configs", PACKAGE.parent / "lazy_attention_cli" / "configs")
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise UserError(f"configurations: expected the folder {' or '.join(map(str, candidates))}, found none")


def text_of(files, overrides):
    """Returns a configuration that extends `files` in configs/ and sets `overrides`, {"section.key": value}."""
    sections = {}
    for key, value in overrides.items():
        section, name = key.split(".", 1)
        sections.setdefault(section, {})[name] = value
    return f"extends = {json.dumps([str(folder() / file) for file in files])}\n\n{toml(sections)}"

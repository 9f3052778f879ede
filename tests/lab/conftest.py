"""Lets the tests import the package lazy_lab from the source tree."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "python"))

"""Tests of python/lazy_attention: `pytest tests/python` from the source tree after `make`, or ctest."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
if importlib.util.find_spec("lazy_attention") is None:  # neither installed nor named by PYTHONPATH
    package = str(Path(__file__).parents[2] / "python")
    sys.path.insert(0, package)
    os.environ["PYTHONPATH"] = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(autouse=True)
def same_start():
    torch.manual_seed(0)
    torch.set_num_threads(1)

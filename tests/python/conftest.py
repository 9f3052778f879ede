"""Fixtures of the tests of python/lazy_attention. The package is the installed one, or else that of the source tree."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("lazy_attention") is None:  # neither installed nor named by PYTHONPATH
    package = str(Path(__file__).parents[2] / "python")
    sys.path.insert(0, package)
    os.environ["PYTHONPATH"] = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="module", autouse=True)
def one_thread_per_program():
    """Results of programs are compared bit by bit: their sums must be in one order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(autouse=True)
def same_start():
    """Every test begins with the same state of PyTorch, whichever tests ran before it."""
    import torch  # not above: a run that selects none of these tests does not wait for it

    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # compiled functions count towards a limit per process

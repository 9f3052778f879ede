"""Fixtures of the tests of python/lazy_attention. If the package is not installed, the source tree is used."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("lazy_attention") is None:  # neither installed nor on PYTHONPATH
    package = str(Path(__file__).parents[2] / "python")
    sys.path.insert(0, package)
    os.environ["PYTHONPATH"] = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="module", autouse=True)
def one_thread_per_program():
    """Limits programs to one thread. Some results are compared bitwise, so the order of summation must be fixed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(autouse=True)
def same_start():
    """Resets the state of PyTorch before every test, so that tests do not depend on earlier tests."""
    import torch  # imported here, so that runs without these tests do not wait for the import

    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # PyTorch limits the number of compiled functions per process

"""Labels and fixtures of the Python tests. tests/run_pytest.py runs the tests. docs/dev/testing.md describes the
labels."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LABELS = ("slow", "data", "real", "gpu")  # every other test is labelled `unit`

# Environment variables with the paths of build results, and the default location of each file in LAZY_BUILD_DIR. CMake
# sets all variables; for a manual run it is sufficient to set LAZY_BUILD_DIR.
BUILD_RESULTS = {
    "LAZY_BINARY": "lazy",
    "LAZY_KERNEL_LIBRARY": "src/attention/liblazy_attention.a",
    "LAZY_TORCH_OPS_LIBRARY": "liblazy_ops.so",
    "LAZY_TORCH_OPS_CUDA_LIBRARY": "liblazy_ops_cuda.so",
    "LAZY_OPS_LIBRARY": "python/liblazy_ops.so",
    "LAZY_OPS_CUDA_LIBRARY": "python/liblazy_ops_cuda.so",
    "LAZY_TEST_STABLE": "tests/libstable_functions.so",
    "LAZY_TEST_MODELS": "tests/write_models",
    "LAZY_TEST_MIXERS": "tests/write_mixers",
    "LAZY_TEST_LEARN_IN_TIME": "tests/learn_in_time",
}


def set_defaults():
    """Sets each of these environment variables that is not set to its file in LAZY_BUILD_DIR, if this file exists."""
    folder = os.environ.get("LAZY_BUILD_DIR")
    for variable, relative in BUILD_RESULTS.items() if folder else ():
        path = Path(folder).resolve() / relative
        if path.is_file():
            os.environ.setdefault(variable, str(path))


set_defaults()  # must run before test modules are imported, because some modules read the variables on import


def pytest_ignore_collect(collection_path, config):
    """With `-m LABEL` for one of LABELS, ignores files without that marker. Not importing them saves seconds."""
    label = config.getoption("markexpr")
    if label in LABELS and collection_path.suffix == ".py" and collection_path.is_file():
        return f"mark.{label}" not in collection_path.read_text(encoding="utf-8") or None
    return None


@pytest.hookimpl(tryfirst=True)  # must run before pytest evaluates `-m`
def pytest_collection_modifyitems(items):
    for item in items:
        found = [label for label in LABELS if item.get_closest_marker(label)]
        if len(found) > 1:  # otherwise the test would run once per label
            raise pytest.UsageError(f"{item.nodeid}: expected one of the labels {', '.join(LABELS)}, found {found}")
        if not found:
            item.add_marker("unit")


def built(variable):
    """Returns the build result to which the environment variable refers. Skips the test if the variable is not set."""
    path = os.environ.get(variable)
    if not path:
        pytest.skip(f"{variable} is not set: LAZY_BUILD_DIR names no build folder with {BUILD_RESULTS[variable]}")
    assert Path(path).is_file(), f"{variable}: no such file: {path}"
    return path


@pytest.fixture(scope="session")
def root():
    """Returns the root folder of the source tree."""
    return ROOT


@pytest.fixture(scope="session")
def built_file():
    """Returns the function `built`, for tests that need other build results than `lazy`."""
    return built


@pytest.fixture(scope="session")
def lazy_binary():
    """Returns the path of the program `lazy`."""
    return built("LAZY_BINARY")

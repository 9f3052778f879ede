"""Fixtures for tests that run `lazy serve`."""

import os

import pytest


@pytest.fixture(scope="session")
def model_folder(root):
    """Returns the path of a tiny Lazy model."""
    return str(root / "tests/compatibility/v0.1/lazy/model")


@pytest.fixture(scope="session")
def hybrid_folder(root):
    """Returns the path of a tiny model whose first layer has no attention."""
    return str(root / "tests/compatibility/v0.1/delta/model")


@pytest.fixture
def freed_memory_returns(monkeypatch):
    """Limits the memory that AddressSanitizer keeps after it was freed. Tests that measure the resident memory of a
    program need this."""
    options = [*filter(None, [os.environ.get("ASAN_OPTIONS")]), "quarantine_size_mb=1"]
    monkeypatch.setenv("ASAN_OPTIONS", ":".join(options))

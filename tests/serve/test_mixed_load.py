"""Runs mixed_load.py for 15 seconds, or longer if a slow machine needs more time for the minimum number of requests."""

import mixed_load
import pytest


@pytest.mark.slow
def test_mixed_load(lazy_binary, model_folder, freed_memory_returns):
    mixed_load.check(lazy_binary, model_folder, minutes=0.25)

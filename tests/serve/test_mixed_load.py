"""A quarter of a minute of mixed load, or longer where the machine needs it for the requests of a warm server."""

import mixed_load
import pytest


@pytest.mark.slow
def test_mixed_load(lazy_binary, model_folder, freed_memory_returns):
    mixed_load.check(lazy_binary, model_folder, minutes=0.25)

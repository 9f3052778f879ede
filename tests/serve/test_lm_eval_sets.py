"""Compares lm-evaluation-harness as a client of `lazy serve` with `lazy eval`. Each benchmark has LAZY_SERVE_DOCUMENTS
(default 20) documents."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("lm_eval_sets.py")  # runs as a separate process with the interpreter that has lm_eval


@pytest.mark.data
def test_served_results_equal_lazy_eval(lazy_binary):
    status = subprocess.run([sys.executable, SCRIPT, lazy_binary]).returncode
    if status == 77:
        pytest.skip("neither this interpreter nor LAZY_LM_EVAL_PYTHON has lm_eval")
    assert status == 0

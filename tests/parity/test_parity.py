"""Compares `lazy eval` with lm-evaluation-harness on the tiny model and the rows of tests/parity/data."""

import os
import subprocess
from pathlib import Path

import compare
import pytest
import record
import rows
import tiny_model

HERE = Path(__file__).parent
MODES = {"no_bos": ["--no-bos"], "bos": ["--bos"], "default": []}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_model.write(folder)
    return str(folder)


@pytest.mark.parametrize("mode", MODES)
def test_results_match_the_recorded_results(lazy_binary, model, mode, tmp_path):
    command = [lazy_binary, "eval", model, "--tasks", ",".join(rows.TASKS), "--data", HERE / "data", "--log-samples"]
    subprocess.run([*command, "--output", tmp_path, *MODES[mode]], check=True, stdout=subprocess.DEVNULL)
    # The tokenizer of the tiny model inserts BOS by default.
    assert compare.compare(record.expected_runs("no_bos" if mode == "no_bos" else "bos"), compare.load([tmp_path])) == 0


def harness_python():
    """Returns the interpreter LAZY_LM_EVAL_PYTHON. Skips the test if it is not set or cannot run the harness."""
    python = os.environ.get("LAZY_LM_EVAL_PYTHON")
    if not python:
        pytest.skip("LAZY_LM_EVAL_PYTHON is not set to a Python interpreter with lm_eval 0.4.13")
    imports = [python, "-c", "import lm_eval, torch, transformers, accelerate"]
    if subprocess.run(imports, stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip(f"{python} cannot import lm_eval, torch, transformers and accelerate")
    return python


@pytest.mark.data
@pytest.mark.parametrize("mode", MODES)
def test_results_match_the_harness(lazy_binary, model, mode, tmp_path):
    command = [harness_python(), HERE / "run.py", "--model", model, "--data", HERE / "data", "--lazy", lazy_binary]
    assert subprocess.run([*command, "--cache", tmp_path, *MODES[mode]]).returncode == 0

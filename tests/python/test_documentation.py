"""Runs all Python statements of docs/python.md and the examples."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("transformers")
pytestmark = pytest.mark.slow


def run(arguments, folder):
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_tour_of_the_documentation_runs(tmp_path):
    text = (ROOT / "docs" / "python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)
    assert len(blocks) > 5
    # Keep the line numbers of the page, so that errors refer to them.
    lines = [""] * len(text.splitlines())
    for match in re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M):
        start = text[: match.start(1)].count("\n")
        for n, line in enumerate(match[1].splitlines()):
            lines[start + n] = line
    if shutil.which(os.environ.get("CXX", "g++")) is None:  # only PyTorch's inductor needs a compiler
        lines[0] = "import functools, torch; torch.compile = functools.partial(torch.compile, backend='aot_eager')"
    (tmp_path / "python_md.py").write_text("\n".join(lines))
    run(["python_md.py"], tmp_path)


def test_llama_in_five_lines_runs(tmp_path):
    out = run([ROOT / "examples" / "llama_in_five_lines.py"], tmp_path)
    losses = [float(x) for x in re.findall(r"loss ([0-9.]+)", out)]
    assert losses[-1] < losses[0], out


def test_train_tiny_learns(tmp_path):
    out = run([ROOT / "examples" / "train_tiny.py", "--steps", "40"], tmp_path)
    recalls = dict(re.findall(r"^(\w+) +recalls ([0-9.]+) %", out, re.M))
    assert set(recalls) == {"softmax", "lazy"}
    assert all(float(x) > 90 for x in recalls.values()), out  # guessing gives 12.5 %

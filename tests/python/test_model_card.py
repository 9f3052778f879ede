"""Tests of the README.md that is written to the folders of Lazy models."""

import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("transformers")
from lazy_attention import hf  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402


def loads(folder, without=""):
    """Runs the Python code of the README in a new process, without lines that contain `without`."""
    code = re.search(r"^```python\n(.*?)^```", (folder / "README.md").read_text(), re.M | re.S)[1]
    lines = [line for line in code.splitlines() if not (without and without in line) and "tokenizer =" not in line]
    script = "\n".join([f"FOLDER = {str(folder)!r}", *lines, "print(type(model).__name__)"])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)


@pytest.fixture
def llama():
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, max_position_embeddings=64, **size))


@pytest.mark.slow  # starts processes that import transformers
def test_code_in_readme_of_converted_model_loads_it(llama, tmp_path):
    llama.save_pretrained(tmp_path / "base")
    assert not (tmp_path / "base/README.md").exists()
    hf.make_lazy(llama, 8).save_pretrained(tmp_path / "lazy")
    done = loads(tmp_path / "lazy")
    assert done.stdout.strip() == "LazyLlamaForCausalLM", done.stderr
    assert loads(tmp_path / "lazy", without="lazy_attention").returncode != 0


@pytest.mark.slow  # starts processes that import transformers
def test_code_in_readme_of_exported_model_loads_it(lazy_binary, root, tmp_path):
    source = root / "tests/compatibility/v0.1"
    subprocess.run([lazy_binary, "export", source / "lazy/model", tmp_path / "lazy"], check=True, capture_output=True)
    done = loads(tmp_path / "lazy")
    assert done.stdout.strip() == "LazyForCausalLM", done.stderr
    subprocess.run([lazy_binary, "export", source / "delta/model", tmp_path / "delta"], check=True, capture_output=True)
    assert not (tmp_path / "delta/README.md").exists()  # the Python package has no class for this model


def test_existing_readme_is_kept(llama, tmp_path):
    (tmp_path / "README.md").write_text("mine")
    hf.make_lazy(llama, 8).save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"

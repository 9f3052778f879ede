"""Runs all Python statements of docs/guides/python.md and the examples."""

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
    text = (ROOT / "docs/guides" / "python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)
    assert len(blocks) > 5
    # Keep the line numbers of the page, so that errors refer to them.
    lines = [""] * len(text.splitlines())
    for match in re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M):
        start = text[: match.start(1)].count("\n")
        for n, line in enumerate(match[1].splitlines()):
            lines[start + n] = line
    # PyTorch's default backend of torch.compile needs a C++ compiler. Without one, use a backend that needs none.
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        lines[0] = "import functools, torch; torch.compile = functools.partial(torch.compile, backend='aot_eager')"
    (tmp_path / "python_md.py").write_text("\n".join(lines))
    run(["python_md.py"], tmp_path)


def test_snippet_of_the_readme_runs(tmp_path):
    (snippet,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
    check = "assert out.shape == q.shape and all(t.grad is not None for t in (q, k, v, bias, tau))"
    run(["-c", f"{snippet}\n{check}"], tmp_path)


def program(beginning):
    """Returns the complete program on the page whose first lines contain `beginning`."""
    blocks = re.findall(r"^```py\n(.*?)^```", (ROOT / "docs/guides" / "python.md").read_text(), re.S | re.M)
    (found,) = (block for block in blocks if beginning in block)
    return found


def test_program_for_a_pretrained_checkpoint_runs(tmp_path):
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({c: n for n, c in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "model")
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("The capital of France is Paris. " * 40)
    source, count = re.subn(r'^FOLDER = ".*"$', 'FOLDER = "model"', program("FOLDER ="), flags=re.M)
    assert count == 1
    (tmp_path / "program.py").write_text(source)
    out = run(["program.py"], tmp_path)
    assert "The capital of France is" in out
    before, converted, *_ = losses = [float(x) for x in re.findall(r"held-out loss ([0-9.]+)", out)]
    # the conversion must not change the loss, because elastic attention with tau = 0 is softmax
    assert len(losses) == 4 and abs(converted - before) < 2e-3, out


def test_program_for_fsdp_runs(tmp_path):
    (tmp_path / "train_fsdp.py").write_text(program("train_fsdp.py"))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    losses = [float(x) for x in re.findall(r"loss ([0-9.]+)", run([*launcher, "train_fsdp.py"], tmp_path))]
    assert len(losses) == 8 and losses[-1] < losses[0]
    tensors = pytest.importorskip("safetensors.torch").load_file(tmp_path / "sharded" / "model.safetensors")
    tau = tensors["model.layers.1.self_attn.lazy_tau"]
    assert tau.shape == (4,) and not tau.equal(tau.bfloat16().float()), "tau must be trained in fp32"


def test_llama_in_five_lines_runs(tmp_path):
    out = run([ROOT / "examples" / "llama_in_five_lines.py"], tmp_path)
    losses = [float(x) for x in re.findall(r"loss ([0-9.]+)", out)]
    assert losses[-1] < losses[0], out


def test_train_tiny_learns(tmp_path):
    out = run([ROOT / "examples" / "train_tiny.py", "--steps", "40"], tmp_path)
    recalls = dict(re.findall(r"^(\w+) +recalls ([0-9.]+) %", out, re.M))
    assert set(recalls) == {"softmax", "lazy"}
    assert all(float(x) > 90 for x in recalls.values()), out  # guessing gives 12.5 %
